package transfercheck

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// extensionPlaces are states that the exploration of the extensions must have been to.
func extensionPlaces() []modelcheck.Property[*World] {
	anyJob := func(f func(*World, *job) bool) func(*World) bool {
		return func(w *World) bool {
			return slices.ContainsFunc(w.decodes, func(d *decode) bool {
				return slices.ContainsFunc(d.jobs, func(j job) bool { return f(w, &j) })
			})
		}
	}
	return []modelcheck.Property[*World]{
		modelcheck.Sometimes("a request that reads a pinned page", anyJob(func(_ *World, j *job) bool { return j.started && !j.answered && len(j.prefix) > 0 })),
		modelcheck.Sometimes("a pinned page whose request is told to stop", anyJob(func(_ *World, j *job) bool { return j.answered && len(j.prefix) > 0 })),
		modelcheck.Sometimes("two transfers that send one page", func(w *World) bool {
			return slices.ContainsFunc(w.writes, func(a write) bool {
				return !a.left && slices.ContainsFunc(w.writes, func(b write) bool { return !b.left && a.x != b.x && a.from == b.from })
			})
		}),
		modelcheck.Sometimes("a cached page of each of two tenants", func(w *World) bool {
			return slices.ContainsFunc(w.decodes, func(d *decode) bool { return len(d.cache) > 1 && d.cache[0].tenant != d.cache[1].tenant })
		}),
		modelcheck.Sometimes("pages that wait for the scrub", anyJob(func(w *World, j *job) bool { return j.owed && w.decodes[0].scrubbed.Generation != 0 })),
		modelcheck.Sometimes("a scrubbed page of the cache", func(w *World) bool {
			d := w.decodes[0]
			return d.scrubbed.Generation != 0 && d.pool.Page(d.scrubbed.Slot).State == pool.Cached
		}),
		modelcheck.Sometimes("two boots of a gateway with a submission each", func(w *World) bool {
			jobs := w.decodes[0].jobs
			return w.config.Gateway && len(jobs) > 1 && jobs[0].request == jobs[1].request && jobs[0].ticket.boot != jobs[1].ticket.boot
		}),
		modelcheck.Sometimes("a client answered after a crash of its gateway", func(w *World) bool {
			return slices.ContainsFunc(w.gateway.streams, func(s stream) bool { return s.boot > 1 && s.outcome == transfer.CodeDone })
		}),
		modelcheck.Sometimes("a rank that waits for the other", anyJob(func(w *World, j *job) bool {
			return w.config.ranks() > 1 && j.verified && !j.started && !j.answered
		})),
		modelcheck.Sometimes("a request answered at both ranks", func(w *World) bool { return w.config.ranks() > 1 && w.requests[0].done }),
	}
}

// The extensions, each at its own smallest size: every property, and healing from
// every state. docs/SPEC.md has the numbers of states.
func TestEveryStateOfTheExtensions(t *testing.T) {
	missed := map[string]int{}
	var rows [][]string
	for _, tr := range extensionTransports {
		for i, c := range Extensions(tr) {
			if testing.Short() && i%4 != 0 {
				continue
			}
			r := modelcheck.Shortest(Model{&c}, append(Properties(&c), extensionPlaces()...), modelcheck.Options{StatesMax: 200_000})
			t.Logf("%-30.30s %-38s %6d states %7d transitions depth %2d", tr.Name, c.Name, r.States, r.Transitions, r.Depth)
			if r.Violation != nil || !r.Complete {
				t.Errorf("%s, %s: %v, complete is %v", tr.Name, c.Name, r.Violation, r.Complete)
				if r.Violation != nil {
					t.Log(strings.Join(r.Violation.Trace, "\n"))
				}
			}
			for _, name := range r.Missed {
				missed[name]++
			}
			for len(rows) <= i {
				rows = append(rows, []string{c.Name})
			}
			rows[i] = append(rows[i], fmt.Sprint(r.States))
		}
	}
	if testing.Short() || t.Failed() {
		return
	}
	for name, n := range missed {
		if n == len(rows)*len(extensionTransports) {
			t.Errorf("no world of an extension reaches: %s", name)
		}
	}
	holdExtensions(t, rows)
}

