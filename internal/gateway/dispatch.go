package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// dispatcher holds the choices that wait, and counts what the running ones hold
// at each worker. The queue says whose turn it is among those for which a pair has
// room.
type dispatcher struct {
	config  Config
	workers Cluster
	tenants Tenants
	model   kv.Fingerprint
	metrics *metrics.Set
	now     func() time.Time

	mu      sync.Mutex // protects all below
	queue   *admission.Queue
	waiting map[uint64]*waiter
	loads   *router.Book
	losses  map[string]loss
	running int
	// outage is since when no pair can serve at all, and why.
	outage    time.Time
	outageErr error
}

// loss is when a worker was lost and when it failed a request, in that epoch of it.
type loss struct {
	epoch        kv.Epoch
	lost, failed time.Time // the last time; zero: never
}

// waiter is one choice that waits. Its ticket's id is its request's number.
type waiter struct {
	ticket admission.Ticket
	need   router.Need
	since  time.Time
	turn   chan turn // holds 1: the sender never blocks
}

type turn struct {
	lease *lease
	err   error
}

// lease is a turn: a pair of workers, and what is counted there until release.
type lease struct {
	dispatcher *dispatcher
	pair       router.Pair
	waited     time.Duration

	tenant          string
	prefill, decode router.Load // still counted; protected by dispatcher.mu
}

func newDispatcher(config Config, parts Parts) *dispatcher {
	return &dispatcher{
		config: config, workers: parts.Cluster, tenants: parts.Tenants, model: parts.Fingerprint, metrics: parts.Metrics, now: parts.Now,
		queue: admission.NewQueue(admission.QueueConfig{
			TicketsMax: config.QueueMax, TenantTicketsMax: config.TenantQueueMax, RetryAfter: config.RetryAfter,
		}),
		waiting: map[uint64]*waiter{}, loads: router.NewBook(), losses: map[string]loss{},
	}
}

// limit is the effective context limit now: over every worker of the served model
// that was ever heard of, so that it doesn't move when one restarts.
func (d *dispatcher) limit() (admission.Limit, error) {
	known := d.capacities(d.workers.Status())
	if len(known) == 0 {
		return admission.Limit{}, fault.New(fault.Unavailable, "no worker of the model is known yet")
	}
	return admission.Effective(d.config.ContextTokens, known), nil
}

// capacities describes the workers of the served model that were ever heard of.
func (d *dispatcher) capacities(members []cluster.Member) (known []admission.Worker) {
	for _, m := range members {
		if m.Epoch != 0 && m.Fingerprint == d.model {
			known = append(known, capacityOf(m))
		}
	}
	return known
}

func capacityOf(m cluster.Member) admission.Worker {
	return admission.Worker{
		Node: m.Node, Role: m.Role.String(), ContextTokens: m.Limits.ContextTokens, ServedTokens: m.Limits.ServedTokens,
		PoolPages: m.Limits.PoolPages, ReservedPages: m.Limits.ReservedPages, UsablePages: m.Limits.UsablePages,
		PageTokens: m.Limits.PageTokens,
	}
}

// enqueue lets all of a call's choices wait, or none.
func (d *dispatcher) enqueue(waiters []*waiter) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	tickets := make([]admission.Ticket, len(waiters))
	for i, w := range waiters {
		tickets[i] = w.ticket
	}
	if err := d.queue.Push(tickets...); err != nil {
		return err
	}
	for _, w := range waiters {
		d.waiting[w.ticket.ID] = w
	}
	d.pump()
	return nil
}

// requeue gives a choice its place back after a pair could not take it.
func (d *dispatcher) requeue(w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.since = d.now()
	d.queue.PushBack(w.ticket)
	d.waiting[w.ticket.ID] = w
	d.pump()
}

// wait returns the choice's lease. Whatever it returns, the choice waits no more.
func (d *dispatcher) wait(ctx context.Context, w *waiter) (*lease, error) {
	select {
	case t := <-w.turn:
		return t.lease, t.err
	case <-ctx.Done():
	}
	d.leave(w)
	return nil, context.Cause(ctx)
}

// leave takes a waiter out; a turn that it got meanwhile goes back.
func (d *dispatcher) leave(w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(w)
	select {
	case t := <-w.turn:
		if t.lease != nil {
			d.free(t.lease)
		}
	default:
	}
	d.pump()
}

func (d *dispatcher) forget(w *waiter) {
	if d.waiting[w.ticket.ID] == w {
		delete(d.waiting, w.ticket.ID)
		d.queue.Remove(w.ticket.Tenant, w.ticket.ID)
	}
}

// sweep gives turns after a change of the workers and ends waits that took too long.
func (d *dispatcher) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pump()
	now := d.now()
	for _, w := range d.waiting {
		waited := now.Sub(w.since)
		switch {
		case !d.outage.IsZero() && min(waited, now.Sub(d.outage)) >= d.config.OutageTimeout:
			d.forget(w)
			w.turn <- turn{err: &detailed{"no prefill and decode worker can serve now", d.outageErr}}
		case waited >= d.config.QueueTimeout:
			d.forget(w)
			w.turn <- turn{err: fault.New(fault.Busy, "no room at the workers for %s", d.config.QueueTimeout)}
		}
	}
}

// pump gives turns while there is room for one. Requires mu.
func (d *dispatcher) pump() {
	members := d.workers.Status()
	now := d.now()
	defer d.note()
	for d.queue.Len() > 0 {
		seats := router.Seats{Room: d.room(now, members), Need: func(t admission.Ticket) router.Need { return d.waiting[t.ID].need }}
		d.noteOutage(now, seats.Outage())
		ticket, ok := d.queue.Next(&seats)
		if !ok {
			return
		}
		w := d.waiting[ticket.ID]
		delete(d.waiting, ticket.ID)
		w.turn <- turn{lease: d.lease(seats.Pair, w, now)}
	}
}

