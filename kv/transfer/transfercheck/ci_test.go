package transfercheck

import (
	"slices"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// places are states that an exploration must have been to: a check that never
// sees the interesting ones shows nothing.
func places() []modelcheck.Property[*World] {
	anyJob := func(f func(*World, *job) bool) func(*World) bool {
		return func(w *World) bool {
			for _, d := range w.decodes {
				for i := range d.jobs {
					if f(w, &d.jobs[i]) {
						return true
					}
				}
			}
			return false
		}
	}
	anyWrite := func(f func(*World, *write) bool) func(*World) bool {
		return func(w *World) bool {
			return slices.ContainsFunc(w.writes, func(r write) bool { return f(w, &r) })
		}
	}
	stage := func(names ...string) func(*World, *job) bool {
		return func(w *World, j *job) bool {
			return slices.Contains(names, w.decodes[w.home(j.x)].target.Stage(j.x))
		}
	}
	return []modelcheck.Property[*World]{
		modelcheck.Sometimes("decoding", anyJob(stage("decoding"))),
		modelcheck.Sometimes("landing", anyJob(stage("landing"))),
		modelcheck.Sometimes("fencing", anyJob(stage("fencing"))),
		modelcheck.Sometimes("verifying", anyJob(stage("verifying"))),
		modelcheck.Sometimes("revoking", anyJob(stage("revoking"))),
		modelcheck.Sometimes("stopping with a kernel running", anyJob(func(w *World, j *job) bool { return stage("stopping")(w, j) && j.kernel })),
		modelcheck.Sometimes("a page in use for the second time", anyJob(func(w *World, j *job) bool { return j.started && j.pages[0].Generation > 1 })),
		modelcheck.Sometimes("a write of a dead sender", anyWrite(func(w *World, r *write) bool { return r.left && !w.sourceUp(w.link(r.link)) })),
		modelcheck.Sometimes("a write that may not land", anyWrite(func(w *World, r *write) bool { return !r.landed && !w.accepts(r) })),
		modelcheck.Sometimes("half a write", anyWrite(func(_ *World, r *write) bool { return r.body != r.tags })),
		modelcheck.Sometimes("a grown sequence", anyJob(func(_ *World, j *job) bool { return len(j.grown) > 0 })),
		modelcheck.Sometimes("a request answered after a crash of prefill", func(w *World) bool { return w.used.prefillCrashes > 0 && w.requests[len(w.requests)-1].done }),
		modelcheck.Sometimes("decode restarted with work", func(w *World) bool { return w.used.decodeCrashes > 0 && len(w.decodes[0].jobs) > 0 }),
		modelcheck.Sometimes("a message for another incarnation", func(w *World) bool { return w.used.strays > 0 }),
		modelcheck.Sometimes("prefill without a page", func(w *World) bool {
			return slices.ContainsFunc(w.letters, func(m letter) bool {
				c, ok := m.message.(transfer.Closed)
				return ok && c.Reason == transfer.ReasonBusy
			})
		}),
		modelcheck.Sometimes("two transfers in one pool", func(w *World) bool {
			return w.decodes[0].pool.Len() > 1 && w.decodes[0].pool.Counts()[pool.Granted] > 1
		}),
	}
}

// The small configurations, every fault on every kind of transport: all guards on,
// every property, liveness from every state. Together they go everywhere.
func TestEveryStateOfTheSmallWorlds(t *testing.T) {
	missed := map[string]int{}
	configs := CI()
	if testing.Short() {
		configs = Every(Receiver)[1:3] // the whole set is for full runs
	}
	for _, c := range configs {
		properties := append(Properties(&c), places()...)
		r := modelcheck.Shortest(Model{&c}, properties, modelcheck.Options{StatesMax: 100_000})
		t.Logf("%-30.30s %-30s %6d states %7d transitions depth %2d", c.Transport.Name, c.Name, r.States, r.Transitions, r.Depth)
		if r.Violation != nil || !r.Complete {
			t.Errorf("%s, %s: %v, complete is %v", c.Transport.Name, c.Name, r.Violation, r.Complete)
			if r.Violation != nil {
				t.Log(strings.Join(r.Violation.Trace, "\n"))
			}
		}
		for _, name := range r.Missed {
			missed[name]++
		}
	}
	for name, n := range missed {
		if n == len(configs) && !testing.Short() {
			t.Errorf("no configuration reaches: %s", name)
		}
	}
}

// The reductions and symmetries see fewer states and come to the verdict of the
// full search, with as short a trace.
func TestReductionsAgreeWithTheFullSearch(t *testing.T) {
	cases := []struct {
		vary    func(*Config)
		missing []guard.Guard
	}{
		{func(c *Config) {}, nil},
		{func(c *Config) { c.Pages, c.PrefillCrashes = 1, 1 }, nil},
		{func(c *Config) { c.Pages, c.Suspicions = 1, 1 }, nil},
		{func(c *Config) { c.Requests, c.SourcePages = []int{1, 2}, 1 }, nil},
		{func(c *Config) { c.Prefills, c.Pages, c.SourcePages = 2, 1, 1 }, nil},
		{func(c *Config) { c.Decodes, c.Pages, c.SourcePages = 2, 1, 1 }, nil},
		{func(c *Config) { c.Prefills, c.Decodes, c.Pages, c.SourcePages, c.Requests = 2, 2, 1, 1, []int{1} }, nil},
		{func(c *Config) { c.Prefills, c.Pages, c.SourcePages = 2, 1, 1 }, []guard.Guard{guard.DeferRelease, guard.TagStep, guard.Gate}},
		{func(c *Config) { c.Decodes, c.Pages, c.SourcePages = 2, 1, 1 }, []guard.Guard{guard.Drain, guard.TagStep, guard.Gate}},
		{func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.DeferRelease, guard.TagStep, guard.Gate}},
		{func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.Drain, guard.TagStep, guard.Gate}},
		{func(c *Config) { c.Pages, c.SourcePages = 1, 1 }, []guard.Guard{guard.KernelStop, guard.Holders}},
		{func(c *Config) { c.SourcePages = 1 }, []guard.Guard{guard.SourceHold, guard.Holders, guard.SumVerify}},
	}
	if testing.Short() {
		cases = cases[3:5]
	}
	for _, tr := range []Transport{Receiver, DrainOnly} {
		for i, k := range cases {
			c := small("cross-check", tr, k.vary)
			c.Only, c.Without = "NoLeak", guard.Without(k.missing...)
			reduced := Shortest(c, modelcheck.Options{StatesMax: 150_000})
			c.Unreduced = true
			full := Shortest(c, modelcheck.Options{StatesMax: 150_000})
			if !reduced.Complete && reduced.Violation == nil || !full.Complete && full.Violation == nil {
				t.Errorf("case %d: a search is cut off at %d and %d states", i, reduced.States, full.States)
				continue
			}
			if (reduced.Violation == nil) != (full.Violation == nil) {
				t.Errorf("case %d on %s without {%v}: full %v, reduced %v", i, tr.Name, c.Without, full.Violation, reduced.Violation)
				continue
			}
			if full.Violation != nil && len(full.Violation.Trace) != len(reduced.Violation.Trace) {
				t.Errorf("case %d: the full search needs %d steps, the reduced one %d", i, len(full.Violation.Trace), len(reduced.Violation.Trace))
			}
			t.Logf("case %d on %.13s: %d states of %d, %v", i, tr.Name, reduced.States, full.States, full.Violation)
		}
	}
}

