package gateway

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
)

func (b *bench) send(method, path, key, body string, chunked bool) *http.Response {
	b.t.Helper()
	var reader io.Reader = strings.NewReader(body)
	if chunked {
		reader = struct{ io.Reader }{reader} // of a length that nobody knows
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, reader)
	if err != nil {
		b.t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", key)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

func TestRoutes(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.BodyBytesMax = 1000 }})
	good := "Bearer " + b.keys["ada"]
	big := chat(strings.Repeat("x", 1000))
	for _, c := range []struct {
		name, method, path, key, body string
		chunked                       bool
		status                        int
		says                          string
	}{
		{"no key", "POST", "/v1/chat/completions", "", chat("a"), false, 401, `"invalid_api_key"`},
		{"wrong key", "POST", "/v1/chat/completions", "Bearer bh_wrong", chat("a"), false, 401, `"invalid_api_key"`},
		{"another scheme", "POST", "/v1/chat/completions", "Basic " + b.keys["ada"], chat("a"), false, 401, `"invalid_api_key"`},
		{"scheme in other letters", "POST", "/v1/chat/completions", "bearer " + b.keys["ada"], chat("a"), false, 200, `"content":"a"`},
		{"body over the limit", "POST", "/v1/chat/completions", good, big, false, 413, "limit is 1000"},
		{"chunked body over the limit", "POST", "/v1/chat/completions", good, big, true, 413, "limit of 1000"},
		{"chunked body", "POST", "/v1/chat/completions", good, chat("a"), true, 200, `"content":"a"`},
		{"wrong key and a body over the limit", "POST", "/v1/completions", "Bearer bh_x", big, false, 401, `"invalid_api_key"`},
		{"wrong method", "GET", "/v1/chat/completions", good, "", false, 405, `"method_not_allowed"`},
		{"no such route", "GET", "/v2/x", good, "", false, 404, `"not_found"`},
		{"models", "GET", "/v1/models", good, "", false, 200, `"id":"echo"`},
		{"models without a key", "GET", "/v1/models", "", "", false, 401, `"invalid_api_key"`},
		{"model", "GET", "/v1/models/echo", good, "", false, 200, `"context_length":1024`},
		{"unknown model", "GET", "/v1/models/a/b", good, "", false, 404, "known: echo"},
		{"tokenize", "POST", "/tokenize", good, `{"prompt":"ab","return_token_strs":true}`, false, 200, `{"count":2,"max_model_len":1024,"tokens":[97,98],"token_strs":["a","b"]}`},
		{"tokenize a conversation", "POST", "/tokenize", good, `{"model":"echo","messages":[{"role":"user","content":"a"}]}`, false, 200, `"tokens":[256,97]`},
		{"tokenize nothing", "POST", "/tokenize", good, `{"prompt":""}`, false, 200, `"tokens":[]`},
		{"tokenize for another model", "POST", "/tokenize", good, `{"model":"x","prompt":""}`, false, 404, "known: echo"},
		{"tokenize a number", "POST", "/tokenize", good, `{"prompt":1}`, false, 400, `"param":"prompt"`},
		{"tokenize without a key", "POST", "/tokenize", "", `{"prompt":"a"}`, false, 401, `"invalid_api_key"`},
		{"healthz by HEAD", "HEAD", "/healthz", "", "", false, 200, ""},
		{"healthz", "GET", "/healthz", "", "", false, 200, "ok"},
		{"metrics", "GET", "/metrics", "", "", false, 200, "bulkhead_context_limit_tokens 1024"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := b.send(c.method, c.path, c.key, c.body, c.chunked)
			status, text := b.read(resp)
			if status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("status %d, body %s; want %d with %s", status, text, c.status, c.says)
			}
			if status >= 400 {
				checkErrorShape(t, text)
			}
		})
	}
}

// Every response has a name to speak of, also one that refuses.
func TestEveryResponseHasAnID(t *testing.T) {
	b := newBench(t, setup{})
	seen := map[string]bool{}
	for _, c := range []struct {
		method, path, key, body string
		want                    int
	}{
		{"POST", "/v1/chat/completions", b.keys["ada"], "{", 400},
		{"POST", "/v1/chat/completions", "bh_wrong", "{}", 401},
		{"GET", "/nowhere", "", "", 404},
		{"GET", "/v1/chat/completions", "", "", 405},
		{"GET", "/healthz", "", "", 200},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), c.method, b.url+c.path, strings.NewReader(c.body))
		r.Header.Set("Authorization", "Bearer "+c.key)
		resp, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		status, _ := b.read(resp)
		id := resp.Header.Get("X-Request-Id")
		if status != c.want || !strings.HasPrefix(id, "req-") || seen[id] {
			t.Errorf("%s %s: status %d, id %q; want %d and an id of its own", c.method, c.path, status, id, c.want)
		}
		seen[id] = true
	}
}

