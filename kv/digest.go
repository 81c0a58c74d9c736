package kv

import (
	"encoding/binary"

	"github.com/dchest/siphash"
	"github.com/zeebo/xxh3"
)

// Digest is a 128-bit hash: XXH3-128 of a leaf, or of the leaves' digests.
type Digest [16]byte

// Sum is SipHash-2-4-128 under a Key: it binds a body to its tag.
type Sum [16]byte

// Key is a secret under which sums are made: a grant's while a page travels, the
// pool's own while it stays. A zero key is refused wherever one is expected.
type Key [16]byte

// IsZero reports whether the key was never set.
func (k Key) IsZero() bool { return k == Key{} }

// LeafDigest is the XXH3-128 of one leaf's bytes.
func LeafDigest(leaf []byte) Digest {
	h := xxh3.Hash128(leaf)
	return h.Bytes()
}

// Root is the XXH3-128 over the leaves' digests in order.
func Root(leaves []Digest) Digest {
	h := xxh3.New128()
	for i := range leaves {
		// A Hasher never returns an error from Write.
		_, _ = h.Write(leaves[i][:])
	}
	return h.Sum128().Bytes()
}

// Bind is the sum over a tag and a body root, SipHash-2-4-128(key, tag || root).
// The receiver computes it from the tag it expects and the body it finds, so that
// one comparison covers corruption, truncation, misplacement, stale data and a
// wrong owner.
func Bind(key Key, tag Tag, root Digest) Sum {
	var header [HeaderBytes]byte
	tag.Put(header[:])
	copy(header[tagBytes:], root[:])
	return sipSum(key, header[:])
}

// PutSum writes a sum into a header.
func PutSum(header []byte, s Sum) { copy(header[tagBytes:HeaderBytes], s[:]) }

// HeaderSum reads the sum of a header.
func HeaderSum(header []byte) (s Sum) {
	copy(s[:], header[tagBytes:HeaderBytes])
	return s
}

// TokenDigest is a keyed digest of token ids, SipHash-2-4-128 over their
// little-endian 32-bit forms. Both workers compute it from the job that each of
// them got, under the grant's key, and the two are compared before commit.
func TokenDigest(key Key, tokens []int32) Sum {
	b := make([]byte, 4*len(tokens))
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(t))
	}
	return sipSum(key, b)
}

func sipSum(key Key, b []byte) (s Sum) {
	lo, hi := siphash.Hash128(binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]), b)
	binary.LittleEndian.PutUint64(s[:], lo)
	binary.LittleEndian.PutUint64(s[8:], hi)
	return s
}
