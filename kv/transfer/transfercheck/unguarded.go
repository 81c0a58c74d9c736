//go:build unguarded

package transfercheck

import (
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Guards lists the guards that can be taken away.
func Guards() (names []string) {
	for g := range guard.End {
		names = append(names, g.String())
	}
	return names
}

// BreakWithout looks for the shortest leak without the named guards, in the small
// worlds of each transport. Where one guard alone lets nothing leak, it breaks the
// property that this guard holds up. complete is whether every world was seen
// whole; without a violation nothing is known otherwise.
// Requires: names from Guards.
func BreakWithout(names []string, transports []Transport, o modelcheck.Options) (c Config, v *modelcheck.Violation[Action], complete bool) {
	var missing []guard.Guard
	for _, name := range names {
		g, _ := guard.Named(name)
		missing = append(missing, g)
	}
	o.StatesMax = 100_000
	complete = true
	for _, t := range transports {
		for _, world := range LeakFamily(t) {
			world.Without = guard.Without(missing...)
			r := Shortest(world, o)
			complete = complete && (r.Complete || r.Violation != nil)
			if r.Violation != nil && (v == nil || len(r.Violation.Trace) < len(v.Trace)) {
				c, v = world, r.Violation
			}
		}
	}
	if v != nil || len(missing) > 1 {
		return c, v, complete
	}
	for _, p := range Proofs() {
		if p.Guard == missing[0] {
			c = p.Without()
			v = Shortest(c, o).Violation
		}
	}
	return c, v, complete
}
