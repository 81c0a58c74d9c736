package transfer

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// bitset marks blocks of one transfer. The first 64 need no memory of their own.
type bitset struct {
	first uint64
	rest  []uint64
}

func newBitset(n int) bitset {
	if n <= 64 {
		return bitset{}
	}
	return bitset{rest: make([]uint64, (n-1)/64)}
}

// word is where a block's bit is.
func (b *bitset) word(i int) *uint64 {
	if i < 64 {
		return &b.first
	}
	return &b.rest[i/64-1]
}

func (b *bitset) has(i int) bool { return *b.word(i)>>(i%64)&1 != 0 }
func (b *bitset) set(i int)      { *b.word(i) |= 1 << (i % 64) }
func (b *bitset) clear(i int)    { *b.word(i) &^= 1 << (i % 64) }

func (b *bitset) count() int {
	n := bits.OnesCount64(b.first)
	for _, w := range b.rest {
		n += bits.OnesCount64(w)
	}
	return n
}

func (b *bitset) clone() bitset { return bitset{b.first, slices.Clone(b.rest)} }

func (b *bitset) append(key []byte) []byte {
	key = binary.AppendUvarint(key, b.first)
	for _, w := range b.rest {
		key = binary.AppendUvarint(key, w)
	}
	return key
}
