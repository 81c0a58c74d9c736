package transfer

import (
	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// Join holds the ranks of one request together at decode. Each rank's shard is a
// transfer of its own, with its own Target, pages and proof; the Join says when
// all of them start, and ends them all when one does. It has one owner and is not
// safe for concurrent use.
//
// Its shell feeds it what DoVerify found at a rank, and each rank's DoAnswer, and
// performs its effects in order. A rank's Target gets its Verified from the Join
// alone; its pages go back by its own proofs, whatever the other ranks do.
type Join struct {
	state   joinState
	ranks   []joinRank
	without guard.Set
	effects []JoinEffect
}

// joinRank is what is known of one rank.
type joinRank struct {
	held  bool // verified, and its Target does not know
	ready bool // verified, whether its Target knows or not
	ended bool // answered
}

// RanksMax bounds the ranks of one request: a TransferID has a byte for it.
const RanksMax = 256

// NewJoin begins with a request whose transfer was opened at each rank.
func NewJoin(ranks int) *Join {
	assert.That(ranks > 0 && ranks <= RanksMax, "a request has 1 to RanksMax ranks")
	return &Join{state: joinWaiting, ranks: make([]joinRank, ranks)}
}

// JoinEvent is what can happen to a Join: RankVerified or RankAnswered.
type JoinEvent interface{ joinEvent() }

type (
	// RankVerified says what DoVerify found at a rank.
	RankVerified struct {
		Rank uint8
		OK   bool
	}
	// RankAnswered says that the transfer of a rank was answered.
	RankAnswered struct {
		Rank uint8
		Code Code
	}
)

func (RankVerified) joinEvent() {}
func (RankAnswered) joinEvent() {}

// JoinKind says what the shell of a Join must do.
type JoinKind uint8

// The effects of a Join.
const (
	JoinPass   JoinKind = 1 + iota // give the rank's Target Verified with OK
	JoinCancel                     // give the rank's Target Cancel
	JoinAnswer                     // the request ends with Code; exactly once
)

// String names the effect.
func (k JoinKind) String() string { return nameOf(uint8(k), "", "pass", "cancel", "answer") }

// JoinEffect is one thing for the shell to do. Fields that the kind does not need are zero.
type JoinEffect struct {
	Kind JoinKind
	Rank uint8 // JoinPass, JoinCancel
	OK   bool  // JoinPass
	Code Code  // JoinAnswer
}

// Step takes one event and returns what must be done, in order. Requires: a rank of
// this request.
func (j *Join) Step(event JoinEvent) []JoinEffect {
	j.effects = nil
	switch e := event.(type) {
	case RankVerified:
		r := &j.ranks[e.Rank]
		r.held, r.ready = true, e.OK
		j.apply(j.verified(e.OK), e.Rank, e.OK, 0)
	case RankAnswered:
		j.ranks[e.Rank].ended = true
		j.apply(j.ended(e.Code), e.Rank, false, e.Code)
	}
	effects := j.effects
	j.effects = nil
	return effects
}

func (j *Join) verified(ok bool) joinInput {
	switch {
	case !ok:
		return joinVerifiedBad
	case j.all(func(r *joinRank) bool { return r.ready }) || j.without.Missing(guard.AllVerified):
		return joinVerifiedAll
	}
	return joinVerified
}

func (j *Join) ended(code Code) joinInput {
	switch {
	case code != CodeDone:
		return joinFailed
	case j.all(func(r *joinRank) bool { return r.ended }):
		return joinDoneAll
	}
	return joinDone
}

func (j *Join) all(is func(*joinRank) bool) bool {
	for i := range j.ranks {
		if !is(&j.ranks[i]) {
			return false
		}
	}
	return true
}

// apply looks up the table's cell and does it.
func (j *Join) apply(input joinInput, rank uint8, ok bool, code Code) {
	row := joinTable[j.state][input]
	for _, act := range row.acts {
		switch act {
		case joinPassOne:
			j.pass(int(rank), ok)
		case joinPassHeld:
			for i := range j.ranks {
				if j.ranks[i].held {
					j.pass(i, j.ranks[i].ready)
				}
			}
		case joinCancelOthers:
			for i := range j.ranks {
				if !j.ranks[i].ended && !j.without.Missing(guard.OneEnds) {
					j.effects = append(j.effects, JoinEffect{Kind: JoinCancel, Rank: uint8(i)})
				}
			}
		case joinAnswers:
			j.effects = append(j.effects, JoinEffect{Kind: JoinAnswer, Code: code})
		default:
		}
	}
	if row.next != 0 {
		j.state = row.next
	}
}

func (j *Join) pass(rank int, ok bool) {
	j.ranks[rank].held = false
	j.effects = append(j.effects, JoinEffect{Kind: JoinPass, Rank: uint8(rank), OK: ok})
}

// Clone is a copy that shares nothing that changes.
func (j *Join) Clone() *Join {
	c := *j
	c.effects, c.ranks = nil, append([]joinRank(nil), j.ranks...)
	return &c
}

// AppendKey appends a canonical form of the state: equal keys behave equally.
func (j *Join) AppendKey(key []byte) []byte {
	key = append(key, byte(j.state))
	for _, r := range j.ranks {
		key = append(key, bit(r.held)|bit(r.ready)<<1|bit(r.ended)<<2)
	}
	return key
}
