package guard

import "math/bits"

// Guards lists the missing guards in their order.
func (s Set) Guards() (list []Guard) {
	for rest := s.members(); rest != 0; rest &= rest - 1 {
		list = append(list, Guard(bits.TrailingZeros32(rest)))
	}
	return list
}

// Len is the number of missing guards.
func (s Set) Len() int { return bits.OnesCount32(s.members()) }

// With misses g too.
func (s Set) With(g Guard) Set { return Set{missing: s.members() | 1<<g} }

// Union misses what either set misses.
func (s Set) Union(other Set) Set { return Set{missing: s.members() | other.members()} }

// Less misses what s misses, but none of the guards of the other set.
func (s Set) Less(other Set) Set { return Set{missing: s.members() &^ other.members()} }

// Includes reports whether s misses every guard that the other set misses.
func (s Set) Includes(other Set) bool { return other.members()&^s.members() == 0 }

func (s Set) members() uint32 {
	if s.probe != nil {
		return s.probe.missing
	}
	return s.missing
}

// Probe answers for the Sets that it made: with guards that can be changed
// between two questions, and keeping which guards were asked for. The zero value
// misses none. It is for one goroutine.
type Probe struct{ missing, asked uint32 }

// Set is a set that misses what the probe says.
func (p *Probe) Set() Set { return Set{probe: p} }

// Miss makes exactly these guards missing, and forgets what was asked for.
func (p *Probe) Miss(s Set) { p.missing, p.asked = s.members(), 0 }

// Asked is the set of guards that were asked for since Miss.
func (p *Probe) Asked() Set { return Set{missing: p.asked} }

func (p *Probe) ask(g Guard) bool {
	p.asked |= 1 << g
	return p.missing>>g&1 != 0
}
