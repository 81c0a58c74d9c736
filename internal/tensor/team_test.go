package tensor

import (
	"runtime"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachCoversTheRangeOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		team := NewTeam(threads)
		for _, n := range []int{0, 1, 2, 7, 100, 1000} {
			for _, chunk := range []int{1, 3, 64} {
				seen := make([]atomic.Int32, n)
				seenAgain := make([]atomic.Int32, n)
				team.Run(func(th *Thread) {
					th.Each(n, chunk, func(lo, hi int) {
						if hi-lo > chunk || lo >= hi {
							t.Errorf("range %d..%d for chunks of %d", lo, hi, chunk)
						}
						for i := lo; i < hi; i++ {
							seen[i].Add(1)
						}
					})
					th.Each(n, chunk, func(lo, hi int) {
						for i := lo; i < hi; i++ {
							seenAgain[i].Add(1)
						}
					})
				})
				for i := range seen {
					if seen[i].Load() != 1 || seenAgain[i].Load() != 1 {
						t.Fatalf("%d threads: index %d of %d ran %d and %d times, want once in each loop",
							threads, i, n, seen[i].Load(), seenAgain[i].Load())
					}
				}
			}
		}
		team.Close()
	}
}

func TestPhasesAreOrdered(t *testing.T) {
	// Plain variables written in one phase and read in the next: the race detector and the sum would show a phase that
	// leaks into its neighbour.
	const n, phases = 64, 2000
	team := NewTeam(3)
	defer team.Close()
	values, next := make([]int, n), make([]int, n)
	for range phases {
		team.Run(func(th *Thread) {
			th.Each(n, 1, func(lo, _ int) { next[lo] = values[(lo+1)%n] + 1 })
		})
		values, next = next, values
	}
	for i, v := range values {
		if v != phases {
			t.Fatalf("value %d is %d after %d phases", i, v, phases)
		}
	}
}

func TestIdleHelpersPark(t *testing.T) {
	team := NewTeam(3)
	defer team.Close()
	for range 3 {
		team.Run(func(th *Thread) { th.Each(10, 1, func(int, int) {}) })
		// No clock: the helpers are given the processor until both have parked, and then they must be woken again.
		for team.parked.Load() != 2 {
			runtime.Gosched()
		}
	}
}

func TestHelpersTakePartAfterParking(t *testing.T) {
	team := NewTeam(2)
	defer team.Close()
	for range 20 {
		for team.parked.Load() != 1 {
			runtime.Gosched()
		}
		var helped atomic.Bool
		team.Run(func(th *Thread) {
			th.Each(2, 1, func(int, int) {
				if th.ID != 0 {
					helped.Store(true)
				}
				// Whoever comes first waits here for the helper, so that the phase can't end without it.
				for !helped.Load() {
					runtime.Gosched()
				}
			})
		})
	}
}

func TestThePhaseEndsWithoutLateHelpers(t *testing.T) {
	// A team with far more threads than processors still ends every phase, whoever takes part.
	team := NewTeam(4 * runtime.NumCPU())
	defer team.Close()
	var sum atomic.Int64
	const phases, n = 300, 17
	for range phases {
		team.Run(func(th *Thread) { th.Each(n, 2, func(lo, hi int) { sum.Add(int64(hi - lo)) }) })
	}
	if sum.Load() != phases*n {
		t.Errorf("the phases did %d pieces of work, want %d", sum.Load(), phases*n)
	}
}

func TestTooManyLoopsPanic(t *testing.T) {
	team := NewTeam(1)
	defer team.Close()
	defer func() {
		if recover() == nil {
			t.Errorf("%d loops in a phase do not panic", loopsMax+1)
		}
	}()
	team.Run(func(th *Thread) {
		for range loopsMax + 1 {
			th.Each(1, 1, func(int, int) {})
		}
	})
}
