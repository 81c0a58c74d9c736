package transfer_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// runsMax bounds the random runs in which a missing guard must show.
const runsMax = 5000

// record runs a machine without some guards on random events, and gives its ledger.
type record func(t *rapid.T, without guard.Set) []ledger.Entry

func recordTarget(t *rapid.T, without guard.Set) (entries []ledger.Entry) {
	c := transfer.TargetConfig{Epoch: 0xd, RepeatTicks: 1, FenceTicks: 2, QuarantineTicks: 3}
	m := transfer.NewTarget(c).Without(without)
	j := conform.NewTargetJournal(c, "test", transfer.NewVeil(kv.Key{1}), func(e ledger.Entry) { entries = append(entries, e) })
	peers := transfer.Peer(0)
	var due []transfer.TargetEvent
	for range rapid.IntRange(20, 80).Draw(t, "steps") {
		event := bend(t, transfer.DrawTargetEvent(t, m, &peers))
		if len(due) > 0 && rapid.Bool().Draw(t, "in order") {
			event, due = due[0], due[1:]
		}
		effects := m.Step(event)
		j.Target(event, effects)
		due = append(due, replies(effects)...)
	}
	return entries
}

// replies is what a good shell and a good peer say to a target's effects.
func replies(effects []transfer.Effect) (events []transfer.TargetEvent) {
	for _, e := range effects {
		switch e.Kind {
		case transfer.DoSend:
			g, ok := e.Message.(transfer.Grant)
			if !ok {
				continue
			}
			roots := make([]kv.Digest, len(g.Pages))
			for i := range g.Pages {
				roots[i] = kv.Digest{1}
				events = append(events, transfer.Landed{X: g.X, Block: g.FirstBlock + uint32(i)})
			}
			events = append(events, transfer.Received{Peer: e.Peer, Message: transfer.Closed{X: g.X, SourceEpoch: g.SourceEpoch,
				Outcome: transfer.OutcomeDone, Tokens: g.Tokens, TokenDigest: g.TokenDigest, Roots: roots}})
		case transfer.DoFence:
			events = append(events, transfer.Fenced{X: e.X})
		case transfer.DoVerify:
			events = append(events, transfer.Verified{X: e.X, OK: true})
		case transfer.DoStart:
			events = append(events, transfer.Cancel{X: e.X})
		default:
		}
	}
	return events
}

// bend makes some manifests ones that do not fit their grant.
func bend(t *rapid.T, event transfer.TargetEvent) transfer.TargetEvent {
	received, _ := event.(transfer.Received)
	c, ok := received.Message.(transfer.Closed)
	if !ok || c.Outcome != transfer.OutcomeDone {
		return event
	}
	switch rapid.IntRange(0, 3).Draw(t, "manifest") {
	case 0:
		c.Tokens, c.Roots = 16, c.Roots[:1]
	case 1:
		c.TokenDigest = kv.Sum{2}
	}
	received.Message = c
	return received
}

func recordSource(t *rapid.T, without guard.Set) (entries []ledger.Entry) {
	c := transfer.SourceConfig{Epoch: 0xa, PagesMax: rapid.IntRange(1, 4).Draw(t, "pages"), TokensMax: 64, TransfersMax: 5}
	m := transfer.NewSource(c).Without(without)
	j := conform.NewSourceJournal(c, "test", transfer.NewVeil(kv.Key{1}), func(e ledger.Entry) { entries = append(entries, e) })
	var due []transfer.SourceEvent
	peers := transfer.Peer(0)
	for range rapid.IntRange(20, 80).Draw(t, "steps") {
		event := transfer.DrawSourceEvent(t, &peers)
		if len(due) > 0 && rapid.Bool().Draw(t, "in order") {
			event, due = due[0], due[1:]
		}
		effects := m.Step(event)
		j.Source(event, effects)
		for _, e := range effects {
			switch e.Kind {
			case transfer.DoAdmit:
				due = append(due, transfer.Admitted{X: e.X, Tokens: e.Grant.Tokens, TokenDigest: e.Grant.TokenDigest})
			case transfer.DoCompute:
				for i := range e.Grant.Pages {
					due = append(due, transfer.Computed{X: e.X, Block: e.Grant.FirstBlock + uint32(i), Root: kv.Digest{1}})
				}
			case transfer.DoWrite:
				due = append(due, transfer.Written{X: e.X, Block: e.Block, OK: rapid.Bool().Draw(t, "landed")})
			default:
			}
		}
	}
	return entries
}

// machines names each machine's guards: those whose absence can show in what it does.
var machines = map[string]struct {
	record record
	epoch  kv.Epoch
	guards []guard.Guard
}{
	"decode": {recordTarget, 0xd, []guard.Guard{guard.Coverage, guard.Provenance, guard.Landings, guard.FenceFirst, guard.DeferRelease, guard.FencePeer,
		guard.Epochs, guard.FreshID, guard.KernelStop, guard.Rank}},
	"prefill": {recordSource, 0xa, []guard.Guard{guard.Epochs, guard.KernelStop, guard.Size, guard.JobDigest, guard.Silence, guard.Drain, guard.LostWrite,
		guard.Tombstone, guard.Replay, guard.SourceHold, guard.LowMark, guard.Rank}},
}

// A ledger of a worker that lacks a guard is rejected: the machines that serve
// would not have done what it says.
func TestALedgerWithoutAGuardIsRejected(t *testing.T) {
	seen := map[guard.Guard]bool{}
	for name, m := range machines {
		for _, g := range m.guards {
			seen[g] = true
			runs := rapid.Custom(func(t *rapid.T) []ledger.Entry { return m.record(t, guard.Without(g)) })
			finding := reject(runs, m.epoch)
			if finding == nil {
				t.Errorf("%s without %v conforms in %d runs", name, g, runsMax)
				continue
			}
			t.Logf("%s without %v: %v", name, g, finding)
		}
	}
	// The other guards stand at the door, in the pool, the receiver, the worker and the join.
	for g := range guard.End {
		outside := g == guard.Door || g >= guard.Holders && g != guard.Rank
		if !seen[g] && !outside {
			t.Errorf("no ledger without %v is tried", g)
		}
	}
}

// reject looks for a run that does not conform. A run that a guard's absence brings
// to a halt is none.
func reject(runs *rapid.Generator[[]ledger.Entry], epoch kv.Epoch) *conform.Finding {
	for seed := range runsMax {
		if e := conform.Entries("n", epoch, runs.Example(seed)); e.Verdict != conform.Conforms {
			return e.Finding
		}
	}
	return nil
}

// With every guard in place, whatever happens conforms.
func TestALedgerWithAllGuardsConforms(t *testing.T) {
	for _, m := range machines {
		rapid.Check(t, func(t *rapid.T) {
			e := conform.Entries("n", m.epoch, m.record(t, guard.Set{}))
			if e.Verdict != conform.Conforms {
				t.Fatalf("%v, %s, %v", e.Verdict, e.Why, e.Finding)
			}
		})
	}
}
