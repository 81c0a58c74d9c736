package transfer

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// drawMessage makes messages that often concern an open transfer, and often not.
func drawMessage(t *rapid.T) Message {
	x := kv.TransferID{Epoch: kv.Epoch(rapid.Uint64Range(0xc, 0xd).Draw(t, "epoch")), Sequence: rapid.Uint64Range(0, 3).Draw(t, "sequence")}
	source := kv.Epoch(rapid.Uint64Range(0xa, 0xb).Draw(t, "source"))
	low := rapid.SampledFrom([]uint64{0, 0, 0, 2, 4}).Draw(t, "low")
	switch rapid.IntRange(0, 3).Draw(t, "message") {
	case 0:
		pages := []kv.PageRef{{Slot: 1, Generation: 1}, {Slot: 2, Generation: 1}}[:rapid.SampledFrom([]int{2, 2, 2, 1, 0}).Draw(t, "pages")]
		return Grant{X: x, Request: 1, Attempt: 1, GatewayBoot: 1, SourceEpoch: source, Tenant: 1, Tokens: uint32(16 * len(pages)),
			TokenDigest: kv.Sum{1}, Key: kv.Key{1}, Low: low, Pages: pages}
	case 1:
		x.Rank = rapid.SampledFrom([]uint8{0, 0, 0, 1}).Draw(t, "rank")
		return Abort{X: x, SourceEpoch: source, Low: low}
	case 2:
		return Closed{X: x, SourceEpoch: source, Outcome: OutcomeDone, Tokens: 32, TokenDigest: kv.Sum{1}, Roots: []kv.Digest{{1}, {2}}}
	}
	x.Rank = rapid.SampledFrom([]uint8{0, 0, 0, 1}).Draw(t, "rank")
	return Closed{X: x, SourceEpoch: source, Outcome: OutcomeFailed, Reason: ReasonBusy}
}

// Whatever a shell or a peer does: a transfer that was opened is answered once and
// released once, never before its answer, and never used after its release.
func TestTargetAnswersAndReleasesOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewTarget(TargetConfig{Epoch: 0xd, RepeatTicks: 1, FenceTicks: 2, QuarantineTicks: 3})
		answered, released, gone := map[kv.TransferID]int{}, map[kv.TransferID]int{}, map[kv.TransferID]bool{}
		opened := 0
		peers := Peer(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			event := drawTargetEvent(t, m, &peers)
			if _, ok := event.(Open); ok {
				opened++
			}
			for _, e := range m.Step(event) {
				switch e.Kind {
				case DoAnswer:
					answered[e.X]++
				case DoWriterGone:
					gone[e.X] = true
				case DoRelease:
					released[e.X]++
					if answered[e.X] != 1 || !gone[e.X] {
						t.Fatalf("pages of %v are released with %d answers, writer gone %v", e.X, answered[e.X], gone[e.X])
					}
				case DoStart, DoVerify:
					if !gone[e.X] || answered[e.X] != 0 || released[e.X] != 0 {
						t.Fatalf("%v of %v after its answer, or before its writer is gone", e.Kind, e.X)
					}
				default:
				}
				if answered[e.X] > 1 || released[e.X] > 1 {
					t.Fatalf("%v has %d answers and %d releases", e.X, answered[e.X], released[e.X])
				}
			}
			if m.Len() != opened-len(released) {
				t.Fatalf("%d transfers hold pages, %d were opened and %d released", m.Len(), opened, len(released))
			}
		}
	})
}

func drawTargetEvent(t *rapid.T, m *Target, peers *Peer) TargetEvent {
	x := kv.TransferID{Epoch: 0xd, Sequence: rapid.Uint64Range(0, 6).Draw(t, "x")}
	peer := Peer(rapid.Uint32Range(0, uint32(*peers)).Draw(t, "peer"))
	fair := rapid.Bool().Draw(t, "fair")
	switch rapid.IntRange(0, 14).Draw(t, "event") {
	case 0:
		*peers++
		epoch := kv.Epoch(rapid.Uint64Range(0xa, 0xb).Draw(t, "of"))
		return PeerUp{Peer: *peers, Hello: Hello{Node: "p", Epoch: epoch}, Places: fair, Fences: rapid.Bool().Draw(t, "fences")}
	case 1:
		return PeerLost{Peer: peer}
	case 2:
		return Suspect{Peer: peer}
	case 3, 4:
		prefix := rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "prefix")
		return Open{X: m.Next(), Peer: *peers, Request: 1, Attempt: 1, GatewayBoot: 1, Tenant: 1, Tokens: 32, TokenDigest: kv.Sum{1}, Key: kv.Key{1},
			Prefix: []kv.PageRef{{Slot: 3, Generation: 1}}[:prefix], Pages: []kv.PageRef{{Slot: 1, Generation: 1}, {Slot: 2, Generation: 1}}[prefix:]}
	case 5, 6:
		return Received{Peer: *peers, Message: drawMessage(t)}
	case 7:
		return Landed{X: x, Block: rapid.Uint32Range(0, 3).Draw(t, "block")}
	case 8:
		return Fenced{X: x}
	case 9, 10:
		return Verified{X: x, OK: fair}
	case 11:
		return Finished{X: x}
	case 12:
		return Cancel{X: x}
	case 13:
		return KernelStopped{X: x}
	}
	if fair {
		return Tick{}
	}
	return Fault{X: x}
}

