package modelcheck

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// node is how a state was first reached.
type node struct {
	parent int32
	action int32
}

// search is one exploration, breadth first. A level's states are taken in blocks.
// The goroutines expand the states of a block while the set of hashes rests; then
// what they found is taken over in the order of parents and actions, by one; then
// they check what is new. So everything that is reported is as if one goroutine had
// gone state by state.
type search[S, A any] struct {
	model   Model[S, A]
	check   *checker[S, A]
	watch   *watcher
	workers int
	seen    *set
	nodes   []node
	result  Result[A]
	recycle func(S)
	buffers [][]byte // by goroutine
}

// blockStates is how many states a goroutine expands between two meetings. One
// goroutine meets nobody.
const blockStates = 64

// expansion is what comes of one state.
type expansion[S any] struct {
	actions int
	found   []found[S] // what the set did not have when the block was begun
}

type found[S any] struct {
	state  S
	hash   uint64
	action int32
}

// Shortest explores breadth first. A violation comes with the fewest actions that
// lead to one: of several, the first in the order of their levels, their parents
// and their parents' actions. It keeps sixteen bytes for each state and the states
// of two levels.
func Shortest[S, A any](m Model[S, A], properties []Property[S], o Options) Result[A] {
	s := &search[S, A]{model: m, check: newChecker(m, properties), watch: newWatcher(o), workers: o.Workers, seen: newSet(), nodes: []node{{parent: -1}}}
	if s.workers < 1 {
		s.workers = runtime.GOMAXPROCS(0)
	}
	s.buffers, s.recycle = make([][]byte, s.workers), recycler(m)
	ended := s.run()
	s.result.Complete = !ended
	if s.result.Violation == nil {
		s.result.Missed = s.check.missed()
	}
	return s.result
}

// recycler is what to do with a state that is known.
func recycler[S, A any](m Model[S, A]) func(S) {
	if r, ok := any(m).(Recycler[S]); ok {
		return r.Recycle
	}
	return func(S) {}
}

// run goes level by level. ended is whether it stopped before the last.
func (s *search[S, A]) run() (ended bool) {
	start := s.model.Initial()
	h, _ := hash(s.model, nil, start)
	s.seen.add(h)
	s.result.States = 1
	if name, err := s.check.check(start); err != nil {
		s.result.Violation = violation(s.model, s.nodes, 0, name, err)
		return true
	}
	block := s.workers * blockStates
	if s.workers == 1 {
		block = 1
	}
	level := []S{start}
	for first := 0; len(level) > 0; {
		var next []S
		begun := len(s.nodes)
		for i := 0; i < len(level); i += block {
			part := level[i:min(i+block, len(level))]
			expansions := s.expand(part)
			clear(part)
			if next, ended = s.take(next, first+i, expansions); ended {
				return true
			}
		}
		if len(next) > 0 {
			s.result.Depth++
		}
		level, first = next, begun
	}
	return false
}

// expand looks at each action of each state of a block.
func (s *search[S, A]) expand(block []S) []expansion[S] {
	expansions := make([]expansion[S], len(block))
	spread(s.workers, len(block), func(worker, i int) {
		actions := s.model.Actions(block[i])
		e := &expansions[i]
		e.actions = len(actions)
		for a, action := range actions {
			state := s.model.Apply(block[i], action)
			var h uint64
			h, s.buffers[worker] = hash(s.model, s.buffers[worker], state)
			if s.seen.has(h) {
				s.recycle(state)
				continue
			}
			e.found = append(e.found, found[S]{state, h, int32(a)})
		}
	})
	return expansions
}

// take adds what is new to the next level and checks it. The block's states are
// numbered from first on. It ends the search at a violation, or where there are
// too many states.
func (s *search[S, A]) take(next []S, first int, expansions []expansion[S]) (_ []S, ended bool) {
	begun, at := len(next), len(s.nodes)
	before := s.result.Progress
	for i := range expansions {
		e := &expansions[i]
		for _, f := range e.found {
			if !s.seen.add(f.hash) {
				s.recycle(f.state)
				continue
			}
			s.nodes = append(s.nodes, node{int32(first + i), f.action})
			next = append(next, f.state)
			s.result.States++
		}
		s.result.Transitions += e.actions
		s.result.Waiting = len(s.nodes) - (first + i + 1)
		s.watch.look(s.result.Progress)
		if s.watch.full(s.result.Progress) && s.result.Waiting > 0 {
			ended = true
			break
		}
	}
	if bad, name, err := s.worst(next[begun:]); err != nil {
		s.count(before, first, at+bad, expansions)
		s.result.Violation = violation(s.model, s.nodes, int32(at+bad), name, err)
		return nil, true
	}
	return next, ended
}

