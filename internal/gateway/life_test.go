package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// dies breaks a worker's stream at an event of its first so many attempts.
func dies(role cluster.Role, kind cluster.EventKind, attempts uint32) hook {
	return func(_ context.Context, job cluster.Job, r cluster.Role, e *cluster.Event) error {
		if r == role && e.Kind == kind && job.Attempt <= attempts {
			return fault.New(fault.Unavailable, "the connection broke")
		}
		return nil
	}
}

// fails lets a worker refuse its first so many attempts.
func fails(role cluster.Role, kind fault.Kind, attempts uint32) hook {
	return func(_ context.Context, job cluster.Job, r cluster.Role, e *cluster.Event) error {
		if r == role && e.Kind == cluster.Accepted && job.Attempt <= attempts {
			e.Kind, e.Fault, e.Reason = cluster.Failed, kind, "refused"
			e.Epoch++ // a worker of another epoch refuses with its own
		}
		return nil
	}
}

// A worker that is lost costs one retry before the first token and none after;
// a busy one costs a bounded number of tries.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name     string
		hook     hook
		status   int
		says     string
		attempts int
	}{
		{"prefill dies once", dies(cluster.Prefill, cluster.Accepted, 1), 200, `"content":"hello"`, 2},
		{"prefill dies in the middle", dies(cluster.Prefill, cluster.Progress, 1), 200, `"content":"hello"`, 2},
		{"prefill dies after its verdict", dies(cluster.Prefill, cluster.Finished, 1), 200, `"content":"hello"`, 1},
		{"decode dies once before its verdict", dies(cluster.Decode, cluster.Committed, 1), 200, `"content":"hello"`, 2},
		{"decode dies before the first token", dies(cluster.Decode, cluster.Token, 1), 200, `"content":"hello"`, 2},
		{"decode dies twice", dies(cluster.Decode, cluster.Committed, 2), 503, "service_unavailable", 2},
		{"busy three times", fails(cluster.Decode, fault.Busy, 3), 200, `"content":"hello"`, 4},
		{"prefill busy three times", fails(cluster.Prefill, fault.Busy, 3), 200, `"content":"hello"`, 4},
		{"busy for ever", fails(cluster.Decode, fault.Busy, 1000), 503, "no room at the workers", 7},
		{"refused as invalid", fails(cluster.Decode, fault.Invalid, 1000), 400, "refused", 1},
		{"failed inside", fails(cluster.Prefill, fault.Internal, 1000), 500, "internal_error", 1},
		{"corrupt", fails(cluster.Decode, fault.Corrupt, 1000), 500, "integrity_check_failed", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{})
			b.cluster.setHook(c.hook)
			status, text := b.answer("/v1/chat/completions", chat("hello"))
			if status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("status %d, body %s; want %d with %s", status, text, c.status, c.says)
			}
			jobs := b.cluster.jobs
			if len(jobs) != c.attempts {
				t.Fatalf("%d attempts, want %d", len(jobs), c.attempts)
			}
			for i, job := range jobs {
				if job.Request != jobs[0].Request || int(job.Attempt) != i+1 || job.GatewayBoot == 0 {
					t.Errorf("attempt %d is called request %d attempt %d", i+1, job.Request, job.Attempt)
				}
			}
		})
	}
}

func TestStreamEndsInErrorEventAfterADeath(t *testing.T) {
	b := newBench(t, setup{})
	begun := make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Token && e.Index == 2 {
			wait(ctx, begun)
			return fault.New(fault.Unavailable, "the connection broke")
		}
		return nil
	})
	resp := b.do("/v1/completions", `{"model":"echo","prompt":"hello","stream":true}`)
	defer resp.Body.Close()
	close(begun)
	data := events(t, resp.Body)
	said, finishes := spoken(t, data, 0)
	if last := data[len(data)-1]; !strings.Contains(last, `"service_unavailable"`) || !strings.HasPrefix("he", said) || len(finishes) > 0 {
		t.Errorf("the stream says %q, finishes %v, ends with %s; want an error event", said, finishes, last)
	}
}

// A lost worker is avoided by the retry when there is another.
func TestRetryTakesAnotherWorker(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), member("dd", cluster.Decode, 64)}})
	b.cluster.setHook(dies(cluster.Decode, cluster.Committed, 1))
	if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
		t.Fatalf("status %d, body %s", status, text)
	}
	if a, b := b.cluster.jobs[0].Decode, b.cluster.jobs[1].Decode; a == b {
		t.Errorf("both attempts went to %s", a)
	}
}

