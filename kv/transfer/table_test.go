package transfer

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
)

var (
	tableX     = kv.TransferID{Epoch: 0xd, Sequence: 1}
	tableGrant = &Grant{X: tableX, Request: 1, Attempt: 1, GatewayBoot: 1, SourceEpoch: 0xa, Tenant: 1, Tokens: 16,
		TokenDigest: kv.Sum{1}, Key: kv.Key{1}, Pages: []kv.PageRef{{Slot: 3, Generation: 1}}}
)

var targetEffects = map[targetAct]EffectKind{targetAnswer: DoAnswer, targetRevoke: DoRevoke, targetAbort: DoSend, targetFence: DoFence,
	targetWriterGone: DoWriterGone, targetVerify: DoVerify, targetStart: DoStart, targetStopKernel: DoStopKernel, targetRelease: DoRelease, targetQuarantine: DoQuarantine}

// Every cell of decode's table is visited: the machine does what the cell says,
// in that order, and goes where it says.
func TestEveryCellOfTheTargetTable(t *testing.T) {
	for s := targetState(1); s < targetGone; s++ {
		for in := targetInput(1); in < targetInputs; in++ {
			m := NewTarget(TargetConfig{Epoch: 0xd})
			m.open = []targetTransfer{{state: s, peer: 1, fences: true, grant: tableGrant, landed: newBitset(1)}}
			gone := m.applyAt(0, in, ReasonCompute)
			row := targetTable[s][in]
			var want, got []EffectKind
			for _, act := range row.acts {
				want = append(want, targetEffects[act])
			}
			for _, e := range m.effects {
				got = append(got, e.Kind)
				if e.X != tableX {
					t.Errorf("%v, %v: %v names transfer %v", s, in, e.Kind, e.X)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%v, %v does something else than its cell says (-want +got):\n%s", s, in, diff)
			}
			switch next := row.next; {
			case gone != (next == targetGone):
				t.Errorf("%v, %v: gone is %v, the cell says %v", s, in, gone, next)
			case !gone && next == 0 && m.open[0].state != s, !gone && next != 0 && m.open[0].state != next:
				t.Errorf("%v, %v: is %v, the cell says %v", s, in, m.open[0].state, next)
			}
		}
	}
}

var sourceEffects = map[sourceAct]EffectKind{sourceAdmit: DoAdmit, sourceWithdraw: DoWithdraw, sourceCompute: DoCompute, sourceWrite: DoWrite,
	sourceStopKernel: DoStopKernel, sourceSendClosed: DoSend, sourceRelease: DoRelease}

func TestEveryCellOfTheSourceTable(t *testing.T) {
	for s := sourceState(1); s < sourceGone; s++ {
		for in := sourceInput(1); in < sourceInputs; in++ {
			m := NewSource(SourceConfig{Epoch: 0xa, PagesMax: 1, TokensMax: 16})
			m.known = []sourceTransfer{{x: tableX, state: s, peer: 1, linked: true, running: true, grant: tableGrant, want: 1,
				posted: newBitset(1), flying: newBitset(1), roots: make([]kv.Digest, 1)}}
			m.transit(0, in, 0, ReasonCompute)
			row := sourceTable[s][in]
			var want, got []EffectKind
			for _, act := range row.acts {
				if act != sourceEnd && act != sourceFencePeer { // the test's link is not registered: no fence

					want = append(want, sourceEffects[act])
				}
			}
			for _, e := range m.effects {
				got = append(got, e.Kind)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%v, %v does something else than its cell says (-want +got):\n%s", s, in, diff)
			}
			if got, next := m.known[0].state, row.next; (next == 0 && got != s) || (next != 0 && got != next) {
				t.Errorf("%v, %v: is %v, the cell says %v", s, in, got, next)
			}
		}
	}
}

// What the rows must have in common, whatever they are: the rules that a reader
// can hold in the head.
func TestRulesOfTheTargetTable(t *testing.T) {
	answered := map[targetState]bool{targetStopping: true, targetRevoking: true, targetQuarantined: true}
	writable := map[targetState]bool{targetGranted: true, targetLanding: true, targetFencing: true, targetRevoking: true, targetQuarantined: true}
	proofs := map[targetInput]bool{targetClosedDone: true, targetClosedDrained: true, targetClosedEarly: true, targetClosedWrong: true,
		targetClosedFailed: true, targetFenced: true, targetPeerLost: true, targetLandedDrained: true}
	for s := targetState(1); s < targetGone; s++ {
		for in := targetInput(1); in < targetInputs; in++ {
			row := targetTable[s][in]
			has := map[targetAct]bool{}
			for _, act := range row.acts {
				has[act] = true
			}
			if has[targetRelease] != (row.next == targetGone) {
				t.Errorf("%v, %v: pages are released exactly when the transfer is gone", s, in)
			}
			ends := row.next == targetGone || answered[row.next]
			if has[targetAnswer] != (!answered[s] && ends) {
				t.Errorf("%v, %v: a transfer is answered exactly once, when it ends", s, in)
			}
			if has[targetWriterGone] && !proofs[in] && s != targetFencing {
				t.Errorf("%v, %v: the writer is said to be gone without a proof", s, in)
			}
			leaves := writable[s] && row.next != 0 && !writable[row.next]
			if leaves != has[targetWriterGone] {
				t.Errorf("%v, %v: a page leaves the remote writer exactly when the writer is gone", s, in)
			}
			if (in == targetOverdue) && (has[targetRelease] || has[targetWriterGone]) {
				t.Errorf("%v: time frees a page", s)
			}
			if has[targetStart] && s != targetVerifying {
				t.Errorf("%v, %v: decode starts on pages that were not verified", s, in)
			}
		}
	}
}

// CLOSED is said only where nothing is posted any more, and a transfer that has
// closed never writes again.
func TestRulesOfTheSourceTable(t *testing.T) {
	for s := sourceState(1); s < sourceGone; s++ {
		for in := sourceInput(1); in < sourceInputs; in++ {
			row := sourceTable[s][in]
			for _, act := range row.acts {
				if act == sourceWrite && s != sourceActive {
					t.Errorf("%v, %v: writes although it is not active", s, in)
				}
				if act == sourceSendClosed && row.next != sourceClosed {
					t.Errorf("%v, %v: says CLOSED and is %v", s, in, row.next)
				}
				if act == sourceRelease && in != sourceIdle {
					t.Errorf("%v, %v: pages go back although somebody may use them", s, in)
				}
			}
			if s == sourceClosed && row.next != 0 && row.next != sourceClosed {
				t.Errorf("%v, %v: a closed transfer becomes %v", s, in, row.next)
			}
			if s == sourceActive && row.next == sourceClosed && in != sourceWrittenAll {
				t.Errorf("%v, %v: closes without waiting for its writes", s, in)
			}
		}
	}
}
