package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
	"github.com/bulkhead-kv/bulkhead/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a gateway over an echoCluster, served on loopback.
type bench struct {
	t       *testing.T
	cluster *echoCluster
	gateway *Gateway
	record  *record
	tenants string // path of the tenants file
	folder  *tenant.Directory
	keys    map[string]string
	url     string
	client  *http.Client
	logs    *logs
}

// logs keeps what was logged, to be searched for what must not stand there.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type setup struct {
	config  func(*Config)
	members []cluster.Member
	workers Cluster // instead of an echoCluster
	limits  map[string]tenant.Limits
}

// newBench serves tenants ada and bob; a pair of workers with 64 pages each
// unless the setup says otherwise.
func newBench(t *testing.T, s setup) *bench {
	t.Helper()
	b := &bench{t: t, record: &record{}, keys: map[string]string{}, logs: &logs{}, tenants: filepath.Join(t.TempDir(), "tenants.json")}
	for _, name := range []string{"ada", "bob"} {
		key, err := tenant.Add(b.tenants, name, s.limits[name], time.Now())
		if err != nil {
			t.Fatal(err)
		}
		b.keys[name] = key
	}
	log := slog.New(slog.NewTextHandler(b.logs, nil))
	var err error
	if b.folder, err = tenant.Open(b.tenants, log); err != nil {
		t.Fatal(err)
	}
	if s.members == nil {
		s.members = []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64)}
	}
	b.cluster = newEchoCluster(s.members...)
	if s.workers == nil {
		s.workers = b.cluster
	}
	config := Default()
	config.Model, config.ReserveTokens, config.OpenMetrics = "echo", 100, true
	config.BusyBackoff, config.OutageTimeout, config.LostFor = time.Millisecond, time.Second, time.Millisecond
	if s.config != nil {
		s.config(&config)
	}
	b.gateway, err = New(config, Parts{Cluster: s.workers, Fingerprint: kv.Fingerprint{1}, Text: echoText{}, Tenants: b.folder, Ledger: b.record, Metrics: metrics.New(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	return b
}

func (b *bench) start() {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.gateway.Run(ctx) })
	server := httptest.NewServer(b.gateway.Handler())
	b.url, b.client = server.URL, server.Client()
	b.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		stop()
		running.Wait()
		if _, open, _ := b.cluster.counts(); open != 0 {
			b.t.Errorf("%d streams to workers are left open", open)
		}
		b.gateway.dispatch.mu.Lock()
		defer b.gateway.dispatch.mu.Unlock()
		if !b.gateway.dispatch.loads.Empty() {
			b.t.Errorf("pages and tokens are left counted: %+v", b.gateway.dispatch.loads)
		}
		if n := b.gateway.dispatch.running; n != 0 || b.gateway.dispatch.queue.Len() != 0 {
			b.t.Errorf("%d choices are left running and %d waiting", n, b.gateway.dispatch.queue.Len())
		}
	})
}

// do sends a body with ada's key.
func (b *bench) do(path, body string) *http.Response {
	b.t.Helper()
	return b.doAs("ada", path, body)
}

func (b *bench) doAs(name, path, body string) *http.Response {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), "POST", b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+b.keys[name])
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

// answer reads a whole response.
func (b *bench) answer(path, body string) (status int, text string) {
	b.t.Helper()
	return b.read(b.do(path, body))
}

func (b *bench) read(resp *http.Response) (int, string) {
	b.t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// chat is the body of a chat request for the echo of a text.
func chat(text string, more ...string) string {
	content, _ := json.Marshal(text)
	return `{"model":"echo","messages":[{"role":"user","content":` + string(content) + `}]` + strings.Join(append([]string{""}, more...), ",") + `}`
}

// events reads a stream's data lines to its end.
func events(t *testing.T, body io.Reader) (data []string) {
	t.Helper()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, d)
		}
	}
	return data
}

// spoken joins what a chat stream says in one choice.
func spoken(t *testing.T, data []string, index int) (text string, finishes []string) {
	t.Helper()
	for _, d := range data {
		var chunk struct {
			Choices []struct {
				Index        int
				Delta        struct{ Content string }
				Text         string
				FinishReason *string `json:"finish_reason"`
			}
		}
		if d == "[DONE]" || json.Unmarshal([]byte(d), &chunk) != nil {
			continue
		}
		for _, c := range chunk.Choices {
			if c.Index == index {
				text += c.Delta.Content + c.Text
				if c.FinishReason != nil {
					finishes = append(finishes, *c.FinishReason)
				}
			}
		}
	}
	return text, finishes
}

// metric is the value of the first series of the metrics page that begins so.
func (b *bench) metric(series string) string {
	b.t.Helper()
	resp, err := b.client.Get(b.url + "/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	_, text := b.read(resp)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// model is the context that /v1/models advertises.
func (b *bench) model() int {
	b.t.Helper()
	r, _ := http.NewRequestWithContext(b.t.Context(), "GET", b.url+"/v1/models", nil)
	r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	var list struct {
		Data []struct {
			MaxModelLen int `json:"max_model_len"`
		}
	}
	if _, text := b.read(resp); json.Unmarshal([]byte(text), &list) != nil || len(list.Data) != 1 {
		b.t.Fatalf("/v1/models gives %s", text)
	}
	return list.Data[0].MaxModelLen
}

// until waits for a state of the gateway; between two looks it asks an idle
// server's health, which gives others their turn.
func (b *bench) until(state func() bool) {
	b.t.Helper()
	idle := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer idle.Close()
	for !state() {
		resp, err := idle.Client().Get(idle.URL)
		if err != nil {
			b.t.Fatal(err)
		}
		resp.Body.Close()
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
