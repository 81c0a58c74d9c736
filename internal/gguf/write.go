package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Pair is a metadata entry to write. Value is one of bool, string, uint8,
// int8, uint16, int16, uint32, int32, uint64, int64, float32, float64, or a
// slice of string, int32, uint32, float32 or bool.
type Pair struct {
	Key   string
	Value any
}

// Source is a tensor to write: its Data are the bytes of Dims values of Type.
type Source struct {
	Name string
	Type Type
	Dims []int
	Data []byte
}

// Write writes a GGUF version 3 file with the given metadata and tensors, in
// order. Tensor data is aligned to general.alignment where the metadata holds
// one (a uint32), else to AlignmentDefault.
func Write(out io.Writer, metadata []Pair, tensors []Source) error {
	w := &writer{out: bufio.NewWriterSize(out, 1<<16), alignment: AlignmentDefault}
	w.bytes([]byte(magic))
	w.uint32(3)
	w.uint64(uint64(len(tensors)))
	w.uint64(uint64(len(metadata)))
	for _, pair := range metadata {
		w.pair(pair)
	}
	w.table(tensors)
	for _, t := range tensors {
		w.pad()
		w.bytes(t.Data)
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

// writer keeps the first error; bufio keeps that of the underlying writer.
type writer struct {
	out       *bufio.Writer
	at        uint64
	alignment uint64
	err       error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("write gguf: "+format, args...)
	}
}

func (w *writer) bytes(b []byte) {
	if w.err != nil {
		return
	}
	n, err := w.out.Write(b)
	w.at += uint64(n)
	if err != nil {
		w.fail("offset %d: %w", w.at, err)
	}
}

func (w *writer) uint32(v uint32) { w.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (w *writer) uint64(v uint64) { w.bytes(binary.LittleEndian.AppendUint64(nil, v)) }

func (w *writer) text(s string) {
	w.uint64(uint64(len(s)))
	w.bytes([]byte(s))
}

func (w *writer) pad() {
	if n := w.at % w.alignment; n != 0 {
		w.bytes(make([]byte, w.alignment-n))
	}
}

func (w *writer) pair(p Pair) {
	w.text(p.Key)
	if a, ok := p.Value.(uint32); ok && p.Key == alignmentKey {
		if a < alignmentMin || a > alignmentMax || a&(a-1) != 0 {
			w.fail("%s %d, want a power of two from %d to %d", alignmentKey, a, alignmentMin, alignmentMax)
			return
		}
		w.alignment = uint64(a)
	}
	switch v := p.Value.(type) {
	case []string:
		w.arrayHead(kindString, len(v))
		for _, s := range v {
			w.text(s)
		}
	case []int32:
		writeArray(w, kindInt32, v)
	case []uint32:
		writeArray(w, kindUint32, v)
	case []float32:
		writeArray(w, kindFloat32, v)
	case []bool:
		writeArray(w, kindBool, v)
	default:
		w.scalar(p)
	}
}

func (w *writer) arrayHead(elem kind, count int) {
	w.uint32(uint32(kindArray))
	w.uint32(uint32(elem))
	w.uint64(uint64(count))
}

func writeArray[T int32 | uint32 | float32 | bool](w *writer, elem kind, v []T) {
	w.arrayHead(elem, len(v))
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		w.fail("array: %w", err)
	}
	w.bytes(b)
}

func (w *writer) scalar(p Pair) {
	k := kindOf(p.Value)
	if k == kindArray {
		w.fail("metadata %q has a value of unsupported type %T", p.Key, p.Value)
		return
	}
	w.uint32(uint32(k))
	if s, ok := p.Value.(string); ok {
		w.text(s)
		return
	}
	b, err := binary.Append(nil, binary.LittleEndian, p.Value)
	if err != nil {
		w.fail("metadata %q: %w", p.Key, err)
	}
	w.bytes(b)
}

// kindOf is the kind of a scalar, kindArray for what is none.
func kindOf(v any) kind {
	switch v.(type) {
	case bool:
		return kindBool
	case string:
		return kindString
	case uint8:
		return kindUint8
	case int8:
		return kindInt8
	case uint16:
		return kindUint16
	case int16:
		return kindInt16
	case uint32:
		return kindUint32
	case int32:
		return kindInt32
	case uint64:
		return kindUint64
	case int64:
		return kindInt64
	case float32:
		return kindFloat32
	case float64:
		return kindFloat64
	}
	return kindArray
}

func (w *writer) table(tensors []Source) {
	offset := uint64(0)
	for _, t := range tensors {
		size, err := t.size()
		if err != nil {
			w.fail("%w", err)
			return
		}
		w.text(t.Name)
		w.uint32(uint32(len(t.Dims)))
		for _, d := range t.Dims {
			w.uint64(uint64(d))
		}
		w.uint32(uint32(t.Type))
		w.uint64(offset)
		offset += (size + w.alignment - 1) &^ (w.alignment - 1)
	}
	w.pad()
}

// size checks a tensor's shape against its bytes and returns their number.
func (t Source) size() (uint64, error) {
	b, ok := t.Type.block()
	if !ok {
		return 0, fmt.Errorf("tensor %q has unknown type %d", t.Name, uint32(t.Type))
	}
	if len(t.Dims) == 0 || len(t.Dims) > dimsMax {
		return 0, fmt.Errorf("tensor %q has %d dimensions, want 1 to %d", t.Name, len(t.Dims), dimsMax)
	}
	elements := uint64(1)
	for _, d := range t.Dims {
		if d <= 0 || uint64(d) > math.MaxInt32 || elements > math.MaxInt32 {
			return 0, fmt.Errorf("tensor %q has dimensions %v, want each from 1 to %d", t.Name, t.Dims, math.MaxInt32)
		}
		elements *= uint64(d)
	}
	if uint64(t.Dims[0])%b.elements != 0 {
		return 0, fmt.Errorf("tensor %q rows of %d values, %s wants a multiple of %d", t.Name, t.Dims[0], b.name, b.elements)
	}
	size := elements / b.elements * b.size
	if size != uint64(len(t.Data)) {
		return 0, fmt.Errorf("tensor %q has %d bytes, its shape %v of %s has %d", t.Name, len(t.Data), t.Dims, b.name, size)
	}
	return size, nil
}
