package modelcheck

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is found does not depend on how many goroutines look: states, transitions,
// depth, what was missed, which violation and by which way.
func TestWorkersFindTheSame(t *testing.T) {
	m := jugs{sizes: []int{7, 11, 13}}
	empty := func(levels) levels { return levels{} }
	unrest := func(s levels) error {
		if s != (levels{}) {
			return errors.New("water is left")
		}
		return nil
	}
	for name, properties := range map[string][]Property[levels]{
		"no property":    nil,
		"late violation": {never(8)},
		"two violations": {never(8), never(12), never(2)},
		"recovers":       {Recovers("Empties", 1, empty, unrest)},
		"missed":         {Sometimes("Eight", func(s levels) bool { return s[1] == 8 }), Sometimes("Twelve", func(s levels) bool { return s[0] == 12 })},
	} {
		for _, statesMax := range []int{0, 50, 300} {
			want := Shortest(m, properties, Options{Workers: 1, StatesMax: statesMax})
			for range 5 {
				got := Shortest(m, properties, Options{Workers: 4, StatesMax: statesMax})
				if diff := cmp.Diff(told(want), told(got)); diff != "" {
					t.Errorf("%s, at most %d states: four goroutines find something else than one (-one +four):\n%s", name, statesMax, diff)
				}
			}
		}
	}
}

// told is a result in comparable words.
func told(r Result[pour]) string {
	s := fmt.Sprintf("%+v complete %v missed %v", r.Progress, r.Complete, r.Missed)
	if r.Violation != nil {
		s += fmt.Sprintf("\n%v\n%v", r.Violation, r.Violation.Trace)
	}
	return s
}

// Healing that ends at a state from which rest is known to follow comes to the
// verdict of healing to the end.
func TestRecoversAgreesWithHealingToTheEnd(t *testing.T) {
	m := jugs{sizes: []int{5, 7, 3}}
	unrest := func(s levels) error {
		if s != (levels{}) {
			return fmt.Errorf("%v is left", s)
		}
		return nil
	}
	sip := func(stuck int) func(levels) levels {
		return func(s levels) levels {
			for i := range s {
				if s[i] > 0 {
					if s[0]+s[1]+s[2] != stuck {
						s[i]--
					}
					return s
				}
			}
			return s
		}
	}
	for stuck := range 15 {
		for steps := range 17 {
			plain := Always("Empties", func(s levels) error {
				err := unrest(s)
				for range steps {
					if err != nil {
						s = sip(stuck)(s)
						err = unrest(s)
					}
				}
				if err != nil {
					return fmt.Errorf("no rest after %d healing steps: %w", steps, err)
				}
				return nil
			})
			want := Shortest(m, []Property[levels]{plain}, Options{})
			got := Shortest(m, []Property[levels]{Recovers("Empties", steps, sip(stuck), unrest)}, Options{})
			if diff := cmp.Diff(told(want), told(got)); diff != "" {
				t.Errorf("stuck at %d, %d steps (-to the end +known):\n%s", stuck, steps, diff)
			}
		}
	}
}
