package engine

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// memoryPages keeps pages in one slice and fills what nobody wrote with NaN.
type memoryPages struct {
	layout kv.Layout
	bytes  []byte
}

func newPages(layout kv.Layout, count int) *memoryPages {
	p := &memoryPages{layout, tensor.AlignedBytes(count * layout.BodyBytes())}
	p.poison(0xff) // 0xffff is a NaN
	return p
}

func (p *memoryPages) poison(with byte) {
	for i := range p.bytes {
		p.bytes[i] = with
	}
}

func (p *memoryPages) Leaf(slot kv.Slot, layer int) []byte {
	return p.bytes[int(slot)*p.layout.BodyBytes()+layer*p.layout.LeafBytes():][:p.layout.LeafBytes()]
}

// written is the K and V bytes of the first tokens positions, in the order of
// position, whatever pages they lie in.
func (p *memoryPages) written(table []kv.Slot, tokens int) []byte {
	var out []byte
	l := p.layout
	for pos := range tokens {
		for layer := range l.Layers {
			leaf := p.Leaf(table[pos/kv.PageTokens], layer)
			lane := pos % kv.PageTokens
			for h := range l.KVHeads {
				for d := range l.KeyDim {
					at := 2 * ((h*l.KeyDim+d)*kv.PageTokens + lane)
					out = append(out, leaf[at], leaf[at+1])
				}
			}
			for h := range l.KVHeads {
				at := l.KeyBytes() + 2*(h*kv.PageTokens+lane)*l.ValueDim
				out = append(out, leaf[at:at+2*l.ValueDim]...)
			}
		}
	}
	return out
}

// table is a page table for tokens positions, in a random order from slot first on.
func table(r *rand.Rand, first, tokens int) []kv.Slot {
	t := make([]kv.Slot, kv.PagesFor(tokens))
	for i, j := range r.Perm(len(t)) {
		t[i] = kv.Slot(first + j)
	}
	return t
}

