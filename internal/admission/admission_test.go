package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func worker(role string, context, served, pages, reserved int) Worker {
	return Worker{Node: role + "-0", Role: role, ContextTokens: context, ServedTokens: served, PoolPages: pages,
		ReservedPages: reserved, UsablePages: pages - reserved, PageTokens: 16}
}

// Whoever has the smallest bound, the limit is that bound and says whose it is.
func TestEffective(t *testing.T) {
	for _, c := range []struct {
		name   string
		served int
		p, d   Worker
		want   Limit
	}{
		{"gateway", 100, worker("prefill", 8192, 0, 512, 2), worker("decode", 8192, 0, 512, 2), Limit{100, "served context of the gateway"}},
		{"prefill's pool", 4096, worker("prefill", 8192, 0, 12, 2), worker("decode", 8192, 0, 512, 2), Limit{160, "pool of prefill worker prefill-0"}},
		{"decode's pool", 0, worker("prefill", 8192, 0, 512, 2), worker("decode", 8192, 0, 11, 1), Limit{160, "pool of decode worker decode-0"}},
		{"model context", 0, worker("prefill", 70, 0, 512, 2), worker("decode", 8192, 0, 512, 2), Limit{70, "model context of prefill worker prefill-0"}},
		{"decode's served context", 0, worker("prefill", 8192, 0, 512, 2), worker("decode", 8192, 90, 512, 2), Limit{90, "served context of decode worker decode-0"}},
		{"no pool at all", 50, worker("prefill", 8192, 0, 0, 2), worker("decode", 8192, 0, 512, 2), Limit{0, "pool of prefill worker prefill-0"}},
		{"no pool at all, first of two", 0, worker("prefill", 8192, 0, 0, 2), worker("decode", 8192, 0, 512, 2), Limit{0, "pool of prefill worker prefill-0"}},
	} {
		if diff := cmp.Diff(c.want, Effective(c.served, []Worker{c.p, c.d})); diff != "" {
			t.Errorf("%s is the smallest; limit differs (-want +got):\n%s", c.name, diff)
		}
	}
	if got := Effective(0, nil); got.Tokens != 0 {
		t.Errorf("without workers the limit is %d, want 0", got.Tokens)
	}
}

func TestQuarantineLowersUsableOnly(t *testing.T) {
	w := worker("decode", 8192, 0, 12, 2)
	w.UsablePages -= 3
	if w.NominalTokens() != 160 || w.UsableTokens() != 112 {
		t.Fatalf("nominal %d, usable %d; want 160 and 112", w.NominalTokens(), w.UsableTokens())
	}
}

func TestDecide(t *testing.T) {
	limit := Limit{Tokens: 100}
	for _, c := range []struct {
		name                   string
		prompt, asked, reserve int
		want                   Grant
		kind                   fault.Kind
	}{
		{"fits", 50, 10, 20, Grant{Output: 10}, 0},
		{"exactly", 50, 51, 20, Grant{Output: 51}, 0},
		{"one too many is clamped", 50, 52, 20, Grant{Output: 51, Clamped: true}, 0},
		{"not named: the reserve", 50, 0, 20, Grant{Output: 20}, 0},
		{"not named, little room", 95, 0, 20, Grant{Output: 6}, 0},
		{"a prompt of the limit gets one token", 100, 0, 20, Grant{Output: 1}, 0},
		{"one over", 101, 1, 20, Grant{}, fault.OverContext},
		{"empty", 0, 1, 20, Grant{}, fault.Invalid},
	} {
		got, err := limit.Decide(c.prompt, c.asked, c.reserve)
		if diff := cmp.Diff(c.want, got); diff != "" || (err != nil && fault.Of(err) != c.kind) || (err == nil) != (c.kind == 0) {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
		if c.kind == fault.OverContext && (!strings.Contains(err.Error(), "101") || !strings.Contains(err.Error(), "100")) {
			t.Errorf("%q lacks one of the numbers 101 and 100", err)
		}
	}
}

func TestGrantNeverExceedsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{Tokens: rapid.IntRange(0, 1000).Draw(t, "limit")}
		prompt, asked := rapid.IntRange(1, 1100).Draw(t, "prompt"), rapid.IntRange(0, 1100).Draw(t, "asked")
		g, err := limit.Decide(prompt, asked, rapid.IntRange(0, 50).Draw(t, "reserve"))
		if (err == nil) != (prompt <= limit.Tokens) {
			t.Fatalf("a prompt of %d under a limit of %d: %v", prompt, limit.Tokens, err)
		}
		if err == nil && (g.Output < 1 || Stored(prompt, g.Output) > limit.Tokens || asked > 0 && g.Output > asked) {
			t.Fatalf("granted %d for a prompt of %d, asked %d, limit %d", g.Output, prompt, asked, limit.Tokens)
		}
	})
}

