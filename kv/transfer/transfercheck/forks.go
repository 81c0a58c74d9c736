package transfercheck

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// forks explores a model for every set of up to size missing guards at once.
//
// A state is a state of the model together with the guards that are missing so
// far. It begins with those of base. Whatever is asked of the model (its actions,
// an action's outcome, whether a state is broken) is asked with these guards
// missing, and then again with each further guard whose absence was asked for on
// the way, until no answer asks for a new one: see each. An outcome that is no
// other than with fewer guards missing is not kept: see knownWithLess.
//
// So a guard may be there at one step and missing at a later one, and what is
// found broken is a candidate: it is looked at again with the guards missing from
// the start. Nothing is overlooked. Let S be a set that includes base, of size
// guards at most, and follow a run of the model without S. By induction each of
// its states is reached here with a set D that is part of S: ask the same with D
// missing. If the answer depends on no guard of S that is not in D, it is the one
// that S gives. If it does, the question is asked again with one of these guards
// more, which is still part of S, and so on; this ends, at S at the latest. A state
// that is left out because it is known with a part of D is known with a part of S.
// Equal keys are equal states here as in a plain search, because the key asks
// for no guard that can still be lost. Hence a broken state of the run gives a
// candidate that is part of S.
//
// If that candidate is confirmed, S is no minimal set unless it is the candidate.
// If it is not, sets that include it are looked at one by one: see cutSearch.
type forks[S, A any] struct {
	model  modelcheck.Model[S, A]
	probe  *guard.Probe // answers for every guard set of the model
	broken func(S) bool
	base   guard.Set // missing from the start; what keys ask for is decided here
	fixed  guard.Set // never lost on the way: base, and those that keys ask for
	size   int

	cut       func(guard.Set) bool // sets that need no look: they contain a cut
	candidate func(guard.Set)      // told of each set with which a state is broken

	seen    map[visit]struct{}
	waiting [][]fork[S] // by the number of missing guards
	buffer  []byte
	asked   int // questions put to the model
}

// visit is a state that has been reached with these guards missing.
type visit struct {
	hash    uint64 // XXH3 of its key
	missing guard.Set
}

// fork is a state whose actions have not been looked at.
type fork[S any] struct {
	visit
	state S
}

// start reaches the start state.
func (f *forks[S, A]) start() {
	f.seen, f.waiting = map[visit]struct{}{}, make([][]fork[S], f.size+1)
	for _, first := range each(f, f.base, f.model.Initial) {
		f.reach(first.missing, first.value)
	}
}

// explore looks at all states with n missing guards. Requires: those with fewer
// have been looked at. States with more are left waiting.
func (f *forks[S, A]) explore(n int) {
	for len(f.waiting[n]) > 0 {
		last := len(f.waiting[n]) - 1
		next := f.waiting[n][last]
		f.waiting[n][last] = fork[S]{}
		f.waiting[n] = f.waiting[n][:last]
		if !f.cut(next.missing) && !f.knownWithLess(next.visit) {
			f.expand(next)
		}
	}
}

func (f *forks[S, A]) expand(from fork[S]) {
	for _, listed := range each(f, from.missing, func() []A { return f.model.Actions(from.state) }) {
		for _, a := range listed.value {
			for _, next := range each(f, listed.missing, func() S { return f.model.Apply(from.state, a) }) {
				f.reach(next.missing, next.value)
			}
		}
	}
}

func (f *forks[S, A]) reach(missing guard.Set, state S) {
	f.probe.Miss(missing)
	f.buffer = f.model.AppendKey(f.buffer[:0], state)
	assert.That(f.fixed.Includes(f.probe.Asked()), "a state's key asks for no guard that can be lost on the way")
	at := visit{xxh3.Hash(f.buffer), missing}
	if _, there := f.seen[at]; there || f.knownWithLess(at) {
		return
	}
	f.seen[at] = struct{}{}
	for _, verdict := range each(f, missing, func() bool { return f.broken(state) }) {
		if verdict.value {
			f.candidate(verdict.missing)
		}
	}
	f.waiting[missing.Len()] = append(f.waiting[missing.Len()], fork[S]{at, state})
}

// knownWithLess reports whether a state was reached with only a part of these
// guards missing. The rest can still be lost from there on.
func (f *forks[S, A]) knownWithLess(at visit) bool {
	lost := at.missing.Less(f.base).Guards()
	for kept := range 1<<len(lost) - 1 {
		part := visit{at.hash, f.base}
		for i, g := range lost {
			if kept>>i&1 != 0 {
				part.missing = part.missing.With(g)
			}
		}
		if _, there := f.seen[part]; there {
			return true
		}
	}
	return false
}

// answer is what the model says with these guards missing.
type answer[T any] struct {
	missing guard.Set
	value   T
}

// each asks the model with these guards missing, then with each guard more that
// the answer asked for, and so on. Sets that contain a cut are left out.
func each[S, A, T any](f *forks[S, A], missing guard.Set, ask func() T) []answer[T] {
	list := []answer[T]{{missing: missing}}
	for i := 0; i < len(list); i++ {
		at := list[i].missing
		f.probe.Miss(at)
		f.asked++
		list[i].value = ask()
		if at.Len() == f.size {
			continue
		}
		for _, g := range f.probe.Asked().Less(f.fixed).Less(at).Guards() {
			more := at.With(g)
			there := slices.ContainsFunc(list, func(a answer[T]) bool { return a.missing == more })
			if !there && !f.cut(more) {
				list = append(list, answer[T]{missing: more})
			}
		}
	}
	return list
}
