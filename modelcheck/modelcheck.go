// Package modelcheck explores every reachable state of a model and reports the shortest counterexample.
//
// A model is a start state, the actions that are possible in a state, and what an
// action makes of it. States are told apart by a canonical key: states with equal
// keys are one. Two searches are there: Shortest goes breadth first, keeps a
// parent for each state, and gives the shortest trace to a violation; Deep goes
// depth first and keeps one hash for each state, for size.
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

	"github.com/zeebo/xxh3"
)

// Model is a system with states S and actions A.
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

// Property is something to hold a model against. The zero value holds always.
type Property[S any] struct {
	Name      string
	always    func(S) error
	sometimes func(S) bool
}

// Always is a property of every state: broken when holds gives an error.
func Always[S any](name string, holds func(S) error) Property[S] {
	return Property[S]{Name: name, always: holds}
}

// Sometimes is a property of the whole exploration: some state must satisfy it.
func Sometimes[S any](name string, reached func(S) bool) Property[S] {
	return Property[S]{Name: name, sometimes: reached}
}

// Recovers demands, from every state, that healing leads to rest. heal takes one
// healing step, it must leave its argument as it was and may be repeated;
// unrest says what is missing, nil is rest. More than steps steps are a violation.
func Recovers[S any](name string, steps int, heal func(S) S, unrest func(S) error) Property[S] {
	return Always(name, func(s S) error {
		err := unrest(s)
		for range steps {
			if err == nil {
				return nil
			}
			s = heal(s)
			err = unrest(s)
		}
		if err != nil {
			return fmt.Errorf("no rest after %d healing steps: %w", steps, err)
		}
		return nil
	})
}

// Options bound a search and let it be watched.
type Options struct {
	StatesMax     int            // stop once there are more states; 0 is no bound
	Progress      func(Progress) // called now and then, from the searching goroutine
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

// checker holds the properties of one search.
type checker[S any] struct {
	properties []Property[S]
	reached    []bool
}

func newChecker[S any](properties []Property[S]) *checker[S] {
	return &checker[S]{properties: properties, reached: make([]bool, len(properties))}
}

// check gives the first property that s breaks.
func (c *checker[S]) check(s S) (name string, err error) {
	for i := range c.properties {
		p := &c.properties[i]
		if p.sometimes != nil && !c.reached[i] {
			c.reached[i] = p.sometimes(s)
		}
		if p.always == nil {
			continue
		}
		if err := p.always(s); err != nil {
			return p.Name, err
		}
	}
	return "", nil
}

func (c *checker[S]) missed() (names []string) {
	for i := range c.properties {
		if c.properties[i].sometimes != nil && !c.reached[i] {
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

// set is a set of hashes with open addressing.
type set struct {
	table []uint64
	count int
}

func newSet() *set { return &set{table: make([]uint64, 1<<12)} }

// add reports whether h was not there.
func (s *set) add(h uint64) bool {
	if s.count*10 > len(s.table)*7 {
		old := s.table
		s.table = make([]uint64, 2*len(old))
		for _, v := range old {
			if v != 0 {
				s.put(v)
			}
		}
	}
	if !s.put(h) {
		return false
	}
	s.count++
	return true
}

func (s *set) put(h uint64) bool {
	mask := uint64(len(s.table) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s.table[i] {
		case 0:
			s.table[i] = h
			return true
		case h:
			return false
		}
	}
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
