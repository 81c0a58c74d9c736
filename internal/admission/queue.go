package admission

import (
	"cmp"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// Ticket is one choice that waits for a pair of workers.
type Ticket struct {
	ID     uint64 // unique among all tickets ever pushed
	Tenant string
	Tokens int // prompt and granted output
}

// QueueConfig bounds a Queue.
type QueueConfig struct {
	TicketsMax       int           // in all, but for one request of each tenant with nothing waiting
	TenantTicketsMax int           // of one tenant
	RetryAfter       time.Duration // told to those who find it full
}

// Queue orders waiting tickets: first come first served within a tenant, and by
// tokens among tenants. Each tenant with waiting tickets has a start tag in
// virtual time, the tokens served so far as if all such tenants were served at
// one rate; the smallest tag is next and moves on by its ticket's tokens. While
// two tenants both wait and what they ask for fits, what they were given differs by
// at most two of the largest tickets (start-time fair queueing, Goyal, Vin and Cheng
// 1996).
//
// A ticket that does not fit at the workers is passed by others that do, for as many
// tokens as it asks for. Then it claims the room that becomes free: none is passed on
// behind it, until it fits. One that does not wait for others only, since its own
// tenant's running work keeps it out, claims nothing, however long it waits. Who leaves
// with a claim is charged as if served, since others stood still for it.
type Queue struct {
	config  QueueConfig
	virtual uint64 // the largest start tag of a ticket that was taken
	lanes   map[string]*lane
	order   []*lane // lanes with tickets, in the order in which they began to wait
	count   int
}

type lane struct {
	tenant  string
	start   uint64 // tag of the first ticket; after the last one, of the next to come
	passed  uint64 // tokens that have passed the first ticket while others kept it out
	tickets []waiting
}

// size is what the first ticket asks for, and what may pass it. Requires: there is one.
func (l *lane) size() uint64 { return uint64(max(l.tickets[0].Tokens, 1)) }

type waiting struct {
	Ticket
	charge uint64 // zero for a ticket that comes back and was charged before
}

// NewQueue is empty.
func NewQueue(config QueueConfig) *Queue {
	return &Queue{config: config, lanes: map[string]*lane{}}
}

// Push queues all of the tickets of one request, which have one tenant, or none:
// an error of kind fault.Busy with a RetryAfter. It says nothing of other tenants
// but that they fill the queue. A tenant with nothing waiting finds a place though
// the queue is full, so that no number of others can keep it out.
func (q *Queue) Push(tickets ...Ticket) error {
	if len(tickets) == 0 {
		return nil
	}
	l := q.lane(tickets[0].Tenant)
	if n := len(l.tickets) + len(tickets); n > q.config.TenantTicketsMax {
		q.prune(l)
		return refuse(fault.Busy, q.config.RetryAfter, "%d requests of the tenant are waiting, the queue has room for %d", n-len(tickets), q.config.TenantTicketsMax)
	}
	if len(l.tickets) > 0 && q.count+len(tickets) > q.config.TicketsMax {
		return refuse(fault.Busy, q.config.RetryAfter, "the queue is full, %d requests of the tenant are waiting in it", len(l.tickets))
	}
	for _, t := range tickets {
		q.insert(l, len(l.tickets), waiting{t, uint64(max(t.Tokens, 1))})
	}
	return nil
}

// PushBack queues a ticket that was taken and found no room at the workers: it
// is its tenant's first again, costs nothing more and is never refused, because
// it held its place all along.
func (q *Queue) PushBack(t Ticket) {
	q.insert(q.lane(t.Tenant), 0, waiting{t, 0})
}

func (q *Queue) lane(tenant string) *lane {
	l := q.lanes[tenant]
	if l == nil {
		l = &lane{tenant: tenant}
		q.lanes[tenant] = l
	}
	return l
}

func (q *Queue) insert(l *lane, at int, w waiting) {
	if len(l.tickets) == 0 {
		l.start = max(l.start, q.virtual)
		q.order = append(q.order, l)
	}
	if at == 0 {
		l.passed = 0
	}
	l.tickets = append(l.tickets, waiting{})
	copy(l.tickets[at+1:], l.tickets[at:])
	l.tickets[at] = w
	q.count++
}

// Room says what fits at the workers now.
type Room interface {
	// Fits reports whether a ticket can run now.
	Fits(t Ticket) bool
	// KeptOut reports whether other tenants' work keeps it out: it fits if they have
	// nothing running, and not if its own tenant has nothing.
	KeptOut(t Ticket) bool
}

// Next takes the ticket whose turn it is: the first of the tenant with the smallest
// tag among those that fit, unless one before it claims the room.
func (q *Queue) Next(room Room) (Ticket, bool) {
	lanes := slices.Clone(q.order)
	slices.SortStableFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.start, b.start) })
	for i, l := range lanes {
		if room.Fits(l.tickets[0].Ticket) {
			for _, passed := range lanes[:i] {
				passed.letPass(l, room)
			}
			return q.take(l), true
		}
		if l.passed >= l.size() && room.KeptOut(l.tickets[0].Ticket) {
			break
		}
	}
	return Ticket{}, false
}

// letPass notes that another tenant's first ticket goes before the lane's. A lane that
// its own tenant's work keeps out gets ahead of others by no more than one ticket.
func (l *lane) letPass(other *lane, room Room) {
	switch {
	case room.KeptOut(l.tickets[0].Ticket):
		l.passed += other.size()
	case other.start > l.size():
		l.start = max(l.start, other.start-l.size())
	}
}

func (q *Queue) take(l *lane) Ticket {
	w := l.tickets[0]
	q.virtual = max(q.virtual, l.start)
	l.start += w.charge
	q.cut(l, 0)
	return w.Ticket
}

// Remove takes a ticket out, wherever it stands, without a charge unless it claims
// the room.
func (q *Queue) Remove(tenant string, id uint64) bool {
	l := q.lanes[tenant]
	if l == nil {
		return false
	}
	for i := range l.tickets {
		if l.tickets[i].ID != id {
			continue
		}
		if i == 0 && l.passed >= l.size() {
			l.start += l.size()
		}
		q.cut(l, i)
		return true
	}
	return false
}

func (q *Queue) cut(l *lane, at int) {
	if at == 0 {
		l.passed = 0
	}
	l.tickets = append(l.tickets[:at], l.tickets[at+1:]...)
	q.count--
	if len(l.tickets) > 0 {
		return
	}
	for i := range q.order {
		if q.order[i] == l {
			q.order = append(q.order[:i], q.order[i+1:]...)
			break
		}
	}
	for _, other := range q.lanes {
		q.prune(other)
	}
}

// prune forgets a lane that has no ticket and no debt: its tag isn't ahead of
// the virtual time, which it would start from anyway.
func (q *Queue) prune(l *lane) {
	if len(l.tickets) == 0 && (l.start <= q.virtual || q.count == 0) {
		delete(q.lanes, l.tenant)
	}
}

// Len is the number of waiting tickets.
func (q *Queue) Len() int { return q.count }

// TenantLen is the number of waiting tickets of one tenant. A tenant is told its
// own number only.
func (q *Queue) TenantLen(tenant string) int {
	if l := q.lanes[tenant]; l != nil {
		return len(l.tickets)
	}
	return 0
}