// holdExtensions holds the table in docs/SPEC.md to what was explored, or writes it.
func holdExtensions(t *testing.T, rows [][]string) {
	t.Helper()
	path := filepath.Join("..", "..", "..", "docs", "SPEC.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table, rule := "| world |", "|---|"
	for _, transport := range extensionTransports {
		table, rule = table+" "+transport.Name+" |", rule+"---|"
	}
	table += "\n" + rule + "\n"
	for _, row := range rows {
		table += "| " + strings.Join(row, " | ") + " |\n"
	}
	const from, to = "<!-- begin extensions -->\n", "<!-- end extensions -->\n"
	head, rest, ok := strings.Cut(string(b), from)
	_, tail, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for the extensions", path)
	}
	want := head + from + table + to + tail
	switch {
	case *rewrite:
		err = os.WriteFile(path, []byte(want), 0o644)
	case want != string(b):
		err = fmt.Errorf("%s has other numbers; write them with: go test ./kv/transfer/transfercheck -run Extensions -args -rewrite", path)
	}
	if err != nil {
		t.Error(err)
	}
}

// None of the extensions' guards leaks when it alone is missing, and nothing else
// is broken.
func TestNoSingleGuardOfTheExtensionsLeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("every guard in every world that it has to do with")
	}
	for _, tr := range extensionTransports {
		prefix := []Config{
			sharing("prefix at decode", tr, func(c *Config) { c.Requests, c.Cancels = []int{2, 2, 2}, false }),
			sharing("prefix at decode, two tenants", tr, func(c *Config) { c.Tenants = []int{1, 2} }),
			sourceSharing("prefix at prefill", tr, func(c *Config) { c.Cancels = false }),
		}
		ranks := RankWorlds(tr)
		worlds := map[guard.Guard][]Config{guard.Tenant: prefix, guard.Readers: prefix, guard.Pins: prefix, guard.Rank: ranks[3:], guard.AllVerified: ranks, guard.OneEnds: ranks}
		for g := guard.Tenant; g < guard.End; g++ {
			for _, c := range worlds[g] {
				c.Only, c.Without = "NoLeak", guard.Without(g)
				if r := Shortest(c, modelcheck.Options{StatesMax: 50_000}); r.Violation != nil || !r.Complete {
					t.Errorf("%s, %s without %v: %v, complete is %v, %d states", tr.Name, c.Name, g, r.Violation, r.Complete, r.States)
				}
			}
		}
	}
}

// A page of prefill's cache that is being sent has two layers: its readers' pins,
// which last until their writes have ended, and the senders' holds.
func TestACachedPageIsNotEvictedWhileItIsSent(t *testing.T) {
	for _, k := range []struct {
		missing []guard.Guard
		broken  bool
	}{{nil, false}, {[]guard.Guard{guard.Holders}, false}, {[]guard.Guard{guard.Readers}, true}, {[]guard.Guard{guard.Readers, guard.Holders}, true}} {
		c := sourceSharing("prefix at prefill", OneSided, func(c *Config) { c.Cancels = false })
		c.Only, c.Without = "SourceHeld", guard.Without(k.missing...)
		r := Shortest(c, modelcheck.Options{StatesMax: 50_000})
		if (r.Violation != nil) != k.broken || !k.broken && !r.Complete {
			t.Errorf("without {%v}: %v, complete is %v", c.Without, r.Violation, r.Complete)
		}
	}
}

// What the gateway and the workers owe each other is needed: without it a client
// gets another's text, or work for nobody never ends.
func TestBrokenGateways(t *testing.T) {
	for property, c := range gatewayProofs() {
		c.Only = property
		r := Shortest(c, modelcheck.Options{StatesMax: 50_000})
		if got := PropertyOf(r.Violation); got != property {
			t.Errorf("%s: %q breaks after %d states, want %s", c.Name, got, r.States, property)
			continue
		}
		t.Logf("%s breaks after %d steps:\n\t%s", property, len(r.Violation.Trace), strings.Join(r.Violation.Trace, "\n\t"))
	}
}
