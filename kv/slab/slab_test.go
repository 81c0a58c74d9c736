package slab

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv"
)

var layout = kv.Layout{Layers: 3, KVHeads: 2, KeyDim: 4, ValueDim: 6}

var key = kv.Key{1, 2, 3}

func newSlab(t testing.TB, pages int) *Slab {
	t.Helper()
	s, err := New(layout, pages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func tagOf(slot kv.Slot, tokens int) kv.Tag {
	return kv.Tag{Layout: layout.ID(), Tokens: uint8(tokens), Transfer: kv.TransferID{Epoch: 7, Sequence: 8},
		Generation: 9, Tenant: 10, Slot: slot, Block: 11}
}

// put writes one f16 of a token's K or V as the layout says.
func put(s *Slab, slot kv.Slot, layer, head, token, dim int, isValue bool, v uint16) {
	leaf := s.Leaf(slot, layer)
	at := (head*layout.KeyDim+dim)*kv.PageTokens + token
	if isValue {
		at = layout.KeyBytes()/2 + (head*kv.PageTokens+token)*layout.ValueDim + dim
	}
	binary.LittleEndian.PutUint16(leaf[2*at:], v)
}

func eachValue(tokensFrom, tokensTo int, visit func(layer, head, token, dim int, isValue bool)) {
	for layer := range layout.Layers {
		for head := range layout.KVHeads {
			for token := tokensFrom; token < tokensTo; token++ {
				for dim := range layout.KeyDim {
					visit(layer, head, token, dim, false)
				}
				for dim := range layout.ValueDim {
					visit(layer, head, token, dim, true)
				}
			}
		}
	}
}

// write fills a page's first tokens, takes the digests and seals it.
func write(s *Slab, slot kv.Slot, tokens int) kv.Tag {
	s.Zero(slot)
	eachValue(0, tokens, func(layer, head, token, dim int, isValue bool) {
		put(s, slot, layer, head, token, dim, isValue, uint16(0x3c00+token+dim))
	})
	reseal(s, slot, tagOf(slot, tokens))
	return tagOf(slot, tokens)
}

func reseal(s *Slab, slot kv.Slot, tag kv.Tag) {
	for layer := range layout.Layers {
		s.HashLeaf(slot, layer)
	}
	s.Seal(slot, tag, key)
}

func TestPageOfEveryExtentVerifies(t *testing.T) {
	s := newSlab(t, 2)
	for tokens := 1; tokens <= kv.PageTokens; tokens++ {
		tag := write(s, 1, tokens)
		if got := s.Check(1, tag, key); got != Sound || !s.Verify(1, tag, key) {
			t.Errorf("a page of %d tokens is %v, want sound", tokens, got)
		}
		if !s.TagOK(1, &tag) {
			t.Errorf("a page of %d tokens does not carry its own tag", tokens)
		}
	}
}

// A NaN or a foreign byte in any lane beyond the extent is found, although the
// sender's digest covers it.
func TestLanesBeyondTheExtentMustBeZero(t *testing.T) {
	s := newSlab(t, 1)
	for tokens := 1; tokens < kv.PageTokens; tokens++ {
		for _, value := range []uint16{0x7e00, 0x0001, 0x8000} {
			missed := 0
			eachValue(tokens, kv.PageTokens, func(layer, head, token, dim int, isValue bool) {
				tag := write(s, 0, tokens)
				put(s, 0, layer, head, token, dim, isValue, value)
				reseal(s, 0, tag)
				if s.Check(0, tag, key) != Unwritten {
					missed++
				}
			})
			if missed != 0 {
				t.Errorf("value %04x beyond extent %d is missed in %d lanes", value, tokens, missed)
			}
		}
	}
}

// Each single bit of the frame matters: header and trailer by tag or sum, body by sum.
func TestEveryBitOfAFrameMatters(t *testing.T) {
	s := newSlab(t, 1)
	tag := write(s, 0, 5)
	page := s.Page(0)
	for bit := range len(page) * 8 {
		page[bit/8] ^= 1 << (bit % 8)
		if s.Verify(0, tag, key) {
			t.Fatalf("bit %d of byte %d is flipped and the page verifies", bit%8, bit/8)
		}
		page[bit/8] ^= 1 << (bit % 8)
	}
	if !s.Verify(0, tag, key) {
		t.Fatal("the restored page does not verify")
	}
}

func TestVerdicts(t *testing.T) {
	change := func(f func(*kv.Tag)) kv.Tag {
		tag := tagOf(0, 5)
		f(&tag)
		return tag
	}
	for _, c := range []struct {
		name string
		want kv.Tag
		key  kv.Key
		harm func(page []byte)
		is   Verdict
	}{
		{"as granted", tagOf(0, 5), key, nil, Sound},
		{"zero key", tagOf(0, 5), kv.Key{}, nil, Unbound},
		{"zero transfer", change(func(t *kv.Tag) { t.Transfer = kv.TransferID{} }), key, nil, Unbound},
		{"zero generation", change(func(t *kv.Tag) { t.Generation = 0 }), key, nil, Unbound},
		{"zero tenant", change(func(t *kv.Tag) { t.Tenant = 0 }), key, nil, Unbound},
		{"zero extent", change(func(t *kv.Tag) { t.Tokens = 0 }), key, nil, Unbound},
		{"another slot", change(func(t *kv.Tag) { t.Slot = 1 }), key, nil, Unbound},
		{"another tenant", change(func(t *kv.Tag) { t.Tenant++ }), key, nil, ForeignTag},
		{"another generation", change(func(t *kv.Tag) { t.Generation++ }), key, nil, ForeignTag},
		{"another extent", change(func(t *kv.Tag) { t.Tokens++ }), key, nil, ForeignTag},
		{"another key", tagOf(0, 5), kv.Key{9}, nil, WrongSum},
		{"torn tail", tagOf(0, 5), key, func(p []byte) { p[len(p)-1] ^= 1 }, TornTag},
		{"changed body", tagOf(0, 5), key, func(p []byte) { p[kv.HeaderBytes] ^= 1 }, WrongSum},
	} {
		s := newSlab(t, 2)
		write(s, 0, 5)
		if c.harm != nil {
			c.harm(s.Page(0))
		}
		if got := s.Check(0, c.want, c.key); got != c.is {
			t.Errorf("%s: the page is %v, want %v", c.name, got, c.is)
		}
	}
}

func TestZeroAndPoison(t *testing.T) {
	s := newSlab(t, 3)
	tag := write(s, 1, 16)
	s.Poison(1)
	if s.TagOK(1, &tag) || s.Verify(1, tag, key) {
		t.Error("a poisoned page verifies")
	}
	s.Zero(1)
	for i, b := range s.Page(1) {
		if b != 0 {
			t.Fatalf("byte %d of a zeroed page is %d", i, b)
		}
	}
	for _, slot := range []kv.Slot{0, 2} {
		if !allZero(s.Page(slot)) {
			t.Errorf("page %d changed with its neighbour", slot)
		}
	}
}

func TestRootNeedsEveryLeaf(t *testing.T) {
	s := newSlab(t, 1)
	s.HashLeaf(0, 0)
	defer func() {
		if recover() == nil {
			t.Fatal("a root was made although two leaves were never hashed")
		}
	}()
	s.Root(0)
}

func TestKeptDigestsGiveTheRoot(t *testing.T) {
	s := newSlab(t, 1)
	write(s, 0, 16)
	var leaves []kv.Digest
	for layer := range layout.Layers {
		leaves = append(leaves, kv.LeafDigest(s.Leaf(0, layer)))
	}
	if s.Root(0) != kv.Root(leaves) {
		t.Fatal("the root of the kept digests is not that of the bytes")
	}
}

func TestSizesAreBounded(t *testing.T) {
	for _, pages := range []int{-1, 0, BytesMax/layout.StrideBytes() + 1} {
		if s, err := New(layout, pages); err == nil {
			t.Errorf("a slab of %d pages was made", s.Len())
		}
	}
	if _, err := New(kv.Layout{}, 1); err == nil {
		t.Error("a slab without a layout was made")
	}
}

func BenchmarkTagOK(b *testing.B) {
	s := newSlab(b, 1)
	tag := write(s, 0, 16)
	for b.Loop() {
		if !s.TagOK(0, &tag) {
			b.Fatal("no match")
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, l := range []kv.Layout{{Layers: 30, KVHeads: 3, KeyDim: 64, ValueDim: 64}} {
		s, err := New(l, 1)
		if err != nil {
			b.Fatal(err)
		}
		tag := kv.Tag{Layout: l.ID(), Tokens: 16, Transfer: kv.TransferID{Epoch: 7, Sequence: 8}, Generation: 9, Tenant: 10}
		for layer := range l.Layers {
			s.HashLeaf(0, layer)
		}
		s.Seal(0, tag, key)
		b.Run(fmt.Sprintf("%dKiB", l.FrameBytes()>>10), func(b *testing.B) {
			b.SetBytes(int64(l.BodyBytes()))
			for b.Loop() {
				if !s.Verify(0, tag, key) {
					b.Fatal("not sound")
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
