// Package modelcheck explores every reachable state of a model and reports the shortest counterexample.
//
// A model is a start state, the actions that are possible in a state, and what an
// action makes of it. States are told apart by a canonical key: states with equal
// keys are one. Two searches are there: Shortest goes breadth first, from several
// goroutines, keeps a parent for each state, and gives the shortest trace to a
// violation; Deep goes depth first and keeps one hash for each state, for size.
//
// Three kinds of property can be asked for: Always, what must hold in every
// state; Sometimes, what must be reached at least once, so that an exploration
// shows that it went to the interesting places; and Recovers, which from every
// state stops all faults and demands that the system comes to rest.
//
// States are told apart by 64 bits of XXH3 of their keys. With n states the odds
// that two were taken for one are about n*n/2^65: 1e-8 for a million.
package modelcheck

import (
	"fmt"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// Model is a system with states S and actions A. Its methods, and the functions of
// properties, are called from several goroutines at once: what they share they
// only read.
type Model[S, A any] interface {
	// Initial is the start state.
	Initial() S
	// Actions lists what can happen in s, in an order that depends on s alone.
	Actions(s S) []A
	// Apply gives the state after a. It leaves s as it was.
	Apply(s S, a A) S
	// AppendKey appends the canonical form of s. A symmetry is exploited by giving
	// symmetric states one key, a reduction by leaving out what can matter to nobody.
	AppendKey(key []byte, s S) []byte
	// Describe tells what a does in s, for traces and scripts. In one state no two
	// actions read alike.
	Describe(s S, a A) string
}

// Recycler is a Model that can use the memory of states that turned out to be known.
type Recycler[S any] interface {
	// Recycle takes a state that came of Apply, and to which nothing was applied.
	Recycle(s S)
}

// Property is something to hold a model against. The zero value holds always.
type Property[S any] struct {
	Name      string
	always    func(S) error
	sometimes func(S) bool
	recovers  *recovery[S]
}

// Always is a property of every state: broken when holds gives an error.
func Always[S any](name string, holds func(S) error) Property[S] {
	return Property[S]{Name: name, always: holds}
}

// Sometimes is a property of the whole exploration: some state must satisfy it.
func Sometimes[S any](name string, reached func(S) bool) Property[S] {
	return Property[S]{Name: name, sometimes: reached}
}

// Options bound a search and let it be watched.
type Options struct {
	StatesMax     int            // stop once there are more states; 0 is no bound
	Workers       int            // goroutines that search breadth first; 0 is GOMAXPROCS. What is found does not depend on it
	Progress      func(Progress) // called now and then, from the goroutine that called the search
	ProgressEvery int            // states between two calls; 0 is 10,000
}

// Progress is how far a search is.
type Progress struct {
	States      int // told apart so far
	Transitions int
	Waiting     int // states whose actions have not been looked at
	Depth       int
}

// Result is what a search found.
type Result[A any] struct {
	Progress
	Complete  bool          // every reachable state was seen
	Violation *Violation[A] // the first, or nil
	Missed    []string      // Sometimes properties that no state satisfied
}

// OK reports whether every state was seen, none broke a property, and every
// Sometimes was reached.
func (r Result[A]) OK() bool { return r.Complete && r.Violation == nil && len(r.Missed) == 0 }

// Violation is a broken property and the way to it.
type Violation[A any] struct {
	Property string
	Err      error
	Actions  []A      // from the start state; empty after Deep
	Trace    []string // the actions, described
}

// Error names the property and what broke it.
func (v *Violation[A]) Error() string { return fmt.Sprintf("%s: %v", v.Property, v.Err) }

// checker holds the properties of one search. It may be used from several goroutines.
type checker[S, A any] struct {
	model      Model[S, A]
	properties []Property[S]
	reached    []atomic.Bool
	restful    []known // by property, of those that recover
}

func newChecker[S, A any](m Model[S, A], properties []Property[S]) *checker[S, A] {
	return &checker[S, A]{model: m, properties: properties, reached: make([]atomic.Bool, len(properties)), restful: make([]known, len(properties))}
}

// check gives the first property that s breaks.
func (c *checker[S, A]) check(s S) (name string, err error) {
	for i := range c.properties {
		p := &c.properties[i]
		switch {
		case p.always != nil:
			err = p.always(s)
		case p.recovers != nil:
			err = c.heals(p.recovers, &c.restful[i], s)
		case p.sometimes != nil && !c.reached[i].Load() && p.sometimes(s):
			c.reached[i].Store(true)
		}
		if err != nil {
			return p.Name, err
		}
	}
	return "", nil
}

func (c *checker[S, A]) missed() (names []string) {
	for i := range c.properties {
		if c.properties[i].sometimes != nil && !c.reached[i].Load() {
			names = append(names, c.properties[i].Name)
		}
	}
	return names
}

// hash is a state's identity, never 0.
func hash[S, A any](m Model[S, A], buffer []byte, s S) (uint64, []byte) {
	buffer = m.AppendKey(buffer[:0], s)
	h := xxh3.Hash(buffer)
	if h == 0 {
		h = 1
	}
	return h, buffer
}

// watcher calls Progress now and then.
type watcher struct {
	options Options
	next    int
}

func newWatcher(o Options) *watcher {
	if o.ProgressEvery == 0 {
		o.ProgressEvery = 10_000
	}
	return &watcher{options: o, next: o.ProgressEvery}
}

func (w *watcher) look(p Progress) {
	if w.options.Progress != nil && p.States >= w.next {
		w.next = p.States + w.options.ProgressEvery
		w.options.Progress(p)
	}
}

// full reports whether the bound on states is passed.
func (w *watcher) full(p Progress) bool {
	return w.options.StatesMax > 0 && p.States > w.options.StatesMax
}
