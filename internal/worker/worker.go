// Package worker runs the prefill or the decode part of requests, on a pool of its own.
//
// A worker has one loop goroutine. It owns the page pool, the transfer machine,
// the scheduler and the engine; gRPC sessions and transport links only hand it
// events through bounded channels. A turn of the loop is
//
//	take what arrived -> step the machines -> perform their effects -> compute one step -> check -> let out
//
// Since the engine's step runs inside the turn, no kernel is running while events
// are handled: a kernel is stopped as soon as the loop looks at the request to
// stop it. The slab's bytes are checked after the compute that read them and
// before anything of it leaves.
package worker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/scheduler"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/slab"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	// StepTokensMax bounds the tokens of a step: 16 tiles of six and six pages of
	// sixteen, about a tenth of a second of a small model on one core.
	StepTokensMax = 96
	// StepRowsMax bounds the sequences of a step.
	StepRowsMax = 32
	// JobsMax bounds the jobs that a worker holds, running or waiting.
	JobsMax = 4096
	// eventsMax bounds transport events that wait for the loop; links block on it.
	eventsMax = 4096
	// turnEventsMax bounds what one turn takes before it computes again.
	turnEventsMax = 512
	// tickInterval paces the machines' repetitions and alarms, and the deadlines.
	tickInterval = 100 * time.Millisecond
	// publishInterval paces the numbers of a status that change all the time.
	publishInterval = 100 * time.Millisecond
)

// Recorder takes ledger entries. It never blocks for long; its error stops admission.
// What it loses it logs itself; an error of kind fault.Internal is the worker's mistake.
type Recorder interface {
	Append(ledger.Entry) error
	Err() error
}

// Engine computes steps, see package engine. One goroutine calls it.
type Engine interface {
	Step(rows []engine.Row) error
	Close()
}

// Config is what a worker is made of.
type Config struct {
	Node          string
	Epoch         kv.Epoch // random, of this start
	ModelName     string
	Model         *model.Model
	Threads       int           // engine threads, at least 1
	PoolPages     int           // pages of the pool, the reserved ones included
	ReservedPages int           // of them, only for probes
	ContextTokens int           // the model's or a smaller served context; tokens, prompt and output together
	Explicit      bool          // ContextTokens was demanded: a pool below it refuses to start
	Record        Recorder      // the ledger
	Log           *slog.Logger  // ids and numbers only
	DrainMax      time.Duration // how long a drain waits for running jobs
	Build         string        // version of the binary
	Alive         func()        // called by the loop about once a second; may be nil
	// CertificateFailures counts new certificates that could not be read; may be nil.
	CertificateFailures func() int

	// Now is the clock, nil: the machine's. NewEngine makes what computes on the
	// pool's pages, nil: the model's own engine. A simulator sets both.
	Now       func() time.Time
	NewEngine func(pages engine.Pages) (Engine, error)
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Node != "", "worker: node has no name")
	check(c.Epoch != 0, "worker: epoch is zero")
	check(c.Model != nil, "worker: no model")
	check(c.Threads >= 1, "worker: %d threads, need at least 1", c.Threads)
	check(c.ReservedPages >= 1, "worker: %d pages reserved for probes, need at least 1", c.ReservedPages)
	check(c.PoolPages > c.ReservedPages, "worker: pool of %d pages is not larger than the %d reserved for probes", c.PoolPages, c.ReservedPages)
	check(c.ContextTokens >= 1, "worker: context of %d tokens", c.ContextTokens)
	check(c.Record != nil, "worker: no ledger")
	check(c.Log != nil, "worker: no log")
	if need := kv.PagesFor(c.ContextTokens); c.Explicit && c.PoolPages-c.ReservedPages < need {
		check(false, "worker %s: pool holds %d tokens, the served context is %d tokens: add %d pages, or serve a context of at most %d",
			c.Node, (c.PoolPages-c.ReservedPages)*kv.PageTokens, c.ContextTokens, need-(c.PoolPages-c.ReservedPages), (c.PoolPages-c.ReservedPages)*kv.PageTokens)
	}
	return errors.Join(errs...)
}

