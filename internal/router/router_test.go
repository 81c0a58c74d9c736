package router

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

var (
	noon  = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	rules = Rules{FreshFor: 5 * time.Second, AvoidFor: 10 * time.Second, LostFor: time.Millisecond, LimitTokens: 1000, Fingerprint: kv.Fingerprint{1}, TenantSharePercent: 75}
	need  = Need{PromptTokens: 100, StoredTokens: 160}
)

func worker(node string, change func(*Worker)) Worker {
	w := Worker{Node: node, Epoch: 1, Fingerprint: kv.Fingerprint{1}, Up: true, Seen: noon, UsableTokens: 1600, UsablePages: 100, PageTokens: 16}
	if change != nil {
		change(&w)
	}
	return w
}

// pick chooses among workers at which the tenant who asks holds nothing.
func pick(prefill, decode []Worker, need Need) (Pair, error) {
	r := NewRoom(noon, prefill, decode, rules, NewBook())
	if err := r.Outage(); err != nil {
		return Pair{}, err
	}
	pair, ok := r.Pick("ada", need)
	if !ok {
		return Pair{}, fault.New(fault.Busy, "no room")
	}
	return pair, nil
}

// One worker with the given fault beside a good one: the good one is taken. Alone
// it gives an error that names it and why.
func TestExclusions(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Worker)
		kind   fault.Kind
		says   string
	}{
		{"down", func(w *Worker) { w.Up = false }, fault.Unavailable, "bad: not connected"},
		{"never reached", func(w *Worker) { w.Epoch = 0 }, fault.Unavailable, "bad: no epoch"},
		{"stale", func(w *Worker) { w.Seen = noon.Add(-6 * time.Second) }, fault.Unavailable, "bad: its state is stale"},
		{"just lost", func(w *Worker) { w.LastLoss = noon }, fault.Unavailable, "bad: lost a moment ago"},
		{"draining", func(w *Worker) { w.Draining = true }, fault.Unavailable, "bad: draining"},
		{"without a ledger", func(w *Worker) { w.LedgerFailed = true }, fault.Unavailable, "bad: its ledger can't be written"},
		{"below the limit", func(w *Worker) { w.UsableTokens = 999 }, fault.Unavailable, "bad: holds 999 tokens, 1000 are served"},
		{"other weights", func(w *Worker) { w.Fingerprint = kv.Fingerprint{2} }, fault.Unavailable, "bad: has fingerprint 0200000000000000, the gateway's model has 0100000000000000"},
		{"no link", func(w *Worker) { w.UnseenPeers = []string{"p", "d"} }, fault.Unavailable, "don't pair"},
		{"full", func(w *Worker) { w.HeldPages = 95 }, fault.Busy, "no room"},
		{"no page size", func(w *Worker) { w.PageTokens = 0 }, fault.Busy, "no room"},
	} {
		bad, p, d := worker("bad", c.change), worker("p", nil), worker("d", nil)
		for _, role := range []string{"prefill", "decode"} {
			prefill, decode := []Worker{bad}, []Worker{d}
			if role == "decode" {
				prefill, decode = []Worker{p}, []Worker{bad}
			}
			_, err := pick(prefill, decode, need)
			if err == nil || fault.Of(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s %s worker alone: %v, want %s with %q", c.name, role, err, c.kind, c.says)
			}
		}
		pair, err := pick([]Worker{bad, p}, []Worker{bad, d}, need)
		if err == nil && c.kind != fault.Unavailable && pair.Decode.Node == "bad" {
			t.Errorf("%s worker is taken though another has room", c.name)
		}
		if err != nil || c.says != "don't pair" && (pair.Prefill.Node != "p" || pair.Decode.Node != "d") {
			t.Errorf("beside a %s worker the pair is %s and %s (%v), want p and d", c.name, pair.Prefill.Node, pair.Decode.Node, err)
		}
	}
}

func TestLeastWorkWins(t *testing.T) {
	for _, c := range []struct {
		name string
		busy func(*Worker)
	}{
		{"queued tokens", func(w *Worker) { w.QueuedTokens = 5 }},
		{"tokens given", func(w *Worker) { w.HeldTokens = 5 }},
		{"pages held", func(w *Worker) { w.HeldPages = 5 }},
		{"failed lately", func(w *Worker) { w.LastFailure = noon.Add(-time.Second) }},
	} {
		prefill := []Worker{worker("p0", c.busy), worker("p1", nil)}
		pair, err := pick(prefill, []Worker{worker("d", nil)}, need)
		if err != nil || pair.Prefill.Node != "p1" {
			t.Errorf("%s: %s is taken (%v), want p1", c.name, pair.Prefill.Node, err)
		}
	}
}

func TestOldFailureIsForgotten(t *testing.T) {
	p0 := worker("p0", func(w *Worker) { w.LastFailure = noon.Add(-11 * time.Second) })
	pair, err := pick([]Worker{p0, worker("p1", nil)}, []Worker{worker("d", nil)}, need)
	if err != nil || pair.Prefill.Node != "p0" {
		t.Errorf("%s is taken (%v), want p0, which failed long ago", pair.Prefill.Node, err)
	}
}

