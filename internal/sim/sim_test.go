package sim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func simulator(t testing.TB) *Simulator {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// As many clients as fit a test come to worlds full of faults; nothing may be wrong,
// and all of it must have happened.
func TestNothingIsWrong(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	s := simulator(t)
	var sum Sum
	for seed := uint64(1); seed <= seeds; seed++ {
		r := s.Run(Config{Seed: seed, Faults: -1})
		if r.Failure != "" {
			t.Fatalf("seed %d: %s\nreplay: %s\n%s", seed, r.Failure, r.Replay(), r.Mix)
		}
		sum.Add(r)
	}
	t.Logf("measured seeds 1 to %d: %v", seeds, sum)
	if seeds < 60 {
		return
	}
	for _, how := range []string{"answered", "busy", "cancelled", "deadline", "over_context", "over_quota", "unavailable"} {
		if sum.Outcomes[how] == 0 {
			t.Errorf("no request ended as %s", how)
		}
	}
	for _, name := range faultNames {
		if sum.Faults[name] == 0 {
			t.Errorf("no fault was of kind %q", name)
		}
	}
	if sum.Attempts < sum.Requests/4 || sum.Outcomes["answered"] < sum.Requests/5 {
		t.Errorf("too little happened: %v", sum)
	}
}

func TestEqualRunsAreEqual(t *testing.T) {
	s := simulator(t)
	hashes := map[uint64]bool{}
	for seed := uint64(1); seed <= 8; seed++ {
		c := Config{Seed: seed, Faults: -1, Requests: 100}
		first := s.Run(c)
		if diff := cmp.Diff(first, s.Run(c), cmp.AllowUnexported(Config{}, bugs{})); diff != "" {
			t.Errorf("seed %d: two runs differ:\n%s", seed, diff)
		}
		hashes[first.Hash] = true
	}
	if len(hashes) != 8 {
		t.Errorf("8 seeds gave %d different runs", len(hashes))
	}
}

// Each mistake is found, if not by each seed: what a seed's mix leaves out it can't
// find. Clients in these worlds are impatient and pages long on their way.
func TestPlantedBugsAreFound(t *testing.T) {
	const seedsMax = 200
	impatient := func(s *swarm) { s.leaveEvery, s.patience, s.netMax = 2, 400*time.Millisecond, 100*time.Millisecond }
	s := simulator(t)
	clean := uint64(12)
	if testing.Short() {
		clean = 3
	}
	for seed := uint64(1); seed <= clean; seed++ {
		if r := s.Run(Config{Seed: seed, Faults: -1, Requests: 150, mix: impatient}); r.Failure != "" {
			t.Fatalf("with nothing planted, seed %d finds %s", seed, r.Failure)
		}
	}
	for name, planted := range map[string]bugs{
		"decode frees pages that are still being written": {fenceLies: true, noGate: true},
		"a gate is not shut":                              {gateStaysOpen: true},
		"prefill frees pages that are still to be sent":   {writtenEarly: true},
		"decode reads another page than its first":        {tableOffByOne: true},
		"a token goes to another stream":                  {crossEvery: 50},
		"a page that is not sent is forgotten":            {writtenNever: true},
		"a page lands without its bytes":                  {placesNothing: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= seedsMax; seed++ {
				r := s.Run(Config{Seed: seed, Faults: -1, Requests: 150, bugs: planted, mix: impatient})
				if r.Failure != "" {
					t.Logf("measured seed %d, event %d, request %d: %s", seed, r.Events, r.Requests, r.Failure)
					return
				}
			}
			t.Errorf("%d seeds didn't find it", seedsMax)
		})
	}
}
