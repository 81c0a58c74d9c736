package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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

// nothingTwice looks for names that came again over all these starts, and for jobs of
// dead gateways that a worker forgot. Requires: the server has ended.
func (s *storm) nothingTwice(t *testing.T) {
	t.Helper()
	entries := map[string][]ledger.Entry{"gateway": s.entries(t, "gateway")}
	for _, node := range workers {
		entries[node] = s.entries(t, node)
	}
	for _, wrong := range append(repeated(entries), unended(entries)...) {
		t.Error(wrong)
	}
	boots, cancelled := map[uint64]bool{}, 0
	for node, all := range entries {
		for _, e := range all {
			if node == "gateway" && e.Event == "accepted" {
				boots[e.GatewayBoot] = true
			}
			if node != "gateway" && e.Event == "failed" && e.Detail == "cancelled" {
				cancelled++
			}
		}
	}
	t.Logf("measured %d boots of the gateway, %d incarnations in all, %d jobs cancelled at workers", len(boots), len(s.seen), cancelled)
	if cancelled == 0 {
		t.Error("gateways were killed in the middle of requests, and no worker cancelled a job")
	}
}

// repeated names what must never come again and has: a gateway's boot in another
// incarnation, a request of a boot, a job at a worker, a transfer, an answer.
func repeated(entries map[string][]ledger.Entry) (wrong []string) {
	incarnations, seen := map[uint64]kv.Epoch{}, map[string]bool{}
	once := func(format string, args ...any) {
		name := fmt.Sprintf(format, args...)
		if seen[name] {
			wrong = append(wrong, name+" came again")
		}
		seen[name] = true
	}
	for _, node := range slices.Sorted(maps.Keys(entries)) {
		for _, e := range entries[node] {
			switch {
			case e.Kind == ledger.Request && e.Event == "accepted" && node == "gateway":
				if epoch, known := incarnations[e.GatewayBoot]; known && epoch != e.Epoch {
					wrong = append(wrong, fmt.Sprintf("gateway boot %016x came again", e.GatewayBoot))
				}
				incarnations[e.GatewayBoot] = e.Epoch
				once("request %016x/%d", e.GatewayBoot, e.Request)
				if _, answer, ok := strings.Cut(e.Detail, ", answer "); ok {
					once("answer %s", answer)
				}
			case e.Kind == ledger.Request && e.Event == "accepted":
				once("job %016x/%d/%d at %s", e.GatewayBoot, e.Request, e.Attempt, node)
			case e.Event == "open":
				once("transfer %v", e.X)
				if e.X.Epoch != e.Epoch {
					wrong = append(wrong, fmt.Sprintf("transfer %v was opened by incarnation %016x", e.X, uint64(e.Epoch)))
				}
			}
		}
	}
	return wrong
}

// unended names the jobs that a worker's last incarnation took and never ended.
func unended(entries map[string][]ledger.Entry) (wrong []string) {
	for _, node := range workers {
		all := entries[node]
		open := map[string]bool{}
		for i, e := range all {
			if i > 0 && e.Epoch != all[i-1].Epoch {
				clear(open) // they ended with the process
			}
			job := fmt.Sprintf("job %016x/%d/%d", e.GatewayBoot, e.Request, e.Attempt)
			switch {
			case e.Kind != ledger.Request:
			case e.Event == "accepted":
				open[job] = true
			case e.Event == "finished" || e.Event == "failed":
				delete(open, job)
			}
		}
		for job := range open {
			wrong = append(wrong, fmt.Sprintf("%s never ended at %s", job, node))
		}
	}
	return wrong
}

func TestRepeatedNamesAndForgottenJobsAreFound(t *testing.T) {
	taken := func(boot, request uint64, attempt uint32, epoch kv.Epoch, detail string) ledger.Entry {
		return ledger.Entry{Kind: ledger.Request, Event: "accepted", GatewayBoot: boot, Request: request, Attempt: attempt, Epoch: epoch, Detail: detail}
	}
	opened := func(x kv.TransferID, epoch kv.Epoch) ledger.Entry {
		return ledger.Entry{Kind: ledger.Transfer, Event: "open", X: x, Epoch: epoch}
	}
	ended := func(e ledger.Entry) ledger.Entry {
		e.Event = "failed"
		return e
	}
	x := kv.TransferID{Epoch: 5, Sequence: 1}
	for name, c := range map[string]struct {
		entries map[string][]ledger.Entry
		want    string
	}{
		"nothing": {map[string][]ledger.Entry{"gateway": {taken(1, 1, 0, 7, "1 choice, answer a"), taken(1, 2, 0, 7, "1 choice, answer b"), taken(2, 1, 0, 8, "1 choice, answer c")},
			"d0": {taken(1, 1, 1, 5, ""), opened(x, 5), ended(taken(1, 1, 1, 5, "")), taken(1, 1, 2, 5, ""), taken(1, 2, 1, 6, ""), ended(taken(1, 2, 1, 6, ""))}}, ""},
		"a boot":     {map[string][]ledger.Entry{"gateway": {taken(1, 1, 0, 7, ""), taken(1, 2, 0, 8, "")}}, "gateway boot 0000000000000001 came again"},
		"a request":  {map[string][]ledger.Entry{"gateway": {taken(1, 1, 0, 7, ""), taken(1, 1, 0, 7, "")}}, "request 0000000000000001/1 came again"},
		"an answer":  {map[string][]ledger.Entry{"gateway": {taken(1, 1, 0, 7, "1 choice, answer a"), taken(2, 1, 0, 8, "1 choice, answer a")}}, "answer a came again"},
		"a job":      {map[string][]ledger.Entry{"p0": {taken(1, 1, 1, 7, ""), taken(1, 1, 1, 8, ""), ended(taken(1, 1, 1, 8, ""))}}, "job 0000000000000001/1/1 at p0 came again"},
		"a transfer": {map[string][]ledger.Entry{"d0": {opened(x, 5)}, "d1": {opened(x, 5)}}, "transfer 0000000000000005/1/0 came again"},
		"an epoch":   {map[string][]ledger.Entry{"d0": {opened(x, 6)}}, "transfer 0000000000000005/1/0 was opened by incarnation 0000000000000006"},
		"forgotten":  {map[string][]ledger.Entry{"p1": {taken(1, 1, 1, 7, "")}}, "job 0000000000000001/1/1 never ended at p1"},
	} {
		if got := strings.Join(append(repeated(c.entries), unended(c.entries)...), "; "); got != c.want {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}
