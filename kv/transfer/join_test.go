package transfer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// Every cell of the ranks' table is visited: the machine does what the cell says
// and goes where it says. Rank 0 is the one that something happens to, rank 1 waits
// to be passed on.
func TestEveryCellOfTheJoinTable(t *testing.T) {
	does := map[joinAct]JoinEffect{joinPassOne: {Kind: JoinPass, OK: true}, joinPassHeld: {Kind: JoinPass, Rank: 1, OK: true},
		joinCancelOthers: {Kind: JoinCancel, Rank: 1}, joinAnswers: {Kind: JoinAnswer, Code: CodeBusy}}
	for s := joinState(1); s < joinStates; s++ {
		for in := joinInput(1); in < joinInputs; in++ {
			j := NewJoin(2)
			j.state, j.ranks[0].ended, j.ranks[1] = s, true, joinRank{held: true, ready: true}
			j.apply(in, 0, true, CodeBusy)
			row := joinTable[s][in]
			var want []JoinEffect
			for _, act := range row.acts {
				want = append(want, does[act])
			}
			if diff := cmp.Diff(want, j.effects); diff != "" {
				t.Errorf("%v, %v does something else than its cell says (-want +got):\n%s", s, in, diff)
			}
			if next := row.next; (next == 0 && j.state != s) || (next != 0 && j.state != next) {
				t.Errorf("%v, %v: is %v, the cell says %v", s, in, j.state, next)
			}
		}
	}
}

// Whatever happens at the ranks, in whatever order: the request is answered once
// and, when every rank has ended, at last; each verdict is passed on once; a rank
// starts only when all are verified; and one that ends otherwise ends the others.
func TestJoinHoldsRanksTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 3).Draw(t, "ranks")
		j, m := NewJoin(ranks), &ranksModel{verified: make([]bool, ranks), passed: make([]bool, ranks), ended: make([]bool, ranks), told: make([]bool, ranks)}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			rank := rapid.IntRange(0, ranks-1).Draw(t, "rank")
			switch {
			case !m.verified[rank] && rapid.Bool().Draw(t, "verify"):
				m.verified[rank] = true
				m.step(t, j, RankVerified{Rank: uint8(rank), OK: rapid.Bool().Draw(t, "ok")})
			case !m.ended[rank]:
				code := CodePrefill
				if m.running[rank] {
					code = rapid.SampledFrom([]Code{CodeDone, CodeCorrupt}).Draw(t, "code")
				}
				m.ended[rank] = true
				m.step(t, j, RankAnswered{Rank: uint8(rank), Code: code})
			}
		}
		for rank := range ranks { // what is told is done
			if m.told[rank] && !m.ended[rank] {
				m.ended[rank] = true
				m.step(t, j, RankAnswered{Rank: uint8(rank), Code: CodeCancelled})
			}
		}
		if n := m.count(m.ended); (n == ranks) != (m.answers == 1) || m.answers > 1 {
			t.Fatalf("%d answers when %d of %d ranks have ended", m.answers, n, ranks)
		}
	})
}

// ranksModel is what a Join has been told and has said.
type ranksModel struct {
	verified, passed, ended, told []bool
	running                       [RanksMax]bool
	answers                       int
}

func (m *ranksModel) count(list []bool) (n int) {
	for _, b := range list {
		if b {
			n++
		}
	}
	return n
}

func (m *ranksModel) step(t *rapid.T, j *Join, event JoinEvent) {
	for _, e := range j.Step(event) {
		switch e.Kind {
		case JoinPass:
			if m.passed[e.Rank] || !m.verified[e.Rank] {
				t.Fatalf("the verdict of rank %d is passed on twice, or before it is known", e.Rank)
			}
			m.passed[e.Rank] = true
			m.running[e.Rank] = e.OK && !m.ended[e.Rank]
			if m.running[e.Rank] && m.count(m.verified) < len(m.verified) && !m.told[e.Rank] {
				t.Fatalf("rank %d starts, %d of %d are verified", e.Rank, m.count(m.verified), len(m.verified))
			}
		case JoinCancel:
			m.told[e.Rank] = true
		case JoinAnswer:
			m.answers++
		}
	}
	if a, ok := event.(RankAnswered); ok && a.Code != CodeDone && m.answers == 1 {
		for rank := range m.ended {
			if !m.ended[rank] && !m.told[rank] {
				t.Fatalf("rank %d goes on when another has ended", rank)
			}
		}
	}
}

func TestJoinWithoutItsGuards(t *testing.T) {
	early := NewJoin(2).Without(guard.Without(guard.AllVerified))
	want := []JoinEffect{{Kind: JoinPass, Rank: 1, OK: true}}
	if diff := cmp.Diff(want, early.Step(RankVerified{Rank: 1, OK: true})); diff != "" {
		t.Errorf("without AllVerified a rank does not start alone (-want +got):\n%s", diff)
	}
	alone := NewJoin(2).Without(guard.Without(guard.OneEnds))
	want = []JoinEffect{{Kind: JoinAnswer, Code: CodeBusy}}
	if diff := cmp.Diff(want, alone.Step(RankAnswered{Rank: 1, Code: CodeBusy})); diff != "" {
		t.Errorf("without OneEnds the other rank is cancelled (-want +got):\n%s", diff)
	}
}

// A message that names another rank is not for this one, on either side.
func TestMessagesOfAnotherRankAreNotHeard(t *testing.T) {
	x := tableX
	x.Rank = 1
	m := NewTarget(TargetConfig{Epoch: 0xd})
	m.peers = []targetPeer{{peer: 1, epoch: 0xa}}
	m.open = []targetTransfer{{state: targetGranted, peer: 1, grant: tableGrant, landed: newBitset(1)}}
	if effects := m.Step(Received{1, Closed{X: x, SourceEpoch: 0xa, Outcome: OutcomeAborted}}); len(effects) != 0 {
		t.Errorf("CLOSED of rank 1 makes rank 0 do %v", effects)
	}
	s := NewSource(SourceConfig{Epoch: 0xa, PagesMax: 1, TokensMax: 16})
	s.peers = []sourcePeer{{peer: 1, epoch: 0xd}}
	if effects := s.Step(Received{1, Abort{X: x, SourceEpoch: 0xa}}); len(effects) != 0 {
		t.Errorf("ABORT of rank 1 makes rank 0 say %v", effects)
	}
}