// The line at a request's end says whose it was, by tag, and what was made.
func TestRequestEndedLine(t *testing.T) {
	b := newBench(t, setup{})
	if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
		t.Fatalf("status %d, %s", status, text)
	}
	b.until(func() bool { return strings.Contains(b.logs.String(), "request ended") })
	if !regexp.MustCompile(`msg="request ended" .*tenant=[0-9a-f]{16} outcome=ok choices=1 prompt_tokens=6 output_tokens=5 `).MatchString(b.logs.String()) {
		t.Errorf("the log lacks tenant or counts:\n%s", b.logs.String())
	}
}

func TestUnknownModelIsNamed(t *testing.T) {
	b := newBench(t, setup{})
	_, text := b.answer("/v1/chat/completions", strings.Replace(chat("a"), `"model":"`, `"model":"\u0007`+strings.Repeat("x", 200), 1))
	if !strings.Contains(text, strings.Repeat("x", 50)) || strings.Contains(text, strings.Repeat("x", 65)) || !strings.Contains(text, "known: ") {
		t.Errorf("the body %s must name what was asked for, cut short, and what there is", text)
	}
}

func TestReasonsAreBare(t *testing.T) {
	job := &cluster.Job{Request: 20, Attempt: 1}
	for reason, want := range map[string]string{
		"request 20 attempt 1 at d0: connection refused (Unavailable)": "connection refused (Unavailable)",
		"request 20 attempt 1: its time is over":                       "its time is over",
		"request 21 attempt 1: its time is over":                       "request 21 attempt 1: its time is over",
	} {
		if got := bare(reason, job, "d0"); got != want {
			t.Errorf("%q is told as %q, want %q", reason, got, want)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	b := newBench(t, setup{})
	ids := map[string]bool{}
	for _, c := range []struct{ sent, want string }{{"abc-1", "abc-1"}, {"", "chatcmpl-"}, {strings.Repeat("x", 129), "chatcmpl-"}, {"a b", "chatcmpl-"}} {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", b.url+"/v1/chat/completions", strings.NewReader(chat("a")))
		r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
		r.Header.Set("X-Request-Id", c.sent)
		r.Header.Set("X-Prefiller-Host-Port", "evil:1")
		resp, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, text := b.read(resp)
		if got := resp.Header.Get("X-Request-Id"); !strings.HasPrefix(got, c.want) {
			t.Errorf("X-Request-Id of %d bytes is answered with %q, want %s", len(c.sent), got, c.want)
		}
		ids[answerID(t, text)] = true
	}
	if len(ids) != 4 {
		t.Errorf("4 answers have %d ids", len(ids))
	}
	for _, e := range b.record.all(EntryAccepted) {
		delete(ids, "chatcmpl-"+e.Answer)
		if len(e.Answer) != 32 || strings.Contains(e.Answer, fmt.Sprintf("%x", b.gateway.boot)) {
			t.Errorf("the answer is called %q, want 128 random bits", e.Answer)
		}
	}
	if len(ids) != 0 {
		t.Errorf("the ledger does not know the answers %v", ids)
	}
	if got := b.metric(`bulkhead_dropped_fields_total{field="x-prefiller-host-port"}`); got != "4" {
		t.Errorf("the dropped header is counted %q times, want 4", got)
	}
}

func answerID(t *testing.T, text string) string {
	t.Helper()
	var answer struct{ ID string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("the answer is no JSON: %v", err)
	}
	return answer.ID
}

// A client that stops reading is cut off; its jobs end and hold nobody up.
func TestSlowClientIsCutOff(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.OutboxBytesMax, c.WriteTimeout = 4096, time.Hour }, members: []cluster.Member{
		member("p", cluster.Prefill, 1<<16), member("d", cluster.Decode, 1<<16)}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := chat(strings.Repeat("x", 200_000), `"stream":true`, `"max_tokens":200000`)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", b.keys["ada"], len(body), body)
	b.until(func() bool { return b.metric("bulkhead_slow_clients_total") == "1" })
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi"))); status != 200 {
		t.Errorf("another client gets %d, %s", status, text)
	}
	got, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(got), "HTTP/1.1 200") || strings.HasSuffix(string(got), "0\r\n\r\n") {
		t.Errorf("the slow client got %d bytes that end in %q, want a stream that breaks off", len(got), got[max(0, len(got)-20):])
	}
	b.settled()
}

