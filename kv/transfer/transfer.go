// Package transfer moves pages from one pool to another, as a pair of pure state machines.
//
// Target is decode's side: it owns the pages that are written. Source is
// prefill's side: it writes them. Each has one entry point, Step, which takes an
// event and returns the effects that the shell must perform, in order. Neither
// reads a clock, a random source, the network or a page.
//
// One rule carries the safety: a page that was granted to a transfer leaves it
// only after CLOSED, or after the transfer's writes have been fenced off, and
// after local kernels that touch it have stopped. CLOSED(x) is prefill's promise
// that no write of x is in flight and none will ever be posted. Time never frees
// a page.
//
// A link between two nodes is a session. A worker gives each link a Peer number
// that it never uses again; a new link to a node replaces the old one. Epochs are
// compared for equality only: an incarnation is known by the HELLO of its link.
//
// # Duties of the shell on both sides
//
//  1. Feed events to Step from one goroutine; perform the effects of one Step, in
//     order, before the next.
//  2. PeerUp once for each link, after both HELLOs and Hello.Pair; PeerLost once,
//     when nothing of the link can land any more at this end; nothing of the link
//     afterwards.
//  3. A message is delivered on the link it was sent on, or never.
//  4. DoSend: send Message on the link of Peer.
//  5. DoFencePeer: tear the link down at our end; PeerLost follows when that is proved.
//  6. DoStopKernel: start no further step on pages of X; when none runs, KernelStopped.
//  7. DoRelease: give every page of X back to the pool, and its pins. Where scrub or an
//     offload reads a page, once that has ended. Any other refusal by the pool is our own
//     mistake: alarm, keep the pages.
//
// # Duties of a decode worker
//
//  8. Take an id from Target.Next. Pin the pages of the tenant's cache that hold the prompt's
//     first blocks, all but its last block at most; take pages for the rest; then Open. When
//     there are no pages, the pins end and the id is dropped; nothing else has happened.
//  9. DoOpenGate: let blocks of X land in the pages of Grant, before the GRANT that follows is sent.
//  10. DoRevoke: mark X's pages as revoking.
//  11. DoFence: start the transport's fence of X; Fenced when it is proved.
//  12. DoWriterGone: shut the gate for X and drop the remote writer as a holder of its pages.
//  13. DoVerify: recompute every page's digests from the bytes, compare with Roots, tag and
//     sum; the pages of Prefix are still pinned in their generations; then Verified exactly
//     once, also when X has been cancelled meanwhile.
//  14. DoStart: adopt the pages into X's page table, behind Prefix, and run the sequence.
//  15. DoAnswer: the request ends with Code; each Open is answered exactly once. No token
//     of X leaves afterwards.
//  16. Finished only when no kernel of X runs. Fault when a tag or extent check failed at a
//     step, before that step's token left.
//  17. DoQuarantine: count the pages as lost until their proof arrives. DoAlarm: tell the operator.
//
// # Duties of a prefill worker
//
//  18. DoAdmit: join the grant with the gateway's job, waiting for it a bounded time, pin the
//     pages that the tenant's cache has of it and take source pages for the rest; then
//     Admitted or Refused, at once when there is no room.
//  19. DoWithdraw: forget a join that has not been answered.
//  20. DoCompute: start computing. Computed for each block once its page is complete, for a
//     pinned page at once. The last Computed and Failed also say that no kernel of X runs any
//     more.
//  21. DoWrite: keep the page's bytes as they are, write them to the place Grant.Tag names;
//     Written exactly once for each DoWrite, also when the link is torn. OK only if the block
//     has landed, or will have when a message sent later arrives; Refused only if it is certain
//     that it has not landed and never will. Whatever else became of it, neither: CLOSED is
//     then never said, and the end of the link is the proof. After Written the transport no
//     longer reads the page.
//
// # Several ranks
//
// A request whose pages are sharded is one transfer a rank, of one epoch and sequence, each
// with a Target, a Source and pages of its own. What DoVerify finds goes to the request's
// Join, not to the Target, and so does DoAnswer; the Join says when each Target gets its
// Verified, whom to cancel, and what the request's answer is.
package transfer

