package kv

import "fmt"

// Layout gives the shape of a page's body. All values are f16.
//
// Leaf l, of LeafBytes, holds for layer l first K of all KV heads as
// [head][KeyDim][PageTokens], then V of all KV heads as [head][PageTokens][ValueDim].
type Layout struct {
	Layers   int
	KVHeads  int
	KeyDim   int // values of a key vector, per head
	ValueDim int // values of a value vector, per head
}

const f16Bytes = 2

// LayoutBounds keeps sizes within what headers, frames and memory can carry.
const (
	LayersMax    = 4096
	LeafBytesMax = 16 << 20
)

// Validate reports the first dimension that no page can have.
func (l Layout) Validate() error {
	for _, d := range []struct {
		name  string
		value int
		max   int
	}{{"layers", l.Layers, LayersMax}, {"KV heads", l.KVHeads, 4096}, {"key dim", l.KeyDim, 65536}, {"value dim", l.ValueDim, 65536}} {
		if d.value < 1 || d.value > d.max {
			return fmt.Errorf("page layout: %s is %d, must be 1 to %d", d.name, d.value, d.max)
		}
	}
	if l.LeafBytes() > LeafBytesMax {
		return fmt.Errorf("page layout: a leaf of %d bytes is over the limit of %d", l.LeafBytes(), LeafBytesMax)
	}
	return nil
}

// KeyBytes is the size of the K part of a leaf.
func (l Layout) KeyBytes() int { return l.KVHeads * l.KeyDim * PageTokens * f16Bytes }

// LeafBytes is the size of one layer's K and V in a page.
func (l Layout) LeafBytes() int { return l.KeyBytes() + l.KVHeads*l.ValueDim*PageTokens*f16Bytes }

// BodyBytes is the size of all leaves.
func (l Layout) BodyBytes() int { return l.Layers * l.LeafBytes() }

// FrameBytes is what travels of a page: header, body and trailer.
func (l Layout) FrameBytes() int { return HeaderBytes + l.BodyBytes() + TrailerBytes }

// StrideBytes is the distance of two pages in a slab, a multiple of 64.
func (l Layout) StrideBytes() int { return (l.FrameBytes() + 63) &^ 63 }

// ID is the number that page headers carry for this layout: 16 bits of a hash of
// the dimensions. It tells layouts apart in a record; what keeps different ones
// from pairing is the fingerprint.
func (l Layout) ID() uint16 {
	h := uint32(2166136261)
	for _, v := range []int{l.Layers, l.KVHeads, l.KeyDim, l.ValueDim, PageTokens, WireVersion} {
		for shift := 0; shift < 32; shift += 8 {
			h = (h ^ uint32(v)>>shift&0xff) * 16777619
		}
	}
	return uint16(h ^ h>>16)
}