func newEngine(t testing.TB, m *model.Model, pages Pages, change func(*Config)) *Engine {
	t.Helper()
	c := Default(m)
	if change != nil {
		change(&c)
	}
	e, err := New(m, pages, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// step runs one step and fails the test on any error.
func step(t testing.TB, e *Engine, rows ...Row) {
	t.Helper()
	if err := e.Step(rows); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if rows[i].Err != nil {
			t.Fatalf("row %d of %d: %v", i, len(rows), rows[i].Err)
		}
	}
}

// logitsRoom is room for the logits of n tokens.
func logitsRoom(m *model.Model, n int) [][]float32 {
	out := make([][]float32, n)
	for i := range out {
		out[i] = make([]float32, m.Config.Vocab)
	}
	return out
}

// into lets Step write to rooms, as logits of a row.
func into(rooms [][]float32) []Logits {
	all := make([]Logits, len(rooms))
	for i := range rooms {
		all[i].Values = rooms[i]
	}
	return all
}

// values is into's way back.
func values(logits []Logits) [][]float32 {
	var all [][]float32
	for i := range logits {
		all = append(all, logits[i].Values)
	}
	return all
}

// shape is the dimensions of a random model.
type shape struct {
	layers, width, ffn, heads, kvHeads, keyDim, valueDim, rotary, vocab, context int
	format                                                                       func(name string) tensor.Format
	tied                                                                         bool
}

func only(f tensor.Format) func(string) tensor.Format { return func(string) tensor.Format { return f } }

// smallShape has blocks of 256 columns in every matrix, so that any format fits.
func smallShape(f tensor.Format) shape {
	return shape{layers: 2, width: 256, ffn: 512, heads: 4, kvHeads: 2, keyDim: 64, valueDim: 64, rotary: 64, vocab: 320, context: 2048,
		format: only(f), tied: true}
}

// randomModel writes a model with random weights and loads it.
func randomModel(t testing.TB, s shape) *model.Model {
	t.Helper()
	m, err := model.Load(randomFile(t, s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func randomFile(t testing.TB, s shape) *gguf.File {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 11))
	var sources []gguf.Source
	matrix := func(name string, rows, cols int) {
		sources = append(sources, randomMatrix(t, r, name, s.format(name), rows, cols))
	}
	vector := func(name string, n int) {
		data := make([]byte, 0, 4*n)
		for range n {
			data = appendFloat(data, float32(1+0.1*r.NormFloat64()))
		}
		sources = append(sources, gguf.Source{Name: name, Type: gguf.F32, Dims: []int{n}, Data: data})
	}
	matrix("token_embd.weight", s.vocab, s.width)
	if !s.tied {
		matrix("output.weight", s.vocab, s.width)
	}
	vector("output_norm.weight", s.width)
	for i := range s.layers {
		p := "blk." + string(rune('0'+i)) + "."
		vector(p+"attn_norm.weight", s.width)
		matrix(p+"attn_q.weight", s.heads*s.keyDim, s.width)
		matrix(p+"attn_k.weight", s.kvHeads*s.keyDim, s.width)
		matrix(p+"attn_v.weight", s.kvHeads*s.valueDim, s.width)
		matrix(p+"attn_output.weight", s.width, s.heads*s.valueDim)
		vector(p+"ffn_norm.weight", s.width)
		matrix(p+"ffn_gate.weight", s.ffn, s.width)
		matrix(p+"ffn_up.weight", s.ffn, s.width)
		matrix(p+"ffn_down.weight", s.width, s.ffn)
	}
	var out bytes.Buffer
	if err := gguf.Write(&out, s.metadata(), sources); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (s shape) metadata() []gguf.Pair {
	u := func(key string, v int) gguf.Pair { return gguf.Pair{Key: "llama." + key, Value: uint32(v)} }
	return []gguf.Pair{{Key: "general.architecture", Value: "llama"},
		u("block_count", s.layers), u("context_length", s.context), u("embedding_length", s.width), u("feed_forward_length", s.ffn),
		u("attention.head_count", s.heads), u("attention.head_count_kv", s.kvHeads), u("attention.key_length", s.keyDim),
		u("attention.value_length", s.valueDim), u("rope.dimension_count", s.rotary),
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)}, {Key: "llama.rope.freq_base", Value: float32(10000)}}
}

func appendFloat(b []byte, v float32) []byte {
	u := math.Float32bits(v)
	return append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
}

// randomMatrix fills float formats with normal values and block formats with
// random bits under small scales.
func randomMatrix(t testing.TB, r *rand.Rand, name string, f tensor.Format, rows, cols int) gguf.Source {
	t.Helper()
	size, err := f.RawBytes(rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	deviation := 1 / math.Sqrt(float64(cols))
	half := func(at int, v float64) {
		var h [1]uint16
		tensor.F32toF16(h[:], []float32{float32(v)})
		data[at], data[at+1] = byte(h[0]), byte(h[0]>>8)
	}
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	// blocks gives each block of size bytes its f16 scales: values are up to levels of them.
	blocks := func(size int, levels float64, at int) {
		for lo := 0; lo < len(data); lo += size {
			half(lo+at, deviation/levels*(0.5+r.Float64()))
		}
	}
	// minimums gives each block the f16 minimum that centres values of d q.
	minimums := func(size int, factor float64, at int) {
		for lo := 0; lo < len(data); lo += size {
			var d [1]float32
			tensor.F16toF32(d[:], []uint16{uint16(data[lo]) | uint16(data[lo+1])<<8})
			half(lo+at, factor*float64(d[0]))
		}
	}
	switch f {
	case tensor.F32:
		for i := 0; i < len(data); i += 4 {
			copy(data[i:], appendFloat(nil, float32(r.NormFloat64()*deviation)))
		}
	case tensor.F16:
		for i := 0; i < len(data); i += 2 {
			half(i, r.NormFloat64()*deviation)
		}
	case tensor.BF16:
		for i := 0; i < len(data); i += 2 {
			u := math.Float32bits(float32(r.NormFloat64() * deviation))
			data[i], data[i+1] = byte(u>>16), byte(u>>24)
		}
	case tensor.Q8_0:
		blocks(34, 64, 0)
	case tensor.Q4_0:
		blocks(18, 4, 0)
	case tensor.Q4_1:
		blocks(20, 4, 0)
		minimums(20, -7.5, 2)
	case tensor.Q5_0:
		blocks(22, 8, 0)
	case tensor.Q6_K:
		blocks(210, 1500, 208)
	case tensor.Q4_K:
		blocks(144, 150, 0)
		minimums(144, 7.5, 2)
	case tensor.Q5_K, tensor.Q5_1:
		t.Fatalf("no random %v", f)
	}
	return gguf.Source{Name: name, Type: gguf.Type(f.GGUF()), Dims: []int{cols, rows}, Data: data}
}

// smollm2 is the real model, if the machine has it.
func smollm2(t testing.TB) (*gguf.File, *model.Model) {
	t.Helper()
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 does not name SmolLM2's GGUF file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(); _ = f.Close() })
	return f, m
}
