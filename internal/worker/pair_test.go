package worker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
)

// notes is a ledger in memory.
type notes struct {
	mu      sync.Mutex
	entries []ledger.Entry
	err     error
}

func (n *notes) Append(e ledger.Entry) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.entries = append(n.entries, e)
	return n.err
}

func (n *notes) count(event string) (found int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if e.Event == event {
			found++
		}
	}
	return found
}

func (n *notes) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (n *notes) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// pair is a prefill and a decode worker with a TCP link between them.
type pair struct {
	prefill *Prefill
	decode  *Decode
	record  *notes
	request uint64
}

type pairConfig struct {
	prefillPages, decodePages int
	context                   int
	omit                      omitted                                 // by both workers
	threads                   int                                     // of each engine, 0: 1
	wire                      wire                                    // nil: plaintext TCP
	ledger                    func(node string, of kv.Epoch) Recorder // nil: in memory
	pause                     *pausing                                // prefill's engine, nil: the model's own
	decodes                   func(Engine) Engine                     // what decode computes with instead; nil: the model's engine
	ended                     func(error)                             // takes the error with which a worker ends; nil: the test fails
}

// wire makes the listener of a prefill worker and says how to dial it.
type wire func(t testing.TB, c transport.Config) (listener, Dial)

type listener interface{ Close() error }

func plainTCP(t testing.TB, c transport.Config) (listener, Dial) {
	t.Helper()
	l, err := tcp.Listen("127.0.0.1:0", c, tcp.Plaintext())
	if err != nil {
		t.Fatal(err)
	}
	return l, func(ctx context.Context, c transport.Config) (transport.Link, error) {
		return tcp.Dial(ctx, l.Addr().String(), c, tcp.Plaintext())
	}
}

// tampering is a wire that changes a page when it has landed, before the decode
// worker hears of it.
type tampering struct {
	target atomic.Pointer[Decode]
	block  atomic.Uint32
}

// spoil changes one bit of that block of whatever lands from now on.
func (w *tampering) spoil(d *Decode, block uint32) {
	w.block.Store(block)
	w.target.Store(d)
}

func (w *tampering) plainTCP(t testing.TB, c transport.Config) (listener, Dial) {
	l, dial := plainTCP(t, c)
	return l, func(ctx context.Context, c transport.Config) (transport.Link, error) {
		events, real := make(chan transport.Event), c.Events
		c.Events = events
		link, err := dial(ctx, c)
		if err != nil {
			return nil, err
		}
		go func() { // ends with the link, which the pair's end waits for
			for e := range events {
				w.look(e)
				real <- e
				if e.Kind == transport.Down {
					return
				}
			}
		}()
		return link, nil
	}
}

func (w *tampering) look(e transport.Event) {
	d := w.target.Load()
	if d == nil || e.Kind != transport.Landed || e.Block != w.block.Load() {
		return
	}
	for slot := range kv.Slot(d.slab.Len()) {
		if tag, ok := kv.ParseTag(d.slab.Header(slot)); ok && tag.Transfer == e.X && tag.Block == e.Block {
			d.slab.Body(slot)[7] ^= 1
		}
	}
}

func testConfig(m *model.Model, node string, pages, contextTokens int, record Recorder) Config {
	return Config{Node: node, Epoch: RandomEpoch(), ModelName: "test", Model: m, Threads: 1, PoolPages: pages + 2, ReservedPages: 2,
		ContextTokens: contextTokens, Record: record, Log: slog.New(slog.DiscardHandler), DrainMax: 5 * time.Second}
}

func (c pairConfig) worker(m *model.Model, node string, pages int, record Recorder) Config {
	w := testConfig(m, node, pages, c.context, record)
	w.Threads = max(1, c.threads)
	if c.ledger != nil {
		w.Record = c.ledger(node, w.Epoch)
	}
	return w
}

func (c pairConfig) end(t testing.TB, err error) {
	if c.ended == nil {
		t.Errorf("worker ended: %v", err)
		return
	}
	c.ended(err)
}