// A worker that refuses everything holds nothing, and so has the least work: it must
// not be given every request for that. It costs each request one retry at most.
func TestAFailingWorkerDoesNotAttractRequests(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Unavailable, fault.Internal, fault.Corrupt} {
		b := newBench(t, setup{config: func(c *Config) { c.AvoidFor = time.Hour },
			members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), member("dd", cluster.Decode, 64)}})
		b.cluster.setHook(func(_ context.Context, job cluster.Job, r cluster.Role, e *cluster.Event) error {
			if r == cluster.Decode && job.Decode == "d" && e.Kind == cluster.Accepted {
				e.Kind, e.Fault, e.Reason = cluster.Failed, kind, "no working ledger"
			}
			return nil
		})
		failed := 0
		for range 8 {
			if status, _ := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
				failed++
			}
		}
		given := 0
		for _, job := range b.cluster.jobs {
			if job.Decode == "d" {
				given++
			}
		}
		if given != 1 || kind == fault.Unavailable && failed > 0 || failed > 1 {
			t.Errorf("a worker that fails as %v was given %d of 8 requests, %d of them failed; want 1, and it tried elsewhere if that can help", kind, given, failed)
		}
		if !strings.Contains(b.logs.String(), "worker failed a request") {
			t.Errorf("%v: the log does not name the worker:\n%s", kind, b.logs.String())
		}
	}
}

// What one request can bring about must not stop the others: the only worker is
// taken though it has just failed.
func TestAFailingWorkerIsTakenWhenThereIsNoOther(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.AvoidFor, c.LostFor = time.Hour, time.Hour }})
	b.cluster.setHook(fails(cluster.Decode, fault.Corrupt, 1))
	if status, _ := b.answer("/v1/chat/completions", chat("hello")); status != 500 {
		t.Errorf("status %d, want 500", status)
	}
	b.cluster.setHook(nil)
	if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
		t.Errorf("status %d, body %s; want 200", status, text)
	}
}

// noProbes is a cluster in which one node takes no probe.
type noProbes struct {
	*echoCluster
	node string
}

func (c noProbes) Run(ctx context.Context, job cluster.Job, node string) (Stream, error) {
	if job.Probe && node == c.node {
		return nil, fault.New(fault.Unavailable, "the connection broke")
	}
	return c.echoCluster.Run(ctx, job, node)
}

// A probe that fails tells as much of a worker as a request does.
func TestAFailedProbeAvoidsTheWorker(t *testing.T) {
	workers := noProbes{newEchoCluster(member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), member("dd", cluster.Decode, 64)), "d"}
	b := newBench(t, setup{workers: workers, config: func(c *Config) { c.AvoidFor = time.Hour }})
	b.until(func() bool {
		b.gateway.dispatch.mu.Lock()
		defer b.gateway.dispatch.mu.Unlock()
		return len(b.gateway.dispatch.losses) > 0
	})
	for range 3 {
		if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
			t.Fatalf("status %d, body %s", status, text)
		}
	}
	workers.mu.Lock()
	defer workers.mu.Unlock()
	for _, job := range workers.jobs {
		if job.Decode != "dd" {
			t.Errorf("a request went to %s, whose probe failed", job.Decode)
		}
	}
}

// A worker that can't write its ledger refuses everything; it says so and leaves routing.
func TestAWorkerWithoutLedgerLeavesRouting(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), member("dd", cluster.Decode, 64)}})
	b.cluster.change(func(m []cluster.Member) { m[1].LedgerFailed = true })
	for range 3 {
		if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
			t.Fatalf("status %d, body %s", status, text)
		}
	}
	for _, job := range b.cluster.jobs {
		if job.Decode != "dd" {
			t.Errorf("a job went to %s, whose ledger can't be written", job.Decode)
		}
	}
	for series, want := range map[string]string{"routable": "0", "ledger_failed": "1"} {
		if got := b.metric(`bulkhead_worker_` + series + `{node="d",role="decode"}`); got != want {
			t.Errorf("the worker's %s gauge is %q, want %s", series, got, want)
		}
	}
}

