package sim

import (
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/kv/transfer/proved"
)

// What the workers do together is a run of proved transitions.
func TestTheProvedMachineFollows(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 5
	}
	s := simulator(t)
	came, steps, transitions := map[*proved.Cell]int{}, 0, 0
	for seed := uint64(1); seed <= seeds; seed++ {
		r := s.Run(Config{Seed: seed, Faults: -1, Requests: 150, mix: func(s *swarm) { s.ledgers = true }})
		if r.Failure != "" || r.Lockstep.Verdict != conform.Conforms {
			t.Fatalf("seed %d: %s, %v", seed, r.Failure, r.Lockstep)
		}
		steps, transitions = steps+r.Lockstep.Steps, transitions+r.Lockstep.Tally.Sum()
		for c, n := range r.Lockstep.Tally.Cells {
			came[c] += n
		}
	}
	t.Logf("measured seeds 1 to %d: %d steps are runs of %d proved transitions, through %d cells", seeds, steps, transitions, len(came))
}

// Mistakes of transports and of the code around the machines, which conform by
// themselves: beside the proved machine they show.
func TestLockstepFindsPlantedBugs(t *testing.T) {
	const seedsMax = 60
	recorded := func(s *swarm) {
		s.ledgers, s.leaveEvery, s.patience, s.netMax = true, 2, 400*time.Millisecond, 100*time.Millisecond
	}
	s := simulator(t)
	for name, planted := range map[string]bugs{
		"decode frees pages that are still being written": {fenceLies: true, noGate: true},
		"a gate is not shut":                              {gateStaysOpen: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= seedsMax; seed++ {
				r := s.Run(Config{Seed: seed, Faults: -1, Requests: 150, bugs: planted, mix: recorded})
				if r.Lockstep.Verdict == conform.Differs {
					t.Logf("measured seed %d: %v", seed, r.Lockstep)
					return
				}
			}
			t.Errorf("%d seeds didn't show it", seedsMax)
		})
	}
}
