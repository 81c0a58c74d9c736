package admission

import (
	"math"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// Limits bounds what one tenant may use; zero means no limit.
type Limits struct {
	RequestsPerMinute int
	TokensPerMinute   int
	Concurrency       int
	ReservedTokens    int
}

// Ask is what one request wants to reserve.
type Ask struct {
	Choices int       // n times the prompts, each counts against the concurrency
	Tokens  int       // prompts and granted output of all choices
	Until   time.Time // the reservation ends by itself then
}

// Reservation names one reservation for ever; zero is none.
type Reservation uint64

// Quotas counts what tenants use. Requests and tokens per minute are buckets
// that hold one minute's worth. A request enters, which costs it one of the
// requests whatever becomes of it; it reserves its largest possible cost at
// admission and gets back at the end what it didn't use. Each reservation ends
// once: by Settle or by Expire.
type Quotas struct {
	accounts     map[string]*account
	reservations map[Reservation]held
	last         Reservation
}

type account struct {
	filled           time.Time // when the buckets were brought up to date
	limits           Limits
	requests, tokens float64 // what the buckets hold
	choices          int     // reserved now
	reserved         int     // tokens reserved now
}

type held struct {
	tenant string
	ask    Ask
}

// NewQuotas has no accounts; a tenant's buckets are full when it first asks.
func NewQuotas() *Quotas {
	return &Quotas{accounts: map[string]*account{}, reservations: map[Reservation]held{}}
}

// Enter takes one of the tenant's requests, before its body costs work. It refuses, and
// takes nothing, when none is left or Reserve would refuse the smallest request. A
// refusal is of kind fault.OverQuota and names the limit.
func (q *Quotas) Enter(now time.Time, tenant string, limits Limits) error {
	a := q.account(now, tenant, limits)
	if err := a.refuses(Ask{Choices: 1, Tokens: 1}); err != nil || limits.RequestsPerMinute == 0 {
		return err
	}
	if a.requests < 1 {
		return refuse(fault.OverQuota, flowsIn(1-a.requests, limits.RequestsPerMinute), "the tenant's %d requests a minute are used up", limits.RequestsPerMinute)
	}
	a.requests--
	return nil
}

// Reserve takes the whole cost in tokens and choices of a request or nothing. A refusal is of kind
// fault.OverQuota and names the limit.
func (q *Quotas) Reserve(now time.Time, tenant string, limits Limits, ask Ask) (Reservation, error) {
	a := q.account(now, tenant, limits)
	if err := a.refuses(ask); err != nil {
		return 0, err
	}
	if limits.TokensPerMinute > 0 {
		a.tokens -= float64(ask.Tokens)
	}
	a.choices += ask.Choices
	a.reserved += ask.Tokens
	q.last++
	q.reservations[q.last] = held{tenant, ask}
	return q.last, nil
}

// account is the tenant's, its buckets filled up to now.
func (q *Quotas) account(now time.Time, tenant string, limits Limits) *account {
	a := q.accounts[tenant]
	if a == nil {
		a = &account{filled: now, requests: float64(limits.RequestsPerMinute), tokens: float64(limits.TokensPerMinute)}
		q.accounts[tenant] = a
	}
	a.fill(now, limits)
	return a
}

// fill adds what has flowed in since. A limit that was raised or newly set
// starts with a full difference, so that a change is felt at once.
func (a *account) fill(now time.Time, limits Limits) {
	minutes := max(now.Sub(a.filled), 0).Minutes()
	a.requests += float64(max(limits.RequestsPerMinute-a.limits.RequestsPerMinute, 0))
	a.tokens += float64(max(limits.TokensPerMinute-a.limits.TokensPerMinute, 0))
	a.requests = min(a.requests+minutes*float64(limits.RequestsPerMinute), float64(limits.RequestsPerMinute))
	a.tokens = min(a.tokens+minutes*float64(limits.TokensPerMinute), float64(limits.TokensPerMinute))
	if now.After(a.filled) {
		a.filled = now
	}
	a.limits = limits
}

// concurrencyRetry is told to a tenant that waits for its own requests to end.
const concurrencyRetry = time.Second

func (a *account) refuses(ask Ask) error {
	l := a.limits
	switch {
	case l.Concurrency > 0 && ask.Choices > l.Concurrency:
		return refuse(fault.OverQuota, 0, "%d choices in one request, the tenant may run %d at a time", ask.Choices, l.Concurrency)
	case l.TokensPerMinute > 0 && ask.Tokens > l.TokensPerMinute:
		return refuse(fault.OverQuota, 0, "the request reserves %d tokens, the tenant has %d a minute", ask.Tokens, l.TokensPerMinute)
	case l.ReservedTokens > 0 && ask.Tokens > l.ReservedTokens:
		return refuse(fault.OverQuota, 0, "the request reserves %d tokens, the tenant may hold %d", ask.Tokens, l.ReservedTokens)
	case l.Concurrency > 0 && a.choices+ask.Choices > l.Concurrency:
		return refuse(fault.OverQuota, concurrencyRetry, "%d choices are running and %d asked for, the tenant may run %d at a time", a.choices, ask.Choices, l.Concurrency)
	case l.ReservedTokens > 0 && a.reserved+ask.Tokens > l.ReservedTokens:
		return refuse(fault.OverQuota, concurrencyRetry, "%d tokens are reserved and %d asked for, the tenant may hold %d", a.reserved, ask.Tokens, l.ReservedTokens)
	case l.TokensPerMinute > 0 && a.tokens < float64(ask.Tokens):
		return refuse(fault.OverQuota, flowsIn(float64(ask.Tokens)-a.tokens, l.TokensPerMinute),
			"%d tokens asked for, %d of the tenant's %d a minute are left", ask.Tokens, int(math.Floor(max(a.tokens, 0))), l.TokensPerMinute)
	}
	return nil
}

// flowsIn is how long a bucket takes to gain the amount, rounded up to a
// millisecond.
func flowsIn(amount float64, perMinute int) time.Duration {
	ms := math.Ceil(amount / float64(perMinute) * 60_000)
	return time.Duration(ms) * time.Millisecond
}

// Settle ends a reservation: used tokens stay spent, the rest flows back. A
// reservation that has ended is left alone.
func (q *Quotas) Settle(now time.Time, id Reservation, usedTokens int) {
	h, ok := q.reservations[id]
	if !ok {
		return
	}
	delete(q.reservations, id)
	a := q.accounts[h.tenant]
	a.fill(now, a.limits)
	a.choices -= h.ask.Choices
	a.reserved -= h.ask.Tokens
	if a.limits.TokensPerMinute > 0 {
		unused := h.ask.Tokens - min(max(usedTokens, 0), h.ask.Tokens)
		a.tokens = min(a.tokens+float64(unused), float64(a.limits.TokensPerMinute))
	}
}

// Expire ends the reservations whose time is over as if all of it had been used,
// and forgets accounts that hold nothing and are full. It returns how many ended.
func (q *Quotas) Expire(now time.Time) (ended int) {
	for id, h := range q.reservations {
		if !now.Before(h.ask.Until) {
			q.Settle(now, id, h.ask.Tokens)
			ended++
		}
	}
	for tenant, a := range q.accounts {
		a.fill(now, a.limits)
		if a.choices == 0 && a.requests >= float64(a.limits.RequestsPerMinute) && a.tokens >= float64(a.limits.TokensPerMinute) {
			delete(q.accounts, tenant)
		}
	}
	return ended
}

// Held is what a tenant has reserved now.
func (q *Quotas) Held(tenant string) (choices, tokens int) {
	a := q.accounts[tenant]
	if a == nil {
		return 0, 0
	}
	return a.choices, a.reserved
}
