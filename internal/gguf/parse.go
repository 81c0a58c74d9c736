package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// What a header and the smallest entries take, in bytes. They bound every
// count a file states before anything is read for it.
const (
	headerSize      = 4 + 4 + 8 + 8
	pairSizeMin     = 8 + 1 + 4 + 1      // name length, name, kind, value
	tensorSizeMin   = 8 + 1 + 4 + 8 + 12 // name length, name, dims count, one dim, type, offset
	textSizeMin     = 8
	keySizeMax      = 1<<16 - 1
	dimsMax         = 4
	alignmentMin    = 1
	alignmentMax    = 1 << 20
	alignmentKey    = "general.alignment"
	magic           = "GGUF"
	magicBigEndian3 = 3 << 24
)

// Parse reads a GGUF file from memory. The File refers to data, which must not
// change afterwards.
func Parse(data []byte) (*File, error) {
	p := &parser{data: data}
	f := &File{data: data, byName: map[string]int{}}
	tensors, pairs := p.header(f)
	p.metadata(f, pairs)
	p.alignment(f)
	p.tensorTable(f, tensors)
	p.place(f)
	if p.err != nil {
		return nil, p.err
	}
	return f, nil
}

// parser walks the bytes. After its first error every read yields zero values.
type parser struct {
	data []byte
	at   uint64
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("offset %d: %s", p.at, fmt.Sprintf(format, args...))
	}
}

func (p *parser) left() uint64 { return uint64(len(p.data)) - p.at }

func (p *parser) take(n uint64, what string) []byte {
	if p.err != nil {
		return nil
	}
	if n > p.left() {
		p.fail("%s needs %d bytes, the file has %d left", what, n, p.left())
		return nil
	}
	b := p.data[p.at : p.at+n]
	p.at += n
	return b
}