// base is what prefill and decode have in common. Owner: the loop, but for what
// says otherwise.
type base struct {
	Config
	omit     omitted // always zero where requests are served
	role     cluster.Role
	layoutID uint16
	slab     *slab.Slab
	pool     *pool.Pool
	poolKey  kv.Key // sums of pages at rest are made under it
	engine   Engine
	sched    *scheduler.Scheduler
	jobs     map[cluster.ID]bool // every attempt this worker holds, so that none is taken twice
	inbox    inbox
	events   chan transport.Event
	links    links
	draining bool
	drainEnd time.Time

	lastTransfer time.Time
	refused      map[transport.Refusal]int // pages that the gate refused; nil at prefill
	board        *cluster.Board            // safe for concurrent use
	published    cluster.Status
	publishedAt  time.Time
	aliveAt      time.Time
	journal      *conform.Journal // of the transfer machine
}

func newBase(c Config, role cluster.Role) (*base, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.ContextTokens = min(c.ContextTokens, (c.PoolPages-c.ReservedPages)*kv.PageTokens)
	if c.Now == nil {
		c.Now = time.Now
	}
	layout := c.Model.Layout()
	pages, err := slab.New(layout, c.PoolPages)
	if err != nil {
		return nil, fmt.Errorf("worker %s: slab of %d pages: %w", c.Node, c.PoolPages, err)
	}
	eng, err := c.newEngine(pages)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("worker %s: engine: %w", c.Node, err), pages.Close())
	}
	b := &base{
		Config: c, role: role, layoutID: layout.ID(), slab: pages, pool: pool.New(c.PoolPages, c.ReservedPages), poolKey: randomKey(),
		engine: eng, sched: scheduler.New(), jobs: map[cluster.ID]bool{}, inbox: newInbox(), events: make(chan transport.Event, eventsMax),
		links: newLinks(), board: cluster.NewBoard(cluster.Status{Node: c.Node, Role: role, Epoch: c.Epoch}),
	}
	b.publish(nil, 0)
	return b, nil
}

func (c Config) newEngine(pages engine.Pages) (Engine, error) {
	if c.NewEngine != nil {
		return c.NewEngine(pages)
	}
	return engine.New(c.Model, pages, engine.Config{Threads: c.Threads, TokensMax: StepTokensMax, LogitsMax: StepRowsMax, ContextMax: c.ContextTokens})
}

// close gives back threads and memory. Requires: the loop has ended.
func (b *base) close() error {
	b.engine.Close()
	return b.slab.Close()
}

// randomBytes never fails: crypto/rand ends the process instead.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func randomKey() kv.Key { return kv.Key(randomBytes(len(kv.Key{}))) }

// RandomEpoch makes the boot nonce of a worker's start.
func RandomEpoch() kv.Epoch {
	for {
		if e := kv.Epoch(binary.LittleEndian.Uint64(randomBytes(8))); e != 0 {
			return e
		}
	}
}

// Hello is what this worker says of itself to a peer.
func (b *base) hello() transfer.Hello {
	role := transfer.RolePrefill
	if b.role == cluster.Decode {
		role = transfer.RoleDecode
	}
	return transfer.Hello{
		Version: kv.WireVersion, Role: role, Epoch: b.Epoch, Node: b.Node, Fingerprint: b.Model.Fingerprint(), Layout: b.Model.Layout(),
		PoolPages: uint32(b.PoolPages - b.ReservedPages), ContextTokens: uint32(b.ContextTokens),
	}
}

// part is the role's side of the loop.
type part interface {
	submit(*job)
	cancel(id cluster.ID, cause error)
	onTransport(transport.Event)
	tick(now time.Time)
	step() (computed bool)
	abandon(reason fault.Kind)   // lets every job go
	peers() []cluster.PeerStatus // how this worker sees the others
	queued() int                 // prompt tokens to compute
}

type drainRequest struct{}

// loop runs turns until ctx ends or a drain is complete. The error is nil unless an
// invariant of our own is broken.
func (b *base) loop(ctx context.Context, p part) (err error) {
	defer close(b.inbox.stopped)
	defer b.caught(&err)
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	computed := false
	for {
		if !b.take(ctx, p, ticker.C, !computed) {
			return nil
		}
		computed = p.step()
		b.publish(p.peers(), p.queued())
		if b.draining && len(b.jobs) == 0 {
			return nil
		}
	}
}

