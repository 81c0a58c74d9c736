package transfercheck

import (
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Each guard's removal breaks the property that it holds up, and with it the
// property holds in every state.
func TestEveryGuardEarnsItsPlace(t *testing.T) {
	seen := map[guard.Guard]bool{}
	for _, p := range Proofs() {
		seen[p.Guard] = true
		without := Shortest(p.Without(), modelcheck.Options{StatesMax: 50_000})
		if got := PropertyOf(without.Violation); got != p.Property {
			t.Errorf("without %v: %q breaks after %d states, want %s", p.Guard, got, without.States, p.Property)
			continue
		}
		with := Shortest(p.With(), modelcheck.Options{StatesMax: 50_000})
		if with.Violation != nil || !with.Complete {
			t.Errorf("with %v: %v, complete is %v", p.Guard, with.Violation, with.Complete)
			continue
		}
		t.Logf("%-12v %-20s %2d steps, %5d states (%d with it)\n\t%s", p.Guard, p.Property, len(without.Violation.Trace), without.States, with.States,
			strings.Join(without.Violation.Trace, "\n\t"))
	}
	for g := range guard.End {
		if !seen[g] {
			t.Errorf("no proof shows what %v is for", g)
		}
	}
}

// leaks looks for a leak without some guards, and says in which world.
func leaks(t *testing.T, tr Transport, missing guard.Set) (*modelcheck.Violation[Action], string) {
	t.Helper()
	for _, c := range LeakFamily(tr) {
		c.Without = missing
		r := Shortest(c, modelcheck.Options{StatesMax: 20_000})
		if r.Violation != nil {
			return r.Violation, c.Name
		}
		if !r.Complete {
			t.Logf("%.13s without {%v}, %s: bounded at %d states", tr.Name, missing, c.Name, r.States)
		}
	}
	return nil, ""
}

// No single guard's absence lets a foreign byte reach an answer.
func TestNoSingleGuardLeaks(t *testing.T) {
	transports := []Transport{Receiver, OneSided, DrainOnly}
	if testing.Short() {
		transports = transports[:1]
	}
	for _, tr := range transports {
		for g := range guard.End {
			if v, where := leaks(t, tr, guard.Without(g)); v != nil {
				t.Errorf("%s without %v, %s: %v\n\t%s", tr.Name, g, where, v, strings.Join(v.Trace, "\n\t"))
			}
		}
	}
}
