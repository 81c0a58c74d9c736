package gateway

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// What an operator reads has a listener of its own. On the API's it is served only
// where the configuration says so, because tenants could watch each other through it.
func TestAdminRoutesAreTheOperators(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.OpenMetrics = false }})
	b.cluster.change(func(m []cluster.Member) { m[0].Up = false })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.gateway.ServeAdmin(ctx, listener) }()
	admin := "http://" + listener.Addr().String()
	b.until(func() bool { ok, _ := b.gateway.Ready(); return !ok })
	for _, c := range []struct {
		url    string
		status int
		says   string
		lacks  string
	}{
		{b.url + "/metrics", http.StatusNotFound, "not_found", "bulkhead_"},
		{b.url + "/readyz", http.StatusServiceUnavailable, "not ready", "p: not connected"},
		{b.url + "/healthz", http.StatusOK, "ok", " "},
		{admin + "/metrics", http.StatusOK, "bulkhead_context_limit_tokens", b.keys["ada"]},
		{admin + "/readyz", http.StatusServiceUnavailable, "p: not connected", b.keys["ada"]},
		{admin + "/healthz", http.StatusOK, "ok", " "},
		{admin + "/v1/models", http.StatusNotFound, "not_found", "echo"},
	} {
		resp, err := b.client.Get(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := b.read(resp); status != c.status || !strings.Contains(text, c.says) || strings.Contains(text, c.lacks) {
			t.Errorf("%s: status %d, body %.200s; want %d with %q and without %q", c.url, status, text, c.status, c.says, c.lacks)
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("at its end it returns %v", err)
	}
	b.client.CloseIdleConnections()
}

// An operator whose change to the tenants has no effect can see it.
func TestABrokenTenantsFileIsAMetric(t *testing.T) {
	b := newBench(t, setup{})
	good, err := os.ReadFile(b.tenants)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name, data, want string
	}{{"at first", string(good), "0"}, {"broken", "{", "1"}, {"mended", string(good), "0"}} {
		if err := os.WriteFile(b.tenants, []byte(step.data), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = b.folder.Poll() // the metric says whether that failed
		if got := b.metric("bulkhead_tenants_file_failed"); got != step.want {
			t.Errorf("%s: the metric is %q, want %s", step.name, got, step.want)
		}
		if got := b.metric("bulkhead_tenants"); got != "2" {
			t.Errorf("%s: %s tenants are known, want 2", step.name, got)
		}
	}
}

// What a worker counts since its start is a counter here that outlives the worker.
func TestAWorkersCountsAreCounters(t *testing.T) {
	b := newBench(t, setup{})
	for _, step := range []struct {
		name   string
		change func(*cluster.Member)
		want   string
	}{
		{"at first", func(*cluster.Member) {}, "0"},
		{"two failures", func(m *cluster.Member) { m.CertificateFailures = 2; m.Refused = map[string]int{"torn": 5} }, "2"},
		{"no more", func(*cluster.Member) {}, "2"},
		{"restarted, one failure since", func(m *cluster.Member) { m.Epoch++; m.CertificateFailures = 1 }, "3"},
		{"and another", func(m *cluster.Member) { m.CertificateFailures = 2 }, "4"},
	} {
		b.cluster.change(func(m []cluster.Member) { step.change(&m[0]) })
		if got := b.metric(`bulkhead_worker_certificate_failures_total{node="p",role="prefill"}`); got != step.want {
			t.Errorf("%s: the counter is %q, want %s", step.name, got, step.want)
		}
	}
	if got := b.metric(`bulkhead_worker_refused_pages_total{node="p",reason="torn",role="prefill"}`); got != "10" {
		t.Errorf("5 pages were refused before the restart and 5 after it, the counter is %q", got)
	}
}

// What a worker said before it went is not shown as if it still were so.
func TestAWorkerThatWentLeavesNoNumbers(t *testing.T) {
	b := newBench(t, setup{})
	b.cluster.change(func(m []cluster.Member) {
		m[1].Running, m[1].FreePages, m[1].Peers = 3, m[1].Limits.UsablePages/2, []cluster.PeerStatus{{Node: "p", Up: true}}
	})
	kept := map[string][2]string{ // up, gone
		`bulkhead_worker_up{node="d",role="decode"}`:               {"1", "0"},
		`bulkhead_worker_held_pages{node="d",role="decode"}`:       {"0", "0"},
		`vllm:num_requests_running{model_name="echo"}`:             {"3", "0"},
		`vllm:kv_cache_usage_perc{model_name="echo"}`:              {"0.5", "0"},
		`bulkhead_worker_running_jobs{node="d",role="decode"}`:     {"3", ""},
		`bulkhead_worker_peer_up{node="d",peer="p",role="decode"}`: {"1", ""},
		`bulkhead_worker_ledger_failed{node="d",role="decode"}`:    {"0", ""},
	}
	for i, up := range []bool{true, false} {
		b.cluster.change(func(m []cluster.Member) { m[1].Up = up })
		for series, want := range kept {
			if got := b.metric(series); got != want[i] {
				t.Errorf("up is %v: %s is %q, want %q", up, series, got, want[i])
			}
		}
	}
	if got := b.metric(`bulkhead_worker_pages{node="d",role="decode",state="free"}`); got != "" {
		t.Errorf("the free pages of a worker that is gone are %q, want no series", got)
	}
}
