package sim

import (
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// How long the simulated gateway waits and remembers; as in the real one.
const (
	freshFor      = 5 * time.Second
	lostFor       = time.Second
	avoidFor      = 5 * time.Second
	queueTimeout  = 30 * time.Second
	outageTimeout = 3 * time.Second
	busyRetries   = 6
	busyBackoff   = 50 * time.Millisecond
	reserveTokens = 16
	queueMax      = 64
	laneMax       = 32
	sweepInterval = 100 * time.Millisecond
	beatInterval  = 200 * time.Millisecond
)

// gateway is one incarnation of the gateway: admission and router are the real ones,
// what stands between them is as in package gateway, without its goroutines.
type gateway struct {
	world   *world
	boot    uint64
	dead    bool
	queue   *admission.Queue
	quotas  *admission.Quotas
	members []cluster.Member // by the workers' index
	loads   *router.Book
	losses  []loss
	gone    []kv.Epoch // by the workers' index: the last incarnation that is known to have ended
	waiting map[uint64]*request
	live    []*request // admitted and not answered, in order
	streams []*stream
	next    uint64 // id of the last request
	outage  time.Time
}

type loss struct {
	epoch kv.Epoch
	at    time.Time
}

func (w *world) newGateway() *gateway {
	n := len(w.workers)
	g := &gateway{world: w, boot: w.nodes.Uint64() | 1, quotas: admission.NewQuotas(), waiting: map[uint64]*request{},
		queue:   admission.NewQueue(admission.QueueConfig{TicketsMax: queueMax, TenantTicketsMax: laneMax, RetryAfter: time.Second}),
		members: make([]cluster.Member, n), loads: router.NewBook(), losses: make([]loss, n), gone: make([]kv.Epoch, n)}
	for i, worker := range w.workers {
		g.members[i].Node, g.members[i].Role = worker.name, worker.role
	}
	w.trace("the gateway starts as %016x", g.boot)
	g.sweep()
	return g
}

// hear takes in what a worker says of itself.
func (g *gateway) hear(n *node, s cluster.Status) {
	if g.dead || g.gone[n.index] == s.Epoch {
		return
	}
	g.members[n.index] = cluster.Member{Status: s, Up: true, Seen: g.world.clock.time()}
	g.pump()
}

// submit decides about a request: refused at once, or it waits for a pair.
func (g *gateway) submit(r *request) {
	w := g.world
	now := w.clock.time()
	limit := g.limit()
	if limit.Tokens == 0 {
		r.answer(fault.New(fault.Unavailable, "no worker is known yet"))
		return
	}
	if err := g.quotas.Enter(now, r.tenant.name, r.tenant.limits); err != nil {
		r.answer(err)
		return
	}
	granted, err := limit.Decide(r.promptTokens, r.asked, reserveTokens)
	if err != nil {
		r.answer(err)
		return
	}
	r.granted = granted.Output
	total := r.promptTokens + r.granted
	r.reservation, err = g.quotas.Reserve(now, r.tenant.name, r.tenant.limits, admission.Ask{Choices: 1, Tokens: total, Until: now.Add(time.Hour)})
	if err != nil {
		r.answer(err)
		return
	}
	g.next++
	r.id, r.since = g.next, now
	ticket := admission.Ticket{ID: r.id, Tenant: r.tenant.name, Tokens: total}
	if err := g.queue.Push(ticket); err != nil {
		g.quotas.Settle(now, r.reservation, 0)
		r.answer(err)
		return
	}
	r.ticket = ticket
	g.waiting[r.id] = r
	g.live = append(g.live, r)
	g.pump()
}

func (g *gateway) limit() admission.Limit {
	var known []admission.Worker
	for _, m := range g.members {
		if m.Epoch != 0 {
			known = append(known, capacityOf(m))
		}
	}
	return admission.Effective(g.world.swarm.context, known)
}

func capacityOf(m cluster.Member) admission.Worker {
	return admission.Worker{Node: m.Node, Role: m.Role.String(), ContextTokens: m.Limits.ContextTokens, ServedTokens: m.Limits.ServedTokens,
		PoolPages: m.Limits.PoolPages, ReservedPages: m.Limits.ReservedPages, UsablePages: m.Limits.UsablePages, PageTokens: m.Limits.PageTokens}
}

func (g *gateway) rules() router.Rules {
	return router.Rules{FreshFor: freshFor, LostFor: lostFor, AvoidFor: avoidFor, LimitTokens: g.limit().Tokens, Fingerprint: g.world.model.Fingerprint(),
		TenantSharePercent: g.world.swarm.tenantShare}
}

// room is where requests fit now.
func (g *gateway) room() *router.Room {
	var prefill, decode []router.Worker
	for i, m := range g.members {
		held := g.loads.At(m.Node)
		c := router.Worker{Node: m.Node, Epoch: m.Epoch, Fingerprint: m.Fingerprint, Up: m.Up, Draining: m.Draining, LedgerFailed: m.LedgerFailed, Seen: m.Seen,
			UsableTokens: capacityOf(m).UsableTokens(), UsablePages: m.Limits.UsablePages, PageTokens: m.Limits.PageTokens,
			QueuedTokens: m.QueuedTokens, HeldPages: held.Pages, HeldTokens: held.Tokens}
		if l := g.losses[i]; l.epoch == m.Epoch {
			c.LastLoss, c.LastFailure = l.at, l.at
		}
		for _, p := range m.Peers {
			if !p.Up {
				c.UnseenPeers = append(c.UnseenPeers, p.Node)
			}
		}
		if m.Role == cluster.Prefill {
			prefill = append(prefill, c)
		} else {
			decode = append(decode, c)
		}
	}
	return router.NewRoom(g.world.clock.time(), prefill, decode, g.rules(), g.loads)
}

func (r *request) need() router.Need {
	return router.Need{PromptTokens: r.promptTokens, StoredTokens: admission.Stored(r.promptTokens, r.granted)}
}

// pump gives turns while there is room for one.
func (g *gateway) pump() {
	for !g.dead && g.queue.Len() > 0 {
		seats := router.Seats{Room: g.room(), Need: func(t admission.Ticket) router.Need { return g.waiting[t.ID].need() }}
		switch {
		case seats.Outage() == nil:
			g.outage = time.Time{}
		case g.outage.IsZero():
			g.outage = g.world.clock.time()
		}
		ticket, ok := g.queue.Next(&seats)
		if !ok {
			return
		}
		r := g.waiting[ticket.ID]
		delete(g.waiting, ticket.ID)
		g.begin(r, seats.Pair)
	}
}

// sweep ends waits that took too long.
func (g *gateway) sweep() {
	g.world.clock.after(sweepInterval, func() {
		if g.dead {
			return
		}
		g.pump()
		now := g.world.clock.time()
		for _, r := range slices.Clone(g.live) {
			waited := now.Sub(r.since)
			if g.waiting[r.id] != r {
				continue
			}
			if !g.outage.IsZero() && min(waited, now.Sub(g.outage)) >= outageTimeout || waited >= queueTimeout {
				g.settle(r, fault.New(fault.Unavailable, "no room at the workers"))
			}
		}
		g.sweep()
	})
}

// settle ends a request for good: whatever it holds here goes back, and the client
// gets its answer.
func (g *gateway) settle(r *request, err error) {
	if g.waiting[r.id] == r {
		delete(g.waiting, r.id)
		g.queue.Remove(r.tenant.name, r.id)
	}
	if r.current != nil {
		r.current.end()
	}
	g.live = slices.DeleteFunc(g.live, func(o *request) bool { return o == r })
	g.quotas.Settle(g.world.clock.time(), r.reservation, r.promptTokens+r.delivered)
	r.answer(err)
	g.pump()
}

// again gives a request its place in the queue back.
func (g *gateway) again(r *request, pause time.Duration) {
	g.world.clock.after(pause, func() {
		if g.dead || r.answers > 0 {
			return
		}
		r.since = g.world.clock.time()
		g.queue.PushBack(r.ticket)
		g.waiting[r.id] = r
		g.pump()
	})
}

// crash is the end of a gateway's process: clients and workers see broken connections.
func (g *gateway) crash() {
	g.dead = true
	g.world.trace("the gateway %016x dies", g.boot)
	for _, s := range g.streams {
		if !s.over {
			s.over = true
			s.toNode = max(s.toNode, g.world.clock.now+g.world.net.between(0, keepAlive))
			s.cancel(errGateway)
		}
	}
	for _, r := range g.live {
		r.answer(fault.New(fault.Unavailable, "the connection to the gateway broke"))
	}
	g.live = nil
}

// lose ends all streams of a worker.
func (g *gateway) lose(n *node, each func(*stream)) {
	for _, s := range slices.Clone(g.streams) {
		if s.node == n && s.boot == n.boot && !s.over {
			each(s)
		}
	}
}

// idle reports what a gateway without requests still holds.
func (g *gateway) idle() string {
	for _, t := range g.world.tenants {
		if choices, tokens := g.quotas.Held(t.name); choices != 0 || tokens != 0 {
			return "the gateway still holds a tenant's reservation"
		}
	}
	if !g.loads.Empty() {
		return "the gateway still counts work at a worker"
	}
	if g.queue.Len() != 0 || len(g.live) != 0 {
		return "requests still wait at the gateway"
	}
	return ""
}
