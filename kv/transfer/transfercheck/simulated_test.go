package transfercheck_test

import (
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/sim"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// without takes guards from the books of each worker.
func without(missing guard.Set) func(*pool.Pool, *transfer.Source, *transfer.Target) {
	return func(p *pool.Pool, source *transfer.Source, target *transfer.Target) {
		p.Without(missing)
		if source != nil {
			source.Without(missing)
		}
		if target != nil {
			target.Without(missing)
		}
	}
}

// The workers that serve, in a simulated world, without one of the guards: it is
// found, by what the pool refuses, by an answer that is not the prompt's own, or by
// the ledger, in which a step stands that no machine with the guard takes. What the
// other guards hold up needs a checker to be seen, or a peer that no simulation has.
func TestSimulationFindsMissingGuards(t *testing.T) {
	const seedsMax = 8
	s, err := sim.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	find := func(missing guard.Set) (seed uint64, failure string) {
		for seed := uint64(1); seed <= seedsMax; seed++ {
			if r := s.Run(sim.Config{Seed: seed, Faults: -1, Requests: 100, Machines: without(missing)}); r.Failure != "" {
				return seed, r.Failure
			}
		}
		return 0, ""
	}
	if seed, failure := find(guard.Without()); failure != "" {
		t.Fatalf("with no guard missing, seed %d finds %s", seed, failure)
	}
	for _, g := range []guard.Guard{guard.FenceFirst, guard.DeferRelease, guard.FreshID, guard.KernelStop, guard.Drain, guard.Tombstone, guard.Replay, guard.SourceHold} {
		seed, failure := find(guard.Without(g))
		if failure == "" {
			t.Errorf("%d seeds don't find that %v is missing", seedsMax, g)
			continue
		}
		t.Logf("measured without %v, seed %d: %s", g, seed, failure)
	}
}

// Workers that lack a guard, followed by the proved machine on machines that lack it
// too, so that each ledger conforms by itself: what they do together is no run of
// what is proved.
func TestTheProvedMachinePartsInSimulation(t *testing.T) {
	const seedsMax = 80
	s, err := sim.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	find := func(missing guard.Set) (seed uint64, found string) {
		for seed := uint64(1); seed <= seedsMax; seed++ {
			r := s.Run(sim.Config{Seed: seed, Faults: -1, Requests: 60, Machines: without(missing)})
			if r.Lockstep.Finding != nil {
				return seed, r.Lockstep.Finding.Why
			}
		}
		return 0, ""
	}
	for _, g := range []guard.Guard{guard.DeferRelease, guard.KernelStop, guard.Drain, guard.Tombstone, guard.SourceHold} {
		seed, found := find(guard.Without(g))
		if found == "" {
			t.Errorf("%d seeds don't show that %v is missing", seedsMax, g)
			continue
		}
		t.Logf("measured without %v, seed %d: %s", g, seed, found)
	}
}