// The only worker dies; the retry isn't spent on the dead one, whose last state
// still looks well, but waits for it to start anew.
func TestRetryWaitsForARestart(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.LostFor, c.OutageTimeout = time.Hour, time.Hour }})
	b.cluster.setHook(dies(cluster.Decode, cluster.Committed, 1))
	answered := make(chan int)
	go func() {
		status, _ := b.answer("/v1/chat/completions", chat("hello"))
		answered <- status
	}()
	b.until(func() bool {
		b.gateway.dispatch.mu.Lock()
		defer b.gateway.dispatch.mu.Unlock()
		return len(b.gateway.dispatch.losses) > 0 && b.gateway.dispatch.queue.Len() > 0
	})
	b.cluster.change(func(m []cluster.Member) { m[1].Epoch = 77 })
	if status := <-answered; status != 200 {
		t.Errorf("status %d, want 200", status)
	}
	if jobs := b.cluster.jobs; len(jobs) != 2 || jobs[1].DecodeEpoch != 77 {
		t.Errorf("%d attempts, the last in epoch %d; want 2, the last in 77", len(jobs), jobs[len(jobs)-1].DecodeEpoch)
	}
}

// stalls holds decode at its third token until the job is cancelled.
func stalls(reached chan<- struct{}) hook {
	return func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Token && e.Index == 2 {
			reached <- struct{}{}
			<-ctx.Done()
			return fault.New(fault.Cancelled, "cancelled")
		}
		return nil
	}
}

func TestDisconnectCancelsJobs(t *testing.T) {
	for _, stream := range []string{`"stream":true`, `"stream":false`} {
		b := newBench(t, setup{})
		reached := make(chan struct{})
		b.cluster.setHook(stalls(reached))
		ctx, disconnect := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(chat("hello", stream)))
		r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if resp, err := b.client.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		<-reached
		b.until(func() bool { return b.record.kinds() == "accepted committed" })
		disconnect()
		<-ended
		b.settled()
		if kinds := b.record.kinds(); kinds != "accepted committed failed" {
			t.Errorf("%s: the ledger has %q, want accepted committed failed", stream, kinds)
		}
		if n := b.metric("bulkhead_client_disconnects_total"); n != "1" {
			t.Errorf("%s: %s disconnects counted, want 1", stream, n)
		}
	}
}

// settled waits until no HTTP request is being handled.
func (b *bench) settled() {
	b.until(func() bool { return b.gateway.inFlight.Load() == 0 })
}

func TestDisconnectWhileQueued(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64)}, config: func(c *Config) { c.OutageTimeout = time.Hour }})
	ctx, disconnect := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(chat("hello")))
	r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
	ended := make(chan error)
	go func() {
		_, err := b.client.Do(r)
		ended <- err
	}()
	b.until(func() bool { return b.gateway.dispatch.queued() > 0 })
	disconnect()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v", err)
	}
	b.settled()
	if n := b.gateway.dispatch.queued(); n != 0 {
		t.Errorf("%d choices wait for a client that is gone", n)
	}
	if jobs, _, _ := b.cluster.counts(); jobs != 0 {
		t.Errorf("%d jobs were started", jobs)
	}
}

func TestRemovedTenantsRequestsEnd(t *testing.T) {
	b := newBench(t, setup{})
	reached := make(chan struct{}, 2)
	b.cluster.setHook(stalls(reached))
	begun := b.do("/v1/chat/completions", chat("hello", `"stream":true`))
	defer begun.Body.Close()
	<-reached
	whole := make(chan string)
	go func() {
		_, text := b.answer("/v1/chat/completions", chat("hello"))
		whole <- text
	}()
	<-reached
	if err := tenant.Remove(b.tenants, "ada"); err != nil {
		t.Fatal(err)
	}
	if err := b.folder.Poll(); err != nil {
		t.Fatal(err)
	}
	data := events(t, begun.Body)
	if last := data[len(data)-1]; !strings.Contains(last, `"invalid_api_key"`) {
		t.Errorf("the stream ends with %s, want invalid_api_key", last)
	}
	if text := <-whole; !strings.Contains(text, `"invalid_api_key"`) {
		t.Errorf("the answer is %s, want invalid_api_key", text)
	}
	if status, _ := b.read(b.doAs("ada", "/v1/chat/completions", chat("x"))); status != 401 {
		t.Errorf("a removed tenant's key gives %d, want 401", status)
	}
}

func TestDeadline(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.RequestTimeout = 20 * time.Millisecond }})
	reached := make(chan struct{}, 1)
	b.cluster.setHook(stalls(reached))
	status, text := b.answer("/v1/chat/completions", chat("hello"))
	if status != 504 || !strings.Contains(text, `"request_timeout"`) {
		t.Errorf("status %d, body %s; want 504 request_timeout", status, text)
	}
}

