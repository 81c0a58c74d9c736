package modelcheck_test

import (
	"errors"
	"fmt"

	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Two processes enter a critical section guarded by a flag that each of them
// first reads and then sets: the classic mistake.
type race struct{}

// world is where each process is: 0 outside, 1 has seen the flag down, 2 inside.
type world struct {
	at   [2]int
	flag bool
}

func (race) Initial() world { return world{} }

func (race) Actions(w world) (processes []int) {
	for p, at := range w.at {
		if at > 0 || !w.flag {
			processes = append(processes, p)
		}
	}
	return processes
}

func (race) Apply(w world, p int) world {
	w.at[p] = (w.at[p] + 1) % 3
	switch w.at[p] {
	case 2:
		w.flag = true
	case 0:
		w.flag = false
	}
	return w
}

func (race) AppendKey(key []byte, w world) []byte {
	return fmt.Append(key, w)
}

func (race) Describe(w world, p int) string {
	return fmt.Sprintf("process %d %s", p, []string{"sees the flag down", "raises it and enters", "leaves"}[w.at[p]])
}

func Example() {
	exclusion := modelcheck.Always("Exclusion", func(w world) error {
		if w.at == [2]int{2, 2} {
			return errors.New("both are inside")
		}
		return nil
	})
	r := modelcheck.Shortest(race{}, []modelcheck.Property[world]{exclusion}, modelcheck.Options{})
	fmt.Println(r.Violation)
	for _, line := range r.Violation.Trace {
		fmt.Println(" ", line)
	}
	// Output:
	// Exclusion: both are inside
	//   process 0 sees the flag down
	//   process 1 sees the flag down
	//   process 0 raises it and enters
	//   process 1 raises it and enters
}
