// Package slab holds the pages' bytes.
//
// A slab is one stretch of equal pages, laid out as package kv describes.
// Beside the bytes it keeps the digest of each leaf, so that nothing is hashed
// twice. It never decides whose a page is: that is the pool's.
//
// Calls on different slots may run at the same time, and so may HashLeaf on
// different leaves of one slot.
package slab

import (
	"fmt"
	"os"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
)

// BytesMax bounds a slab: 16 TiB.
const BytesMax = 1 << 44

// Slab is the bytes of a pool's pages.
type Slab struct {
	layout kv.Layout
	id     uint16
	stride int // bytes from page to page
	frame  int // bytes of a page
	pages  int
	bytes  []byte
	file   *os.File    // the memory file, or nil
	leaves []kv.Digest // kept digests, by slot and layer; zero: not taken
}

// New makes a slab of zero pages in memory of this process alone.
func New(layout kv.Layout, pages int) (*Slab, error) {
	return allocateSlab(layout, pages, func(n int) ([]byte, *os.File, error) {
		bytes, err := allocate(n)
		return bytes, nil, err
	})
}

// NewShared makes a slab of zero pages in a memory file, for transports whose peers
// map it. Its pages are small ones under most systems' settings, so that reading
// long contexts is slower.
func NewShared(layout kv.Layout, pages int) (*Slab, error) {
	return allocateSlab(layout, pages, allocateShared)
}

func allocateSlab(layout kv.Layout, pages int, allocate func(n int) ([]byte, *os.File, error)) (*Slab, error) {
	if err := layout.Validate(); err != nil {
		return nil, err
	}
	if pages < 1 || pages > BytesMax/layout.StrideBytes() {
		return nil, fmt.Errorf("slab: %d pages of %d bytes, must be 1 to %d", pages, layout.StrideBytes(), BytesMax/layout.StrideBytes())
	}
	s := &Slab{layout: layout, id: layout.ID(), stride: layout.StrideBytes(), frame: layout.FrameBytes(), pages: pages, leaves: make([]kv.Digest, pages*layout.Layers)}
	var err error
	s.bytes, s.file, err = allocate(pages * s.stride)
	if err != nil {
		return nil, fmt.Errorf("slab: %d pages of %d bytes: %w", pages, s.stride, err)
	}
	return s, nil
}

// Close gives the memory back. Requires: nobody reads or writes a page any more.
func (s *Slab) Close() error {
	err := release(s.bytes, s.file)
	s.bytes, s.file = nil, nil
	return err
}

// Layout is the shape of the pages.
func (s *Slab) Layout() kv.Layout { return s.layout }

// Len is the number of pages.
func (s *Slab) Len() int { return s.pages }

// File is the memory file of a shared slab, to be passed to a peer that maps it, or
// nil. It is sealed against shrinking and growing. Owner: the slab.
func (s *Slab) File() *os.File { return s.file }

// Page is what travels of a page: header, body and trailer.
func (s *Slab) Page(slot kv.Slot) []byte {
	at := int(slot) * s.stride
	return s.bytes[at : at+s.frame : at+s.frame]
}

// Header is the first 64 bytes of a page.
func (s *Slab) Header(slot kv.Slot) []byte { return s.Page(slot)[:kv.HeaderBytes:kv.HeaderBytes] }

// Body is all leaves of a page.
func (s *Slab) Body(slot kv.Slot) []byte {
	end := kv.HeaderBytes + s.layout.BodyBytes()
	return s.Page(slot)[kv.HeaderBytes:end:end]
}

// Leaf is one layer's K, then V.
func (s *Slab) Leaf(slot kv.Slot, layer int) []byte {
	n := s.layout.LeafBytes()
	return s.Body(slot)[layer*n : (layer+1)*n : (layer+1)*n]
}

// Zero makes every byte of a page zero and forgets its digests. A page is zeroed
// when it is taken, before anything reads, writes or sends it.
func (s *Slab) Zero(slot kv.Slot) {
	clear(s.Page(slot))
	clear(s.kept(slot))
}

// Poison fills a page with f16 NaN and forgets its digests. Checked builds and
// tests poison pages that are freed, so that a stale read shows.
func (s *Slab) Poison(slot kv.Slot) {
	page := s.Page(slot)
	for i := range page {
		page[i] = 0xff
	}
	clear(s.kept(slot))
}

// SetTag writes the tag at the page's head and tail. The sum stays as it is.
func (s *Slab) SetTag(slot kv.Slot, tag kv.Tag) {
	page := s.Page(slot)
	tag.Put(page)
	tag.PutTrailer(page[len(page)-kv.TrailerBytes:])
}

