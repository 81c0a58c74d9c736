// Package proved runs the abstract transfer that formal/ proves safe, one transition at a time.
//
// State has the fields of formal/Machine.v, and a method for each of its transitions,
// with the same guards and the same change. A transition whose guard does not hold
// is refused and changes nothing. What the shipped machines do can so be held against
// what was proved: Cells says of which transitions each cell of their tables is a run.
//
// Decode.v and Prefill.v say what holds in each state that these transitions reach.
package proved

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// X names a transfer.
type X = kv.TransferID

// G is a page of a decode node. It outlives the node's incarnations, as do its bytes.
type G struct {
	Node string
	Slot kv.Slot
}

// H is a page of one incarnation of a prefill node, with which it ends.
type H struct {
	Node  string
	Epoch kv.Epoch
	Slot  kv.Slot
}

// Bytes is what a page can hold: what kernels compute for a page of a transfer,
// zeros, and anything else. The zero value is old bytes.
type Bytes struct {
	kind bytesKind
	x    X
	g    G
}

type bytesKind uint8

const (
	bytesOld bytesKind = iota
	bytesZero
	bytesVal
)

// Zero is zeros.
var Zero = Bytes{kind: bytesZero}

// Val is what is computed for page g of x.
func Val(x X, g G) Bytes { return Bytes{bytesVal, x, g} }

// Of says for which page of which transfer the bytes were computed, if they were.
func (b Bytes) Of() (x X, g G, computed bool) { return b.x, b.g, b.kind == bytesVal }

// Transfer is what a transfer is made with. It never changes.
type Transfer struct {
	Mine  []G      // pages granted to it, in block order
	Peer  string   // the prefill node that it is asked of
	Nonce kv.Epoch // the incarnation of it
	Node  string   // its decode node
	Share []X      // transfers that may read its bytes: same tenant, same prefix
}

// DState is a transfer's state at decode.
type DState uint8

// The states at decode. Granted is also a transfer whose CLOSED has come before its
// last pages, Stopping also one whose verification still reads its pages.
const (
	DNone DState = iota
	DGranted
	DFencing
	DRevoking
	DQuarantined
	DVerifying
	DDecoding
	DStopping
	DClosed
)

// String is the state's name in the proof.
func (d DState) String() string {
	return [...]string{"DNone", "DGranted", "DFencing", "DRevoking", "DQuarantined", "DVerifying", "DDecoding", "DStopping", "DClosed"}[d]
}

// PState is a transfer's state at prefill, in the incarnation that runs.
type PState uint8

// The states at prefill.
const (
	PNone PState = iota
	PJoining
	PActive
	PDraining
	PClosed
)

// String is the state's name in the proof.
func (p PState) String() string {
	return [...]string{"PNone", "PJoining", "PActive", "PDraining", "PClosed"}[p]
}

// Closed is CLOSED of a transfer, as far as it has been said.
type Closed uint8

// What can have been said.
const (
	Quiet Closed = iota
	Failed
	Done
)

// String is the name in the proof.
func (c Closed) String() string { return [...]string{"Quiet", "Failed", "Done"}[c] }

// WState is what the source was told of a write.
type WState uint8

// What it can have been told.
const (
	WNone WState = iota
	WFlying
	WOk
	WRefused
	WLost
)

// String is the name in the proof.
func (w WState) String() string {
	return [...]string{"WNone", "WFlying", "WOk", "WRefused", "WLost"}[w]
}

// XG is a page of a transfer.
type XG struct {
	X X
	G G
}

// Read is a page that is read from the cache, and whose it is.
type Read struct {
	G G
	X X
}

// State is a state of the proved machine. Its fields are those of the proof, with a
// capital letter: who compares reads them, only transitions change them. What is not
// in a table is as at the start: DNone, no owner, not dead; a holder that is zero is
// nobody. Lists are never changed in place.
type State struct {
	World Table[X, Transfer]
	Tally *Tally
	on    Set

	// decode
	Dst  Table[X, DState]
	Own  Table[G, []X]
	Grn  Table[X, []G]
	Rd   Table[X, []Read]
	Kd   Table[X, bool]
	Ver  Table[X, bool]
	Cont Table[G, Bytes]
	Tag  Table[G, X]
	Dead Table[X, bool]
	// prefill
	Pst   Table[X, PState]
	Inc   Table[string, kv.Epoch]
	Used  Table[string, []kv.Epoch]
	Past  Table[X, bool]
	Hold  Table[H, X]
	Kw    Table[X, []H]
	Scont Table[H, Bytes]
	Said  Table[X, Closed]
	// writes
	Ws   Table[XG, WState]
	From Table[XG, H]
	Way  Table[XG, []Bytes]
	Lb   Table[XG, bool]
	Lt   Table[XG, bool]
}

