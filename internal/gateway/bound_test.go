package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// holding lets a request of the tenant's be tokenized until end is called.
func (b *bench) holding(tenant string, pad int) (end func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan struct{})
	body := `{"model":"echo","prompt":"` + holdText + `","user":"` + strings.Repeat("x", pad) + `"}`
	r, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+b.keys[tenant])
	go func() {
		defer close(ended)
		if resp, err := b.client.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	b.until(func() bool { return b.held(tenant) >= int64(len(body)) })
	return func() {
		cancel()
		<-ended
		b.until(func() bool { return b.held(tenant) == 0 })
	}
}

// held is how many bytes of bodies the tenant has in the gateway.
func (b *bench) held(tenant string) int64 {
	b.gateway.bodies.mu.Lock()
	defer b.gateway.bodies.mu.Unlock()
	return b.gateway.bodies.tenants[tenant]
}

// A client that hangs up ends the tokenization of its prompt; nothing is left of it.
func TestHangingUpEndsTokenization(t *testing.T) {
	b := newBench(t, setup{})
	b.holding("ada", 0)()
	b.until(func() bool {
		b.gateway.entry.mu.Lock()
		defer b.gateway.entry.mu.Unlock()
		return len(b.gateway.entry.tenants) == 0
	})
	if jobs, _, _ := b.cluster.counts(); jobs != 0 || b.gateway.bodies.used != 0 {
		t.Errorf("%d jobs were begun, %d bytes are left counted", jobs, b.gateway.bodies.used)
	}
}

// A prompt that is far over the limit is not counted to its end.
func TestFarOverTheLimitIsNotCountedToItsEnd(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.ContextTokens = 100 }})
	text := strings.Repeat("x", 500)
	for path, body := range map[string]string{
		"/v1/chat/completions": chat(text), "/v1/completions": `{"model":"echo","prompt":"` + text + `"}`, "/tokenize": `{"prompt":"` + text + `"}`,
	} {
		status, answer := b.answer(path, body)
		if status != 400 || !strings.Contains(answer, `"context_length_exceeded"`) || !strings.Contains(answer, "more than 200 tokens, the context limit is 100 tokens") {
			t.Errorf("%s: status %d, body %s; want 400 with a lower bound and the limit", path, status, answer)
		}
	}
}

// One tenant's bodies fill its own part; the whole is shared, and no number of it is told.
func TestBodiesAreBoundedInBytes(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) {
		c.BodyBytesMax, c.TenantBodiesBytesMax, c.BodiesBytesMax = 1000, 1200, 1500
	}})
	end := b.holding("ada", 800)
	big := chat(strings.Repeat("x", 500), `"max_tokens":1`)
	if status, text := b.answer("/v1/chat/completions", big); status != 429 || !strings.Contains(text, "request bodies of the tenant") {
		t.Errorf("over the tenant's part: status %d, body %s; want 429", status, text)
	}
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi"))); status != 200 {
		t.Errorf("another tenant: status %d, body %s; want 200", status, text)
	}
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat(strings.Repeat("x", 800)))); status != 503 || strings.ContainsAny(text, "0123456789") {
		t.Errorf("over the whole: status %d, body %s; want 503 without a number", status, text)
	}
	end()
	if status, text := b.answer("/v1/chat/completions", big); status != 200 || b.gateway.bodies.used != 0 {
		t.Errorf("with room again: status %d, body %s, %d bytes left counted", status, text, b.gateway.bodies.used)
	}
}

// A body that is begun has the room to be finished: what doesn't fit beside it is refused
// before it is read, not when both are half there.
func TestBodiesDoNotStarveEachOther(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) {
		c.BodyBytesMax, c.TenantBodiesBytesMax, c.BodiesBytesMax = 1000, 1200, 1500
	}})
	body := chat(strings.Repeat("x", 800), `"max_tokens":1`)
	head := func(tenant string) string {
		return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n", b.keys[tenant], len(body))
	}
	say := func(conn net.Conn, text string) {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(conn net.Conn) (int, string) {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return b.read(resp)
	}
	first := b.dial()
	say(first, head("ada")+"\r\n"+body[:1])
	b.until(func() bool { return b.held("ada") == int64(len(body)) })
	for tenant, want := range map[string]int{"ada": 429, "bob": 503} {
		second := b.dial()
		say(second, head(tenant)+"Expect: 100-continue\r\n\r\n") // it waits to be told to send
		if status, text := answer(second); status != want {
			t.Errorf("beside a body that is begun %s's gets status %d, body %s; want %d", tenant, status, text, want)
		}
	}
	say(first, body[1:])
	if status, text := answer(first); status != 200 {
		t.Errorf("the body that was begun gets status %d, body %s; want 200", status, text)
	}
	b.until(func() bool { return b.held("ada") == 0 })
	if b.gateway.bodies.used != 0 {
		t.Errorf("%d bytes are left counted", b.gateway.bodies.used)
	}
}

// Of the heavy bodies of a tenant one is parsed and tokenized at a time; others' and
// small ones pass.
func TestHeavyBodiesOneByOne(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.HeavyBodyBytes, c.QueueTimeout = 500, 20*time.Millisecond }})
	end := b.holding("ada", 800)
	heavy := chat(strings.Repeat("x", 500), `"max_tokens":1`)
	for _, c := range []struct {
		name, tenant, body string
		want               int
	}{{"the tenant's second", "ada", heavy, 429}, {"the tenant's small one", "ada", chat("hi"), 200}, {"another tenant's", "bob", heavy, 200}} {
		if status, text := b.read(b.doAs(c.tenant, "/v1/chat/completions", c.body)); status != c.want {
			t.Errorf("%s: status %d, body %s; want %d", c.name, status, text, c.want)
		}
	}
	end()
	if status, text := b.answer("/v1/chat/completions", heavy); status != 200 {
		t.Errorf("with the place free: status %d, body %s; want 200", status, text)
	}
}

