// Package guard names the guards of the transfer that tests can take away.
//
// The packages that serve hold an empty Set, which nothing outside kv can fill:
// this package is internal to it. kv/transfer/transfercheck takes guards away one
// by one and in sets to show which property each of them holds up.
package guard

import "strings"

// Guard is one check whose absence can be explored.
type Guard uint8

// The guards, by the place they stand in.
const (
	// Door (admission): a request that some pool can never hold is refused
	// before it has an id, a page or a message.
	Door Guard = iota

	// Target: the manifest names as many tokens and pages as the grant.
	Coverage
	// Target: the digest of the token ids that prefill computed is decode's own.
	Provenance
	// Target: every block landed, where the receiver places the bytes.
	Landings
	// Target: the grant is fenced before its pages are verified.
	FenceFirst
	// Target: pages of an ended transfer are kept until CLOSED or a fence.
	DeferRelease
	// Target: a doubted peer's pages are kept until its link is torn down.
	FencePeer
	// Target and Source: a message counts only on the link, and for the epochs, it was meant for.
	Epochs
	// Target: every attempt has an id of its own.
	FreshID
	// Target and Source: pages are kept until local kernels on them have stopped.
	KernelStop

	// Source: a grant that this worker can never hold is refused, never shortened.
	Size
	// Source: the job's token ids have the grant's digest.
	JobDigest
	// Source: nothing is posted for a transfer that has been told to end.
	Silence
	// Source: CLOSED waits for the last write in flight.
	Drain
	// Source: CLOSED is never said where a write was lost.
	LostWrite
	// Source: an ended transfer is remembered, also one that was never seen.
	Tombstone
	// Source: CLOSED is said again when it is asked for again.
	Replay
	// Source: source pages are kept until the writes that read them have ended.
	SourceHold
	// Source: transfers below the low-water mark are ended and forgotten.
	LowMark

	// Pool: a page is not freed while a holder is left. Prefix readers have a guard of their own.
	Holders

	// Receiver: a write whose tag is not the page's owner is not placed.
	Gate
	// Worker: tags are compared when a transfer is verified.
	TagVerify
	// Worker: bound sums are compared when a transfer is verified.
	SumVerify
	// Worker: tags are compared again at each decode step, before the token leaves.
	TagStep

	// Pool: a cached page is pinned only for the tenant whose cache has it.
	Tenant
	// Pool: a cached page is not evicted while a prefix reader is left.
	Readers
	// Pool: pinned pages are compared by generation when their transfer is verified.
	Pins

	// Target and Source: a message counts only for the rank that it names.
	Rank
	// Join: no rank starts before every rank's pages are verified.
	AllVerified
	// Join: the end of one rank ends the others.
	OneEnds

	// End is the number of guards.
	End
)

var names = [End]string{
	"Door", "Coverage", "Provenance", "Landings", "FenceFirst", "DeferRelease", "FencePeer", "Epochs", "FreshID", "KernelStop",
	"Size", "JobDigest", "Silence", "Drain", "LostWrite", "Tombstone", "Replay", "SourceHold", "LowMark", "Holders", "Gate", "TagVerify", "SumVerify", "TagStep",
	"Tenant", "Readers", "Pins", "Rank", "AllVerified", "OneEnds",
}

// String is the guard's name in documents and scripts.
func (g Guard) String() string { return names[g] }

// Named finds a guard by its name.
func Named(name string) (Guard, bool) {
	for g, n := range names {
		if n == name {
			return Guard(g), true
		}
	}
	return 0, false
}

// Set is a set of guards that are missing. The zero value misses none. Sets that
// no Probe made can be compared by ==.
type Set struct {
	missing uint32
	probe   *Probe // answers in the set's place; nil in every command that serves
}

// Without is the set in which exactly these guards are missing.
func Without(guards ...Guard) (s Set) {
	for _, g := range guards {
		s.missing |= 1 << g
	}
	return s
}

// Missing reports whether g has been taken away.
func (s Set) Missing(g Guard) bool {
	if s.probe != nil {
		return s.probe.ask(g)
	}
	return s.missing>>g&1 != 0
}

// String lists the missing guards.
func (s Set) String() string {
	var list []string
	for _, g := range s.Guards() {
		list = append(list, g.String())
	}
	return strings.Join(list, " ")
}