func TestOutageIsToldSoon(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.OutageTimeout = time.Millisecond }})
	b.cluster.change(func(m []cluster.Member) { m[0].Up = false })
	resp := b.do("/v1/chat/completions", chat("hello", `"stream":true`))
	status, text := b.read(resp)
	if status != 503 || strings.Contains(text, "not connected") || resp.Header.Get("Retry-After") == "" || !strings.Contains(b.logs.String(), "p: not connected") {
		t.Errorf("status %d, Retry-After %q, body %s; want 503, and the worker's name in the log only", status, resp.Header.Get("Retry-After"), text)
	}
	b.cluster.change(func(m []cluster.Member) { m[0].Up = true })
	if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
		t.Errorf("after the outage: status %d, body %s", status, text)
	}
}

func TestNoWorkerKnown(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{}})
	if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 503 {
		t.Errorf("status %d, body %s; want 503", status, text)
	}
}

// A wait for a worker that comes back ends in an answer.
func TestWaitSurvivesAShortOutage(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.OutageTimeout = time.Hour }})
	b.cluster.change(func(m []cluster.Member) { m[1].Up = false })
	answered := make(chan int)
	go func() {
		status, _ := b.answer("/v1/chat/completions", chat("hello"))
		answered <- status
	}()
	b.until(func() bool { return b.gateway.dispatch.queued() > 0 })
	b.cluster.change(func(m []cluster.Member) { m[1].Up, m[1].Epoch = true, 77 })
	if status := <-answered; status != 200 {
		t.Errorf("status %d, want 200", status)
	}
	if got := b.cluster.jobs[0].DecodeEpoch; got != 77 {
		t.Errorf("the job names epoch %d, want the restarted worker's 77", got)
	}
}

// Whoever has the smallest bound: a prompt of the limit is answered with one
// token; one more is refused with both numbers, before any job, entry or header.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name    string
		context int
		p, d    cluster.Member
		limit   int
	}{
		{"gateway's context", 40, member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), 40},
		{"prefill's pool", 0, member("p", cluster.Prefill, 3), member("d", cluster.Decode, 64), 48},
		{"decode's pool", 0, member("p", cluster.Prefill, 64), member("d", cluster.Decode, 2), 32},
		{"pool below an explicit context", 4096, member("p", cluster.Prefill, 64), member("d", cluster.Decode, 2), 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{members: []cluster.Member{c.p, c.d}, config: func(g *Config) { g.ContextTokens = c.context }})
			prompt := strings.Repeat("x", c.limit-1) // and one for the message itself
			status, text := b.answer("/v1/chat/completions", chat(prompt, `"max_tokens":5`))
			if status != 200 || !strings.Contains(text, `"completion_tokens":1,`) || !strings.Contains(text, `"finish_reason":"length"`) {
				t.Errorf("at the limit of %d: status %d, body %s; want one token", c.limit, status, text)
			}
			before := b.record.kinds()
			for _, stream := range []string{`"stream":false`, `"stream":true`} {
				resp := b.do("/v1/chat/completions", chat(prompt+"x", stream))
				status, text = b.read(resp)
				if status != 400 || !strings.Contains(text, `"code":"context_length_exceeded"`) || !strings.Contains(text, `"type":"invalid_request_error"`) ||
					!strings.Contains(text, "has "+itoa(c.limit+1)+" tokens") || !strings.Contains(text, "limit is "+itoa(c.limit)+" tokens") {
					t.Errorf("one over, %s: status %d, body %s; want 400 with %d and %d", stream, status, text, c.limit+1, c.limit)
				}
				if id := resp.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "req-") {
					t.Errorf("a refused request is called %q, want a name of its response alone", id)
				}
			}
			if jobs, _, _ := b.cluster.counts(); jobs != 1 || b.record.kinds() != before {
				t.Errorf("%d jobs, ledger %q; a refused request left a trace", jobs, b.record.kinds())
			}
			if m := b.model(); m != c.limit {
				t.Errorf("/v1/models says %d, want %d", m, c.limit)
			}
		})
	}
}