// caught turns a violation into the error that the worker ends with. It is deferred.
func (b *base) caught(err *error) {
	switch v := recover().(type) {
	case nil:
	case violation:
		*err = v.err
		b.record(ledger.Entry{Kind: ledger.Note, Event: "invariant-broken"})
	default:
		panic(v)
	}
}

// take handles what has arrived, waiting for the first of it when wait is set.
// False: the worker shall end.
func (b *base) take(ctx context.Context, p part, tick <-chan time.Time, wait bool) bool {
	for range turnEventsMax {
		if wait {
			select {
			case <-ctx.Done():
				return false
			case now := <-tick:
				b.tick(p, now)
			case v := <-b.inbox.c:
				b.accept(p, v)
			case e := <-b.events:
				p.onTransport(e)
			}
			wait = false
			continue
		}
		select {
		case <-ctx.Done():
			return false
		case now := <-tick:
			b.tick(p, now)
		case v := <-b.inbox.c:
			b.accept(p, v)
		case e := <-b.events:
			p.onTransport(e)
		default:
			return true
		}
	}
	return true
}

func (b *base) tick(p part, now time.Time) {
	if b.draining && now.After(b.drainEnd) {
		p.abandon(fault.Unavailable)
	}
	p.tick(now)
	if b.Alive != nil && now.Sub(b.aliveAt) >= time.Second {
		b.aliveAt = now
		b.Alive()
	}
}

func (b *base) accept(p part, v any) {
	switch v := v.(type) {
	case submission:
		b.admit(p, v.job)
	case cancellation:
		p.cancel(v.id, v.cause)
	case drainRequest:
		b.draining, b.drainEnd = true, b.Now().Add(b.DrainMax)
	}
}

// admit refuses what no worker of this role could do, before anything is taken.
func (b *base) admit(p part, j *job) {
	own, peerEpoch := j.PrefillEpoch, j.DecodeEpoch
	if b.role == cluster.Decode {
		own, peerEpoch = j.DecodeEpoch, j.PrefillEpoch
	}
	switch {
	case b.draining:
		b.refuse(j, fault.New(fault.Unavailable, "worker %s is draining", b.Node))
	case b.Record.Err() != nil:
		b.refuse(j, fault.New(fault.Unavailable, "worker %s has no working ledger", b.Node))
	case len(b.jobs) >= JobsMax:
		b.refuse(j, fault.New(fault.Busy, "worker %s holds %d jobs, limit %d", b.Node, len(b.jobs), JobsMax))
	case own != b.Epoch:
		b.refuse(j, fault.New(fault.Unavailable, "job is for epoch %016x of %s, this is %016x", uint64(own), b.Node, uint64(b.Epoch)))
	case peerEpoch == 0 || j.GatewayBoot == 0 || j.Request == 0 || j.Tenant == 0 || b.jobs[j.ID()]:
		b.refuse(j, fault.New(fault.Internal, "job lacks an id or is known already"))
	case len(j.Tokens) == 0 || j.MaxTokens < 1:
		b.refuse(j, fault.New(fault.Invalid, "job of %d prompt tokens and %d output tokens, need at least 1 of each", len(j.Tokens), j.MaxTokens))
	case !b.inVocabulary(j.Tokens):
		b.refuse(j, fault.New(fault.Invalid, "job has a token id outside the vocabulary of %d", b.Model.Config.Vocab))
	case len(j.Tokens) > b.ContextTokens:
		b.refuse(j, overLimit(len(j.Tokens), b.ContextTokens))
	case len(j.Tokens) > b.limit():
		b.refuse(j, fault.New(fault.Unavailable, "prompt of %d tokens, worker %s can hold %d while pages are quarantined", len(j.Tokens), b.Node, b.limit()))
	default:
		b.jobs[j.ID()] = true
		b.recordJob(j, kv.TransferID{}, "accepted", "")
		j.send(b.event(j, cluster.Accepted))
		p.submit(j)
	}
}

// overLimit is the verdict on a request that no worker like this one will ever hold.
// Its text is for the client: it names no node.
func overLimit(tokens, limit int) error {
	return fault.New(fault.OverContext, "prompt of %d tokens, the limit is %d tokens", tokens, limit)
}

func (b *base) inVocabulary(tokens []int32) bool {
	for _, t := range tokens {
		if t < 0 || int(t) >= b.Model.Config.Vocab {
			return false
		}
	}
	return true
}

