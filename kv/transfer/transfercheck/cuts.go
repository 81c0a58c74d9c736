package transfercheck

import (
	"cmp"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Cut is a set of guards whose joint loss leaks, while the loss of no smaller
// part of it does.
type Cut struct {
	Missing guard.Set
	World   string // the first of LeakFamily that leaks
	Steps   int    // of the shortest leak there
}

// Leak looks for a leak without some guards, and says in which world of
// LeakFamily. complete is whether every world was seen whole, or up to a leak.
func Leak(t Transport, missing guard.Set) (v *modelcheck.Violation[Action], world string, complete bool) {
	complete = true
	for _, c := range LeakFamily(t) {
		c.Without = missing
		r := Shortest(c, modelcheck.Options{StatesMax: leakStatesMax})
		if r.Violation != nil {
			return r.Violation, c.Name, true
		}
		complete = complete && r.Complete
	}
	return nil, "", complete
}

// leakStatesMax bounds the search for a leak in one world without some guards. It
// is a safeguard: without any three guards the worlds of LeakFamily are finite.
const leakStatesMax = 2_000_000

// Cuts finds every cut of up to size guards, by looking at all sets of that size
// in all worlds of LeakFamily. Sets for which a world was not seen whole are
// given as well. It takes many minutes; progress is told after each world.
func Cuts(t Transport, size int, progress func(CutsProgress)) (cuts []Cut, cutOff []guard.Set) {
	c := cutSearch[*World, Action]{size: size}
	for _, base := range decidedFirst(size) {
		for _, world := range LeakFamily(t) {
			f := lookIn(&c, world, base, func(missing guard.Set) { cutOff = append(cutOff, missing) })
			progress(CutsProgress{Base: base, World: world.Name, States: len(f.seen), Asked: f.asked, Cuts: len(c.cuts), Refuted: c.refuted})
		}
	}
	for _, missing := range c.minimal() {
		v, world, _ := Leak(t, missing)
		cuts = append(cuts, Cut{missing, world, len(v.Trace)})
	}
	return cuts, cutOff
}

// decidedFirst lists what a state's key may find missing: fresh and remembers ask
// for these guards, so an exploration has them or lacks them throughout.
func decidedFirst(size int) []guard.Set {
	all := []guard.Set{guard.Without(), guard.Without(guard.FreshID), guard.Without(guard.Tombstone), guard.Without(guard.FreshID, guard.Tombstone)}
	return slices.DeleteFunc(all, func(s guard.Set) bool { return s.Len() > size })
}

// lookIn looks at a world, with base missing from the start. cutOff is told of
// candidates that were searched for in vain, and not to the end.
func lookIn(c *cutSearch[*World, Action], world Config, base guard.Set, cutOff func(guard.Set)) *forks[*World, Action] {
	leaks := func(missing guard.Set) bool {
		world.Without = missing
		r := Shortest(world, modelcheck.Options{StatesMax: leakStatesMax})
		if r.Violation == nil && !r.Complete {
			cutOff(missing)
		}
		return r.Violation != nil
	}
	probe := &guard.Probe{}
	config := world
	config.Without = probe.Set()
	f := &forks[*World, Action]{model: Model{&config}, probe: probe, broken: func(w *World) bool { return noLeak(w) != nil },
		base: base, fixed: guard.Without(guard.FreshID, guard.Tombstone)}
	c.look(f, leaks)
	return f
}

// CutsProgress says what was looked at in a world.
type CutsProgress struct {
	Base    guard.Set // missing from the start
	World   string
	States  int // told apart
	Asked   int // questions put to the world
	Cuts    int // leaking sets that were found till now, in all worlds
	Refuted int // candidates that were not confirmed, in all worlds
}

// cutSearch looks in one model after the other for sets of guards with which it is
// broken. Those that contain a set that was found are not looked at again, in any
// model: what is minimal among the found sets is minimal among all.
//
// What an exploration of forks finds is confirmed by a search of that model with
// the guards missing from the start. A candidate that isn't confirmed still may
// be part of a set with which the same state is broken: each of its extensions by
// one guard becomes a candidate of its own.
type cutSearch[S, A any] struct {
	size    int
	cuts    []guard.Set // found and confirmed
	refuted int         // candidates that were not confirmed

	// Of the model that is looked at:
	forks *forks[S, A]
	leaks func(missing guard.Set) bool // by a search of its own
	level int                          // the number of missing guards
	told  map[guard.Set]struct{}       // candidates
	later []guard.Set                  // of them, those of more guards than level
}

// look explores a model. Requires: all fields of f down to fixed.
func (c *cutSearch[S, A]) look(f *forks[S, A], leaks func(guard.Set) bool) {
	c.forks, c.leaks, c.told, c.later = f, leaks, map[guard.Set]struct{}{}, nil
	f.size, f.cut, f.candidate, f.fixed = c.size, c.contained, c.candidate, f.fixed.Union(f.base)
	c.level = f.base.Len()
	for f.start(); c.level <= c.size; c.level++ {
		waiting := c.later
		c.later = nil
		for _, missing := range waiting {
			c.settle(missing)
		}
		f.explore(c.level)
	}
}

func (c *cutSearch[S, A]) candidate(missing guard.Set) {
	if _, there := c.told[missing]; !there && !c.contained(missing) {
		c.told[missing] = struct{}{}
		c.settle(missing)
	}
}

// settle confirms a candidate, or puts it off until its size is due.
func (c *cutSearch[S, A]) settle(missing guard.Set) {
	switch {
	case c.contained(missing):
	case missing.Len() > c.level:
		c.later = append(c.later, missing)
	case c.leaks(missing):
		c.cuts = append(c.cuts, missing)
	default:
		c.refute(missing)
	}
}

func (c *cutSearch[S, A]) refute(missing guard.Set) {
	c.refuted++
	if missing.Len() == c.size {
		return
	}
	for g := range guard.End {
		if !missing.Missing(g) && !c.forks.fixed.Missing(g) {
			c.candidate(missing.With(g))
		}
	}
}

// contained reports whether a set contains one that was found.
func (c *cutSearch[S, A]) contained(missing guard.Set) bool {
	return slices.ContainsFunc(c.cuts, missing.Includes)
}

// minimal gives the found sets that contain no other, small ones first.
func (c *cutSearch[S, A]) minimal() (list []guard.Set) {
	for _, s := range c.cuts {
		if !slices.ContainsFunc(c.cuts, func(other guard.Set) bool { return other != s && s.Includes(other) }) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b guard.Set) int {
		return cmp.Or(a.Len()-b.Len(), slices.Compare(a.Guards(), b.Guards()))
	})
	return list
}