// A worker that falls below the served limit leaves routing; the limit stays.
// A worker with another model gets no request, however it pairs, bounds no limit,
// and is named. Alone, such a pair serves nothing.
func TestWorkersOfAnotherModelAreLeftOut(t *testing.T) {
	other := func(node string, role cluster.Role, pages int) cluster.Member {
		m := member(node, role, pages)
		m.Fingerprint = kv.Fingerprint{2}
		return m
	}
	b := newBench(t, setup{members: []cluster.Member{other("p", cluster.Prefill, 8), member("p22", cluster.Prefill, 64),
		other("d", cluster.Decode, 8), member("d22", cluster.Decode, 64)}})
	if got := b.model(); got != 1024 {
		t.Errorf("the limit is %d, want 1024: that of the workers that have the model", got)
	}
	for range 8 {
		if status, text := b.answer("/v1/chat/completions", chat("a")); status != 200 {
			t.Fatalf("status %d, body %s", status, text)
		}
	}
	for _, job := range b.cluster.jobs {
		if job.Prefill != "p22" || job.Decode != "d22" {
			t.Errorf("a job went to %s and %s, want p22 and d22", job.Prefill, job.Decode)
		}
	}
	for _, node := range []string{"node=p ", "node=d "} {
		if log := b.logs.String(); strings.Count(log, "another model than the gateway") != 2 || !strings.Contains(log, node) {
			t.Errorf("the log must name each such worker once:\n%s", log)
		}
	}
	if got := b.metric(`bulkhead_worker_routable{node="d",role="decode"}`); got != "0" {
		t.Errorf("the worker counts as routable: %q", got)
	}
	alone := newBench(t, setup{members: []cluster.Member{other("p", cluster.Prefill, 64), other("d", cluster.Decode, 64)}})
	if status, text := alone.answer("/v1/chat/completions", chat("a")); status != 503 {
		t.Errorf("status %d, body %s; want 503", status, text)
	}
	if ok, why := alone.gateway.Ready(); ok || !strings.Contains(why, "p: has fingerprint 0200000000000000, the gateway's model has 0100000000000000") {
		t.Errorf("ready is %v, why is %q; want the reason of each worker", ok, why)
	}
	if _, _, probes := alone.cluster.counts(); probes > 0 {
		t.Errorf("%d probes went to workers of another model", probes)
	}
}

func TestQuarantineTakesAWorkerOut(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), member("dd", cluster.Decode, 64)}})
	b.cluster.change(func(m []cluster.Member) { m[1].Limits.UsablePages, m[1].QuarantinedPages = 63, 1 })
	for range 3 {
		if status, text := b.answer("/v1/chat/completions", chat("hello")); status != 200 {
			t.Fatalf("status %d, body %s", status, text)
		}
	}
	for _, job := range b.cluster.jobs {
		if job.Decode != "dd" {
			t.Errorf("a job went to %s, which is below the limit", job.Decode)
		}
	}
	if m := b.model(); m != 1024 {
		t.Errorf("the limit became %d, want 1024", m)
	}
	if got := b.metric(`bulkhead_worker_routable{node="d",role="decode"}`); got != "0" {
		t.Errorf("the worker's routable gauge is %q, want 0", got)
	}
}

// A worker that joins later and holds less lowers the limit for everybody: the log says
// to what, and whose bound it is.
func TestAChangedLimitIsTold(t *testing.T) {
	late := member("dd", cluster.Decode, 10)
	late.Up, late.Epoch = false, 0
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64), late}})
	b.until(func() bool { return strings.Contains(b.logs.String(), "context limit") })
	if log := b.logs.String(); !strings.Contains(log, `level=INFO msg="context limit" tokens=1024 by="pool of prefill worker p"`) {
		t.Errorf("the log does not say what is served and why:\n%s", log)
	}
	b.cluster.change(func(m []cluster.Member) { m[2].Up, m[2].Epoch = true, 5 })
	b.until(func() bool { return strings.Contains(b.logs.String(), "has changed") })
	if log := b.logs.String(); !strings.Contains(log, `level=WARN msg="context limit has changed" tokens=160 by="pool of decode worker dd" before=1024`) {
		t.Errorf("the log does not say who has lowered the limit:\n%s", log)
	}
	b.cluster.change(func(m []cluster.Member) { m[2].Up = false })
	b.answer("/v1/chat/completions", chat("hello"))
	if log := b.logs.String(); strings.Count(log, "context limit") != 2 {
		t.Errorf("a limit that stays is told again:\n%s", log)
	}
}