// Tally counts what was taken, by a state and all its copies.
type Tally struct {
	Transitions map[string]int
	Cells       map[*Cell]int
}

// NewTally counts nothing yet.
func NewTally() *Tally { return &Tally{map[string]int{}, map[*Cell]int{}} }

// Sum is the number of transitions.
func (t *Tally) Sum() (n int) {
	for _, k := range t.Transitions {
		n += k
	}
	return n
}

// New is the start. Guards that are not in on are not asked for.
func New(on Set) *State { return &State{on: on, Tally: NewTally()} }

// Clone is a copy that no change of the other reaches. They count together.
func (s *State) Clone() *State {
	return &State{World: s.World.copied(), Tally: s.Tally, on: s.on, Dst: s.Dst.copied(), Own: s.Own.copied(), Grn: s.Grn.copied(), Rd: s.Rd.copied(),
		Kd: s.Kd.copied(), Ver: s.Ver.copied(), Cont: s.Cont.copied(), Tag: s.Tag.copied(), Dead: s.Dead.copied(), Pst: s.Pst.copied(),
		Inc: s.Inc.copied(), Used: s.Used.copied(), Past: s.Past.copied(), Hold: s.Hold.copied(), Kw: s.Kw.copied(), Scont: s.Scont.copied(),
		Said: s.Said.copied(), Ws: s.Ws.copied(), From: s.From.copied(), Way: s.Way.copied(), Lb: s.Lb.copied(), Lt: s.Lt.copied()}
}

// Boot says which incarnation of a prefill node runs at the start.
func (s *State) Boot(p string, e kv.Epoch) {
	s.Inc.put(p, e)
	s.Used.put(p, with(s.Used.Of(p), e))
}

// Make says what x is made with. A second time changes nothing.
func (s *State) Make(x X, t Transfer) {
	if s.World.Of(x).Node == "" {
		s.World.put(x, t)
	}
}

// Prune drops what is known of the writes of x, if it is closed at decode and can be
// started no more at prefill: none of them may land or be reported, before as after.
// So what a long run needs grows with its transfers, and hardly with their pages.
func (s *State) Prune(x X) {
	t := s.World.Of(x)
	over := s.Past.Of(x) || t.Nonce != s.Inc.Of(t.Peer)
	if s.Dst.Of(x) != DClosed || s.Pst.Of(x) != PNone || !over {
		return
	}
	for _, g := range t.Mine {
		k := XG{x, g}
		s.Ws.drop(k)
		s.From.drop(k)
		s.Way.drop(k)
		s.Lb.drop(k)
		s.Lt.drop(k)
	}
}

// Refusal is a transition whose guard does not hold.
type Refusal struct {
	Transition string
	X          X     // zero where the transition is of no transfer
	Guard      Guard // None where it is a condition without a name
	Condition  string
}

// Error names the transition and the guard.
func (r *Refusal) Error() string {
	of := ""
	if !r.X.IsZero() {
		of = fmt.Sprintf(" of %v", r.X)
	}
	if r.Guard == None {
		return fmt.Sprintf("%s%s is not possible: %s is false", r.Transition, of, r.Condition)
	}
	return fmt.Sprintf("%s%s is not possible: guard %v is false", r.Transition, of, r.Guard)
}

// condition is what a transition waits for.
type condition struct {
	guard Guard
	text  string
	holds bool
}

func guarded(g Guard, holds bool) condition    { return condition{guard: g, holds: holds} }
func always(text string, holds bool) condition { return condition{text: text, holds: holds} }

// with is the list with v in it, once.
func with[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(slices.Clip(list), v)
}

// without is the list without what is so.
func without[T any](list []T, so func(T) bool) []T { return slices.DeleteFunc(slices.Clone(list), so) }

// allow counts a transition if each condition holds that is asked for.
func (s *State) allow(transition string, x X, conditions ...condition) error {
	for _, c := range conditions {
		if !c.holds && s.on.Has(c.guard) {
			return &Refusal{transition, x, c.guard, c.text}
		}
	}
	s.Tally.Transitions[transition]++
	return nil
}