// worst is the first of the new states that breaks a property.
func (s *search[S, A]) worst(states []S) (bad int, name string, err error) {
	var mu sync.Mutex
	var least atomic.Int64
	least.Store(int64(len(states)))
	spread(s.workers, len(states), func(_, i int) {
		if int64(i) > least.Load() {
			return
		}
		if n, e := s.check.check(states[i]); e != nil {
			mu.Lock()
			defer mu.Unlock()
			if int64(i) < least.Load() {
				least.Store(int64(i))
				name, err = n, e
			}
		}
	})
	return int(least.Load()), name, err
}

// count goes back to where the state of that id was found.
func (s *search[S, A]) count(p Progress, first, id int, expansions []expansion[S]) {
	n := s.nodes[id]
	for i := range int(n.parent) - first {
		p.Transitions += expansions[i].actions
	}
	p.Transitions += int(n.action) + 1
	p.States, p.Waiting = id+1, id-int(n.parent)
	s.result.Progress = p
}

// spread calls do for 0 to n-1 from several goroutines. do is told which calls it,
// counted from 0.
func spread(goroutines, n int, do func(goroutine, i int)) {
	if goroutines = min(goroutines, n); goroutines == 1 {
		for i := range n {
			do(0, i)
		}
		return
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(g, i)
			}
		})
	}
	all.Wait()
}

// violation replays the way to a state.
func violation[S, A any](m Model[S, A], nodes []node, id int32, name string, err error) *Violation[A] {
	var way []int32
	for i := id; nodes[i].parent >= 0; i = nodes[i].parent {
		way = append(way, nodes[i].action)
	}
	v := &Violation[A]{Property: name, Err: err}
	state := m.Initial()
	for i := len(way) - 1; i >= 0; i-- {
		action := m.Actions(state)[way[i]]
		v.Actions = append(v.Actions, action)
		v.Trace = append(v.Trace, m.Describe(state, action))
		state = m.Apply(state, action)
	}
	return v
}

// Deep explores depth first. It keeps eight bytes for each state and the states
// along one path with their siblings. A violation comes without a trace: Shortest
// finds it.
func Deep[S, A any](m Model[S, A], properties []Property[S], o Options) Result[A] {
	type item struct {
		state S
		depth int
	}
	var r Result[A]
	seen, check, watch, recycle := newSet(), newChecker(m, properties), newWatcher(o), recycler(m)
	start := m.Initial()
	h, buffer := hash(m, nil, start)
	seen.add(h)
	r.States = 1
	if name, err := check.check(start); err != nil {
		r.Violation = &Violation[A]{Property: name, Err: err}
		return r
	}
	stack := []item{{start, 0}}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		stack[len(stack)-1] = item{}
		stack = stack[:len(stack)-1]
		for _, action := range m.Actions(top.state) {
			state := m.Apply(top.state, action)
			r.Transitions++
			h, buffer = hash(m, buffer, state)
			if !seen.add(h) {
				recycle(state)
				continue
			}
			r.States++
			r.Depth = max(r.Depth, top.depth+1)
			if name, err := check.check(state); err != nil {
				r.Violation = &Violation[A]{Property: name, Err: err}
				return r
			}
			stack = append(stack, item{state, top.depth + 1})
		}
		r.Waiting = len(stack)
		watch.look(r.Progress)
		if watch.full(r.Progress) && r.Waiting > 0 {
			r.Missed = check.missed()
			return r
		}
	}
	r.Complete, r.Missed = true, check.missed()
	return r
}

// Replay follows a script, line by line: each line is the description of exactly
// one action that is possible then. It gives the first property that a state on
// the way breaks, or an error where a line fits no action, or more than one.
func Replay[S, A any](m Model[S, A], properties []Property[S], script []string) (*Violation[A], error) {
	check := newChecker(m, properties)
	state := m.Initial()
	v := &Violation[A]{}
	for n, line := range script {
		var found []A
		for _, action := range m.Actions(state) {
			if m.Describe(state, action) == line {
				found = append(found, action)
			}
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("line %d, %q: %d actions fit", n+1, line, len(found))
		}
		state = m.Apply(state, found[0])
		v.Actions, v.Trace = append(v.Actions, found[0]), append(v.Trace, line)
		if v.Property, v.Err = check.check(state); v.Err != nil {
			return v, nil
		}
	}
	return nil, nil
}
