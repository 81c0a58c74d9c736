package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// echoWorker is the echoCluster's worker behind a real server.
type echoWorker struct {
	*cluster.Board
	role  cluster.Role
	epoch kv.Epoch
	crash func(job cluster.Job, e cluster.Event) bool // ends the job as a lost worker would
}

func (w *echoWorker) Run(ctx context.Context, job cluster.Job, emit func(cluster.Event) error) error {
	for _, e := range script(job, w.role, w.epoch) {
		if w.crash != nil && w.crash(job, e) {
			return fault.New(fault.Unavailable, "the worker is going down")
		}
		if err := emit(e); err != nil {
			return err
		}
	}
	return nil
}

// wired starts a pair of real servers on sockets in a folder and a client of them.
func wired(t *testing.T, crash func(cluster.Job, cluster.Event) bool) Cluster {
	t.Helper()
	folder := t.TempDir()
	text := "model: echo\ntls: {plaintext: true}\ngateway: {listen: \"127.0.0.1:0\"}\nworkers:\n"
	for _, node := range []string{"p", "d"} {
		text += fmt.Sprintf("- {name: %s, role: %s, control: \"unix://%s\", transfer: \"shm://%s\"}\n", node,
			map[string]string{"p": "prefill", "d": "decode"}[node], filepath.Join(folder, node+".sock"), filepath.Join(folder, node+".shm"))
	}
	file, err := cluster.ParseFile([]byte(text), folder)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	for node, role := range map[string]cluster.Role{"p": cluster.Prefill, "d": cluster.Decode} {
		status := member(node, role, 4096).Status
		worker := &echoWorker{cluster.NewBoard(status), role, status.Epoch, crash}
		listener, err := net.Listen("unix", filepath.Join(folder, node+".sock"))
		if err != nil {
			t.Fatal(err)
		}
		server := cluster.NewServer(cluster.ServerConfig{Security: cluster.Plaintext()}, worker)
		serving.Go(func() { _ = server.Serve(ctx, listener) })
	}
	client, err := cluster.NewClient(file, cluster.Options{Security: cluster.Plaintext()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		stop()
		serving.Wait()
	})
	return Workers(client)
}

// Over real connections to real servers: 200 requests of two tenants at once,
// each answered with its own text.
func TestOverTheWire(t *testing.T) {
	lost := func(job cluster.Job, e cluster.Event) bool {
		return job.Request%7 == 0 && job.Attempt == 1 && e.Kind == cluster.Committed && !job.Probe
	}
	b := newBench(t, setup{workers: wired(t, lost)})
	b.until(func() bool { ok, _ := b.gateway.Ready(); return ok })
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			tenant := []string{"ada", "bob"}[i%2]
			text := fmt.Sprintf("%s asked for number %d", tenant, i)
			stream := i%3 == 0
			status, body, err := b.ask(tenant, chat(text, fmt.Sprintf(`"stream":%v`, stream), `"max_tokens":60`))
			if stream {
				body, _ = spoken(t, events(t, strings.NewReader(body)), 0)
			} else if strings.Contains(body, `"content":"`+text+`"`) {
				body = text
			}
			if err != nil || status != 200 || body != text {
				t.Errorf("request %d: %v, status %d, answer %q", i, err, status, body)
			}
		})
	}
	all.Wait()
	if n := b.metric(`bulkhead_retries_total{reason="lost"}`); n == "" {
		t.Error("no request was tried again, though every seventh lost its worker")
	}
	b.client.CloseIdleConnections()
}

// ask is doAs for goroutines that are not the test's own.
func (b *bench) ask(tenant, body string) (int, string, error) {
	r, err := http.NewRequest("POST", b.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+b.keys[tenant])
	resp, err := b.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}
