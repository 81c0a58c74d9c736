package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
)

// partAlign is what each matrix and vector in a slab is aligned to, in bytes.
const partAlign = 64

// slab is the memory that packed weights fill, front to back. One walk over a
// model's tensors serves three ends: bytes nil, it counts; pack set, it writes;
// else it makes views of what another process wrote.
type slab struct {
	bytes []byte
	pack  bool
	at    int // bytes handed out, a multiple of partAlign
}

// take is the next n bytes; nil while the slab only counts.
func (s *slab) take(n int) ([]byte, error) {
	lo := s.at
	s.at += (n + partAlign - 1) &^ (partAlign - 1)
	if s.bytes == nil {
		return nil, nil
	}
	if s.at > len(s.bytes) {
		return nil, fmt.Errorf("packed weights take more than the %d bytes of their slab", len(s.bytes))
	}
	return s.bytes[lo : lo+n : s.at], nil
}

// builder reads a file's keys and tensors. It keeps the first error, and after
// it returns zero values.
type builder struct {
	file *gguf.File
	arch string
	slab *slab
	used map[string]bool // tensors asked for
	err  error
}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// dimMax bounds each count and width that a file states.
const dimMax = 1 << 24

// dim reads a count of 1 to dimMax from the architecture's key.
func (b *builder) dim(key string) int {
	key = b.arch + "." + key
	v, ok := b.file.Metadata.Int(key)
	switch {
	case !ok:
		b.fail("key %s is missing or not an integer", key)
	case v < 1 || v > dimMax:
		b.fail("key %s is %d, want 1 to %d", key, v, dimMax)
	default:
		return int(v)
	}
	return 1
}

func (b *builder) dimOr(key string, otherwise int) int {
	if !b.file.Metadata.Has(b.arch + "." + key) {
		return otherwise
	}
	return b.dim(key)
}

// positive reads a finite number above zero.
func (b *builder) positive(key string) float64 {
	key = b.arch + "." + key
	v, ok := b.file.Metadata.Float(key)
	switch {
	case !ok:
		b.fail("key %s is missing or not a float", key)
	case !(v > 0) || math.IsInf(v, 0):
		b.fail("key %s is %g, want a finite number above 0", key, v)
	default:
		return v
	}
	return 1
}

func (b *builder) positiveOr(key string, otherwise float64) float64 {
	if !b.file.Metadata.Has(b.arch + "." + key) {
		return otherwise
	}
	return b.positive(key)
}

// raw is a matrix as the file has it.
type raw struct {
	name       string
	format     tensor.Format
	rows, cols int
	rowBytes   int
	data       []byte
}

func (r raw) row(i int) []byte { return r.data[i*r.rowBytes:][:r.rowBytes] }

// tensor finds the tensor and checks its type and shape, dims fastest first.
func (b *builder) tensor(name string, dims ...int) (t gguf.Tensor, f tensor.Format) {
	if b.err != nil {
		return t, f
	}
	t, ok := b.file.Tensor(name)
	if !ok {
		b.fail("tensor %s is missing", name)
		return t, f
	}
	b.used[name] = true
	if f, ok = tensor.FromGGUF(uint32(t.Type)); !ok {
		b.fail("tensor %s has type %v, which can't be multiplied with; known are %v", name, t.Type, tensor.Formats())
		return t, f
	}
	same := len(t.Dims) == len(dims)
	for i := 0; same && i < len(dims); i++ {
		same = t.Dims[i] == dims[i]
	}
	if !same {
		b.fail("tensor %s has dimensions %v, want %v", name, t.Dims, dims)
	}
	return t, f
}

func (b *builder) has(name string) bool {
	_, ok := b.file.Tensor(name)
	return ok
}

func (b *builder) raw(name string, rows, cols int) raw {
	t, f := b.tensor(name, cols, rows)
	if b.err != nil {
		return raw{name: name, rows: rows, cols: cols}
	}
	size, err := f.RawBytes(rows, cols)
	if err != nil || size != len(t.Data) {
		b.fail("tensor %s has %d bytes, %d rows of %d columns of %v have %d (%v)", name, len(t.Data), rows, cols, f, size, err)
	}
	return raw{name: name, format: f, rows: rows, cols: cols, rowBytes: size / rows, data: t.Data}
}