// limit is the longest sequence, in tokens, that this worker can hold now:
// quarantined pages count against it.
func (b *base) limit() int { return min(b.ContextTokens, b.attainable()*kv.PageTokens) }

// event is an event of the job with its provenance.
func (b *base) event(j *job, kind cluster.EventKind) cluster.Event {
	return cluster.Event{Kind: kind, Request: j.Request, Attempt: j.Attempt, Epoch: b.Epoch}
}

// refuse ends a job that was never taken in.
func (b *base) refuse(j *job, err error) {
	e := b.failed(j, err)
	j.send(e)
	b.recordJob(j, kv.TransferID{}, "refused", e.Fault.String())
}

// finish ends a job that was taken in; its key may never come again.
func (b *base) finish(j *job, e cluster.Event) {
	j.send(e)
	delete(b.jobs, j.ID())
	if e.Kind == cluster.Failed {
		b.recordJob(j, e.X, "failed", e.Fault.String())
		return
	}
	b.recordJob(j, e.X, "finished", e.Reason)
}

// failed is the event that ends a job with an error.
func (b *base) failed(j *job, err error) cluster.Event {
	e := b.event(j, cluster.Failed)
	e.Fault, e.Reason = fault.Of(err), err.Error()
	return e
}

// violation is what a worker ends with when an invariant of its own is broken.
type violation struct{ err error }

// must ends the worker when the pool, the gate or the slab refuses what this
// worker itself has asked for: its own books are wrong, and an outage is better
// than a leak. Nothing of the turn leaves any more; the next start has a new epoch.
func (b *base) must(what string, err error) {
	if err != nil {
		panic(violation{fmt.Errorf("worker %s: %s: %w", b.Node, what, err)})
	}
}

// attainable is the number of pages that requests can ever get: quarantined ones
// count as lost until their proof arrives.
func (b *base) attainable() int {
	return max(0, b.PoolPages-b.ReservedPages-b.pool.Counts()[pool.Quarantined])
}

// free is the number of pages that can be taken now.
func (b *base) free(probe bool) int {
	if probe {
		return b.pool.Counts()[pool.Free]
	}
	return b.pool.Usable()
}

// publish puts the worker's state on its board, at most once in publishInterval
// unless something changed that routing should hear of at once.
func (b *base) publish(peers []cluster.PeerStatus, queued int) {
	counts := b.pool.Counts()
	s := cluster.Status{
		Node: b.Node, Role: b.role, Epoch: b.Epoch, Model: b.ModelName, Fingerprint: b.Model.Fingerprint(), Vocab: b.Model.Config.Vocab,
		Limits: cluster.Limits{ContextTokens: b.Model.Config.Context, PoolPages: b.PoolPages, UsablePages: b.attainable(),
			ReservedPages: b.ReservedPages, PageTokens: kv.PageTokens},
		Running: b.sched.Len(), Waiting: len(b.jobs) - b.sched.Len(), FreePages: counts[pool.Free], QuarantinedPages: counts[pool.Quarantined],
		QueuedTokens: queued, LastTransfer: b.lastTransfer, Peers: peers, Draining: b.draining,
		LedgerFailed: b.Record.Err() != nil, Build: b.Build,
	}
	if b.Explicit {
		s.Limits.ServedTokens = b.ContextTokens
	}
	if b.CertificateFailures != nil {
		s.CertificateFailures = b.CertificateFailures()
	}
	if now := b.Now(); notable(b.published, s) || now.Sub(b.publishedAt) > publishInterval {
		s.Refused = b.refusals()
		b.board.Set(s)
		b.published, b.publishedAt = s, now
	}
}

// refusals is how many pages the gate has refused, by reason, all of them.
func (b *base) refusals() map[string]int {
	if b.refused == nil {
		return nil
	}
	all := map[string]int{}
	for _, r := range transport.Refusals() {
		all[r.String()] = b.refused[r]
	}
	return all
}

// notable reports whether a change is one that routing should hear of at once: not
// each page and token, but limits, peers, drains, the ledger and the first transfer.
func notable(a, b cluster.Status) bool {
	return a.Limits != b.Limits || a.Draining != b.Draining || a.LedgerFailed != b.LedgerFailed || a.LastTransfer.IsZero() != b.LastTransfer.IsZero() || !slices.Equal(a.Peers, b.Peers)
}
