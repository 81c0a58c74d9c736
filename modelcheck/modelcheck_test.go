package modelcheck

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// jugs is the old puzzle: jugs of several sizes, one target amount.
type jugs struct {
	sizes     []int
	symmetric int // the first so many jugs are taken for interchangeable
}

type levels [3]int

type pour struct{ from, to int } // -1 is the tap or the drain

func (j jugs) Initial() levels { return levels{} }

func (j jugs) Actions(levels) (list []pour) {
	for i := range j.sizes {
		list = append(list, pour{-1, i}, pour{i, -1})
		for k := range j.sizes {
			if i != k {
				list = append(list, pour{i, k})
			}
		}
	}
	return list
}

func (j jugs) Apply(s levels, a pour) levels {
	switch {
	case a.from < 0:
		s[a.to] = j.sizes[a.to]
	case a.to < 0:
		s[a.from] = 0
	default:
		n := min(s[a.from], j.sizes[a.to]-s[a.to])
		s[a.from] -= n
		s[a.to] += n
	}
	return s
}

func (j jugs) AppendKey(key []byte, s levels) []byte {
	slices.Sort(s[:j.symmetric])
	for _, n := range s {
		key = append(key, byte(n))
	}
	return key
}

func (j jugs) Describe(_ levels, a pour) string { return fmt.Sprintf("pour %d into %d", a.from, a.to) }

func never(amount int) Property[levels] {
	return Always("Never", func(s levels) error {
		if slices.Contains(s[:], amount) {
			return fmt.Errorf("a jug holds %d", amount)
		}
		return nil
	})
}

func TestShortestFindsTheShortestTrace(t *testing.T) {
	r := Shortest(jugs{sizes: []int{3, 5}}, []Property[levels]{never(4)}, Options{})
	if r.Violation == nil || r.Violation.Property != "Never" {
		t.Fatalf("the puzzle has a solution, got %+v", r)
	}
	if got := len(r.Violation.Trace); got != 6 {
		t.Errorf("the trace has %d steps, the shortest has 6: %v", got, r.Violation.Trace)
	}
	v, err := Replay(jugs{sizes: []int{3, 5}}, []Property[levels]{never(4)}, r.Violation.Trace)
	if err != nil || v == nil || len(v.Trace) != 6 {
		t.Errorf("the trace replays to %v, %v", v, err)
	}
}

func TestBothSearchesSeeTheSameStates(t *testing.T) {
	m := jugs{sizes: []int{3, 5}}
	short, deep := Shortest(m, nil, Options{}), Deep(m, nil, Options{})
	if !short.OK() || !deep.OK() || short.States != 16 || deep.States != 16 || short.Transitions != deep.Transitions {
		t.Errorf("of 16 states breadth first saw %d, depth first %d", short.States, deep.States)
	}
	if r := Deep(m, []Property[levels]{never(4)}, Options{}); r.Violation == nil {
		t.Error("depth first misses the violation")
	}
}

// A reduction sees fewer states and comes to the same verdict.
func TestSymmetryAgreesWithTheFullSearch(t *testing.T) {
	for amount := range 8 {
		full := Shortest(jugs{sizes: []int{4, 4, 7}}, []Property[levels]{never(amount)}, Options{})
		reduced := Shortest(jugs{sizes: []int{4, 4, 7}, symmetric: 2}, []Property[levels]{never(amount)}, Options{})
		if (full.Violation == nil) != (reduced.Violation == nil) {
			t.Errorf("amount %d: full %v, reduced %v", amount, full.Violation, reduced.Violation)
			continue
		}
		if full.Violation != nil && len(full.Violation.Trace) != len(reduced.Violation.Trace) {
			t.Errorf("amount %d: the shortest trace has %d steps, reduced %d", amount, len(full.Violation.Trace), len(reduced.Violation.Trace))
		}
		if full.Violation == nil && reduced.States >= full.States {
			t.Errorf("the reduction sees %d states of %d", reduced.States, full.States)
		}
	}
}