// Whatever happens: CLOSED is said only with no write in flight, nothing is
// written afterwards, and source pages go back only with no write in flight.
func TestSourceKeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewSource(SourceConfig{Epoch: 0xa, PagesMax: 4, TokensMax: 64, TransfersMax: 5})
		type promise struct { // a promise is given on one link
			x    kv.TransferID
			peer Peer
		}
		lost := map[kv.TransferID]bool{}
		flying, closed := map[kv.TransferID]map[uint32]bool{}, map[promise]bool{}
		peers := Peer(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			event := drawSourceEvent(t, &peers)
			if w, ok := event.(Written); ok {
				if flying[w.X][w.Block] && !w.OK && !w.Refused {
					lost[w.X] = true
				}
				delete(flying[w.X], w.Block)
			}
			for _, e := range m.Step(event) {
				switch e.Kind {
				case DoWrite:
					if closed[promise{e.X, e.Peer}] || flying[e.X][e.Block] {
						t.Fatalf("block %d of %v is written after CLOSED, or twice at a time", e.Block, e.X)
					}
					if flying[e.X] == nil {
						flying[e.X] = map[uint32]bool{}
					}
					flying[e.X][e.Block] = true
				case DoSend:
					if len(flying[e.X]) != 0 {
						t.Fatalf("CLOSED of %v with %d writes in flight", e.X, len(flying[e.X]))
					}
					if lost[e.X] {
						t.Fatalf("CLOSED of %v although a write of it was lost", e.X)
					}
					closed[promise{e.X, e.Peer}] = true
				case DoRelease:
					if len(flying[e.X]) != 0 {
						t.Fatalf("source pages of %v are released with %d writes in flight", e.X, len(flying[e.X]))
					}
				default:
				}
			}
			if err := m.sound(); err != "" {
				t.Fatal(err)
			}
		}
	})
}

func (s *Source) sound() string {
	for _, t := range s.known {
		if t.state == sourceUnknown || t.state == sourceGone {
			return "an entry is neither known nor forgotten"
		}
	}
	for _, p := range s.peers {
		n := 0
		for _, t := range s.known {
			if t.peer == p.peer {
				n++
			}
		}
		if n != p.known || n > s.config.TransfersMax {
			return "the transfers of a link are not counted, or are too many"
		}
	}
	return ""
}

func drawSourceEvent(t *rapid.T, peers *Peer) SourceEvent {
	x := kv.TransferID{Epoch: 0xd, Sequence: rapid.Uint64Range(0, 3).Draw(t, "x")}
	peer := Peer(rapid.Uint32Range(0, uint32(*peers)).Draw(t, "peer"))
	block := rapid.Uint32Range(0, 2).Draw(t, "block")
	switch event := rapid.IntRange(0, 13).Draw(t, "event"); {
	case event == 0 || *peers == 0:
		*peers++
		return PeerUp{Peer: *peers, Hello: Hello{Node: rapid.SampledFrom([]string{"d", "e"}).Draw(t, "node"), Epoch: 0xd}}
	case event == 1:
		return PeerLost{Peer: peer}
	case event == 2:
		return Suspect{Peer: peer}
	case event == 3 || event == 4 || event == 5:
		return Received{Peer: max(peer, 1), Message: drawMessage(t)}
	case event == 6 || event == 7:
		return Admitted{X: x, Tokens: 32, TokenDigest: kv.Sum{1}}
	case event == 8 || event == 9:
		return Computed{X: x, Block: block, Root: kv.Digest{1}}
	case event == 10 || event == 11:
		return Written{X: x, Block: block, OK: rapid.Bool().Draw(t, "ok"), Refused: rapid.Bool().Draw(t, "refused")}
	case event == 12:
		return KernelStopped{X: x}
	}
	if block == 0 {
		return Cancel{X: x}
	}
	return Failed{X: x, Reason: ReasonCompute}
}