func TestQuotaRefusals(t *testing.T) {
	until := noon.Add(time.Hour)
	for _, c := range []struct {
		name   string
		limits Limits
		before []Ask
		ask    Ask
		after  time.Duration // 0: accepted; -1: refused, waiting does not help
	}{
		{"no limits", Limits{}, []Ask{{9, 9999, until}}, Ask{9, 9999, until}, 0},
		{"last request of the minute", Limits{RequestsPerMinute: 2}, []Ask{{1, 1, until}}, Ask{1, 1, until}, 0},
		{"requests used up", Limits{RequestsPerMinute: 2}, []Ask{{1, 1, until}, {1, 1, until}}, Ask{1, 1, until}, 30 * time.Second},
		{"tokens used up", Limits{TokensPerMinute: 60}, []Ask{{1, 50, until}}, Ask{1, 15, until}, 5 * time.Second},
		{"tokens over the minute", Limits{TokensPerMinute: 60}, nil, Ask{1, 61, until}, -1},
		{"concurrency", Limits{Concurrency: 2}, []Ask{{1, 1, until}}, Ask{2, 1, until}, concurrencyRetry},
		{"more choices than ever", Limits{Concurrency: 2}, nil, Ask{3, 1, until}, -1},
		{"reserved tokens", Limits{ReservedTokens: 100}, []Ask{{1, 90, until}}, Ask{1, 11, until}, concurrencyRetry},
		{"more reserved than ever", Limits{ReservedTokens: 100}, nil, Ask{1, 101, until}, -1},
	} {
		q := NewQuotas()
		for _, b := range c.before {
			if err := enterAndReserve(q, c.limits, b); err != nil {
				t.Fatalf("%s: set-up: %v", c.name, err)
			}
		}
		err := enterAndReserve(q, c.limits, c.ask)
		after, ok := RetryAfter(err)
		if (err == nil) != (c.after == 0) || ok != (c.after > 0) || ok && after != c.after || err != nil && fault.Of(err) != fault.OverQuota {
			t.Errorf("%s: %v, retry after %s; want %s", c.name, err, after, c.after)
		}
		if _, err := q.Reserve(noon, "bob", Limits{}, c.ask); err != nil {
			t.Errorf("%s: another tenant is refused: %v", c.name, err)
		}
	}
}

func enterAndReserve(q *Quotas, limits Limits, ask Ask) error {
	err := q.Enter(noon, "ada", limits)
	if err == nil {
		_, err = q.Reserve(noon, "ada", limits, ask)
	}
	return err
}