func TestChoices(t *testing.T) {
	b := newBench(t, setup{})
	status, text := b.answer("/v1/chat/completions", chat("hi", `"n":3`, `"seed":9`))
	if status != 200 || strings.Count(text, `"content":"hi"`) != 3 || !strings.Contains(text, `"prompt_tokens":3,"completion_tokens":6`) {
		t.Errorf("status %d, body %s; want three answers and one prompt in the usage", status, text)
	}
	seeds, requests := map[uint64]bool{}, map[uint64]bool{}
	for _, job := range b.cluster.jobs {
		seeds[job.Sampling.Seed], requests[job.Request] = true, true
	}
	if diff := cmp.Diff(map[uint64]bool{9: true, 10: true, 11: true}, seeds); diff != "" || len(requests) != 3 {
		t.Errorf("seeds differ (-want +got), %d requests:\n%s", len(requests), diff)
	}
	resp := b.do("/v1/chat/completions", chat("hi", `"n":2`, `"stream":true`))
	defer resp.Body.Close()
	data := events(t, resp.Body)
	for i := range 2 {
		if said, finishes := spoken(t, data, i); said != "hi" || len(finishes) != 1 {
			t.Errorf("choice %d says %q and finishes %v, want hi, once", i, said, finishes)
		}
	}
	if strings.Count(strings.Join(data, ""), `"role":"assistant"`) != 2 {
		t.Errorf("not one role for each choice: %v", data)
	}
}

// One choice that fails ends the call: no part of an answer is passed off as whole.
func TestOneFailedChoiceFailsTheCall(t *testing.T) {
	b := newBench(t, setup{})
	b.cluster.setHook(func(_ context.Context, job cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Committed && job.Request%2 == 0 {
			e.Root[0]++
		}
		return nil
	})
	if status, text := b.answer("/v1/chat/completions", chat("QQ", `"n":4`)); status != 500 || strings.Contains(text, "QQ") {
		t.Errorf("status %d, body %s; want 500", status, text)
	}
}

func TestQuotas(t *testing.T) {
	b := newBench(t, setup{limits: map[string]tenant.Limits{"ada": {RequestsPerMinute: 1}, "bob": {TokensPerMinute: 50}}})
	if status, _ := b.answer("/v1/chat/completions", chat("hi")); status != 200 {
		t.Fatalf("the first request gives %d", status)
	}
	resp := b.do("/v1/chat/completions", chat("hi"))
	status, text := b.read(resp)
	if status != 429 || !strings.Contains(text, `"rate_limit_exceeded"`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, Retry-After %q, body %s; want 429", status, resp.Header.Get("Retry-After"), text)
	}
	// 33 tokens are reserved for each, 5 are used.
	for i := range 4 {
		if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi", `"max_tokens":30`))); status != 200 {
			t.Errorf("request %d of bob: status %d, body %s; unused tokens did not come back", i, status, text)
		}
	}
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi", `"max_tokens":48`))); status != 429 || !strings.Contains(text, "51") || !strings.Contains(text, "50") {
		t.Errorf("status %d, body %s; want 429 with 51 and 50", status, text)
	}
}

// Whatever is read counts as a request: a text that is only tokenized, a mistake.
func TestEveryRequestCounts(t *testing.T) {
	b := newBench(t, setup{limits: map[string]tenant.Limits{"ada": {RequestsPerMinute: 3}}})
	for _, c := range []struct {
		path, body string
		want       int
	}{{"/tokenize", `{"prompt":"hi"}`, 200}, {"/v1/chat/completions", `{"model":"echo"}`, 400}, {"/v1/chat/completions", chat("hi"), 200},
		{"/tokenize", `{"prompt":"hi"}`, 429}, {"/v1/chat/completions", chat("hi"), 429}} {
		if status, text := b.answer(c.path, c.body); status != c.want {
			t.Errorf("%s %s: status %d, body %s; want %d", c.path, c.body, status, text, c.want)
		}
	}
}

func TestFullQueue(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 64)},
		config: func(c *Config) {
			c.QueueMax, c.TenantQueueMax, c.OutageTimeout, c.QueueTimeout = 1, 2, time.Hour, time.Hour
		}})
	b.cluster.change(func(m []cluster.Member) { m[0].Up = false })
	answered := make(chan int)
	for i, name := range []string{"ada", "bob"} { // bob, who has nothing waiting, finds a place in the full queue
		go func() {
			status, _ := b.read(b.doAs(name, "/v1/chat/completions", chat("hi")))
			answered <- status
		}()
		b.until(func() bool { return b.gateway.dispatch.queued() > i })
	}
	resp := b.doAs("bob", "/v1/chat/completions", chat("hi"))
	status, text := b.read(resp)
	if status != 429 || !strings.Contains(text, `"server_busy"`) || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("status %d, Retry-After %q, body %s; want 429 server_busy", status, resp.Header.Get("Retry-After"), text)
	}
	b.cluster.change(func(m []cluster.Member) { m[0].Up = true })
	for range 2 {
		if status := <-answered; status != 200 {
			t.Errorf("one that waited gets %d", status)
		}
	}
}