func (p *parser) uint32(what string) uint32 {
	if b := p.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (p *parser) uint64(what string) uint64 {
	if b := p.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads a number of entries that take at least sizeMin bytes each.
func (p *parser) count(sizeMin uint64, what string) uint64 {
	n := p.uint64(what)
	if p.err == nil && n > p.left()/sizeMin {
		p.fail("%s %d, at most %d fit into the %d bytes left", what, n, p.left()/sizeMin, p.left())
		return 0
	}
	return n
}

func (p *parser) header(f *File) (tensors, pairs uint64) {
	if m := p.take(4, "magic"); m != nil && string(m) != magic {
		p.at = 0
		p.fail("magic %q, want %q", m, magic)
	}
	f.Version = p.uint32("version")
	if p.err == nil && f.Version != 2 && f.Version != 3 {
		p.at -= 4
		if f.Version == magicBigEndian3 {
			p.fail("big-endian file, want little-endian")
		}
		p.fail("version %d, want 2 or 3", f.Version)
	}
	tensors = p.count(1, "tensor count")
	pairs = p.count(pairSizeMin, "metadata count")
	if p.err == nil && tensors > p.left()/tensorSizeMin {
		p.at = 8
		p.fail("tensor count %d, at most %d fit into the file's %d bytes", tensors, len(p.data)/tensorSizeMin, len(p.data))
	}
	return tensors, pairs
}

func (p *parser) metadata(f *File, pairs uint64) {
	f.Metadata.values = map[string]value{}
	for i := uint64(0); i < pairs && p.err == nil; i++ {
		start := p.at
		key := p.name("metadata key")
		v := p.value()
		if p.err != nil {
			return
		}
		if _, dup := f.Metadata.values[key]; dup {
			p.at = start
			p.fail("metadata key %q twice", key)
			return
		}
		f.Metadata.keys = append(f.Metadata.keys, key)
		f.Metadata.values[key] = v
	}
}

func (p *parser) name(what string) string {
	n := p.uint64(what + " length")
	if p.err == nil && (n == 0 || n > keySizeMax) {
		p.fail("%s of %d bytes, want 1 to %d", what, n, keySizeMax)
	}
	return string(p.take(n, what))
}

func (p *parser) value() value {
	k := kind(p.uint32("value kind"))
	switch {
	case k == kindString:
		return value{kind: k, raw: p.take(p.uint64("string length"), "string")}
	case k == kindArray:
		return p.array()
	case k.size() > 0:
		return value{kind: k, raw: p.take(k.size(), "value")}
	}
	p.fail("value kind %d, want 0 to %d", k, kindFloat64)
	return value{}
}

func (p *parser) array() value {
	elem := kind(p.uint32("array kind"))
	switch {
	case elem == kindArray:
		p.fail("array of arrays, want an array of plain values")
	case elem > kindFloat64:
		p.fail("array kind %d, want 0 to %d", elem, kindFloat64)
	case elem == kindString:
		count := p.count(textSizeMin, "array count")
		start := p.at
		for i := uint64(0); i < count && p.err == nil; i++ {
			p.take(p.uint64("string length"), "string")
		}
		return value{kind: kindArray, elem: elem, count: count, raw: p.data[start:p.at]}
	}
	if p.err != nil {
		return value{}
	}
	count := p.count(elem.size(), "array count")
	return value{kind: kindArray, elem: elem, count: count, raw: p.take(count*elem.size(), "array")}
}

func (p *parser) alignment(f *File) {
	f.Alignment = AlignmentDefault
	if !f.Metadata.Has(alignmentKey) || p.err != nil {
		return
	}
	a, ok := f.Metadata.Int(alignmentKey)
	if !ok || a < alignmentMin || a > alignmentMax || a&(a-1) != 0 {
		p.fail("%s %d, want a power of two from %d to %d", alignmentKey, a, alignmentMin, alignmentMax)
		return
	}
	f.Alignment = uint64(a)
}

func (p *parser) tensorTable(f *File, count uint64) {
	for i := uint64(0); i < count && p.err == nil; i++ {
		start := p.at
		t, size := p.tensor(f.Alignment)
		if p.err != nil {
			return
		}
		if _, dup := f.byName[t.Name]; dup {
			p.at = start
			p.fail("tensor %q twice", t.Name)
			return
		}
		if size > uint64(len(p.data)) {
			p.at = start
			p.fail("tensor %q of %d bytes, the file has %d", t.Name, size, len(p.data))
			return
		}
		t.Data = p.data[:size] // place moves it to its offset
		f.byName[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
}

// tensor reads one row of the tensor table. Its Offset is still relative to
// the data section.
func (p *parser) tensor(alignment uint64) (t Tensor, size uint64) {
	t.Name = p.name("tensor name")
	n := p.uint32("dimension count")
	if p.err == nil && (n == 0 || n > dimsMax) {
		p.fail("tensor %q has %d dimensions, want 1 to %d", t.Name, n, dimsMax)
	}
	elements := uint64(1)
	for i := uint32(0); i < n && p.err == nil; i++ {
		elements = p.dim(&t, elements)
	}
	t.Type = Type(p.uint32("tensor type"))
	size = p.tensorSize(t, elements)
	t.Offset = p.uint64("tensor offset")
	if p.err == nil && t.Offset%alignment != 0 {
		p.fail("tensor %q at data offset %d, want a multiple of %d", t.Name, t.Offset, alignment)
	}
	return t, size
}

func (p *parser) dim(t *Tensor, elements uint64) uint64 {
	d := p.uint64("dimension")
	if p.err != nil {
		return 0
	}
	hi, product := bits.Mul64(elements, d)
	if d == 0 || hi != 0 || product > 1<<62 {
		p.fail("tensor %q dimension %d of %d, want 1 to %d", t.Name, len(t.Dims), d, uint64(1<<62)/elements)
		return 0
	}
	t.Dims = append(t.Dims, int(d))
	return product
}

func (p *parser) tensorSize(t Tensor, elements uint64) uint64 {
	if p.err != nil {
		return 0
	}
	b, ok := t.Type.block()
	if !ok {
		p.fail("tensor %q has unknown type %d", t.Name, uint32(t.Type))
		return 0
	}
	if uint64(t.Dims[0])%b.elements != 0 {
		p.fail("tensor %q rows of %d values, %s wants a multiple of %d", t.Name, t.Dims[0], b.name, b.elements)
		return 0
	}
	hi, size := bits.Mul64(elements/b.elements, b.size)
	if hi != 0 {
		p.fail("tensor %q of %d %s values, the file has %d bytes", t.Name, elements, b.name, len(p.data))
	}
	return size
}

// place finds the data section and gives every tensor its bytes. Tensors may
// stand in any order and leave gaps; they may not overlap.
func (p *parser) place(f *File) {
	if p.err != nil {
		return
	}
	f.base = (p.at + f.Alignment - 1) &^ (f.Alignment - 1)
	if len(f.tensors) == 0 {
		f.base = min(f.base, uint64(len(p.data)))
		return
	}
	order := make([]int, len(f.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset) })
	end := uint64(0)
	for i, at := range order {
		t := &f.tensors[at]
		if i > 0 && t.Offset < end {
			p.fail("tensor %q at data offset %d overlaps %q, which ends at %d", t.Name, t.Offset, f.tensors[order[i-1]].Name, end)
			return
		}
		end = p.locate(f, t)
		if p.err != nil {
			return
		}
	}
}

// locate sets a tensor's bytes and returns their end, relative to the data section.
func (p *parser) locate(f *File, t *Tensor) uint64 {
	size, total := uint64(len(t.Data)), uint64(len(p.data))
	if f.base > total || t.Offset > total-f.base || size > total-f.base-t.Offset {
		p.at = min(f.base, total)
		p.fail("tensor %q ends at data offset %d, the section has %d bytes", t.Name, t.Offset+size, total-p.at)
		return 0
	}
	end := t.Offset + size
	t.Offset += f.base
	t.Data = p.data[t.Offset : t.Offset+size : t.Offset+size]
	return end
}