func (b *bench) dial() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A client that sends all of a body before it reads gets to read why it is refused.
func TestRefusedBodiesAreAnswered(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.BodyBytesMax = 8 << 20 }})
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + b.keys["ada"] + "\r\n"
	body := strings.Repeat("x", 24<<20)
	for _, c := range []struct {
		name, send string
		half       bool
		status     int
		says       string
	}{
		{"too long", head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body), false, 413, "has 25165824 bytes, the limit is 8388608"},
		{"too long, in chunks", head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body), false, 413, "limit of 8388608"},
		{"too long, not sent yet", head + "Expect: 100-continue\r\nContent-Length: 25165824\r\n\r\n", false, 413, "limit is 8388608"},
		{"cut short", head + "Content-Length: 100\r\n\r\n{", true, 400, "ended after 1 bytes, 100 were announced"},
		{"cut short, in chunks", head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", true, 400, "broke off after 1 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := b.dial()
			if _, err := io.WriteString(conn, c.send); err != nil {
				t.Fatalf("the request can't be sent: %v", err)
			}
			if c.half {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("the answer can't be read: %v", err)
			}
			if status, text := b.read(resp); status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("status %d, body %s; want %d with %q", status, text, c.status, c.says)
			}
		})
	}
	if b.gateway.bodies.used != 0 {
		t.Errorf("%d bytes are left counted", b.gateway.bodies.used)
	}
}

// What an answer that doesn't stream may take in memory is known at admission.
func TestWholeAnswersAreBoundedInBytes(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.TenantAnswersBytesMax, c.AnswersBytesMax = 100_000, 150_000 }})
	many := []string{`"n":4`, `"max_tokens":10`, `"logprobs":true`, `"top_logprobs":20`}
	if status, text := b.answer("/v1/chat/completions", chat("hi", many...)); status != 400 ||
		!strings.Contains(text, "an answer of 40 tokens may take 220160 bytes before it is complete, the limit is 100000") {
		t.Errorf("status %d, body %s; want 400 with both numbers", status, text)
	}
	if status, text := b.answer("/v1/chat/completions", chat("hi", append(many, `"stream":true`)...)); status != 200 || !strings.Contains(text, "[DONE]") {
		t.Errorf("streamed: status %d, body %s; want 200", status, text)
	}
	waiting, proceed := make(chan struct{}), make(chan struct{})
	b.cluster.setHook(func(_ context.Context, job cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Token && e.Index == 0 && len(job.Tokens) == 5 {
			close(waiting)
			<-proceed
		}
		return nil
	})
	one := []string{`"max_tokens":15`, `"logprobs":true`, `"top_logprobs":20`}
	first := make(chan int)
	go func() {
		status, _, _ := b.ask("ada", chat("wait", one...))
		first <- status
	}()
	<-waiting
	if status, text := b.answer("/v1/chat/completions", chat("hi", one...)); status != 429 || !strings.Contains(text, "answers that don't stream of the tenant take 82560 bytes, 82560 more") {
		t.Errorf("over the tenant's part: status %d, body %s; want 429", status, text)
	}
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi", one...))); status != 503 || !strings.Contains(text, "no room for more answers") {
		t.Errorf("over the whole: status %d, body %s; want 503", status, text)
	}
	close(proceed)
	if status := <-first; status != 200 {
		t.Errorf("the first one: status %d, want 200", status)
	}
	b.until(func() bool {
		b.gateway.answers.mu.Lock()
		defer b.gateway.answers.mu.Unlock()
		return b.gateway.answers.used == 0
	})
}

// Logprobs that wait for a slow reader count, not only text.
func TestOutboxCountsLogprobs(t *testing.T) {
	token := tokenText{logprob: &cluster.TokenLogprobs{Top: make([]cluster.Logprob, 20)}}
	o := newOutbox(2 * (deltaBytes + logprobBytes + 20*alternativeBytes))
	for i, fits := range []bool{true, true, false} {
		if got := o.put(delta{piece: piece{tokens: []tokenText{token}}}); got != fits {
			t.Errorf("delta %d fits: %v, want %v", i, got, fits)
		}
	}
}

func TestBudget(t *testing.T) {
	b := newBudget("things", 10, 6)
	for _, c := range []struct {
		tenant string
		n      int64
		want   fault.Kind
	}{{"ada", 6, 0}, {"ada", 1, fault.Busy}, {"bob", 4, 0}, {"bob", 1, fault.Unavailable}, {"ada", -6, 0}, {"bob", 2, 0}, {"bob", 1, fault.Busy}, {"bob", -6, 0}} {
		if c.n < 0 {
			b.give(c.tenant, -c.n)
		} else if err := b.take(c.tenant, c.n); (err == nil) != (c.want == 0) || err != nil && fault.Of(err) != c.want {
			t.Errorf("%s takes %d: %v, want %v", c.tenant, c.n, err, c.want)
		}
	}
	if b.used != 0 || len(b.tenants) != 0 {
		t.Errorf("%d is left used, %d tenants remembered", b.used, len(b.tenants))
	}
}