// A request is spent when it enters, not when it is admitted, and one that may not enter
// spends nothing.
func TestARequestIsSpentAtTheDoor(t *testing.T) {
	q, limits := NewQuotas(), Limits{RequestsPerMinute: 2, Concurrency: 1}
	for range 2 {
		if err := q.Enter(noon, "ada", limits); err != nil {
			t.Fatal(err)
		}
	}
	if after, _ := RetryAfter(q.Enter(noon, "ada", limits)); after != 30*time.Second {
		t.Errorf("the third of two requests a minute is told to come back after %s, want 30 s", after)
	}
	if _, err := q.Reserve(noon, "ada", limits, Ask{1, 5, noon.Add(time.Hour)}); err != nil {
		t.Errorf("a request that has entered can't reserve: %v", err)
	}
	later := noon.Add(30 * time.Second)
	for range 3 { // it runs one, and may run one
		if err := q.Enter(later, "ada", limits); fault.Of(err) != fault.OverQuota {
			t.Errorf("a second request at a time enters: %v", err)
		}
	}
	q.Expire(noon.Add(time.Hour))
	if err := q.Enter(later, "ada", limits); err != nil {
		t.Errorf("requests that did not enter were spent: %v", err)
	}
}

func TestQuotaFlowsBack(t *testing.T) {
	q, limits := NewQuotas(), Limits{TokensPerMinute: 100, RequestsPerMinute: 100}
	id, err := q.Reserve(noon, "ada", limits, Ask{1, 100, noon.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if q.Enter(noon, "ada", limits) == nil {
		t.Error("a tenant whose tokens are all reserved enters")
	}
	q.Settle(noon, id, 30)
	q.Settle(noon, id, 0) // the second one changes nothing
	if _, err := q.Reserve(noon, "ada", limits, Ask{1, 71, noon}); err == nil {
		t.Error("71 tokens are given after 30 of 100 were used")
	}
	if _, err := q.Reserve(noon, "ada", limits, Ask{1, 70, noon}); err != nil {
		t.Errorf("70 tokens are not given after 30 of 100 were used: %v", err)
	}
	if ended := q.Expire(noon); ended != 1 {
		t.Errorf("%d reservations expired, want 1", ended)
	}
	if _, err := q.Reserve(noon, "ada", limits, Ask{1, 1, noon}); err == nil {
		t.Error("an expired reservation gives its tokens back")
	}
	if _, err := q.Reserve(noon.Add(time.Minute), "ada", limits, Ask{1, 100, noon}); err != nil {
		t.Errorf("the bucket is not full after a minute: %v", err)
	}
}

// Whatever happens: what is held is the sum of the open reservations, within the
// limits, and the tokens spent in a window are at most the bucket and its inflow.
func TestQuotaConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{TokensPerMinute: rapid.IntRange(1, 500).Draw(t, "tpm"), Concurrency: rapid.IntRange(1, 8).Draw(t, "concurrency"),
			ReservedTokens: rapid.IntRange(1, 500).Draw(t, "reserved"), RequestsPerMinute: rapid.IntRange(1, 50).Draw(t, "rpm")}
		q, now := NewQuotas(), noon
		open := map[Reservation]Ask{}
		spent, requests := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "reserve") {
				ask := Ask{rapid.IntRange(1, 3).Draw(t, "choices"), rapid.IntRange(1, 100).Draw(t, "tokens"), now.Add(time.Hour * 24)}
				if q.Enter(now, "ada", limits) != nil {
					continue
				}
				requests++
				if id, err := q.Reserve(now, "ada", limits, ask); err == nil {
					open[id] = ask
				}
			} else {
				for id, ask := range open {
					used := rapid.IntRange(0, ask.Tokens).Draw(t, "used")
					q.Settle(now, id, used)
					q.Settle(now, id, 0)
					spent += used
					delete(open, id)
					break
				}
			}
			choices, tokens := 0, 0
			for _, ask := range open {
				choices, tokens = choices+ask.Choices, tokens+ask.Tokens
			}
			if c, k := q.Held("ada"); c != choices || k != tokens || c > limits.Concurrency || k > limits.ReservedTokens {
				t.Fatalf("held %d choices and %d tokens, open are %d and %d, limits %+v", c, k, choices, tokens, limits)
			}
			minutes := now.Sub(noon).Minutes()
			if float64(spent+tokens) > float64(limits.TokensPerMinute)*(1+minutes)+1e-6 || float64(requests) > float64(limits.RequestsPerMinute)*(1+minutes)+1e-6 {
				t.Fatalf("%d tokens and %d requests in %.2f minutes, limits %+v", spent+tokens, requests, minutes, limits)
			}
		}
	})
}