import (
	"fmt"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Peer is one link to one incarnation of a node: a session. Numbers are given by
// the worker and never used twice.
type Peer uint32

// TargetEvent is what can happen to a Target.
type TargetEvent interface{ targetEvent() }

// SourceEvent is what can happen to a Source.
type SourceEvent interface{ sourceEvent() }

// Events of both machines.
type (
	// PeerUp says that a link is ready.
	PeerUp struct {
		Peer  Peer
		Hello Hello // the other end's
		// Places: the transport's receiver places bytes, and reports each block
		// with Landed.
		Places bool
		// Fences: the transport can fence a single transfer at the target. Where
		// it cannot, CLOSED and the link's end are the only proofs.
		Fences bool
	}
	// PeerLost says that a link is gone and nothing of it can land any more at this end.
	PeerLost struct{ Peer Peer }
	// Suspect says that a peer no longer seems to work. It starts a fence.
	Suspect struct{ Peer Peer }
	// Received is a message of a peer.
	Received struct {
		Peer    Peer
		Message Message
	}
	// Cancel ends a transfer: the client is gone, a deadline passed, the gateway asks.
	Cancel struct{ X kv.TransferID }
	// KernelStopped answers DoStopKernel.
	KernelStopped struct{ X kv.TransferID }
	// Tick is the passing of time: repeats, alarms and fences, never a release.
	Tick struct{}
)

// Events of a Target.
type (
	// Open starts a transfer into pages that have just been taken for it.
	Open struct {
		X           kv.TransferID // from Next
		Peer        Peer
		Request     uint64
		Attempt     uint32
		GatewayBoot uint64
		Tenant      kv.TenantTag
		Tokens      uint32
		TokenDigest kv.Sum // decode's own, under Key
		Key         kv.Key
		Prefix      []kv.PageRef // pinned pages that hold the prompt's first blocks; not changed afterwards
		Pages       []kv.PageRef // those for the blocks behind them, at least one; not changed afterwards
	}
	// Landed says that a block of X was placed whole.
	Landed struct {
		X     kv.TransferID
		Block uint32
	}
	// PageRefused says that a block that claims to be of X was not placed.
	PageRefused struct {
		X     kv.TransferID
		Block uint32
	}
	// Fenced says that no write of X can land any more. It answers DoFence.
	Fenced struct{ X kv.TransferID }
	// Verified answers DoVerify.
	Verified struct {
		X  kv.TransferID
		OK bool
	}
	// Finished says that decode is through and no kernel of X runs.
	Finished struct{ X kv.TransferID }
	// Fault says that a page of X was not what it should be at a step.
	Fault struct{ X kv.TransferID }
)

// Events of a Source. Blocks are indexes into the whole sequence.
type (
	// Admitted answers DoAdmit: X has its job and source pages.
	Admitted struct {
		X           kv.TransferID
		Tokens      uint32 // of the job's prompt
		TokenDigest kv.Sum // of the job's prompt, under the grant's key
	}
	// Refused answers DoAdmit: X has neither.
	Refused struct {
		X      kv.TransferID
		Reason Reason
	}
	// Computed says that a block's page is complete, and its body root.
	Computed struct {
		X     kv.TransferID
		Block uint32
		Root  kv.Digest
	}
	// Written answers DoWrite. With neither OK nor Refused, nobody knows what became
	// of the write, as when its link broke: it may still land.
	Written struct {
		X       kv.TransferID
		Block   uint32
		OK      bool
		Refused bool // it has not landed and never will: refused at the target's end, or taken back
	}
	// Failed says that X cannot be computed, and that no kernel of it runs.
	Failed struct {
		X      kv.TransferID
		Reason Reason
	}
)

func (PeerUp) targetEvent()        {}
func (PeerLost) targetEvent()      {}
func (Suspect) targetEvent()       {}
func (Received) targetEvent()      {}
func (Cancel) targetEvent()        {}
func (KernelStopped) targetEvent() {}
func (Tick) targetEvent()          {}
func (Open) targetEvent()          {}
func (Landed) targetEvent()        {}
func (PageRefused) targetEvent()   {}
func (Fenced) targetEvent()        {}
func (Verified) targetEvent()      {}
func (Finished) targetEvent()      {}
func (Fault) targetEvent()         {}

func (PeerUp) sourceEvent()        {}
func (PeerLost) sourceEvent()      {}
func (Suspect) sourceEvent()       {}
func (Received) sourceEvent()      {}
func (Cancel) sourceEvent()        {}
func (KernelStopped) sourceEvent() {}
func (Tick) sourceEvent()          {}
func (Admitted) sourceEvent()      {}
func (Refused) sourceEvent()       {}
func (Computed) sourceEvent()      {}
func (Written) sourceEvent()       {}
func (Failed) sourceEvent()        {}

// EffectKind says what the shell must do.
type EffectKind uint8

// The effects; the package comment says what each asks for.
const (
	DoSend EffectKind = 1 + iota
	DoFencePeer
	DoStopKernel
	DoRelease
	DoOpenGate
	DoRevoke
	DoFence
	DoWriterGone
	DoVerify
	DoStart
	DoAnswer
	DoQuarantine
	DoAlarm
	DoAdmit
	DoWithdraw
	DoCompute
	DoWrite
)

// String names the effect in tables and transcripts.
func (k EffectKind) String() string {
	return nameOf(uint8(k), "", "send", "fence peer", "stop kernel", "release", "open gate", "revoke", "fence", "writer gone",
		"verify", "start", "answer", "quarantine", "alarm", "admit", "withdraw", "compute", "write")
}

// Effect is one thing for the shell to do. Fields that the kind does not need are zero.
type Effect struct {
	Kind    EffectKind
	X       kv.TransferID // all but DoSend of a peer's message, DoFencePeer
	Peer    Peer          // DoSend, DoFence, DoFencePeer, DoWrite, DoAdmit
	Message Message       // DoSend
	Block   uint32        // DoWrite
	Code    Code          // DoAnswer
	Reason  Reason        // DoAnswer with CodePrefill, CodeBusy, CodeTooLarge
	Grant   *Grant        // DoOpenGate, DoVerify, DoStart, DoAdmit, DoCompute, DoWrite; immutable
	Roots   []kv.Digest   // DoVerify: body root of each page, in the grant's order; immutable
	Prefix  []kv.PageRef  // DoVerify, DoStart: the pinned pages before the grant's, in block order; immutable
}

// Code is how a request ended at decode.
type Code uint8

// The codes.
const (
	CodeDone      Code = 1 + iota // decode finished
	CodeBusy                      // prefill has no room now: queue again
	CodeTooLarge                  // prefill can never hold it
	CodeCancelled                 // Cancel
	CodePrefill                   // prefill failed or ended it, see Reason
	CodeCorrupt                   // what arrived is not what was granted, or a page is not what it should be
	CodePeerLost                  // the prefill worker is gone
	CodeInvalid                   // Open could not be: no such peer, or fields that no grant can have
)

// String names the code.
func (c Code) String() string {
	return nameOf(uint8(c), "", "done", "busy", "too large", "cancelled", "prefill failed", "corrupt", "peer lost", "invalid")
}

func (p Peer) String() string { return fmt.Sprintf("peer %d", uint32(p)) }