// SetSum writes the sum into the page's header.
func (s *Slab) SetSum(slot kv.Slot, sum kv.Sum) { kv.PutSum(s.Page(slot), sum) }

// TagOK reports whether the page carries exactly this tag at head and tail,
// extent included. It is meant for each page at each step.
func (s *Slab) TagOK(slot kv.Slot, want *kv.Tag) bool {
	page := s.Page(slot)
	return want.Matches(page) && want.MatchesTrailer(page[len(page)-kv.TrailerBytes:])
}

// HashLeaf takes the digest of one leaf and keeps it.
func (s *Slab) HashLeaf(slot kv.Slot, layer int) {
	s.kept(slot)[layer] = kv.LeafDigest(s.Leaf(slot, layer))
}

// Root is the digest over the kept leaf digests. Requires: each leaf's was taken
// since the page was zeroed.
func (s *Slab) Root(slot kv.Slot) kv.Digest {
	kept := s.kept(slot)
	for i := range kept {
		assert.That(kept[i] != kv.Digest{}, "a root is made of digests that were taken")
	}
	return kv.Root(kept)
}

// Seal writes the tag, and the sum that binds the kept digests to it under key.
func (s *Slab) Seal(slot kv.Slot, tag kv.Tag, key kv.Key) {
	assert.That(!key.IsZero(), "a page is sealed under a key")
	s.SetTag(slot, tag)
	s.SetSum(slot, kv.Bind(key, tag, s.Root(slot)))
}

// Verify reports whether a page is exactly what want and key say, see Check.
func (s *Slab) Verify(slot kv.Slot, want kv.Tag, key kv.Key) bool {
	return s.Check(slot, want, key) == Sound
}

// Verdict says what is wrong with a page.
type Verdict uint8

// The verdicts, in the order in which they are looked for.
const (
	Sound      Verdict = iota
	Unbound            // want or key is zero where nothing may be: there is nothing to verify against
	ForeignTag         // the head's tag is not want
	TornTag            // the tail's tag is not want
	WrongSum           // the sum does not bind the bytes that are there to want
	Unwritten          // bytes beyond the written extent are not zero
)

var verdictNames = []string{"sound", "unbound", "foreign tag", "torn tag", "wrong sum", "unwritten lanes not zero"}

// String names the verdict.
func (v Verdict) String() string { return verdictNames[v] }

// Check takes and keeps the digest of every leaf from the bytes that are there,
// and holds tags, sum and the zeros beyond the extent against want. Requires:
// nobody can write the page.
func (s *Slab) Check(slot kv.Slot, want kv.Tag, key kv.Key) Verdict {
	if key.IsZero() || want.Transfer.IsZero() || want.Generation == 0 || want.Tenant == 0 || want.Tokens == 0 || want.Tokens > kv.PageTokens || want.Slot != slot {
		return Unbound
	}
	page := s.Page(slot)
	if !want.Matches(page) {
		return ForeignTag
	}
	if !want.MatchesTrailer(page[len(page)-kv.TrailerBytes:]) {
		return TornTag
	}
	for layer := range s.layout.Layers {
		s.HashLeaf(slot, layer)
	}
	if kv.Bind(key, want, s.Root(slot)) != kv.HeaderSum(page) {
		return WrongSum
	}
	if !s.zeroBeyond(slot, int(want.Tokens)) {
		return Unwritten
	}
	return Sound
}

// zeroBeyond reports whether every lane from extent on is zero: the last columns
// of each K row, the last rows of each head's V.
func (s *Slab) zeroBeyond(slot kv.Slot, extent int) bool {
	if extent == kv.PageTokens {
		return true
	}
	const f16Bytes = 2
	rowK, headV := kv.PageTokens*f16Bytes, s.layout.ValueDim*kv.PageTokens*f16Bytes
	for layer := range s.layout.Layers {
		leaf := s.Leaf(slot, layer)
		k, v := leaf[:s.layout.KeyBytes()], leaf[s.layout.KeyBytes():]
		for at := 0; at < len(k); at += rowK {
			if !allZero(k[at+extent*f16Bytes : at+rowK]) {
				return false
			}
		}
		for at := 0; at < len(v); at += headV {
			if !allZero(v[at+extent*s.layout.ValueDim*f16Bytes : at+headV]) {
				return false
			}
		}
	}
	return true
}

func allZero(b []byte) bool {
	var or byte
	for _, x := range b {
		or |= x
	}
	return or == 0
}

func (s *Slab) kept(slot kv.Slot) []kv.Digest {
	n := s.layout.Layers
	return s.leaves[int(slot)*n : (int(slot)+1)*n : (int(slot)+1)*n]
}
