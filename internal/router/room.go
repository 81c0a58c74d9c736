package router

import (
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// Load is what requests hold at a worker.
type Load struct{ Pages, Tokens int }

// Book counts what the running requests of one gateway hold at each worker, in all
// and by tenant.
type Book struct {
	all     map[string]Load            // by node
	tenants map[string]map[string]Load // by tenant, then by node
}

// NewBook is empty.
func NewBook() *Book {
	return &Book{all: map[string]Load{}, tenants: map[string]map[string]Load{}}
}

// Charge adds what a request of the tenant holds at a node.
func (b *Book) Charge(tenant, node string, l Load) { b.add(tenant, node, l, 1) }

// Credit takes it away again.
func (b *Book) Credit(tenant, node string, l Load) { b.add(tenant, node, l, -1) }

func (b *Book) add(tenant, node string, l Load, sign int) {
	if l == (Load{}) {
		return
	}
	if b.tenants[tenant] == nil {
		b.tenants[tenant] = map[string]Load{}
	}
	for _, loads := range []map[string]Load{b.all, b.tenants[tenant]} {
		held := loads[node]
		held.Pages += sign * l.Pages
		held.Tokens += sign * l.Tokens
		if loads[node] = held; held == (Load{}) {
			delete(loads, node)
		}
	}
	if len(b.tenants[tenant]) == 0 {
		delete(b.tenants, tenant)
	}
}

// At is what all requests hold at a node.
func (b *Book) At(node string) Load { return b.all[node] }

// Empty reports whether nothing is held anywhere.
func (b *Book) Empty() bool { return len(b.all) == 0 && len(b.tenants) == 0 }

// Room is where requests fit at one moment. Its workers' HeldPages are those of a Book.
type Room struct {
	now        time.Time
	rules      Rules
	book       *Book
	p, d       []Worker // that may serve
	outP, outD []string // why others may not
	pairs      []Pair
}

// NewRoom looks at the workers. The book must not change while the Room is used.
func NewRoom(now time.Time, prefill, decode []Worker, rules Rules, book *Book) *Room {
	r := &Room{now: now, rules: rules, book: book}
	r.p, r.outP = usable(now, prefill, rules)
	r.d, r.outD = usable(now, decode, rules)
	r.pairs = pairsOf(r.p, r.d)
	return r
}

// Pairs are those that may serve, room or not.
func (r *Room) Pairs() []Pair { return r.pairs }

// Outage is an error of kind fault.Unavailable, with the reasons, when no pair may serve.
func (r *Room) Outage() error {
	if len(r.pairs) > 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "no prefill and decode worker can serve together: %s", reasons(r.p, r.d, r.outP, r.outD))
}

// Pick chooses the pair with the least work among those with room for a request of
// the tenant; false: none has room, or the tenant would hold more than its share.
func (r *Room) Pick(tenant string, need Need) (best Pair, ok bool) {
	own := r.book.tenants[tenant]
	if r.overShare(r.p, own, need.PromptTokens) || r.overShare(r.d, own, need.StoredTokens) {
		return Pair{}, false
	}
	for _, pair := range r.pairs {
		if pair.Prefill.fits(need.PromptTokens, 0) && pair.Decode.fits(need.StoredTokens, 0) && (!ok || compare(r.now, r.rules, pair, best) < 0) {
			best, ok = pair, true
		}
	}
	return best, ok
}

// KeptOut reports whether other tenants' requests keep one of the tenant out: there were
// room for it if they ran nothing, and none if the tenant ran nothing.
func (r *Room) KeptOut(tenant string, need Need) bool {
	own := r.book.tenants[tenant]
	if r.overShare(r.p, own, need.PromptTokens) || r.overShare(r.d, own, need.StoredTokens) {
		return false
	}
	beside := func(w Worker) (freed int) { return w.HeldPages - own[w.Node].Pages }
	alone := func(w Worker) (freed int) { return own[w.Node].Pages }
	return r.fits(need, beside) && !r.fits(need, alone)
}

// fits reports whether a pair had room if so many of the pages that it holds were freed.
func (r *Room) fits(need Need, freed func(Worker) int) bool {
	return slices.ContainsFunc(r.pairs, func(c Pair) bool {
		return c.Prefill.fits(need.PromptTokens, freed(c.Prefill)) && c.Decode.fits(need.StoredTokens, freed(c.Decode))
	})
}

// overShare reports whether a tenant would hold more pages than its share of all that
// the workers of a role have. One that holds none may have any.
func (r *Room) overShare(workers []Worker, own map[string]Load, tokens int) bool {
	held, most, all := 0, 0, 0
	for _, w := range workers {
		held += own[w.Node].Pages
		all += w.UsablePages
		most = max(most, w.pages(tokens))
	}
	return held > 0 && (held+most)*100 > all*r.rules.TenantSharePercent
}

// Seats is a Room as an admission.Queue asks about it.
type Seats struct {
	*Room
	Need func(admission.Ticket) Need
	Pair Pair // for the ticket that fitted last
}

// Fits reports whether a pair has room for the ticket, and keeps the pair.
func (s *Seats) Fits(t admission.Ticket) bool {
	pair, ok := s.Pick(t.Tenant, s.Need(t))
	if ok {
		s.Pair = pair
	}
	return ok
}

// KeptOut reports whether other tenants' requests keep the ticket out.
func (s *Seats) KeptOut(t admission.Ticket) bool { return s.Room.KeptOut(t.Tenant, s.Need(t)) }
