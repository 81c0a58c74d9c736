package worker

import (
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/slab"
)

// BenchmarkPageGuards is what the guards on a page's bytes take, each alone, at the
// shape of a small real model: 30 layers of 3 heads of 64 dimensions. The pages don't
// fit a cache together, as they would in a busy pool.
func BenchmarkPageGuards(b *testing.B) {
	layout := kv.Layout{Layers: 30, KVHeads: 3, KeyDim: 64, ValueDim: 64}
	const pages = 64
	s, err := slab.New(layout, pages)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	key := randomKey()
	seal := func(slot kv.Slot) kv.Tag {
		tag := kv.Tag{Layout: layout.ID(), Tokens: kv.PageTokens, Transfer: kv.TransferID{Epoch: 1, Sequence: 1}, Generation: 1, Tenant: 1, Slot: slot}
		for layer := range layout.Layers {
			s.HashLeaf(slot, layer)
		}
		s.Seal(slot, tag, key)
		return tag
	}
	each := func(name string, guard func(kv.Slot)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(layout.FrameBytes()))
			for i := 0; b.Loop(); i++ {
				guard(kv.Slot(i % pages))
			}
		})
	}
	each("zero", s.Zero)
	each("hash and seal", func(slot kv.Slot) { seal(slot) })
	tags := make([]kv.Tag, pages)
	for i := range tags {
		tags[i] = seal(kv.Slot(i))
	}
	each("verify", func(slot kv.Slot) {
		if !s.Verify(slot, tags[slot], key) {
			b.Fatal("a sound page is refused")
		}
	})
}
