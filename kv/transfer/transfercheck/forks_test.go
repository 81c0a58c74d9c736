package transfercheck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// toy is a random machine whose actions, steps and broken states depend on
// guards, in no order at all: without one more guard it may do less.
type toy struct {
	guards guard.Set
	steps  [toyStates][toyActions]toyStep
	begins guard.Guard            // without it the start state is another
	hidden [toyStates]guard.Guard // its last action is there only without this guard
	broken [toyStates]bool
	watch  [toyStates]guard.Guard // sees the broken state
}

const (
	toyStates  = 24
	toyActions = 3
	toyGuards  = 8
)

// toyStep asks for a guard, and without it for a second.
type toyStep struct {
	first, second guard.Guard
	with          int // the state that follows
	withoutFirst  int
	withoutBoth   int
}

func newToy(r *rand.Rand) *toy {
	one := func() guard.Guard { return guard.Guard(r.IntN(toyGuards)) }
	m := &toy{begins: one()}
	for s := range toyStates {
		for a := range toyActions {
			// With all guards it stays in the first half.
			m.steps[s][a] = toyStep{one(), one(), r.IntN(toyStates / 2), r.IntN(toyStates), r.IntN(toyStates)}
		}
		m.hidden[s], m.watch[s] = one(), one()
		m.broken[s] = s >= toyStates/2 && r.IntN(4) == 0
	}
	return m
}

func (m *toy) Initial() int {
	if m.guards.Missing(m.begins) {
		return 1
	}
	return 0
}

func (m *toy) Actions(s int) []int {
	list := []int{0, 1, 2}
	if !m.guards.Missing(m.hidden[s]) {
		return list[:2]
	}
	return list
}

func (m *toy) Apply(s, a int) int {
	step := m.steps[s][a]
	switch {
	case !m.guards.Missing(step.first):
		return step.with
	case !m.guards.Missing(step.second):
		return step.withoutFirst
	}
	return step.withoutBoth
}

func (m *toy) AppendKey(key []byte, s int) []byte { return append(key, byte(s)) }

func (m *toy) Describe(_, a int) string { return fmt.Sprint(a) }

func (m *toy) leaks(s int) bool { return m.broken[s] && m.guards.Missing(m.watch[s]) }

// search looks for a leak without some guards.
func (m toy) search(missing guard.Set) bool {
	m.guards = missing
	leak := modelcheck.Always("Leak", func(s int) error {
		if m.leaks(s) {
			return errors.New("a leak")
		}
		return nil
	})
	return modelcheck.Shortest(&m, []modelcheck.Property[int]{leak}, modelcheck.Options{}).Violation != nil
}

// oneByOne gives the minimal sets of up to size guards with which one of the
// toys leaks.
func oneByOne(toys []*toy, size int) (cuts []guard.Set) {
	for n := range size + 1 {
		for members := range 1 << toyGuards {
			var missing guard.Set
			for g := range guard.Guard(toyGuards) {
				if members>>g&1 != 0 {
					missing = missing.With(g)
				}
			}
			if missing.Len() != n || slices.ContainsFunc(cuts, missing.Includes) {
				continue
			}
			if slices.ContainsFunc(toys, func(m *toy) bool { return m.search(missing) }) {
				cuts = append(cuts, missing)
			}
		}
	}
	return cuts
}

// forked gives the same by forks, and how many candidates were refuted.
func forked(toys []*toy, size int) (cuts []guard.Set, refuted int) {
	c := cutSearch[int, int]{size: size}
	for _, m := range toys {
		n, probe := *m, &guard.Probe{}
		n.guards = probe.Set()
		c.look(&forks[int, int]{model: &n, probe: probe, broken: n.leaks}, m.search)
	}
	return c.minimal(), c.refuted
}

// Forks find in random machines what a search for each set finds.
func TestForksFindWhatSearchesOneByOneFind(t *testing.T) {
	random := sample(t)
	found, refuted := 0, 0
	for round := range 200 {
		toys := []*toy{newToy(random), newToy(random)}
		got, wrong := forked(toys, 3)
		want := oneByOne(toys, 3)
		order := func(a, b guard.Set) int { return slices.Compare(a.Guards(), b.Guards()) }
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: forks find %v, searches one by one %v", round, got, want)
		}
		found, refuted = found+len(want), refuted+wrong
	}
	if found == 0 || refuted == 0 {
		t.Errorf("%d cuts were found and %d candidates refuted: the machines are too tame", found, refuted)
	}
	t.Logf("%d cuts, %d candidates refuted", found, refuted)
}

// forgetful is a toy whose keys say less while a guard is there.
type forgetful struct{ toy }

func (m *forgetful) AppendKey(key []byte, s int) []byte {
	if !m.guards.Missing(guard.FreshID) {
		s /= 2
	}
	return append(key, byte(s))
}

// Keys that depend on a guard that can still be lost would make one state of two
// that differ later: that is refused.
func TestKeysThatDependOnALaterLossAreRefused(t *testing.T) {
	search := func(fixed guard.Set) (err error) {
		defer func() {
			if v, ok := recover().(assert.Violation); ok {
				err = v
			}
		}()
		probe := &guard.Probe{}
		m := &forgetful{*newToy(sample(t))}
		m.guards = probe.Set()
		f := &forks[int, int]{model: m, probe: probe, broken: m.leaks, fixed: fixed, size: 2,
			cut: func(guard.Set) bool { return false }, candidate: func(guard.Set) {}}
		f.start()
		f.explore(0)
		return nil
	}
	if err := search(guard.Without()); err == nil {
		t.Error("a key may ask for a guard that can be lost later")
	}
	if err := search(guard.Without(guard.FreshID)); err != nil {
		t.Errorf("a key may not ask for a guard that is decided first: %v", err)
	}
}

// Forks find in a world the cuts that are on record for it, and nothing that
// contains none.
func TestForksFindTheRecordedCuts(t *testing.T) {
	if testing.Short() {
		t.Skip("every pair of guards in a world")
	}
	const size = 2
	b := byName[sample(t).IntN(len(byName))]
	world := LeakFamily(b.transport)[0] // the world of the record for each cut with which it leaks
	c := cutSearch[*World, Action]{size: size}
	for _, base := range decidedFirst(size) {
		lookIn(&c, world, base, func(missing guard.Set) { t.Errorf("%s without %v is cut off", b.name, missing) })
	}
	found := c.minimal()
	_, _, recorded := readCuts(t, b.name)
	for _, cut := range recorded {
		if cut.World == world.Name && cut.Missing.Len() <= size && !slices.Contains(found, cut.Missing) {
			t.Errorf("%s: forks do not find {%v}", b.name, cut.Missing)
		}
	}
	for _, missing := range found {
		if !slices.ContainsFunc(recorded, func(c Cut) bool { return missing.Includes(c.Missing) }) {
			t.Errorf("%s: forks find {%v}, which contains no recorded cut", b.name, missing)
		}
	}
	t.Logf("%s: %d sets of up to %d guards leak in %q", b.name, len(found), size, world.Name)
}