func TestAccountsAreForgotten(t *testing.T) {
	q, limits := NewQuotas(), Limits{TokensPerMinute: 10}
	id, _ := q.Reserve(noon, "ada", limits, Ask{1, 10, noon.Add(time.Hour)})
	q.Settle(noon, id, 10)
	if q.Expire(noon); len(q.accounts) != 1 {
		t.Error("an account in debt is forgotten")
	}
	if q.Expire(noon.Add(time.Minute)); len(q.accounts) != 0 {
		t.Error("a full, idle account is kept")
	}
}

func queue() *Queue {
	return NewQueue(QueueConfig{TicketsMax: 1000, TenantTicketsMax: 900, RetryAfter: time.Second})
}

// all is room for any ticket.
type all struct{}

func (all) Fits(Ticket) bool    { return true }
func (all) KeptOut(Ticket) bool { return false }

// seat is room for so many tokens; tenants hold some already.
type seat struct {
	pages int
	held  map[string]int
}

func (s seat) free() int {
	free := s.pages
	for _, n := range s.held {
		free -= n
	}
	return free
}
func (s seat) Fits(t Ticket) bool { return t.Tokens <= s.free() }
func (s seat) KeptOut(t Ticket) bool {
	return t.Tokens <= s.pages-s.held[t.Tenant] && t.Tokens > s.free()+s.held[t.Tenant]
}

func TestQueueIsBounded(t *testing.T) {
	q := NewQueue(QueueConfig{TicketsMax: 3, TenantTicketsMax: 2, RetryAfter: 7 * time.Second})
	if err := errors.Join(q.Push(Ticket{1, "ada", 5}, Ticket{2, "ada", 5}), q.Push(Ticket{3, "bob", 1})); err != nil {
		t.Fatal(err)
	}
	for _, tickets := range [][]Ticket{{{4, "ada", 1}}, {{5, "bob", 1}}, {{6, "eve", 1}, {7, "eve", 1}, {8, "eve", 1}}} {
		err := q.Push(tickets...)
		if after, ok := RetryAfter(err); fault.Of(err) != fault.Busy || !ok || after != 7*time.Second {
			t.Errorf("a full queue gives %v, retry after %s", err, after)
		}
		if tickets[0].Tenant == "bob" && !strings.Contains(err.Error(), "1 requests of the tenant") {
			t.Errorf("bob is told %q, want his own number only", err)
		}
	}
	if q.Len() != 3 || q.TenantLen("bob") != 1 || q.TenantLen("eve") != 0 {
		t.Errorf("%d tickets wait, bob has %d, eve %d; a refused push leaves something behind", q.Len(), q.TenantLen("bob"), q.TenantLen("eve"))
	}
}