// matrix packs or views one matrix.
func (b *builder) matrix(f tensor.Format, rows, cols int, row func(r int) []byte) *tensor.Matrix {
	if b.err != nil {
		return nil
	}
	packed, err := b.slab.take(tensor.PackedBytes(f, rows, cols))
	if err != nil || packed == nil {
		b.keep(err)
		return nil
	}
	var m *tensor.Matrix
	if b.slab.pack {
		m, err = tensor.Pack(packed, f, rows, cols, row)
	} else {
		m, err = tensor.View(packed, f, rows, cols)
	}
	b.keep(err)
	return m
}

func (b *builder) keep(err error) {
	if err != nil && b.err == nil {
		b.err = err
	}
}

// single is a matrix from one tensor.
func (b *builder) single(name string, rows, cols int) *tensor.Matrix {
	r := b.raw(name, rows, cols)
	return b.matrix(r.format, rows, cols, r.row)
}

// stacked puts the rows of several tensors under each other. Neighbours of one
// format become one matrix.
func (b *builder) stacked(raws ...raw) []Part {
	var parts []Part
	column := 0
	for len(raws) > 0 {
		n, rows := 1, raws[0].rows
		for n < len(raws) && raws[n].format == raws[0].format {
			rows += raws[n].rows
			n++
		}
		parts = append(parts, Part{b.matrix(raws[0].format, rows, raws[0].cols, stackedRows(raws[:n])), column})
		column += rows
		raws = raws[n:]
	}
	return parts
}

func stackedRows(raws []raw) func(r int) []byte {
	return func(r int) []byte {
		i := 0
		for r >= raws[i].rows {
			r -= raws[i].rows
			i++
		}
		return raws[i].row(r)
	}
}

// zipped is gate and up in the order that a gated product wants. Where their
// formats differ, both are stored as exact f32.
func (b *builder) zipped(gate, up raw) *tensor.Matrix {
	if b.err != nil {
		return nil
	}
	if gate.rows%8 != 0 {
		b.fail("tensor %s has %d rows, want a multiple of 8", gate.name, gate.rows)
		return nil
	}
	if gate.format == up.format {
		return b.matrix(gate.format, 2*gate.rows, gate.cols, tensor.ZipRows(gate.row, up.row))
	}
	return b.matrix(tensor.F32, 2*gate.rows, gate.cols, tensor.ZipRows(gate.floats(b), up.floats(b)))
}

// floats gives the matrix's rows as little-endian f32.
func (r raw) floats(b *builder) func(i int) []byte {
	if b.slab.bytes == nil || !b.slab.pack {
		return nil
	}
	packed := tensor.AlignedBytes(tensor.PackedBytes(r.format, r.rows, r.cols))
	m, err := tensor.Pack(packed, r.format, r.rows, r.cols, r.row)
	if err != nil {
		b.keep(err)
		return func(int) []byte { return nil }
	}
	return func(i int) []byte {
		values := make([]float32, r.cols)
		m.Dequantize(i, values)
		out := make([]byte, 0, 4*r.cols)
		for _, v := range values {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		}
		return out
	}
}

// vector is n f32 values of a one-dimensional F32 tensor.
func (b *builder) vector(name string, n int) []float32 {
	t, f := b.tensor(name, n)
	if b.err == nil && f != tensor.F32 {
		b.fail("tensor %s has type %v, want F32", name, t.Type)
	}
	if b.err != nil {
		return nil
	}
	packed, err := b.slab.take(4 * n)
	if err != nil || packed == nil {
		b.keep(err)
		return nil
	}
	values := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(packed))), n)
	if b.slab.pack {
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	}
	return values
}

// checkAllUsed refuses a file with tensors that the architecture's builder did
// not ask for: leaving one out would compute something else than the model.
func (b *builder) checkAllUsed() {
	for t := range b.file.Tensors() {
		if !b.used[t.Name] {
			b.fail("tensor %s has no place in this architecture", t.Name)
		}
	}
}
