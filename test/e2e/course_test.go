package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
)

var workers = []string{"p0", "p1", "d0", "d1"}

// course is what the workers' ledgers say of one transfer. The last entries of a
// process that was killed may be missing; the other side's say the same.
type course struct {
	tokens   int // of the prompt
	opened   time.Time
	nodes    map[string]bool
	computed map[int]time.Time // by block, as far as anything says that it was
	landed   map[int]time.Time // by block
}

func (s *server) courses(t *testing.T) []*course {
	t.Helper()
	all := map[kv.TransferID]*course{}
	for _, node := range workers {
		for _, e := range s.entries(t, node) {
			c := all[e.X]
			if c == nil {
				c = &course{nodes: map[string]bool{}, computed: map[int]time.Time{}, landed: map[int]time.Time{}}
				all[e.X] = c
			}
			c.take(node, &e)
		}
	}
	return slices.Collect(maps.Values(all))
}

func (c *course) take(node string, e *ledger.Entry) {
	var peer, block int
	switch e.Event {
	case "open", "grant":
		_, _ = fmt.Sscanf(e.Detail, "peer %d, %d tokens", &peer, &c.tokens)
		c.nodes[node] = true
		if c.opened.IsZero() || e.Time.Before(c.opened) {
			c.opened = e.Time
		}
	case "computed":
		if _, err := fmt.Sscanf(e.Detail, "block %d", &block); err == nil {
			note(c.computed, block, e.Time)
		}
	case "landed", "written":
		if _, err := fmt.Sscanf(e.Detail, "block %d", &block); err == nil {
			note(c.computed, block, e.Time)
			note(c.landed, block, e.Time)
		}
	}
}

func note(times map[int]time.Time, block int, at time.Time) {
	if first, known := times[block]; !known || at.Before(first) {
		times[block] = at
	}
}

// by is how many blocks had come by then.
func by(times map[int]time.Time, at time.Time) (n int) {
	for _, t := range times {
		if !t.After(at) {
			n++
		}
	}
	return n
}

// fell counts the kills that fell into their phases, by role and phase.
func (s *storm) fell(t *testing.T) map[string]int {
	t.Helper()
	courses, fell := s.courses(t), map[string]int{}
	for _, k := range s.kills {
		if k.fell(courses) {
			fell[k.role+" in "+k.phase]++
		}
	}
	return fell
}

// fell reports whether the request was where it should be when somebody was killed.
// From its first token on the client has said so.
func (k *kill) fell(courses []*course) bool {
	var c *course // of the request's first attempt
	for _, o := range courses {
		if o.tokens == k.tokens && o.opened.After(k.begun) && (c == nil || o.opened.Before(c.opened)) {
			c = o
		}
	}
	pages := kv.PagesFor(k.tokens)
	switch k.phase {
	case "queued":
		return c == nil || c.opened.After(k.at)
	case "prefill":
		return c != nil && k.hit(c) && !c.opened.After(k.at) && by(c.computed, k.at) < pages
	case "transfer":
		n := 0
		if c != nil {
			n = by(c.landed, k.at)
		}
		return n > 0 && n < pages && k.hit(c)
	}
	return true
}

// hit reports whether the victim has a part in the transfer.
func (k *kill) hit(c *course) bool { return k.role == "gateway" || c.nodes[k.victim] }

// A kill that comes before or after its phase, or kills somebody else, doesn't count.
func TestKillsThatMissTheirPhaseDoNotCount(t *testing.T) {
	begun := time.Unix(1000, 0)
	after := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	c := &course{tokens: 40, opened: after(10), nodes: map[string]bool{"p0": true, "d1": true},
		computed: map[int]time.Time{0: after(20), 1: after(30), 2: after(40)}, landed: map[int]time.Time{0: after(25), 1: after(35), 2: after(45)}}
	other := &course{tokens: 41, opened: after(1), nodes: map[string]bool{"p0": true}}
	retried := &course{tokens: 40, opened: after(60), nodes: map[string]bool{"p1": true, "d0": true}}
	for _, k := range []struct {
		phase, victim string
		at            int
		want          bool
	}{
		{"queued", "d0", 5, true}, {"queued", "d0", 15, false},
		{"prefill", "p0", 5, false}, {"prefill", "p0", 15, true}, {"prefill", "d1", 35, true}, {"prefill", "p0", 41, false}, {"prefill", "p1", 15, false},
		{"transfer", "p0", 15, false}, {"transfer", "p0", 26, true}, {"transfer", "d1", 44, true}, {"transfer", "d1", 46, false}, {"transfer", "d0", 30, false},
	} {
		got := (&kill{role: k.victim[:1], phase: k.phase, victim: k.victim, tokens: 40, begun: begun, at: after(k.at)}).fell([]*course{other, retried, c})
		if got != k.want {
			t.Errorf("a kill of %s after %d ms counts as %s: %v, want %v", k.victim, k.at, k.phase, got, k.want)
		}
	}
	if (&kill{role: "p", phase: "prefill", victim: "p0", tokens: 40, begun: begun, at: after(15)}).fell(nil) {
		t.Error("a kill of a request that no worker knows counts as in prefill")
	}
}