// However many tenants fill the queue, one with nothing waiting gets a place.
func TestAFullQueueKeepsNoTenantOut(t *testing.T) {
	q := NewQueue(QueueConfig{TicketsMax: 8, TenantTicketsMax: 4, RetryAfter: time.Second})
	for i := range uint64(8) {
		if err := q.Push(Ticket{i + 1, []string{"ada", "bob"}[i%2], 100}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Push(Ticket{20, "quiet", 1}); err != nil {
		t.Fatalf("a tenant with nothing waiting is kept out: %v", err)
	}
	if err := q.Push(Ticket{21, "quiet", 1}); fault.Of(err) != fault.Busy {
		t.Errorf("its second request finds a place in a full queue: %v", err)
	}
	first, _ := q.Next(all{})
	second, _ := q.Next(all{})
	third, _ := q.Next(all{})
	if first.Tenant != "quiet" && second.Tenant != "quiet" && third.Tenant != "quiet" {
		t.Errorf("tickets of %s, %s and %s come before it", first.Tenant, second.Tenant, third.Tenant)
	}
}

func TestQueueReturnsFirst(t *testing.T) {
	q := queue()
	if err := q.Push(Ticket{1, "ada", 5}, Ticket{2, "ada", 5}); err != nil {
		t.Fatal(err)
	}
	first, _ := q.Next(all{})
	q.PushBack(first)
	if again, _ := q.Next(all{}); again.ID != 1 {
		t.Errorf("ticket %d is next, want 1, which came back", again.ID)
	}
	if !q.Remove("ada", 2) || q.Remove("ada", 2) || q.Remove("bob", 2) {
		t.Error("Remove takes what is not there, or leaves what is")
	}
}

// Two tenants that both wait get tokens at one rate, whatever their tickets' sizes.
func TestQueueIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, id, most := queue(), uint64(0), 1
		for _, tenant := range []string{"ada", "bob", "eve"} {
			size := rapid.IntRange(1, 4000).Draw(t, tenant+" size")
			for range rapid.IntRange(1, 40).Draw(t, tenant) {
				id++
				tokens := rapid.IntRange(1, size).Draw(t, "tokens")
				most = max(most, tokens)
				if err := q.Push(Ticket{id, tenant, tokens}); err != nil {
					t.Fatal(err)
				}
			}
		}
		given := map[string]int{}
		for q.TenantLen("ada") > 0 && q.TenantLen("bob") > 0 && q.TenantLen("eve") > 0 {
			w, _ := q.Next(all{})
			given[w.Tenant] += w.Tokens
			if spread := max(given["ada"], given["bob"], given["eve"]) - min(given["ada"], given["bob"], given["eve"]); spread > 2*most {
				t.Fatalf("tokens given %v differ by %d, largest ticket %d", given, spread, most)
			}
		}
	})
}

// Every ticket leaves once, in its tenant's order, by Pop or Remove.
func TestQueueConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, id := queue(), uint64(0)
		want := map[string][]uint64{}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			tenant := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "tenant")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				id++
				if q.Push(Ticket{id, tenant, rapid.IntRange(1, 100).Draw(t, "tokens")}) == nil {
					want[tenant] = append(want[tenant], id)
				}
			case 2:
				w, ok := q.Next(seat{pages: rapid.IntRange(1, 100).Draw(t, "room")})
				if ok && want[w.Tenant][0] != w.ID {
					t.Fatalf("ticket %d of %s came out, its first is %d", w.ID, w.Tenant, want[w.Tenant][0])
				}
				if ok && rapid.Bool().Draw(t, "back") {
					q.PushBack(w)
				} else if ok {
					want[w.Tenant] = want[w.Tenant][1:]
				}
			case 3:
				if n := len(want[tenant]); n > 0 && q.Remove(tenant, want[tenant][n-1]) {
					want[tenant] = want[tenant][:n-1]
				}
			}
			total := 0
			for tenant, ids := range want {
				total += len(ids)
				if q.TenantLen(tenant) != len(ids) {
					t.Fatalf("%d tickets of %s wait, want %d", q.TenantLen(tenant), tenant, len(ids))
				}
			}
			if q.Len() != total || len(q.lanes) > 4 {
				t.Fatalf("%d tickets in %d lanes, want %d tickets", q.Len(), len(q.lanes), total)
			}
		}
	})
}

// A tenant that floods the queue and then a quiet one: the quiet one's ticket
// waits for one ticket at most.
func TestLatecomerIsNotBehindTheFlood(t *testing.T) {
	q := queue()
	for i := range uint64(500) {
		if err := q.Push(Ticket{i + 1, "flood", 100}); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		q.Next(all{})
	}
	if err := q.Push(Ticket{1000, "quiet", 100}); err != nil {
		t.Fatal(err)
	}
	first, _ := q.Next(all{})
	second, _ := q.Next(all{})
	if first.ID != 1000 && second.ID != 1000 {
		t.Fatalf("tickets of %s and %s came before the quiet tenant's", first.Tenant, second.Tenant)
	}
}