// Depth first sees the same states.
func TestDepthFirstSeesTheSame(t *testing.T) {
	c := small("crash of prefill", Receiver, func(c *Config) { c.PrefillCrashes, c.Pages = 1, 1 })
	short := modelcheck.Shortest(Model{&c}, Properties(&c), modelcheck.Options{})
	deep := modelcheck.Deep(Model{&c}, Properties(&c), modelcheck.Options{})
	if short.States != deep.States || !short.OK() || !deep.OK() {
		t.Errorf("breadth first sees %d states (%v), depth first %d (%v)", short.States, short.Violation, deep.States, deep.Violation)
	}
}

// A violation that is found depth first is told by the shortest way to it.
func TestExploreTellsTheShortestWay(t *testing.T) {
	c := stories()[1].config(stories()[1].missing...)
	want := Shortest(c, modelcheck.Options{})
	c.DepthFirst = true
	if got := Explore(c, modelcheck.Options{}); want.Violation == nil || got.Violation == nil || !slices.Equal(got.Violation.Trace, want.Violation.Trace) {
		t.Errorf("depth first finds %v, breadth first %v", got.Violation, want.Violation)
	}
	c.Without = guard.Without()
	if got := Explore(c, modelcheck.Options{}); !got.OK() {
		t.Errorf("with every guard: %v, complete is %v", got.Violation, got.Complete)
	}
}