func (d *dispatcher) note() {
	d.metrics.Set(metrics.QueueTickets, float64(d.queue.Len()))
	d.metrics.Set(metrics.RunningTickets, float64(d.running))
}

func (d *dispatcher) noteOutage(now time.Time, err error) {
	switch {
	case err == nil:
		d.outage, d.outageErr = time.Time{}, nil
	case d.outage.IsZero():
		d.outage, d.outageErr = now, err
	default:
		d.outageErr = err
	}
}

func (d *dispatcher) lease(pair router.Pair, w *waiter, now time.Time) *lease {
	l := &lease{dispatcher: d, pair: pair, waited: now.Sub(w.since), tenant: w.ticket.Tenant,
		prefill: router.Load{Pages: pagesFor(w.need.PromptTokens, pair.Prefill), Tokens: w.need.PromptTokens},
		decode:  router.Load{Pages: pagesFor(w.need.StoredTokens, pair.Decode), Tokens: w.need.StoredTokens}}
	d.loads.Charge(l.tenant, pair.Prefill.Node, l.prefill)
	d.loads.Charge(l.tenant, pair.Decode.Node, l.decode)
	d.running++
	return l
}

func pagesFor(tokens int, w router.Worker) int { return (tokens + w.PageTokens - 1) / w.PageTokens }

// handedOver ends what the choice held at prefill: the pages are decode's now.
func (l *lease) handedOver() {
	d := l.dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads.Credit(l.tenant, l.pair.Prefill.Node, l.prefill)
	l.prefill = router.Load{}
	d.pump()
}

// release ends the lease.
func (l *lease) release() {
	d := l.dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free(l)
	d.pump()
}

// free requires mu.
func (d *dispatcher) free(l *lease) {
	d.loads.Credit(l.tenant, l.pair.Prefill.Node, l.prefill)
	d.loads.Credit(l.tenant, l.pair.Decode.Node, l.decode)
	l.prefill, l.decode = router.Load{}, router.Load{}
	d.running--
}

// lost notes that a worker was lost: it is not taken for a while, and then last.
func (d *dispatcher) lost(w router.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.losses[w.Node] = loss{epoch: w.Epoch, lost: d.now(), failed: d.now()}
}

// failed notes that a worker failed a request: it is taken last for a while. It is
// still taken, since a request that makes every worker fail must not stop them all.
func (d *dispatcher) failed(w router.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.losses[w.Node]
	if l.epoch != w.Epoch {
		l = loss{epoch: w.Epoch}
	}
	l.failed = d.now()
	d.losses[w.Node] = l
}

// rules are those of the served limit now.
func (d *dispatcher) rules(members []cluster.Member) router.Rules {
	limit, share := admission.Effective(d.config.ContextTokens, d.capacities(members)), d.config.TenantSharePercent
	if d.tenants.Count() == 1 {
		share = 100 // there is no other to leave room for
	}
	return router.Rules{FreshFor: d.config.FreshFor, LostFor: d.config.LostFor, AvoidFor: d.config.AvoidFor, LimitTokens: limit.Tokens, Fingerprint: d.model,
		TenantSharePercent: share}
}

// room is where choices fit now. Requires mu.
func (d *dispatcher) room(now time.Time, members []cluster.Member) *router.Room {
	var prefill, decode []router.Worker
	for _, m := range members {
		w := d.candidate(m)
		switch m.Role {
		case cluster.Prefill:
			prefill = append(prefill, w)
		case cluster.Decode:
			decode = append(decode, w)
		}
	}
	return router.NewRoom(now, prefill, decode, d.rules(members), d.loads)
}

func (d *dispatcher) candidate(m cluster.Member) router.Worker {
	held := d.loads.At(m.Node)
	w := router.Worker{
		Node: m.Node, Epoch: m.Epoch, Fingerprint: m.Fingerprint, Up: m.Up, Draining: m.Draining, LedgerFailed: m.LedgerFailed, Seen: m.Seen,
		UsableTokens: capacityOf(m).UsableTokens(), UsablePages: m.Limits.UsablePages, PageTokens: m.Limits.PageTokens,
		QueuedTokens: m.QueuedTokens, HeldPages: held.Pages, HeldTokens: held.Tokens,
	}
	if l := d.losses[m.Node]; l.epoch == m.Epoch {
		w.LastLoss, w.LastFailure = l.lost, l.failed
	}
	for _, p := range m.Peers {
		if !p.Up {
			w.UnseenPeers = append(w.UnseenPeers, p.Node)
		}
	}
	return w
}

// pairs lists the pairs that may serve now.
func (d *dispatcher) pairs() []router.Pair { return d.look().Pairs() }

// whyNone says, with each worker's reason, why no pair may serve.
func (d *dispatcher) whyNone() string {
	if err := d.look().Outage(); err != nil {
		return err.Error()
	}
	return "pairs of workers are only just there"
}

func (d *dispatcher) look() *router.Room {
	members := d.workers.Status()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.room(d.now(), members)
}

// view describes each member as the router sees it, in order.
func (d *dispatcher) view(members []cluster.Member) ([]router.Worker, router.Rules) {
	d.mu.Lock()
	defer d.mu.Unlock()
	workers := make([]router.Worker, len(members))
	for i, m := range members {
		workers[i] = d.candidate(m)
	}
	return workers, d.rules(members)
}

// queued is the number of choices that wait.
func (d *dispatcher) queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queue.Len()
}