// raw sends one request of ada's on a connection of its own.
func (b *bench) raw(path, body string) *net.TCPConn {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, b.keys["ada"], len(body), body)
	return conn.(*net.TCPConn)
}

// A client that half closes counts as gone. It must not find a response there that
// looks complete: neither an empty 200, nor a stream that ends as one in good order.
func TestHalfClosedClientGetsNoCompleteResponse(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			b := newBench(t, setup{})
			waiting := make(chan struct{})
			b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
				if role == cluster.Decode && e.Kind == cluster.Token && e.Index == 1 {
					close(waiting)
					<-ctx.Done()
				}
				return nil
			})
			conn := b.raw("/v1/chat/completions", chat("abc", fmt.Sprintf(`"stream":%v`, stream)))
			<-waiting
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(conn) // broken, or closed in the middle of a response
			if !stream && len(got) > 0 || strings.HasSuffix(string(got), "0\r\n\r\n") || strings.Contains(string(got), "[DONE]") {
				t.Errorf("the client got %q, want nothing that ends in good order", got)
			}
			b.settled()
		})
	}
}

// A body that never comes holds nothing, and a client that sends half of a
// request and closes leaves nothing.
func TestBodyTimeout(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.BodyTimeout = 10 * time.Millisecond }})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", b.keys["ada"])
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := b.read(resp); status != 400 || !strings.Contains(text, "did not come in whole") {
		t.Errorf("status %d, body %s; want 400", status, text)
	}
}

// Requests of a tenant over its places wait, and those of another don't.
func TestEntry(t *testing.T) {
	e := newEntry(1, time.Hour)
	if err := errors.Join(e.enter(t.Context(), "ada"), e.enter(t.Context(), "bob")); err != nil {
		t.Fatal(err)
	}
	entered := make(chan error)
	go func() { entered <- e.enter(context.Background(), "ada") }()
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := e.enter(gone, "bob"); fault.Of(err) != fault.Cancelled {
		t.Errorf("a client that is gone waits: %v", err)
	}
	e.leave("ada")
	if err := <-entered; err != nil {
		t.Errorf("the one that waited gets %v", err)
	}
	e.wait = time.Millisecond
	if err := e.enter(t.Context(), "ada"); fault.Of(err) != fault.Busy {
		t.Errorf("no place came free: %v, want busy", err)
	}
	e.leave("ada")
	e.leave("bob")
	if len(e.tenants) != 0 {
		t.Errorf("%d tenants are remembered for nothing", len(e.tenants))
	}
}

func (b *bench) serve(secure *tls.Config) (address string, stop func() error) {
	b.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.gateway.Serve(ctx, listener, secure) }()
	return listener.Addr().String(), func() error {
		cancel()
		return <-served
	}
}

