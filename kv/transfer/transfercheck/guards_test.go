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

// No single guard's absence lets a foreign byte reach an answer. The guards from
// Tenant on have nothing to do in these worlds; the extensions' have a test of their own.
func TestNoSingleGuardLeaks(t *testing.T) {
	transports := []Transport{Receiver, OneSided, DrainOnly}
	if testing.Short() {
		t.Skip("every guard on every transport takes a while")
	}
	for _, tr := range transports {
		for g := range guard.Tenant {
			v, where, complete := Leak(tr, guard.Without(g))
			if v != nil {
				t.Errorf("%s without %v, %s: %v\n\t%s", tr.Name, g, where, v, strings.Join(v.Trace, "\n\t"))
			}
			if !complete {
				t.Errorf("%s without %v: a world was cut off at %d states", tr.Name, g, leakStatesMax)
			}
		}
	}
}
