// Package model holds a transformer's weights and shape.
//
// Weights are repacked once into a slab: one block of memory without pointers,
// which a process keeps to itself (Load) or shares with others as a sealed
// memfd (Share, FromShared). What the numbers mean, and which tensors a family
// has, is one builder for each architecture; see llama.go. Running the layers
// is package engine's part.
package model

import (
	"fmt"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

// Pairing says which two values of a head a rotary angle turns.
type Pairing uint8

// The pairings: neighbours (2i, 2i+1), or halves (i, i + RotaryDims/2).
const (
	PairNeighbours Pairing = iota
	PairHalves
)

// Config is a model's shape. Immutable.
type Config struct {
	Arch       string
	Layers     int
	Vocab      int // tokens
	Context    int // positions it was made for
	Embedding  int // width of the residual stream
	FFN        int // width of the feed-forward layer
	Heads      int // query heads
	KVHeads    int // divides Heads
	KeyDim     int // values of a query or key, per head
	ValueDim   int // values of a value, per head
	NormEps    float32
	Pairing    Pairing
	RotaryDims int // leading values of each query and key that are rotated
	// RotaryFreqs are the angles in radians by which one position turns each of
	// the RotaryDims/2 pairs.
	RotaryFreqs []float64
}

// Part is a matrix whose product fills the columns from Column on.
type Part struct {
	Matrix *tensor.Matrix
	Column int
}

// Layer is the weights of one layer.
type Layer struct {
	AttnNorm []float32
	// QKV together fill QueryCols + KeyCols + ValueCols columns: the queries of
	// all heads, the keys of all KV heads, their values.
	QKV    []Part
	Output *tensor.Matrix
	// FFNNorm, GateUp (rows as tensor.ZipRows orders them) and Down are the
	// gated feed-forward layer.
	FFNNorm []float32
	GateUp  *tensor.Matrix
	Down    *tensor.Matrix
}

// Model is a set of weights, immutable and safe for concurrent use until Close.
type Model struct {
	Config     Config
	Embedding  *tensor.Matrix // a row for each token
	Layers     []Layer
	OutputNorm []float32
	Output     *tensor.Matrix // may be Embedding itself

	fingerprint kv.Fingerprint
	paramBytes  int
	release     func() error // nil once closed
}

// QueryCols is the number of query values of a token.
func (c Config) QueryCols() int { return c.Heads * c.KeyDim }

// KeyCols is the number of key values of a token.
func (c Config) KeyCols() int { return c.KVHeads * c.KeyDim }

// ValueCols is the number of value values of a token.
func (c Config) ValueCols() int { return c.KVHeads * c.ValueDim }

// QKVCols is the number of query, key and value values of a token.
func (c Config) QKVCols() int { return c.QueryCols() + c.KeyCols() + c.ValueCols() }

// AttnCols is the number of values that attention gives for a token.
func (c Config) AttnCols() int { return c.Heads * c.ValueDim }

// Layout is the shape of the model's KV pages.
func (c Config) Layout() kv.Layout {
	return kv.Layout{Layers: c.Layers, KVHeads: c.KVHeads, KeyDim: c.KeyDim, ValueDim: c.ValueDim}
}

// Layout is the shape of the model's KV pages.
func (m *Model) Layout() kv.Layout { return m.Config.Layout() }

// Fingerprint identifies weights, tokenizer, template, shape, page layout, wire
// version and arithmetic: two models with the same one write the same KV bytes
// for the same tokens.
func (m *Model) Fingerprint() kv.Fingerprint { return m.fingerprint }

// ParamBytes is the size of the packed weights in memory.
func (m *Model) ParamBytes() int { return m.paramBytes }

// Close releases the weights' memory. Nothing of the model may be used afterwards.
func (m *Model) Close() error {
	release := m.release
	m.release = nil
	if release == nil {
		return nil
	}
	return release()
}

// Load repacks the file's weights into memory of this process.
func Load(f *gguf.File) (*Model, error) {
	size, err := PackedBytes(f)
	if err != nil {
		return nil, err
	}
	mapping, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("load model: map %d bytes: %w", size, err)
	}
	adviseHuge(mapping)
	m, err := build(f, &slab{bytes: mapping, pack: true})
	if err != nil {
		_ = unix.Munmap(mapping) // the build error is the one to report
		return nil, err
	}
	m.release = func() error { return unix.Munmap(mapping) }
	m.fingerprint = fingerprint(contentDigest(f), m.Config)
	return m, nil
}

// adviseHuge asks for huge pages. Where the system has none to give, small ones do.
func adviseHuge(mapping []byte) { _ = unix.Madvise(mapping, unix.MADV_HUGEPAGE) }

// PackedBytes is what the file's weights take in memory. It reads no weights; a file
// that can't be loaded is an error.
func PackedBytes(f *gguf.File) (int, error) {
	s := new(slab)
	if _, err := build(f, s); err != nil {
		return 0, err
	}
	return s.at, nil
}

// build makes the model of the file's architecture in the slab.
func build(f *gguf.File, s *slab) (*Model, error) {
	arch, ok := f.Metadata.String("general.architecture")
	if !ok {
		return nil, fmt.Errorf("load model: key general.architecture is missing or not a string")
	}
	b := &builder{file: f, arch: arch, slab: s, used: map[string]bool{}}
	var m *Model
	switch arch {
	case "llama":
		m = b.llama()
	default:
		return nil, fmt.Errorf("load model: architecture %q is unknown, known are: llama", arch)
	}
	b.checkAllUsed()
	if b.err != nil {
		return nil, fmt.Errorf("load %s model: %w", arch, b.err)
	}
	m.paramBytes = s.at
	return m, nil
}