// A symmetry that is none hides what the full search sees: why reductions are
// held to unreduced runs.
func TestAFalseSymmetryIsFoundByComparison(t *testing.T) {
	full := Shortest(jugs{sizes: []int{4, 4, 7}}, []Property[levels]{never(1)}, Options{})
	reduced := Shortest(jugs{sizes: []int{4, 4, 7}, symmetric: 3}, []Property[levels]{never(1)}, Options{})
	if full.Violation == nil || reduced.Violation != nil {
		t.Errorf("full %v, reduced %v: the two should differ", full.Violation, reduced.Violation)
	}
}

func TestSometimesMustBeReached(t *testing.T) {
	properties := []Property[levels]{
		Sometimes("Seven", func(s levels) bool { return s[0] == 7 }),
		Sometimes("Two", func(s levels) bool { return s[1] == 2 }),
	}
	for name, r := range map[string]Result[pour]{
		"breadth first": Shortest(jugs{sizes: []int{3, 5}}, properties, Options{}),
		"depth first":   Deep(jugs{sizes: []int{3, 5}}, properties, Options{}),
	} {
		if diff := cmp.Diff([]string{"Seven"}, r.Missed); diff != "" || r.OK() || !r.Complete {
			t.Errorf("%s: missed properties differ (-want +got):\n%s", name, diff)
		}
	}
}

func TestRecovers(t *testing.T) {
	drain := func(s levels) levels { s[0] = 0; return s }
	rest := func(s levels) error {
		if s[0]+s[1] != 0 {
			return errors.New("water is left")
		}
		return nil
	}
	m := jugs{sizes: []int{3, 5}}
	if r := Shortest(m, []Property[levels]{Recovers("Drains", 3, drain, rest)}, Options{}); r.Violation == nil || len(r.Violation.Trace) != 1 {
		t.Errorf("draining one jug does not empty two, got %v", r.Violation)
	}
	both := func(s levels) levels { return levels{} }
	if r := Shortest(m, []Property[levels]{Recovers("Drains", 1, both, rest)}, Options{}); !r.OK() {
		t.Errorf("draining all is rest, got %v", r.Violation)
	}
}

func TestBoundsAndProgress(t *testing.T) {
	m := jugs{sizes: []int{7, 11, 13}}
	calls := 0
	o := Options{StatesMax: 50, ProgressEvery: 10, Progress: func(p Progress) { calls++ }}
	for name, r := range map[string]Result[pour]{"breadth first": Shortest(m, nil, o), "depth first": Deep(m, nil, o)} {
		if r.Complete || r.OK() || r.States < 50 || r.Waiting == 0 {
			t.Errorf("%s: a bound of 50 gives %+v", name, r)
		}
	}
	if calls < 4 {
		t.Errorf("progress was told %d times", calls)
	}
	if r := Shortest(jugs{sizes: []int{1}}, nil, Options{StatesMax: 2}); !r.Complete {
		t.Errorf("two states within a bound of 2 are not complete: %+v", r)
	}
}

func TestAViolationInTheStartStateHasNoTrace(t *testing.T) {
	r := Shortest(jugs{sizes: []int{3}}, []Property[levels]{never(0)}, Options{})
	if r.Violation == nil || len(r.Violation.Trace) != 0 {
		t.Errorf("got %+v", r.Violation)
	}
	if d := Deep(jugs{sizes: []int{3}}, []Property[levels]{never(0)}, Options{}); d.Violation == nil {
		t.Error("depth first misses it")
	}
}

func TestReplayRefusesLinesThatFitNothing(t *testing.T) {
	if _, err := Replay(jugs{sizes: []int{3}}, nil, []string{"pour -1 into 0", "drink"}); err == nil {
		t.Error("a line that fits no action is accepted")
	}
}

func TestSetKeepsEveryHash(t *testing.T) {
	s := newSet()
	for i := uint64(1); i < 20000; i++ {
		if !s.add(i*0x9e3779b97f4a7c15) || s.add(i*0x9e3779b97f4a7c15) {
			t.Fatalf("hash %d is new twice, or never", i)
		}
	}
}
