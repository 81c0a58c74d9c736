package transfer

import (
	"encoding/binary"
	"math/bits"
)

// bitset marks blocks of one transfer.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) clear(i int)    { b[i/64] &^= 1 << (i % 64) }

func (b bitset) count() (n int) {
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

func (b bitset) clone() bitset { return append(bitset(nil), b...) }

func (b bitset) append(key []byte) []byte {
	for _, w := range b {
		key = binary.AppendUvarint(key, w)
	}
	return key
}
