package tokenizer

import "math"

// pair is two symbols next to each other.
type pair struct{ left, right symbol }

// noRank is the rank of a pair that doesn't merge.
const noRank int32 = math.MaxInt32

// pairTable maps pairs to their merge. It is an open-addressing table, at most half full: the lookup is the inner loop
// of encoding.
type pairTable struct {
	slots []pairSlot
	shift uint // of the hash, so that it indexes slots
}

type pairSlot struct {
	pair   pair
	rank   int32 // noRank in an empty slot
	joined symbol
}

// newPairTable returns a table for at most count pairs.
func newPairTable(count int) pairTable {
	bits := uint(4)
	for 1<<bits < 2*count {
		bits++
	}
	t := pairTable{slots: make([]pairSlot, 1<<bits), shift: 64 - bits}
	for i := range t.slots {
		t.slots[i].rank = noRank
	}
	return t
}

func (t *pairTable) home(p pair) uint64 {
	key := uint64(uint32(p.left))<<32 | uint64(uint32(p.right))
	key ^= key >> 29
	return key * 0x9E3779B97F4A7C15 >> t.shift
}

// add enters a pair. The first rank given to a pair stays.
func (t *pairTable) add(p pair, rank int32, joined symbol) {
	mask := uint64(len(t.slots) - 1)
	for i := t.home(p); ; i = (i + 1) & mask {
		slot := &t.slots[i]
		if slot.rank == noRank {
			*slot = pairSlot{p, rank, joined}
			return
		}
		if slot.pair == p {
			return
		}
	}
}

// find returns the pair's rank and what it merges into, or noRank.
func (t *pairTable) find(p pair) (int32, symbol) {
	mask := uint64(len(t.slots) - 1)
	for i := t.home(p); ; i = (i + 1) & mask {
		slot := &t.slots[i]
		if slot.rank == noRank || slot.pair == p {
			return slot.rank, slot.joined
		}
	}
}

// candidate is a merge that was possible when it was queued: its rank above the index of its left symbol. As numbers,
// candidates sort by rank, then from left to right.
type candidate uint64

func newCandidate(rank uint32, left int) candidate {
	return candidate(rank)<<32 | candidate(uint32(left))
}

func (c candidate) rank() uint32 { return uint32(c >> 32) }
func (c candidate) left() int    { return int(uint32(c)) }

// mergeQueue is a binary heap of candidates, least first.
type mergeQueue []candidate

func (q *mergeQueue) push(c candidate) {
	h := append(*q, c)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if c >= h[parent] {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = c
	*q = h
}

// pop removes and returns the first candidate. Requires: the queue is not empty.
func (q *mergeQueue) pop() candidate {
	h := *q
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= last {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
