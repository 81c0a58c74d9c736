package sim

import (
	"fmt"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// tenant is a customer.
type tenant struct {
	name   string
	tag    kv.TenantTag
	limits admission.Limits
}

// request is what a client asks for. It is answered exactly once: by a whole answer,
// a refusal, a failure, or not any more because the client went away.
type request struct {
	world        *world
	number       int // in the run
	tenant       *tenant
	promptTokens int
	asked        int
	deadline     time.Time
	probe        bool
	must         bool // it comes when all faults are over: only a whole answer will do

	id          uint64 // at the gateway
	since       time.Time
	ticket      admission.Ticket
	reservation admission.Reservation
	granted     int
	attempt     uint32
	current     *attempt
	busy, lost  int
	delivered   int
	answers     int
}

// prompt is the present attempt's. Its first tokens name request and attempt, so that
// the pages of another attempt are foreign too.
func (r *request) prompt() []int32 {
	name := r.number<<3 | int(r.attempt&7)
	tokens := make([]int32, r.promptTokens)
	for i := range tokens {
		switch i {
		case 0:
			tokens[i] = int32(name % vocabulary)
		case 1:
			tokens[i] = int32(name / vocabulary % vocabulary)
		default:
			tokens[i] = int32(mix(mix(uint64(name), uint64(i)), 3) % vocabulary)
		}
	}
	return tokens
}

// token gives the client a token; the result says what is wrong with it.
func (r *request) token(a *attempt, e cluster.Event) string {
	i := a.next
	a.next++
	r.delivered++
	r.world.report.Tokens++
	switch {
	case r.answers > 0:
		return fmt.Sprintf("token %d came after the answer's end", e.Index)
	case i >= len(a.answer):
		return fmt.Sprintf("token %d came, the answer has %d", e.Index, len(a.answer))
	case e.Token != a.answer[i]:
		return fmt.Sprintf("token %d is not the one that its own prompt gives: it was computed from foreign, stale or unwritten pages, or is another stream's", e.Index)
	}
	return ""
}

// answer ends the request; err nil is a whole answer.
func (r *request) answer(err error) {
	w := r.world
	r.answers++
	w.open--
	if r.answers > 1 {
		w.fail("request %d is answered %d times", r.number, r.answers)
		return
	}
	how := "answered"
	if err != nil {
		how = fault.Of(err).String()
	}
	w.trace("request %d ends: %s", r.number, how)
	w.report.Outcomes[how]++
	if r.must && err != nil {
		w.fail("request %d, with all faults over and the only one, was not answered: %v", r.number, err)
	}
}

// arrive makes the next client come, as long as there are any.
func (w *world) arrive() {
	if w.arrivals >= w.requestsMax || w.healing {
		return
	}
	w.clock.after(w.work.between(0, 2*w.swarm.arrival), func() {
		if w.healing {
			return
		}
		r := w.draw()
		w.submit(r)
		w.arrive()
	})
}

func (w *world) submit(r *request) {
	w.report.Requests++
	w.arrivals++
	w.open++
	w.trace("request %d of %s comes: %d prompt tokens, %d asked", r.number, r.tenant.name, r.promptTokens, r.asked)
	switch g := w.gateway; {
	case g == nil || g.dead:
		r.answer(fault.New(fault.Unavailable, "no gateway"))
	case r.probe:
		g.probe(r)
	default:
		g.submit(r)
	}
}

// draw makes a request by the seed's mix.
func (w *world) draw() *request {
	s, d := &w.swarm, w.work
	r := &request{world: w, number: w.arrivals + 1, tenant: w.tenants[d.IntN(len(w.tenants))], promptTokens: d.within(1, s.promptMax),
		asked: d.within(0, s.outputMax), deadline: w.clock.time().Add(deadlineUsual)}
	if d.chance(3) { // lengths around the end of a page
		r.promptTokens = max(1, min(s.promptMax, d.within(1, 4)*kv.PageTokens+d.within(-1, 1)))
	}
	if d.chance(s.oversizeEvery) {
		r.promptTokens = d.within(s.limit+1, 2*s.limit)
	}
	if d.chance(s.probeEvery) {
		r.probe, r.promptTokens, r.asked, r.granted = true, d.within(1, kv.PageTokens), 2, 2
	}
	if d.chance(s.hurryEvery) {
		r.deadline = w.clock.time().Add(d.between(0, 3*time.Second))
	}
	if d.chance(s.leaveEvery) {
		w.clock.after(d.between(0, s.patience), func() { w.leave(r) })
	}
	return r
}

// deadlineUsual is when a request is over that has no reason to hurry.
const deadlineUsual = 2 * time.Minute

// leave is a client that goes away.
func (w *world) leave(r *request) {
	if r.answers > 0 || w.gateway == nil || w.gateway.dead {
		return
	}
	w.trace("the client of request %d goes away", r.number)
	w.gateway.settle(r, errClient)
}

var errClient = fault.New(fault.Cancelled, "the client went away")

// probe runs a request on reserved pages of some pair, past the queue.
func (g *gateway) probe(r *request) {
	pairs := g.room().Pairs()
	if len(pairs) == 0 {
		r.answer(fault.New(fault.Unavailable, "no pair to probe"))
		return
	}
	g.next++
	r.id = g.next
	g.live = append(g.live, r)
	g.begin(r, pairs[g.world.work.IntN(len(pairs))])
}
