package transfer

import (
	"encoding/binary"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// TargetConfig is what a Target needs to know. The tick counts are spans in
// Ticks; 0 is never.
type TargetConfig struct {
	Epoch kv.Epoch // this incarnation's nonce
	Rank  uint8    // of this shard
	// RepeatTicks is the span after which GRANT or ABORT is sent again while an
	// answer is missing. Links that deliver or break need none.
	RepeatTicks int
	// FenceTicks is how long pages wait for their proof before the peer's link is fenced.
	FenceTicks int
	// QuarantineTicks is how long they wait before they are counted as lost, and
	// how long landings may be missing after CLOSED. More than FenceTicks.
	QuarantineTicks int
}

// Target is decode's side of all its transfers. It has one owner and is not safe
// for concurrent use.
type Target struct {
	config  TargetConfig
	next    uint64 // sequence that Next gives out
	opened  uint64 // last sequence that was opened
	peers   []targetPeer
	open    []targetTransfer // by rising sequence
	effects []Effect
	without guard.Set
	see     func(Cell) // see Watch
}

// targetPeer is one link.
type targetPeer struct {
	peer    Peer
	node    string
	epoch   kv.Epoch
	places  bool
	fences  bool
	doubted bool // DoFencePeer is under way: no new grants
}

// targetTransfer is one transfer.
type targetTransfer struct {
	state  targetState
	peer   Peer
	places bool
	fences bool
	age    int    // ticks in this state
	grant  *Grant // immutable
	prefix []kv.PageRef
	landed bitset // blocks, from the grant's first
	roots  []kv.Digest
}

// NewTarget starts an incarnation. Requires: an epoch that no incarnation had.
func NewTarget(config TargetConfig) *Target {
	assert.That(config.Epoch != 0, "a target has an epoch")
	return &Target{config: config, next: 1}
}

// Next gives the id of the next transfer. It is opened before Next is called
// again, or never.
func (t *Target) Next() kv.TransferID {
	sequence := t.next
	t.next++
	if t.without.Missing(guard.FreshID) {
		for sequence = 1; t.find(kv.TransferID{Epoch: t.config.Epoch, Sequence: sequence, Rank: t.config.Rank}) >= 0; {
			sequence++
		}
	}
	return kv.TransferID{Epoch: t.config.Epoch, Sequence: sequence, Rank: t.config.Rank}
}

// Skip makes x the id that Next gave last, as if those before it had been given
// and dropped: a recorded run is re-executed with it. It reports false, and does
// nothing, where Next could not have given x any more.
func (t *Target) Skip(x kv.TransferID) bool {
	if x.Epoch != t.config.Epoch || x.Rank != t.config.Rank || x.Sequence < t.next || x.Sequence+1 == 0 {
		return false
	}
	t.next = x.Sequence + 1
	return true
}

// Len is the number of transfers that still hold pages.
func (t *Target) Len() int { return len(t.open) }

// Has reports whether x still holds pages.
func (t *Target) Has(x kv.TransferID) bool { return t.find(x) >= 0 }

// Stage names the state of x in the table, or is empty for one that is gone.
func (t *Target) Stage(x kv.TransferID) string {
	if i := t.find(x); i >= 0 {
		return t.open[i].state.String()
	}
	return ""
}

// Ready reports whether grants can be sent to peer.
func (t *Target) Ready(peer Peer) bool {
	p := t.findPeer(peer)
	return p >= 0 && !t.peers[p].doubted
}

// Step takes one event and returns what must be done, in order. The slice is the
// caller's.
func (t *Target) Step(event TargetEvent) []Effect {
	t.effects = nil
	switch e := event.(type) {
	case PeerUp:
		t.peerUp(e)
	case PeerLost:
		t.peerLost(e.Peer)
	case Suspect:
		t.doubt(e.Peer)
	case Open:
		t.openTransfer(e)
	case Received:
		t.received(e.Peer, e.Message)
	case Landed:
		t.landed(e)
	case PageRefused:
		t.apply(e.X, targetPageRefused, ReasonNone)
	case Fenced:
		t.apply(e.X, targetFenced, ReasonNone)
	case Verified:
		t.apply(e.X, pick(e.OK, targetVerifiedOK, targetVerifiedBad), ReasonNone)
	case Finished:
		t.apply(e.X, targetFinished, ReasonNone)
	case Fault:
		t.apply(e.X, targetFault, ReasonNone)
	case Cancel:
		t.apply(e.X, targetCancel, ReasonNone)
	case KernelStopped:
		t.apply(e.X, targetKernelStopped, ReasonNone)
	case Tick:
		t.tick()
	}
	effects := t.effects
	t.effects = nil
	return effects
}

// peerUp registers a link. A link to a node replaces the node's older ones.
func (t *Target) peerUp(e PeerUp) {
	assert.That(t.findPeer(e.Peer) < 0, "a peer number is used once")
	for i := range t.peers {
		if t.peers[i].node == e.Hello.Node {
			t.doubt(t.peers[i].peer)
		}
	}
	t.peers = append(t.peers, targetPeer{peer: e.Peer, node: e.Hello.Node, epoch: e.Hello.Epoch, places: e.Places, fences: e.Fences})
}

func (t *Target) peerLost(peer Peer) {
	if i := t.findPeer(peer); i >= 0 {
		t.peers = slices.Delete(t.peers, i, i+1)
	}
	t.applyPeer(peer, targetPeerLost)
}

// doubt ends trust in a link: it is torn down, and its transfers are answered.
func (t *Target) doubt(peer Peer) {
	i := t.findPeer(peer)
	if i < 0 || t.peers[i].doubted {
		return
	}
	t.peers[i].doubted = true
	t.effects = append(t.effects, Effect{Kind: DoFencePeer, Peer: peer})
	t.applyPeer(peer, targetPeerDoubted)
}

func (t *Target) openTransfer(e Open) {
	fresh := e.X.Epoch == t.config.Epoch && e.X.Rank == t.config.Rank && e.X.Sequence == t.next-1 && e.X.Sequence > t.opened
	assert.That(fresh || t.without.Missing(guard.FreshID), "a transfer is opened once, under the newest id")
	t.opened = e.X.Sequence
	grant := &Grant{X: e.X, Request: e.Request, Attempt: e.Attempt, GatewayBoot: e.GatewayBoot, Tenant: e.Tenant, Tokens: e.Tokens,
		TokenDigest: e.TokenDigest, Key: e.Key, FirstBlock: uint32(len(e.Prefix)), Pages: e.Pages, SourceEpoch: e.X.Epoch}
	p := t.findPeer(e.Peer)
	if p >= 0 {
		grant.SourceEpoch = t.peers[p].epoch
	}
	if p < 0 || t.peers[p].doubted || grant.Validate() != nil || slices.ContainsFunc(e.Prefix, func(p kv.PageRef) bool { return p.Generation == 0 }) {
		t.turnAway(e, p >= 0 && !t.peers[p].doubted)
		return
	}
	peer := t.peers[p]
	t.open = append(t.open, targetTransfer{state: targetGranted, peer: e.Peer, places: peer.places, fences: peer.fences,
		grant: grant, prefix: e.Prefix, landed: newBitset(len(e.Pages))})
	if t.without.Missing(guard.FreshID) {
		slices.SortFunc(t.open, func(a, b targetTransfer) int { return compareTransfers(a.grant.X, b.grant.X) })
	}
	t.effects = append(t.effects, Effect{Kind: DoOpenGate, X: e.X, Peer: e.Peer, Grant: grant})
	t.sendGrant(&t.open[t.find(e.X)])
	t.tell(e.X, "-", "open", len(t.effects)-2)
}

// tell shows a cell to who watches; its effects begin at first.
func (t *Target) tell(x kv.TransferID, state, input string, first int) {
	if t.see != nil {
		t.see(Cell{x, state, input, t.effects[first:]})
	}
}

// turnAway gives back pages that nobody was told of.
func (t *Target) turnAway(e Open, ready bool) {
	t.effects = append(t.effects,
		Effect{Kind: DoAnswer, X: e.X, Code: pick(ready, CodeInvalid, CodePeerLost)},
		Effect{Kind: DoWriterGone, X: e.X},
		Effect{Kind: DoRelease, X: e.X})
}

func (t *Target) received(peer Peer, m Message) {
	c, ok := m.(Closed)
	p := t.findPeer(peer)
	if !ok || p < 0 || c.Validate() != nil {
		return
	}
	if t.without.Missing(guard.Rank) {
		c.X.Rank = t.config.Rank
	}
	i := t.find(c.X)
	if i < 0 {
		return
	}
	x := &t.open[i]
	if (x.peer != peer || x.grant.SourceEpoch != c.SourceEpoch) && !t.without.Missing(guard.Epochs) {
		return
	}
	input := t.classify(x, c)
	if input == targetClosedDone || input == targetClosedDrained || input == targetClosedEarly {
		x.roots = c.Roots
	}
	t.apply(c.X, input, c.Reason)
}

// classify says what a CLOSED is for a transfer.
func (t *Target) classify(x *targetTransfer, c Closed) targetInput {
	switch {
	case c.Outcome != OutcomeDone:
		return targetClosedFailed
	case (c.Tokens != x.grant.Tokens || len(c.Roots) != len(x.grant.Pages)) && !t.without.Missing(guard.Coverage):
		return targetClosedWrong
	case c.TokenDigest != x.grant.TokenDigest && !t.without.Missing(guard.Provenance):
		return targetClosedWrong
	case x.places && x.landed.count() < len(x.grant.Pages) && !t.without.Missing(guard.Landings):
		return targetClosedEarly
	case x.fences && !t.without.Missing(guard.FenceFirst):
		return targetClosedDone
	}
	return targetClosedDrained
}

func (t *Target) landed(e Landed) {
	i := t.find(e.X)
	if i < 0 {
		return
	}
	x := &t.open[i]
	block := int64(e.Block) - int64(x.grant.FirstBlock)
	if block < 0 || block >= int64(len(x.grant.Pages)) {
		return
	}
	x.landed.set(int(block))
	if x.landed.count() == len(x.grant.Pages) {
		fence := x.fences && !t.without.Missing(guard.FenceFirst)
		t.apply(e.X, pick(fence, targetLandedAll, targetLandedDrained), ReasonNone)
	}
}

// applyPeer gives an input to all transfers of a peer.
func (t *Target) applyPeer(peer Peer, input targetInput) {
	for i := 0; i < len(t.open); {
		if t.open[i].peer != peer || !t.applyAt(i, input, ReasonNone) {
			i++
		}
	}
}

func (t *Target) apply(x kv.TransferID, input targetInput, reason Reason) {
	if i := t.find(x); i >= 0 {
		t.applyAt(i, input, reason)
	}
}

// applyAt looks up the table's cell and does it. It reports whether the transfer is gone.
func (t *Target) applyAt(i int, input targetInput, reason Reason) (gone bool) {
	x := &t.open[i]
	row, first := t.weaken(x, input, targetTable[x.state][input]), len(t.effects)
	for _, act := range row.acts {
		t.do(x, act, input, reason)
	}
	t.tell(x.grant.X, x.state.String(), input.String(), first)
	if row.next == 0 {
		return false
	}
	x.state, x.age = row.next, 0
	if x.state == targetGone {
		t.open = slices.Delete(t.open, i, i+1)
		return true
	}
	return false
}

// weaken changes a cell as if a guard had been forgotten. With no guard missing,
// as in every serving command, it gives the cell back.
func (t *Target) weaken(x *targetTransfer, input targetInput, row targetRow) targetRow {
	switch {
	case row.next == targetRevoking && input != targetPeerDoubted && t.without.Missing(guard.DeferRelease):
		return targetRow{[]targetAct{targetAnswer, targetAbort, targetWriterGone, targetRelease}, targetGone}
	case input == targetPeerDoubted && t.without.Missing(guard.FencePeer):
		return targetTable[x.state][targetPeerLost]
	case row.next == targetStopping && t.without.Missing(guard.KernelStop):
		return targetRow{append(slices.Clone(row.acts), targetRelease), targetGone}
	}
	return row
}

func (t *Target) do(x *targetTransfer, act targetAct, input targetInput, reason Reason) {
	e := Effect{X: x.grant.X}
	switch act {
	case targetAnswer:
		e.Kind, e.Code, e.Reason = DoAnswer, codeOf(input, reason), reason
	case targetRevoke:
		e.Kind = DoRevoke
	case targetAbort:
		t.sendAbort(x)
		return
	case targetFence:
		if !x.fences {
			return
		}
		e.Kind, e.Peer = DoFence, x.peer
	case targetWriterGone:
		e.Kind = DoWriterGone
	case targetVerify:
		e.Kind, e.Grant, e.Roots, e.Prefix = DoVerify, x.grant, x.roots, x.prefix
	case targetStart:
		e.Kind, e.Grant, e.Prefix = DoStart, x.grant, x.prefix
	case targetStopKernel:
		e.Kind = DoStopKernel
	case targetRelease:
		e.Kind = DoRelease
	case targetQuarantine:
		e.Kind = DoQuarantine
	default:
	}
	t.effects = append(t.effects, e)
}

func codeOf(input targetInput, reason Reason) Code {
	switch input {
	case targetFinished:
		return CodeDone
	case targetCancel:
		return CodeCancelled
	case targetPeerDoubted, targetPeerLost:
		return CodePeerLost
	case targetClosedFailed:
		switch reason {
		case ReasonBusy:
			return CodeBusy
		case ReasonTooLarge:
			return CodeTooLarge
		default:
		}
		return CodePrefill
	default:
	}
	return CodeCorrupt
}

// tick repeats what may have been lost and escalates what takes too long.
func (t *Target) tick() {
	var late []Peer
	for i := 0; i < len(t.open); {
		x := &t.open[i]
		x.age++
		t.repeat(x)
		waits := x.state == targetRevoking || x.state == targetFencing || x.state == targetLanding || x.state == targetQuarantined
		if waits && x.age == t.config.FenceTicks {
			t.effects = append(t.effects, Effect{Kind: DoAlarm, X: x.grant.X, Peer: x.peer})
			late = append(late, x.peer)
		}
		if x.age != t.config.QuarantineTicks || !t.applyAt(i, targetOverdue, ReasonNone) {
			i++
		}
	}
	for _, peer := range late {
		t.doubt(peer)
	}
}

func (t *Target) repeat(x *targetTransfer) {
	if t.config.RepeatTicks == 0 || x.age%t.config.RepeatTicks != 0 {
		return
	}
	switch x.state {
	case targetGranted:
		t.sendGrant(x)
	case targetRevoking, targetQuarantined:
		t.sendAbort(x)
	default:
	}
}

func (t *Target) sendGrant(x *targetTransfer) {
	grant := *x.grant
	grant.Low = t.low(x.peer)
	t.effects = append(t.effects, Effect{Kind: DoSend, X: grant.X, Peer: x.peer, Message: grant})
}

func (t *Target) sendAbort(x *targetTransfer) {
	abort := Abort{X: x.grant.X, SourceEpoch: x.grant.SourceEpoch, Low: t.low(x.peer)}
	t.effects = append(t.effects, Effect{Kind: DoSend, X: abort.X, Peer: x.peer, Message: abort})
}

// low is the smallest sequence of a link for which CLOSED may still be needed. A
// long decode does not hold it back, and neither does a link that is stuck.
func (t *Target) low(peer Peer) uint64 {
	for i := range t.open {
		x := &t.open[i]
		switch x.state {
		case targetGranted, targetLanding, targetRevoking, targetQuarantined:
			if x.peer == peer {
				return x.grant.X.Sequence
			}
		default:
		}
	}
	return t.next
}

func (t *Target) find(x kv.TransferID) int {
	i, ok := slices.BinarySearchFunc(t.open, x, func(a targetTransfer, x kv.TransferID) int { return compareTransfers(a.grant.X, x) })
	if !ok {
		return -1
	}
	return i
}

func (t *Target) findPeer(peer Peer) int {
	return slices.IndexFunc(t.peers, func(p targetPeer) bool { return p.peer == peer })
}

// Clone is a copy that shares nothing that changes.
func (t *Target) Clone() *Target { return t.CloneInto(new(Target)) }

// CloneInto makes into a copy that shares nothing that changes, in the memory that
// into has. Requires: nobody needs what into was.
func (t *Target) CloneInto(into *Target) *Target {
	peers, open := append(into.peers[:0], t.peers...), append(into.open[:0], t.open...)
	*into = *t
	into.peers, into.open, into.effects = peers, open, nil
	for i := range open {
		open[i].landed = open[i].landed.clone()
	}
	return into
}

// View is how a checker wants states told apart: what it calls a page, a link and
// an incarnation, so that a state and the same with its parts exchanged have one key.
type View interface {
	// Page is the form of a page that a transfer refers to.
	Page(kv.TransferID, kv.PageRef) uint64
	Peer(Peer) Peer
	Epoch(kv.Epoch) kv.Epoch
	// Skip leaves out what a Source remembers of an ended transfer that can matter
	// to nobody.
	Skip(kv.TransferID) bool
}

// AppendKey appends a canonical form of the state: equal keys behave equally.
func (t *Target) AppendKey(key []byte, view View) []byte {
	key = binary.AppendUvarint(key, uint64(view.Epoch(t.config.Epoch)))
	key = binary.AppendUvarint(key, t.next)
	var room [8]int
	for _, i := range sorted(room[:0], len(t.peers), func(i, k int) bool { return view.Peer(t.peers[i].peer) < view.Peer(t.peers[k].peer) }) {
		key = binary.AppendUvarint(append(key, 'p', bit(t.peers[i].doubted)), uint64(view.Peer(t.peers[i].peer)))
	}
	for i := range t.open {
		x := &t.open[i]
		key = appendTransferKey(append(key, 't', byte(x.state), byte(len(x.roots))), x.grant.X, view)
		key = binary.AppendUvarint(key, uint64(view.Peer(x.peer)))
		key = binary.AppendUvarint(key, uint64(x.age))
		key = binary.AppendUvarint(key, x.grant.Request)
		key = x.landed.append(key)
		for _, p := range x.prefix {
			key = binary.AppendUvarint(key, view.Page(x.grant.X, p))
		}
		for _, p := range x.grant.Pages {
			key = binary.AppendUvarint(key, view.Page(x.grant.X, p))
		}
		for _, r := range x.roots {
			key = append(key, r[:]...)
		}
	}
	return key
}

// sorted appends 0 to n-1 in the order that before gives, which is total.
func sorted(order []int, n int, before func(i, k int) bool) []int {
	for i := range n {
		order = append(order, i)
		for k := i; k > 0 && before(order[k], order[k-1]); k-- {
			order[k], order[k-1] = order[k-1], order[k]
		}
	}
	return order
}

func appendTransferKey(key []byte, x kv.TransferID, view View) []byte {
	key = binary.AppendUvarint(key, uint64(view.Epoch(x.Epoch)))
	return append(binary.AppendUvarint(key, x.Sequence), x.Rank)
}

// compareTransfers orders ids for look-up. The order means nothing.
func compareTransfers(a, b kv.TransferID) int {
	switch {
	case a.Epoch != b.Epoch:
		return pick(a.Epoch < b.Epoch, -1, 1)
	case a.Sequence != b.Sequence:
		return pick(a.Sequence < b.Sequence, -1, 1)
	}
	return int(a.Rank) - int(b.Rank)
}

func pick[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

func bit(b bool) byte { return pick[byte](b, 1, 0) }
