package transfercheck

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// In a world with ranks the decode nodes are the ranks of one worker, and so are
// the prefill nodes: they have one epoch, each its own machine, pool and links, to
// the same rank of the other side. A request is a transfer at each of them.

// ranked is a request at all ranks of decode.
type ranked struct {
	epoch    kv.Epoch
	sequence uint64
	request  uint8
	join     *transfer.Join
	answered bool
}

// rankReport is what a rank says to its request's join.
type rankReport struct {
	x     kv.TransferID
	event transfer.JoinEvent
}

func (c *Config) ranks() int { return max(1, c.Ranks) }

// rank is the shard of a node.
func (c *Config) rank(node int) uint8 {
	if c.ranks() > 1 {
		return uint8(node)
	}
	return 0
}

// home is the decode node of a transfer.
func (w *World) home(x kv.TransferID) int {
	if w.config.ranks() > 1 {
		return int(x.Rank)
	}
	return int(x.Epoch & 0xf)
}

// nodeEpoch is the node's part of an epoch: ranks of one worker have it in common.
func (c *Config) nodeEpoch(node int) int {
	if c.ranks() > 1 {
		return 0
	}
	return node
}

// paired reports whether two nodes have a link.
func (w *World) paired(d, p int) bool { return w.config.ranks() == 1 || d == p }

// submitRanks lists how a request can start at all ranks at once.
func (w *World) submitRanks(list []Action, r, need int) []Action {
	starts := [][]kv.Slot{nil}
	for rank := range w.config.ranks() {
		if w.healthy(uint8(rank), uint8(rank)) == nil {
			return list
		}
		var more [][]kv.Slot
		for _, start := range starts {
			for _, slots := range choices(w.freeSlots(rank), need) {
				more = append(more, slices.Concat(start, slots))
			}
		}
		starts = more
	}
	for _, slots := range starts {
		list = append(list, Action{kind: submit, a: r, b: 0, slots: slots})
	}
	return list
}

// openRanks opens a request's transfer at each rank.
func (w *World) openRanks(r int, slots []kv.Slot) {
	need := w.config.Requests[r]
	w.ranked = append(slices.Clip(w.ranked), ranked{epoch: w.decodes[0].epoch, sequence: w.decodes[0].opened + 1, request: uint8(r + 1),
		join: transfer.NewJoin(w.config.ranks()).Without(w.config.Without)})
	for rank := range w.config.ranks() {
		w.open(uint8(rank), uint8(rank), r, slots[rank*need:][:need], ticket{boot: 1})
	}
}

// tellRank keeps what a rank reports until its machine's step is over.
func (w *World) tellRank(x kv.TransferID, event transfer.JoinEvent) {
	w.due = append(w.due, rankReport{x, event})
}

// settleRanks gives joins what ranks have reported, and does what they ask for.
func (w *World) settleRanks() {
	for len(w.due) > 0 {
		next := w.due[0]
		w.due = w.due[1:]
		w.stepJoin(next.x, next.event)
	}
	w.due = nil
}

func (w *World) stepJoin(x kv.TransferID, event transfer.JoinEvent) {
	i := slices.IndexFunc(w.ranked, func(q ranked) bool { return q.epoch == x.Epoch && q.sequence == x.Sequence })
	w.ranked = slices.Clone(w.ranked)
	q := &w.ranked[i]
	q.join = q.join.Clone()
	for _, e := range q.join.Step(event) {
		x.Rank = e.Rank
		switch e.Kind {
		case transfer.JoinPass:
			w.stepTarget(e.Rank, transfer.Verified{X: x, OK: e.OK})
		case transfer.JoinCancel:
			w.stepTarget(e.Rank, transfer.Cancel{X: x})
		case transfer.JoinAnswer:
			w.answerRanked(i, e.Code)
		}
	}
}

func (w *World) answerRanked(i int, code transfer.Code) {
	q := &w.ranked[i]
	if q.answered {
		w.fail("OneOutcome: a request with ranks is answered twice")
	}
	q.answered = true
	w.settleRequest(q.request, code)
}

// rankOf is the job of a sequence at a rank, or nil.
func (w *World) rankOf(x kv.TransferID, rank int) *job {
	x.Rank = uint8(rank)
	return w.decodes[rank].job(x)
}

// startedAlone: a rank starts when the pages of every rank have been verified.
func (w *World) startedAlone(j *job) {
	for rank := range w.config.ranks() {
		if other := w.rankOf(j.x, rank); w.config.ranks() > 1 && (other == nil || !other.verified) {
			w.fail(fmt.Sprintf("AllRanks: %s starts, the pages of rank %d are not verified", showX(j.x), rank))
		}
	}
}

// endTogether: no rank goes on when its request has been answered.
func endTogether(w *World) error {
	for _, q := range w.ranked {
		for rank := range w.config.ranks() {
			j := w.rankOf(kv.TransferID{Epoch: q.epoch, Sequence: q.sequence}, rank)
			if q.answered && j != nil && !j.answered {
				return fmt.Errorf("%s goes on, its request has been answered", showX(j.x))
			}
		}
	}
	return nil
}

// forgetRanked drops requests of which no rank has anything left.
func (w *World) forgetRanked() {
	w.ranked = slices.DeleteFunc(slices.Clone(w.ranked), func(q ranked) bool {
		for rank := range w.config.ranks() {
			if w.rankOf(kv.TransferID{Epoch: q.epoch, Sequence: q.sequence}, rank) != nil {
				return false
			}
		}
		return q.answered
	})
}

func (w *World) ranksKey(key []byte) []byte {
	for _, q := range w.ranked {
		key = q.join.AppendKey(append(key, 0xf8, q.request, byte(q.sequence), bit(q.answered)))
	}
	return key
}

// RankWorlds are the configurations with two ranks.
func RankWorlds(t Transport) []Config {
	two := func(name string, vary func(*Config)) Config {
		return small(name, t, func(c *Config) {
			c.Ranks, c.Prefills, c.Decodes, c.Requests, c.Pages, c.SourcePages = 2, 2, 2, []int{1}, 1, 1
			vary(c)
		})
	}
	return []Config{
		two("two ranks", func(*Config) {}),
		two("two ranks, crash of prefill", func(c *Config) { c.PrefillCrashes = 1 }),
		two("two ranks, false suspicion", func(c *Config) { c.Suspicions = 1 }),
		two("two ranks, messages for the other", func(c *Config) { c.Strays = 1 }),
		two("two ranks, two requests", func(c *Config) { c.Requests = []int{1, 1} }),
	}
}

// rankProofs shows what the guards of ranks are for.
func rankProofs() []Proof {
	world := RankWorlds(OneSided)
	return []Proof{
		{guard.Rank, "ProofBeforeRelease", nil, "a message reaches another rank", world[3]},
		{guard.AllVerified, "AllRanks", nil, "", world[0]},
		{guard.OneEnds, "EndTogether", nil, "", world[0]},
	}
}