func push(t *testing.T, q *Queue, tickets ...Ticket) {
	t.Helper()
	if err := q.Push(tickets...); err != nil {
		t.Fatal(err)
	}
}

// A ticket that does not fit is passed for as many tokens as it asks for; then nobody
// passes, until it fits.
func TestAPassedTicketClaimsTheRoom(t *testing.T) {
	q, room := queue(), seat{pages: 100, held: map[string]int{"eve": 50}}
	push(t, q, Ticket{1, "ada", 80}, Ticket{2, "ada", 80})
	for i := range uint64(40) {
		push(t, q, Ticket{10 + i, "bob", 10})
	}
	passed := 0
	for {
		w, ok := q.Next(room)
		if !ok {
			break
		}
		if passed += w.Tokens; w.Tenant != "bob" {
			t.Fatalf("%d tokens of %s go where 50 are free", w.Tokens, w.Tenant)
		}
	}
	if passed != 80 {
		t.Errorf("%d tokens pass a ticket of 80", passed)
	}
	room.held["eve"] = 20
	if w, ok := q.Next(room); !ok || w.ID != 1 {
		t.Errorf("as soon as 80 tokens are free ticket %d goes, want 1", w.ID)
	}
	room.held["eve"] = 50
	if w, ok := q.Next(room); !ok || w.Tenant != "bob" {
		t.Errorf("the claim outlives its ticket: %v %v", w, ok)
	}
	for {
		if _, ok := q.Next(room); !ok {
			break
		}
	}
	room.held["eve"], room.held["ada"] = 0, 30 // others are out of the way, her own work isn't
	if w, ok := q.Next(room); !ok || w.Tenant != "bob" {
		t.Errorf("a tenant in its own way claims the room: %v %v", w, ok)
	}
}

// A tenant whose running work keeps its own next ticket out makes nobody wait, and has
// gained at most one ticket by it when that work ends.
func TestATenantInItsOwnWayStopsNobody(t *testing.T) {
	q, room := queue(), seat{pages: 100, held: map[string]int{"ada": 10}}
	push(t, q, Ticket{1, "ada", 100}, Ticket{2, "ada", 100}, Ticket{3, "ada", 100}, Ticket{4, "ada", 100})
	for i := range uint64(800) {
		push(t, q, Ticket{10 + i, "bob", 10})
	}
	for range 300 {
		if w, ok := q.Next(room); !ok || w.Tenant != "bob" {
			t.Fatalf("%v %v goes, want bob's", w, ok)
		}
	}
	room.held["ada"] = 0
	given := map[string]int{}
	for given["bob"] == 0 {
		w, ok := q.Next(room)
		if !ok {
			t.Fatal("nobody goes")
		}
		given[w.Tenant] += w.Tokens
	}
	if given["ada"] > 200 {
		t.Errorf("ada, who stood in her own way, gets %d tokens before bob gets any, want one ticket's 100 for the wait and one's in turn", given["ada"])
	}
}

// What a tenant's own work alone keeps out claims nothing while others' work, without
// which it would not fit either, comes and goes.
func TestATenantInItsOwnWayLeavesTheRoomToOthers(t *testing.T) {
	q, room := queue(), seat{pages: 100, held: map[string]int{"ada": 10}}
	push(t, q, Ticket{1, "ada", 100})
	for i := range uint64(200) {
		push(t, q, Ticket{10 + i, "bob", 10})
	}
	var running []Ticket
	for round := range 100 {
		for w, ok := q.Next(room); ok; w, ok = q.Next(room) {
			running = append(running, w)
			room.held[w.Tenant] += w.Tokens
		}
		if len(running) != 9 {
			t.Fatalf("round %d: %d of bob's tickets run, want 9", round, len(running))
		}
		room.held["bob"] -= running[0].Tokens
		running = running[1:]
	}
}