func TestNoWorkers(t *testing.T) {
	if _, err := pick(nil, nil, need); fault.Of(err) != fault.Unavailable {
		t.Errorf("without workers: %v, want unavailable", err)
	}
}

// A chosen pair always satisfies the rules, and a pair is found whenever there is one.
func TestPickIsSoundAndComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(role string) (ws []Worker) {
			for i := range rapid.IntRange(0, 4).Draw(t, role) {
				ws = append(ws, worker(role+string(rune('0'+i)), func(w *Worker) {
					w.Up = rapid.IntRange(0, 4).Draw(t, "up") > 0
					w.Fingerprint[0] = byte(rapid.IntRange(1, 2).Draw(t, "fingerprint"))
					w.UsableTokens = rapid.IntRange(900, 1600).Draw(t, "usable")
					w.HeldPages = rapid.IntRange(80, 100).Draw(t, "held")
				}))
			}
			return ws
		}
		p, d := draw("p"), draw("d")
		exists := false
		for _, c := range pairsOf(p, d) {
			exists = exists || c.Prefill.Excluded(noon, rules) == "" && c.Decode.Excluded(noon, rules) == "" && c.Prefill.fits(need.PromptTokens, 0) && c.Decode.fits(need.StoredTokens, 0)
		}
		c, err := pick(p, d, need)
		if (err == nil) != exists {
			t.Fatalf("a pair exists: %v, Pick says %v", exists, err)
		}
		if err == nil && (c.Prefill.Excluded(noon, rules) != "" || c.Decode.Excluded(noon, rules) != "" || !(c.Prefill.fits(need.PromptTokens, 0) && c.Decode.fits(need.StoredTokens, 0)) || c.Prefill.Fingerprint != rules.Fingerprint || c.Decode.Fingerprint != rules.Fingerprint) {
			t.Fatalf("pair %s, %s breaks a rule", c.Prefill.Node, c.Decode.Node)
		}
	})
}

// room has one pair of workers with 100 pages each, at which tenants hold so many.
func room(held map[string]int) *Room {
	book, p, d := NewBook(), worker("p", nil), worker("d", nil)
	for tenant, pages := range held {
		for _, w := range []*Worker{&p, &d} {
			book.Charge(tenant, w.Node, Load{Pages: pages, Tokens: 16 * pages})
			w.HeldPages += pages
		}
	}
	return NewRoom(noon, []Worker{p}, []Worker{d}, rules, book)
}

// A tenant holds no more than its share, though the rest is free, unless it held nothing.
// What its own requests keep from fitting is not kept out by others.
func TestATenantLeavesRoomForTheNext(t *testing.T) {
	pages := func(n int) Need { return Need{PromptTokens: 16 * n, StoredTokens: 16 * n} }
	for _, c := range []struct {
		name       string
		held       map[string]int
		need       int
		fits, kept bool
	}{
		{"all there is, from nothing", nil, 100, true, false},
		{"more than there is", nil, 101, false, false},
		{"the whole share", map[string]int{"ada": 25}, 50, true, false},
		{"over the share", map[string]int{"ada": 25}, 51, false, false},
		{"over the share beside another", map[string]int{"ada": 25, "bob": 75}, 51, false, false},
		{"another tenant's room", map[string]int{"ada": 75}, 1, false, false},
		{"room beside another", map[string]int{"bob": 75}, 25, true, false},
		{"none beside another", map[string]int{"bob": 75}, 26, false, true},
		{"none beside another and itself", map[string]int{"bob": 75, "ada": 10}, 26, false, true},
		{"none beside another or itself", map[string]int{"bob": 75, "ada": 10}, 91, false, false},
		{"none beside both, but beside either", map[string]int{"bob": 50, "ada": 30}, 40, false, false},
	} {
		r := room(c.held)
		_, fits := r.Pick("ada", pages(c.need))
		if kept := r.KeptOut("ada", pages(c.need)); fits != c.fits || kept != c.kept {
			t.Errorf("%s: %d pages beside %v fit: %v, kept out by others: %v; want %v and %v", c.name, c.need, c.held, fits, kept, c.fits, c.kept)
		}
	}
}

func TestABookBalances(t *testing.T) {
	b := NewBook()
	b.Charge("ada", "d", Load{3, 40})
	b.Charge("bob", "d", Load{1, 16})
	b.Charge("bob", "d", Load{})
	if b.At("d") != (Load{4, 56}) || b.At("p") != (Load{}) || b.Empty() {
		t.Errorf("d holds %v and p %v, want {4 56} and nothing", b.At("d"), b.At("p"))
	}
	b.Credit("bob", "d", Load{1, 16})
	b.Credit("ada", "d", Load{3, 40})
	if !b.Empty() {
		t.Errorf("after all is back the book holds %+v", b)
	}
}