// A stopping server lets what runs end, and refuses what comes.
func TestDrain(t *testing.T) {
	b := newBench(t, setup{})
	address, stop := b.serve(nil)
	reached, release := make(chan struct{}), make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Finished {
			close(reached)
			wait(ctx, release)
		}
		return nil
	})
	other := b.url
	b.url = "http://" + address
	answered := make(chan string)
	go func() {
		_, text := b.answer("/v1/chat/completions", chat("hello"))
		answered <- text
	}()
	<-reached
	stopped := make(chan error)
	go func() { stopped <- stop() }()
	b.until(b.gateway.draining.Load)
	for _, at := range []string{b.url, other} { // where it listens, and where nobody closed anything
		b.url = at
		resp := b.do("/v1/chat/completions", chat("late"))
		status, text := b.read(resp)
		if status != 503 || resp.Header.Get("Retry-After") != "1" || !resp.Close {
			t.Errorf("while stopping: status %d, Retry-After %q, closes %v, body %s; want 503, 1, true", status, resp.Header.Get("Retry-After"), resp.Close, text)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503} {
		resp, err := b.client.Get("http://" + address + path)
		if err != nil {
			t.Fatalf("while stopping nobody listens: %v", err)
		}
		if status, text := b.read(resp); status != want {
			t.Errorf("while stopping: %s gives %d, %s; want %d", path, status, text, want)
		}
	}
	if ok, why := b.gateway.Ready(); ok || !strings.Contains(why, "stopping") {
		t.Errorf("while stopping: ready %v, %q", ok, why)
	}
	close(release)
	if text := <-answered; !strings.Contains(text, `"content":"hello"`) {
		t.Errorf("the running request is answered with %s", text)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	if said := b.logs.String(); strings.Count(said, "draining: ") != 1 || !strings.Contains(said, "requests=1 limit=30s") {
		t.Errorf("one running request is not told once, with the limit:\n%s", said)
	}
	if strings.Contains(b.logs.String(), "request failed") {
		t.Errorf("each refusal of a drain is a warning:\n%s", b.logs.String())
	}
	b.client.CloseIdleConnections()
}

// A drain waits for what began before it and for nothing else.
func TestWork(t *testing.T) {
	w := work{idle: make(chan struct{})}
	idle := func() bool {
		select {
		case <-w.idle:
			return true
		default:
			return false
		}
	}
	for range 2 {
		if !w.begin() {
			t.Fatal("work is refused before the drain")
		}
	}
	if got := w.running(); got != 2 {
		t.Errorf("%d run, want 2", got)
	}
	w.end()
	w.close()
	if got := w.running(); got != 1 {
		t.Errorf("%d run when one has ended, want 1", got)
	}
	if w.begin() || idle() {
		t.Errorf("in the drain work is begun, or idle %v with one left", idle())
	}
	w.end()
	w.close()
	if !idle() {
		t.Error("the last one's end is not told")
	}
}

// A drain that waits for nothing says nothing.
func TestIdleDrainIsSilent(t *testing.T) {
	b := newBench(t, setup{})
	_, stop := b.serve(nil)
	if err := stop(); err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	if said := b.logs.String(); strings.Contains(said, "draining") {
		t.Errorf("nothing runs, and the log says:\n%s", said)
	}
}

// What runs longer than the drain's deadline ends with an error.
func TestDrainDeadline(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.DrainTimeout = 10 * time.Millisecond }})
	address, stop := b.serve(nil)
	reached := make(chan struct{}, 1)
	b.cluster.setHook(stalls(reached))
	b.url = "http://" + address
	resp := b.do("/v1/chat/completions", chat("hello", `"stream":true`))
	defer resp.Body.Close()
	<-reached
	stopped := make(chan error)
	go func() { stopped <- stop() }()
	data := events(t, resp.Body)
	if last := data[len(data)-1]; !strings.Contains(last, "the server is stopping") {
		t.Errorf("the stream ends with %s", last)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	b.client.CloseIdleConnections()
}

func TestServesTLS(t *testing.T) {
	b := newBench(t, setup{})
	secure, pool := certificate(t)
	address, stop := b.serve(secure)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+address+"/v1/chat/completions", strings.NewReader(chat("hello", `"stream":true`)))
	r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := b.read(resp); status != 200 || resp.ProtoMajor != 2 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("over TLS: status %d, HTTP %d, %s", status, resp.ProtoMajor, text)
	}
	client.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("Serve ended with %v", err)
	}
}

func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, pool
}

// Every kind of error has a row, and the row's own code.
func TestErrorTable(t *testing.T) {
	codes := map[string]fault.Kind{}
	for kind := fault.Internal; kind <= fault.Corrupt; kind++ {
		a := answerTo(kind)
		if other, taken := codes[a.code]; taken || a.status < 400 || a.kind == "" {
			t.Errorf("%s is answered like %s: %+v", kind, other, a)
		}
		codes[a.code] = kind
	}
	body, status, _ := apiError(errors.New("secret detail"))
	if status != 500 || strings.Contains(body.Message, "secret") {
		t.Errorf("an unknown error is shown as %d, %s", status, body.Message)
	}
	long, _, _ := apiError(fault.New(fault.Invalid, "%s", strings.Repeat("x", 10_000)))
	if len(long.Message) > errorBytesMax {
		t.Errorf("a message of %d bytes leaves, the most is %d", len(long.Message), errorBytesMax)
	}
	if _, status, _ := apiError(&openai.Error{}); status != 400 {
		t.Errorf("a decoding error has status %d", status)
	}
}

func TestConfigNamesAllMistakes(t *testing.T) {
	err := Config{ContextTokens: -1}.Validate()
	for _, name := range []string{"no name", "context tokens is -1", "queue length", "drain timeout", "outbox bytes"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the mistakes lack %q: %v", name, err)
		}
	}
	good := Default()
	good.Model = "m"
	if err := good.Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
	if _, err := New(good, Parts{}); err == nil {
		t.Error("a gateway without parts is made")
	}
}