// An action leaves the state it starts from as it was.
func TestApplyLeavesItsStateAlone(t *testing.T) {
	c := small("all faults", OneSided, func(c *Config) {
		c.PrefillCrashes, c.DecodeCrashes, c.Suspicions, c.Breaks, c.Pages = 1, 1, 1, 1, 1
	})
	m := Model{&c}
	level := []*World{m.Initial()}
	seen := map[string]bool{}
	for range 6 {
		var next []*World
		for _, w := range level {
			before := string(m.AppendKey(nil, w))
			for _, a := range m.Actions(w) {
				n := m.Apply(w, a)
				if after := string(m.AppendKey(nil, w)); after != before {
					t.Fatalf("%q changes the state it starts from", m.Describe(w, a))
				}
				if key := string(m.AppendKey(nil, n)); !seen[key] {
					seen[key] = true
					next = append(next, n)
				}
			}
		}
		level = next
	}
}

// In one state no two actions read alike, or a script could not name them.
func TestActionsReadDifferently(t *testing.T) {
	c := small("stray messages", Receiver, func(c *Config) { c.Strays, c.PrefillCrashes, c.Suspicions, c.Grow = 1, 1, 1, true })
	m := Model{&c}
	twice := modelcheck.Always("Names", func(w *World) error { return sameNames(m, w) })
	if r := modelcheck.Shortest(m, []modelcheck.Property[*World]{twice}, modelcheck.Options{StatesMax: 4000}); r.Violation != nil {
		t.Error(r.Violation)
	}
}

type twoAlike string

func (e twoAlike) Error() string { return "two actions are called " + string(e) }

func sameNames(m Model, w *World) error {
	seen := map[string]bool{}
	for _, a := range m.Actions(w) {
		line := m.Describe(w, a)
		if seen[line] {
			return twoAlike(line)
		}
		seen[line] = true
	}
	return nil
}

// One goroutine and four see the same: states, transitions and depth where all
// holds, the same violation by the same way where a guard is missing.
func TestWorkersSeeTheSameWorlds(t *testing.T) {
	configs := []Config{
		small("crash of prefill", OneSided, func(c *Config) { c.Pages, c.SourcePages, c.PrefillCrashes = 1, 1, 1 }),
		small("two decodes", Receiver, func(c *Config) { c.Decodes, c.Pages, c.SourcePages = 2, 1, 1 }),
		stories()[1].config(stories()[1].missing...),
		stories()[5].config(stories()[5].missing...),
	}
	for _, c := range configs {
		one, four := Shortest(c, modelcheck.Options{Workers: 1}), Shortest(c, modelcheck.Options{Workers: 4})
		if one.Progress != four.Progress || one.Complete != four.Complete || PropertyOf(one.Violation) != PropertyOf(four.Violation) {
			t.Errorf("%s: one goroutine finds %+v, four %+v", c.Name, one, four)
			continue
		}
		if one.Violation != nil && !slices.Equal(one.Violation.Trace, four.Violation.Trace) {
			t.Errorf("%s: one goroutine finds\n%s\nfour\n%s", c.Name, strings.Join(one.Violation.Trace, "\n"), strings.Join(four.Violation.Trace, "\n"))
		}
	}
}

// Healing that stops at a state from which another has come to rest comes to the
// verdict of healing to the end, with all guards and without one that it needs.
func TestHealingAgreesWithHealingToTheEnd(t *testing.T) {
	one := func(c *Config) { c.Pages, c.SourcePages, c.PrefillCrashes = 1, 1, 1 }
	for _, missing := range []guard.Set{guard.Without(), guard.Without(guard.Tombstone), guard.Without(guard.Replay)} {
		c := small("crash of prefill", DrainOnly, one)
		c.Without, c.Only = missing, "Rest"
		whole := modelcheck.Always("Rest", func(w *World) error {
			for range healingSteps {
				if w.unrest() == nil {
					return nil
				}
				w = w.heal()
			}
			return w.unrest()
		})
		known := Shortest(c, modelcheck.Options{})
		plain := modelcheck.Shortest(Model{&c}, []modelcheck.Property[*World]{whole}, modelcheck.Options{})
		if known.Progress != plain.Progress || PropertyOf(known.Violation) != PropertyOf(plain.Violation) || (known.Violation != nil) != (missing != guard.Set{}) {
			t.Errorf("without {%v}: %v after %d states, healed to the end %v after %d", missing, known.Violation, known.States, plain.Violation, plain.States)
		}
	}
}