// Who claims the room and leaves has cost the others as much as if served; who leaves
// without a claim has not.
func TestAClaimIsNotFree(t *testing.T) {
	q, room := queue(), seat{pages: 100, held: map[string]int{"eve": 50}}
	id, stood, went := uint64(1000), 0, 0
	for i := range uint64(800) {
		push(t, q, Ticket{1 + i, "bob", 10})
	}
	push(t, q, Ticket{id, "ada", 100})
	for range 400 { // ada asks for all there is, hangs up when the others stand still, and asks again
		if _, ok := q.Next(room); ok {
			went++
			continue
		}
		stood++
		push(t, q, Ticket{id + 1, "ada", 100})
		q.Remove("ada", id)
		id++
	}
	if stood == 0 || went < 10*stood {
		t.Errorf("others stand still %d times while %d of theirs go, want 10 for each", stood, went)
	}
	room.held["eve"] = 0
	given := 0
	push(t, q, Ticket{id + 1, "ada", 100}, Ticket{id + 2, "ada", 100}, Ticket{id + 3, "ada", 100}, Ticket{id + 4, "ada", 100})
	for w, ok := q.Next(room); ok && w.Tenant == "ada"; w, ok = q.Next(room) {
		given += w.Tokens
	}
	if given > 200 {
		t.Errorf("who claimed and left %d times gets %d tokens before the others get any, want two tickets' at most", stood, given)
	}
	q = queue()
	push(t, q, Ticket{1, "ada", 100})
	push(t, q, Ticket{2, "bob", 10})
	push(t, q, Ticket{3, "ada", 10})
	q.Remove("ada", 1)
	if w, _ := q.Next(room); w.ID != 3 {
		t.Errorf("after a ticket left that stopped nobody %d is next, want its tenant's next", w.ID)
	}
}

// Whatever fits when: what passes a ticket that others keep out is at most its own
// tokens and one ticket more, and no ticket is passed for ever.
func TestPassesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pages = 100
		q, room, id := queue(), seat{pages: pages, held: map[string]int{}}, uint64(0)
		running, passed := []Ticket{}, map[string]int{}
		first := map[string][]Ticket{}
		largest := 1
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			tenant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")
			if len(running) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				room.held[running[i].Tenant] -= running[i].Tokens
				running = append(running[:i], running[i+1:]...)
			} else {
				id++
				ticket := Ticket{id, tenant, rapid.IntRange(1, pages).Draw(t, "tokens")}
				if q.Push(ticket) == nil {
					first[tenant], largest = append(first[tenant], ticket), max(largest, ticket.Tokens)
				}
			}
			for {
				start := map[string]uint64{}
				for tenant, l := range q.lanes {
					start[tenant] = l.start
				}
				w, ok := q.Next(room)
				if !ok {
					break
				}
				for other, waiting := range first {
					if other == w.Tenant || len(waiting) == 0 || start[other] >= start[w.Tenant] || !room.KeptOut(waiting[0]) {
						continue
					}
					if passed[other] += w.Tokens; passed[other] > waiting[0].Tokens+largest {
						t.Fatalf("%d tokens pass a ticket of %d, the largest is %d", passed[other], waiting[0].Tokens, largest)
					}
				}
				first[w.Tenant], passed[w.Tenant] = first[w.Tenant][1:], 0
				room.held[w.Tenant] += w.Tokens
				running = append(running, w)
			}
		}
		for q.Len() > 0 { // everything that runs ends: everything that waits goes
			for tenant := range room.held {
				room.held[tenant] = 0
			}
			if _, ok := q.Next(room); !ok {
				t.Fatalf("%d tickets wait for ever", q.Len())
			}
		}
	})
}
