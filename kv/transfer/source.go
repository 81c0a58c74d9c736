package transfer

import (
	"encoding/binary"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// SourceConfig is what a Source needs to know.
type SourceConfig struct {
	Epoch     kv.Epoch // this incarnation's nonce
	Rank      uint8    // of this shard
	PagesMax  int      // most pages that a transfer's prompt can have: what the pool holds
	TokensMax int      // longest prompt
	// TransfersMax bounds what is remembered of one link. A peer that goes over
	// it is fenced: it has lost track of its own transfers. 0 is TransfersMaxDefault.
	TransfersMax int
}

// TransfersMaxDefault bounds the transfers of one link that a Source remembers.
const TransfersMaxDefault = 1 << 16

// Source is prefill's side of all its transfers. It has one owner and is not safe
// for concurrent use.
type Source struct {
	config  SourceConfig
	peers   []sourcePeer
	known   []sourceTransfer // ordered by id
	effects []Effect
	without guard.Set
	see     func(Cell) // see Watch
}

// sourcePeer is one link.
type sourcePeer struct {
	peer    Peer
	node    string
	epoch   kv.Epoch // of the decode worker at the other end
	low     uint64   // no CLOSED of smaller sequences is needed there
	known   int      // transfers remembered
	doubted bool
}

// sourceTransfer is one transfer.
type sourceTransfer struct {
	x       kv.TransferID
	state   sourceState
	peer    Peer
	linked  bool   // CLOSED can be said: the link is up and no write was lost on it
	grant   *Grant // immutable; nil when only an ABORT was seen
	posted  bitset // blocks whose write was asked for, from the grant's first
	flying  bitset // blocks whose write has not ended
	want    int    // blocks to be written
	roots   []kv.Digest
	digest  kv.Sum // of the job's token ids
	running bool   // a kernel may write source pages
	holding bool   // source pages are held
	outcome Outcome
	reason  Reason
}

// NewSource starts an incarnation. Requires: an epoch that no incarnation had.
func NewSource(config SourceConfig) *Source {
	assert.That(config.Epoch != 0, "a source has an epoch")
	if config.TransfersMax == 0 {
		config.TransfersMax = TransfersMaxDefault
	}
	return &Source{config: config}
}

// Len is the number of transfers that hold pages or wait for them.
func (s *Source) Len() (n int) {
	for i := range s.known {
		if s.known[i].holding || s.known[i].state == sourceJoining {
			n++
		}
	}
	return n
}

// Stage names the state of x in the table, or is empty for one that is unknown.
func (s *Source) Stage(x kv.TransferID) string {
	if i := s.find(x); i >= 0 {
		return s.known[i].state.String()
	}
	return ""
}

// Step takes one event and returns what must be done, in order. The slice is the
// caller's.
func (s *Source) Step(event SourceEvent) []Effect {
	s.effects = nil
	switch e := event.(type) {
	case PeerUp:
		s.peerUp(e)
	case PeerLost:
		s.peerLost(e.Peer)
	case Suspect:
		s.doubt(e.Peer)
	case Received:
		s.received(e.Peer, e.Message)
	case Admitted:
		s.admitted(e)
	case Refused:
		s.apply(e.X, sourceRefused, refusal(e.Reason))
	case Computed:
		s.computed(e)
	case Written:
		s.written(e)
	case Cancel:
		s.apply(e.X, sourceCancel, ReasonCancelled)
	case Failed:
		if i := s.find(e.X); i >= 0 {
			s.known[i].running = false
			s.apply(e.X, sourceFailed, refusal(e.Reason))
		}
	case KernelStopped:
		if i := s.find(e.X); i >= 0 {
			s.known[i].running = false
			s.apply(e.X, sourceKernelStopped, ReasonNone)
		}
	case Tick:
	}
	s.forget()
	effects := s.effects
	s.effects = nil
	return effects
}

// refusal makes sure that a failure has a reason.
func refusal(r Reason) Reason {
	if r == ReasonNone || r >= reasonsEnd {
		return ReasonCompute
	}
	return r
}

func (s *Source) peerUp(e PeerUp) {
	assert.That(s.findPeer(e.Peer) < 0, "a peer number is used once")
	for i := range s.peers {
		if s.peers[i].node == e.Hello.Node {
			s.doubt(s.peers[i].peer)
		}
	}
	s.peers = append(s.peers, sourcePeer{peer: e.Peer, node: e.Hello.Node, epoch: e.Hello.Epoch})
}

func (s *Source) peerLost(peer Peer) {
	if i := s.findPeer(peer); i >= 0 {
		s.peers = slices.Delete(s.peers, i, i+1)
	}
	for i := range s.known {
		if s.known[i].peer == peer {
			s.known[i].linked = false
			s.applyAt(i, sourcePeerLost, ReasonNone)
		}
	}
}

// doubt ends trust in a link. Its transfers end with it.
func (s *Source) doubt(peer Peer) {
	i := s.findPeer(peer)
	if i < 0 || s.peers[i].doubted {
		return
	}
	s.peers[i].doubted = true
	s.effects = append(s.effects, Effect{Kind: DoFencePeer, Peer: peer})
}

func (s *Source) received(peer Peer, m Message) {
	p := s.findPeer(peer)
	if p < 0 || s.peers[p].doubted {
		return
	}
	switch m := m.(type) {
	case Grant:
		s.ask(p, m.X, m.SourceEpoch, m.Low, s.judge(m), &m)
	case Abort:
		s.ask(p, m.X, m.SourceEpoch, m.Low, sourceAbort, nil)
	}
}

// judge says what a grant is, whatever is known of its transfer.
func (s *Source) judge(g Grant) sourceInput {
	switch {
	case g.Validate() != nil:
		return sourceGrantMalformed
	case (len(g.Pages) > s.config.PagesMax || kv.PagesFor(int(g.Tokens)) > s.config.PagesMax || int(g.Tokens) > s.config.TokensMax) && !s.without.Missing(guard.Size):
		return sourceGrantTooLarge
	}
	return sourceGrant
}

// ask handles a GRANT or an ABORT: is it meant for us, is it still open at
// decode, and what is known of it.
func (s *Source) ask(p int, x kv.TransferID, to kv.Epoch, low uint64, input sourceInput, grant *Grant) {
	peer := &s.peers[p]
	meant := to == s.config.Epoch && x.Epoch == peer.epoch
	if x.Rank != s.config.Rank && !s.without.Missing(guard.Rank) {
		return
	}
	if x.IsZero() || x.Epoch == 0 || x.Sequence == 0 || (!meant && !s.without.Missing(guard.Epochs)) {
		return
	}
	if meant && !s.without.Missing(guard.LowMark) {
		s.raise(p, low)
		if x.Sequence < peer.low {
			return
		}
	}
	i := s.find(x)
	if i >= 0 && s.known[i].peer != peer.peer && !s.without.Missing(guard.Epochs) {
		return
	}
	if i < 0 {
		i = s.remember(p, x, input, grant)
	}
	if i >= 0 {
		s.applyAt(i, input, map[sourceInput]Reason{sourceGrantTooLarge: ReasonTooLarge, sourceGrantMalformed: ReasonMalformed}[input])
	}
}

// raise lifts the low-water mark: below it decode needs nothing any more.
func (s *Source) raise(p int, low uint64) {
	peer := &s.peers[p]
	if low <= peer.low {
		return
	}
	peer.low = low
	for i := range s.known {
		if s.known[i].peer == peer.peer && s.known[i].x.Sequence < low {
			s.applyAt(i, sourceLowPassed, ReasonNone)
		}
	}
}

// remember makes an entry, or -1 where the peer has too many.
func (s *Source) remember(p int, x kv.TransferID, input sourceInput, grant *Grant) int {
	if s.peers[p].known >= s.config.TransfersMax {
		s.doubt(s.peers[p].peer)
		return -1
	}
	s.peers[p].known++
	entry := sourceTransfer{x: x, state: sourceUnknown, peer: s.peers[p].peer, linked: true}
	if input == sourceGrant {
		entry.grant, entry.want = grant, len(grant.Pages)
		if kv.PagesFor(int(grant.Tokens)) > s.config.PagesMax {
			entry.want = 1 // only without guard.Size: a placeholder goes on in the request's place
		}
		entry.posted, entry.flying = newBitset(len(grant.Pages)), newBitset(len(grant.Pages))
		entry.roots = make([]kv.Digest, entry.want)
	}
	i, _ := slices.BinarySearchFunc(s.known, x, func(a sourceTransfer, x kv.TransferID) int { return compareTransfers(a.x, x) })
	s.known = slices.Insert(s.known, i, entry)
	return i
}

// admitted takes the worker's yes. Pages that nobody waits for go straight back.
func (s *Source) admitted(e Admitted) {
	i := s.find(e.X)
	if i < 0 {
		s.effects = append(s.effects, Effect{Kind: DoRelease, X: e.X})
		return
	}
	t := &s.known[i]
	if t.state != sourceJoining && (t.state != sourceClosed || t.holding) {
		return
	}
	t.holding, t.digest = true, e.TokenDigest
	right := t.grant != nil && e.TokenDigest != kv.Sum{} && e.Tokens == t.grant.Tokens && e.TokenDigest == t.grant.TokenDigest
	right = right || s.without.Missing(guard.JobDigest)
	s.applyAt(i, pick(right, sourceAdmitted, sourceAdmittedWrong), ReasonJobMismatch)
}

func (s *Source) computed(e Computed) {
	i := s.find(e.X)
	block := s.block(i, e.Block)
	if block < 0 || e.Root == (kv.Digest{}) || s.known[i].posted.has(block) {
		return
	}
	t := &s.known[i]
	late := (t.state == sourceDraining || t.state == sourceClosed) && s.without.Missing(guard.Silence)
	if t.state == sourceActive || late {
		t.posted.set(block)
		t.flying.set(block)
		t.roots[block] = e.Root
		t.running = t.posted.count() < t.want && t.running
	}
	if late {
		s.do(t, sourceWrite, e.Block, ReasonNone)
	}
	s.applyBlock(i, sourceComputed, e.Block, ReasonNone)
}

func (s *Source) written(e Written) {
	i := s.find(e.X)
	block := s.block(i, e.Block)
	if block < 0 || !s.known[i].flying.has(block) {
		return
	}
	t := &s.known[i]
	t.flying.clear(block)
	input := sourceWritten
	switch {
	case !e.OK && e.Refused:
		input = sourceWrittenRefused
	case !e.OK:
		input = sourceWrittenLost
		t.linked = t.linked && s.without.Missing(guard.LostWrite)
	case s.allWritten(t):
		input = sourceWrittenAll
	}
	s.applyAt(i, input, ReasonWrite)
}

func (s *Source) allWritten(t *sourceTransfer) bool {
	return t.posted.count() == t.want && (t.flying.count() == 0 || s.without.Missing(guard.Drain))
}

// block is the index of a block in the entry at i, or -1.
func (s *Source) block(i int, block uint32) int {
	if i < 0 || s.known[i].grant == nil {
		return -1
	}
	b := int64(block) - int64(s.known[i].grant.FirstBlock)
	if b < 0 || b >= int64(s.known[i].want) {
		return -1
	}
	return int(b)
}

func (s *Source) apply(x kv.TransferID, input sourceInput, reason Reason) {
	if i := s.find(x); i >= 0 {
		s.applyAt(i, input, reason)
	}
}

func (s *Source) applyAt(i int, input sourceInput, reason Reason) { s.applyBlock(i, input, 0, reason) }

// applyBlock looks up the table's cell, does it, and then what follows by itself.
func (s *Source) applyBlock(i int, input sourceInput, block uint32, reason Reason) {
	s.transit(i, input, block, reason)
	t := &s.known[i]
	if t.state == sourceActive && input == sourceComputed && s.without.Missing(guard.Drain) && s.allWritten(t) {
		s.transit(i, sourceWrittenAll, 0, ReasonNone)
	}
	if t.state == sourceDraining && (t.flying.count() == 0 || s.without.Missing(guard.Drain)) {
		s.transit(i, sourceDrained, 0, ReasonNone)
	}
	if s.idle(t) {
		s.transit(i, sourceIdle, 0, ReasonNone)
	}
}

// idle reports whether the pages can go back: the transfer ends, no write reads
// them and no kernel writes them.
func (s *Source) idle(t *sourceTransfer) bool {
	return t.holding && (t.state == sourceDraining || t.state == sourceClosed) &&
		(t.flying.count() == 0 || s.without.Missing(guard.SourceHold)) && (!t.running || s.without.Missing(guard.KernelStop))
}

func (s *Source) transit(i int, input sourceInput, block uint32, reason Reason) {
	t := &s.known[i]
	row, first := sourceTable[t.state][input], len(s.effects)
	if t.state == sourceClosed && row.next == sourceClosed && s.without.Missing(guard.Replay) {
		return
	}
	for _, act := range row.acts {
		if act == sourceEnd {
			t.outcome, t.reason = outcomeOf(input, reason)
			continue
		}
		s.do(t, act, block, reason)
	}
	s.tell(t, input.String(), first)
	if row.next != 0 {
		t.state = row.next
	}
}

// tell shows a cell to who watches; its effects begin at first.
func (s *Source) tell(t *sourceTransfer, input string, first int) {
	if s.see != nil {
		s.see(Cell{t.x, t.state.String(), input, s.effects[first:]})
	}
}

func outcomeOf(input sourceInput, reason Reason) (Outcome, Reason) {
	switch input {
	case sourceWrittenAll:
		return OutcomeDone, ReasonNone
	case sourceAbort, sourceLowPassed, sourcePeerLost:
		return OutcomeAborted, ReasonNone
	default:
	}
	return OutcomeFailed, reason
}

func (s *Source) do(t *sourceTransfer, act sourceAct, block uint32, reason Reason) {
	e := Effect{X: t.x, Peer: t.peer, Grant: t.grant}
	switch act {
	case sourceAdmit:
		e.Kind = DoAdmit
	case sourceWithdraw:
		e.Kind = DoWithdraw
	case sourceCompute:
		e.Kind = DoCompute
		t.running = true
	case sourceWrite:
		e.Kind, e.Block = DoWrite, block
	case sourceStopKernel:
		if !t.running {
			return
		}
		e.Kind = DoStopKernel
	case sourceSendClosed:
		if !t.linked {
			return
		}
		e.Kind, e.Message = DoSend, s.closed(t)
	case sourceFencePeer:
		s.doubt(t.peer)
		return
	case sourceRelease:
		e.Kind = DoRelease
		t.holding = false
	default:
	}
	s.effects = append(s.effects, e)
}

func (s *Source) closed(t *sourceTransfer) Closed {
	c := Closed{X: t.x, SourceEpoch: s.config.Epoch, Outcome: t.outcome, Reason: t.reason}
	if t.outcome == OutcomeDone {
		c.Tokens, c.TokenDigest, c.Roots = t.grant.Tokens, t.digest, t.roots
	}
	return c
}

// forget drops entries that can matter to nobody: ended, with nothing held, and
// below the low-water mark or without a link.
func (s *Source) forget() {
	s.known = slices.DeleteFunc(s.known, func(t sourceTransfer) bool {
		if t.state != sourceClosed || t.holding || t.running || t.flying.count() != 0 {
			return false
		}
		p := s.findPeer(t.peer)
		gone := p < 0 || t.x.Sequence < s.peers[p].low || s.without.Missing(guard.Tombstone)
		if gone && p >= 0 {
			s.peers[p].known--
		}
		if gone {
			s.tell(&t, "forgotten", len(s.effects))
		}
		return gone
	})
}

func (s *Source) find(x kv.TransferID) int {
	i, ok := slices.BinarySearchFunc(s.known, x, func(a sourceTransfer, x kv.TransferID) int { return compareTransfers(a.x, x) })
	if !ok {
		return -1
	}
	return i
}

func (s *Source) findPeer(peer Peer) int {
	return slices.IndexFunc(s.peers, func(p sourcePeer) bool { return p.peer == peer })
}

// Clone is a copy that shares nothing that changes.
func (s *Source) Clone() *Source { return s.CloneInto(new(Source)) }

// CloneInto makes into a copy that shares nothing that changes, in the memory that
// into has. Requires: nobody needs what into was.
func (s *Source) CloneInto(into *Source) *Source {
	peers, known := append(into.peers[:0], s.peers...), append(into.known[:0], s.known...)
	*into = *s
	into.peers, into.known, into.effects = peers, known, nil
	for i := range known {
		t := &known[i]
		t.posted, t.flying, t.roots = t.posted.clone(), t.flying.clone(), slices.Clone(t.roots)
	}
	return into
}

// AppendKey appends a canonical form of the state: equal keys behave equally.
func (s *Source) AppendKey(key []byte, view View) []byte {
	key = binary.AppendUvarint(key, uint64(view.Epoch(s.config.Epoch)))
	var room [8]int
	for _, i := range sorted(room[:0], len(s.peers), func(i, k int) bool { return view.Peer(s.peers[i].peer) < view.Peer(s.peers[k].peer) }) {
		key = binary.AppendUvarint(append(key, 'p', bit(s.peers[i].doubted)), uint64(view.Peer(s.peers[i].peer)))
		key = binary.AppendUvarint(key, s.peers[i].low)
	}
	id := func(i int) kv.TransferID {
		x := s.known[i].x
		x.Epoch = view.Epoch(x.Epoch)
		return x
	}
	for _, i := range sorted(room[:0], len(s.known), func(i, k int) bool { return compareTransfers(id(i), id(k)) < 0 }) {
		t := &s.known[i]
		ended := t.state == sourceClosed && !t.holding && !t.running && t.flying.count() == 0
		if ended && view.Skip(t.x) {
			continue
		}
		key = appendTransferKey(append(key, 't', byte(t.state), byte(t.outcome), byte(t.reason),
			bit(t.linked)|bit(t.running)<<1|bit(t.holding)<<2), t.x, view)
		key = binary.AppendUvarint(key, uint64(view.Peer(t.peer)))
		key = append(t.flying.append(t.posted.append(key)), t.digest[:]...)
		if t.grant == nil || ended {
			continue
		}
		for _, p := range t.grant.Pages {
			key = binary.AppendUvarint(key, view.Page(t.x, p))
		}
	}
	return key
}