// A place in the queue that led to no room is a wish to come again, not an outage.
func TestNoRoomInTimeIsBusy(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 2)},
		config: func(c *Config) { c.QueueTimeout = time.Millisecond }})
	reached := make(chan struct{}, 1)
	b.cluster.setHook(stalls(reached))
	running := b.do("/v1/chat/completions", chat("hello", `"stream":true`)) // it is granted all there is
	defer running.Body.Close()
	<-reached
	resp := b.do("/v1/chat/completions", chat("hello"))
	status, text := b.read(resp)
	if status != 429 || !strings.Contains(text, `"server_busy"`) || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, Retry-After %q, body %s; want 429 server_busy", status, resp.Header.Get("Retry-After"), text)
	}
	if n := b.gateway.dispatch.queued(); n != 0 {
		t.Errorf("%d choices wait on after their time", n)
	}
}

// With room for one at a time, all that wait are answered, one after another.
func TestRoomIsCounted(t *testing.T) {
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 64), member("d", cluster.Decode, 2)}})
	most := make(chan int, 1000)
	b.cluster.setHook(func(_ context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Committed {
			b.gateway.dispatch.mu.Lock()
			most <- b.gateway.dispatch.loads.At("d").Pages
			b.gateway.dispatch.mu.Unlock()
		}
		return nil
	})
	answered := make(chan int)
	for range 8 {
		go func() {
			status, _ := b.answer("/v1/chat/completions", chat("seventeen letters"))
			answered <- status
		}()
	}
	for range 8 {
		if status := <-answered; status != 200 {
			t.Errorf("status %d, want 200", status)
		}
	}
	close(most)
	for pages := range most {
		if pages > 2 {
			t.Errorf("%d pages of 2 were given out at one time", pages)
		}
	}
}

// A tenant that is removed and added again is another one, with nothing spent.
func TestATenantAddedAgainStartsAnew(t *testing.T) {
	once := tenant.Limits{RequestsPerMinute: 1}
	b := newBench(t, setup{limits: map[string]tenant.Limits{"ada": once}})
	for i, want := range []int{200, 429} {
		if status, text := b.answer("/v1/chat/completions", chat("hi")); status != want {
			t.Errorf("request %d of 1 a minute: status %d, body %s; want %d", i+1, status, text, want)
		}
	}
	if err := tenant.Remove(b.tenants, "ada"); err != nil {
		t.Fatal(err)
	}
	key, err := tenant.Add(b.tenants, "ada", once, time.Now())
	if err == nil {
		b.keys["ada"], err = key, b.folder.Poll()
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 429} {
		if status, text := b.answer("/v1/chat/completions", chat("hi")); status != want {
			t.Errorf("request %d of the tenant that was added again: status %d, body %s; want %d", i+1, status, text, want)
		}
	}
}

func TestLedgerFailureStopsAdmission(t *testing.T) {
	b := newBench(t, setup{})
	fails := func(err error) {
		b.record.mu.Lock()
		defer b.record.mu.Unlock()
		b.record.err = err
	}
	for episode := range 2 { // each is logged once, whatever is refused in it
		fails(errors.New("no space left"))
		for range 5 {
			if status, text := b.answer("/v1/chat/completions", chat("hi")); status != 503 || !strings.Contains(text, "record") {
				t.Errorf("status %d, body %s; want 503", status, text)
			}
		}
		if said := strings.Count(b.logs.String(), "record can't be written") + strings.Count(b.logs.String(), "no space left"); said != episode+1 {
			t.Errorf("after %d times of a full disk it is logged %d times: %s", episode+1, said, b.logs)
		}
		if ok, why := b.gateway.Ready(); ok || !strings.Contains(why, "ledger") {
			t.Errorf("ready %v, %q", ok, why)
		}
		fails(nil)
		if status, text := b.answer("/v1/chat/completions", chat("hi")); status != 200 {
			t.Errorf("with room again: status %d, body %s; want 200", status, text)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.KeepAlive = time.Millisecond }})
	release := make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Prefill && e.Kind == cluster.Computed {
			wait(ctx, release)
		}
		return nil
	})
	resp := b.do("/v1/chat/completions", chat("hi", `"stream":true`))
	defer resp.Body.Close()
	first := make([]byte, len(": keep-alive\n\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != ": keep-alive\n\n" {
		t.Errorf("the first bytes are %q (%v), want a comment", first, err)
	}
	close(release)
	data := events(t, resp.Body)
	if said, _ := spoken(t, data, 0); said != "hi" || data[len(data)-1] != "[DONE]" || !strings.Contains(data[0], "assistant") {
		t.Errorf("after the comments the stream is %v", data)
	}
}