func startPair(t testing.TB, m *model.Model, c pairConfig) *pair {
	t.Helper()
	record := &notes{}
	prefill := c.worker(m, "p0", c.prefillPages, record)
	if c.pause != nil {
		prefill.NewEngine = c.pause.around(prefill)
	}
	p, err := NewPrefill(prefill)
	if err != nil {
		t.Fatal(err)
	}
	listen := c.wire
	if listen == nil {
		listen = plainTCP
	}
	l, dial := listen(t, p.Transport())
	dc := c.worker(m, "d0", c.decodePages, record)
	if c.decodes != nil {
		plain := dc
		dc.NewEngine = func(pages engine.Pages) (Engine, error) {
			e, err := plain.newEngine(pages)
			return c.decodes(e), err
		}
	}
	d, err := NewDecode(dc, []Source{{"p0", dial}})
	if err != nil {
		t.Fatal(err)
	}
	p.omit, d.omit = c.omit, c.omit
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{p.Run, d.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				c.end(t, err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	pr := &pair{prefill: p, decode: d, record: record}
	pr.await(t, "a link", func(s cluster.Status) bool { return len(s.Peers) == 1 && s.Peers[0].Up })
	return pr
}

// await waits until both workers' statuses satisfy cond.
func (p *pair) await(t testing.TB, what string, cond func(cluster.Status) bool) {
	t.Helper()
	for _, h := range []cluster.Handler{p.prefill.Handler(), p.decode.Handler()} {
		deadline := time.After(20 * time.Second)
		for {
			changed := h.Changed()
			if cond(h.Status()) {
				break
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s has no %s after 20 s: %+v", h.Status().Node, what, h.Status())
			}
		}
	}
}

// idle waits until every page is free again. What the workers say at first may be
// from before the last job's end; what they say next is not.
func (p *pair) idle(t testing.TB) {
	t.Helper()
	idle(t, p)
}

func idle(t testing.TB, pairs ...*pair) {
	t.Helper()
	var fresh []<-chan struct{}
	for _, p := range pairs {
		fresh = append(fresh, p.prefill.Handler().Changed(), p.decode.Handler().Changed())
	}
	for _, changed := range fresh {
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatal("a worker has said nothing for 20 s")
		}
	}
	for _, p := range pairs {
		p.await(t, "free pool", func(s cluster.Status) bool {
			return s.FreePages == s.Limits.PoolPages && s.Running == 0 && s.Waiting == 0
		})
	}
}

func (p *pair) job(tokens []int32, maxTokens int) cluster.Job {
	p.request++
	return cluster.Job{GatewayBoot: 77, Request: p.request, Attempt: 1, Tenant: 5, Prefill: "p0", Decode: "d0", PrefillEpoch: p.prefill.Epoch,
		DecodeEpoch: p.decode.Epoch, Tokens: tokens, MaxTokens: maxTokens,
		Sampling: cluster.Sampling{TopP: 1, Repetition: 1, Logprobs: cluster.NoLogprobs}}
}

// outcome is what both workers said of a job.
type outcome struct {
	prefill, decode []cluster.Event
}

func (o outcome) tokens() (tokens []int32) {
	for _, e := range o.decode {
		if e.Kind == cluster.Token {
			tokens = append(tokens, e.Token)
		}
	}
	return tokens
}

func last(events []cluster.Event) cluster.Event {
	if len(events) == 0 {
		return cluster.Event{}
	}
	return events[len(events)-1]
}

func find(events []cluster.Event, k cluster.EventKind) (cluster.Event, bool) {
	for _, e := range events {
		if e.Kind == k {
			return e, true
		}
	}
	return cluster.Event{}, false
}

// run gives the job to both workers and waits for both. watch, if set, sees every
// event as it comes and may cancel.
func (p *pair) run(ctx context.Context, j cluster.Job, watch func(role cluster.Role, e cluster.Event)) outcome {
	var o outcome
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	collect := func(role cluster.Role, into *[]cluster.Event) func(cluster.Event) error {
		return func(e cluster.Event) error {
			mu.Lock()
			*into = append(*into, e)
			mu.Unlock()
			if watch != nil {
				watch(role, e)
			}
			if e.Kind == cluster.Failed { // as a gateway does
				cancel()
			}
			return nil
		}
	}
	var both sync.WaitGroup
	both.Go(func() { _ = p.prefill.Handler().Run(ctx, j, collect(cluster.Prefill, &o.prefill)) })
	both.Go(func() { _ = p.decode.Handler().Run(ctx, j, collect(cluster.Decode, &o.decode)) })
	both.Wait()
	return o
}

func promptOf(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*7 + 3) % 250)
	}
	return tokens
}
