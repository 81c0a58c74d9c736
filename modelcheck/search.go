package modelcheck

import "fmt"

// node is how a state was first reached.
type node struct {
	parent int32
	action int32
}

// waiting is a state whose actions have not been looked at.
type waiting[S any] struct {
	state S
	id    int32
}

// Shortest explores breadth first. A violation comes with the fewest actions that
// lead to one. It keeps eight bytes for each state and the states of two levels.
func Shortest[S, A any](m Model[S, A], properties []Property[S], o Options) Result[A] {
	var r Result[A]
	seen, check, watch := newSet(), newChecker(properties), newWatcher(o)
	nodes := []node{{parent: -1}}
	start := m.Initial()
	h, buffer := hash(m, nil, start)
	seen.add(h)
	r.States = 1
	if name, err := check.check(start); err != nil {
		r.Violation = violation(m, nodes, 0, name, err)
		return r
	}
	level := []waiting[S]{{start, 0}}
	for len(level) > 0 {
		var next []waiting[S]
		for i := range level {
			w := level[i]
			level[i] = waiting[S]{}
			for a, action := range m.Actions(w.state) {
				state := m.Apply(w.state, action)
				r.Transitions++
				h, buffer = hash(m, buffer, state)
				if !seen.add(h) {
					continue
				}
				id := int32(len(nodes))
				nodes = append(nodes, node{w.id, int32(a)})
				r.States++
				if name, err := check.check(state); err != nil {
					r.Violation = violation(m, nodes, id, name, err)
					return r
				}
				next = append(next, waiting[S]{state, id})
			}
			r.Waiting = len(level) - i - 1 + len(next)
			watch.look(r.Progress)
			if watch.full(r.Progress) && r.Waiting > 0 {
				r.Missed = check.missed()
				return r
			}
		}
		if len(next) > 0 {
			r.Depth++
		}
		level = next
	}
	r.Complete, r.Missed = true, check.missed()
	return r
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
	seen, check, watch := newSet(), newChecker(properties), newWatcher(o)
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
	check := newChecker(properties)
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