// After a comment has opened the stream, a failure before the first token is an
// error event, not a silent end.
func TestFailureAfterKeepAlive(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.KeepAlive = time.Millisecond }})
	release := make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Prefill && e.Kind == cluster.Computed {
			wait(ctx, release)
			e.PromptTokens++
		}
		return nil
	})
	resp := b.do("/v1/chat/completions", chat("hi", `"stream":true`))
	defer resp.Body.Close()
	close(release)
	data := events(t, resp.Body)
	if len(data) != 1 || !strings.Contains(data[0], "integrity_check_failed") {
		t.Errorf("the stream is %v, want one error event", data)
	}
}

func TestProbesMakeReady(t *testing.T) {
	b := newBench(t, setup{})
	b.until(func() bool { return b.metric("bulkhead_ready") == "1" })
	jobs, _, probes := b.cluster.counts()
	if jobs != 0 || probes == 0 {
		t.Errorf("%d jobs and %d probes, want probes only", jobs, probes)
	}
	resp, err := b.client.Get(b.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	if status, text := b.read(resp); status != 200 {
		t.Errorf("/readyz gives %d, %s", status, text)
	}
	b.cluster.change(func(m []cluster.Member) { m[1].Epoch = 99 })
	if kinds := b.record.kinds(); kinds != "" {
		t.Errorf("a probe is in the ledger of requests: %q", kinds)
	}
}

// A transfer of a worker that has since restarted doesn't count.
// A context of one page, or a pool of one, gets a probe that fits it.
func TestProbesFitTheLimit(t *testing.T) {
	for _, c := range []struct {
		name    string
		context int
		pages   int
		want    int
	}{{"context of one page", kv.PageTokens, 64, kv.PageTokens}, {"context of one token", 1, 64, 1}, {"pool of one page", 0, 1, kv.PageTokens}, {"room for more", 0, 64, probeTokens}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, setup{config: func(config *Config) { config.ContextTokens = c.context },
				members: []cluster.Member{member("p", cluster.Prefill, c.pages), member("d", cluster.Decode, c.pages)}})
			b.until(func() bool { ok, _ := b.gateway.Ready(); return ok })
			b.cluster.mu.Lock()
			defer b.cluster.mu.Unlock()
			if got := b.cluster.probed; got != c.want {
				t.Errorf("the probe has %d tokens, want %d", got, c.want)
			}
		})
	}
}

func TestReadyNeedsThisEpoch(t *testing.T) {
	b := newBench(t, setup{})
	b.until(func() bool { return b.metric("bulkhead_ready") == "1" })
	pairs := b.gateway.dispatch.pairs()
	pairs[0].Decode.Epoch = 99
	if b.gateway.health.ready(pairs, time.Hour) {
		t.Error("a pair with a restarted worker is ready without a transfer")
	}
	if b.gateway.health.ready(b.gateway.dispatch.pairs(), -time.Second) {
		t.Error("a pair is ready though its transfer is too old")
	}
}

func TestMetricsHoldNoSecrets(t *testing.T) {
	b := newBench(t, setup{})
	b.answer("/v1/chat/completions", chat("canary-text", `"rid":"canary-rid"`))
	resp, err := b.client.Get(b.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	_, text := b.read(resp)
	for _, secret := range []string{`\bada\b`, `\bbob\b`, "canary", "bh_"} {
		if regexp.MustCompile(secret).MatchString(text + b.logs.String()) {
			t.Errorf("%q is in the metrics or in the log", secret)
		}
	}
	if !strings.Contains(text, `bulkhead_dropped_fields_total{field="rid"} 1`) {
		t.Error("the dropped field is not counted")
	}
}

// Probes that fail while the workers are still finding each other are no warning;
// after a first success, or when it takes long, they are.
func TestFirstProbesMayFail(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	g := &Gateway{parts: Parts{Now: clock}, health: newHealth(clock), started: now}
	if got := g.probeLevel(); got != slog.LevelDebug {
		t.Errorf("at the start a failed probe has level %v, want %v", got, slog.LevelDebug)
	}
	now = now.Add(startingMax)
	if got := g.probeLevel(); got != slog.LevelWarn {
		t.Errorf("after %v without any success a failed probe has level %v, want %v", startingMax, got, slog.LevelWarn)
	}
	g.started = now
	g.health.transferred(router.Pair{})
	if got := g.probeLevel(); got != slog.LevelWarn {
		t.Errorf("after a success a failed probe has level %v, want %v", got, slog.LevelWarn)
	}
}
