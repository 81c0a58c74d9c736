package model

import (
	"encoding/binary"
	"fmt"
	"math"
)

// llama builds Llama 2 and 3, SmolLM2 and their relatives: pre-norm layers with
// rotary grouped-query attention and a SiLU-gated feed-forward layer.
func (b *builder) llama() *Model {
	m := &Model{Config: b.llamaConfig()}
	c := &m.Config
	if b.err != nil {
		return nil
	}
	m.Embedding = b.single("token_embd.weight", c.Vocab, c.Embedding)
	for i := range c.Layers {
		m.Layers = append(m.Layers, b.llamaLayer(c, i))
		if b.err != nil {
			return nil
		}
	}
	m.OutputNorm = b.vector("output_norm.weight", c.Embedding)
	m.Output = m.Embedding
	if b.has("output.weight") {
		m.Output = b.single("output.weight", c.Vocab, c.Embedding)
	}
	return m
}

func (b *builder) llamaLayer(c *Config, i int) Layer {
	name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
	return Layer{
		AttnNorm: b.vector(name("attn_norm"), c.Embedding),
		QKV: b.stacked(b.raw(name("attn_q"), c.QueryCols(), c.Embedding),
			b.raw(name("attn_k"), c.KeyCols(), c.Embedding), b.raw(name("attn_v"), c.ValueCols(), c.Embedding)),
		Output:  b.single(name("attn_output"), c.Embedding, c.AttnCols()),
		FFNNorm: b.vector(name("ffn_norm"), c.Embedding),
		GateUp:  b.zipped(b.raw(name("ffn_gate"), c.FFN, c.Embedding), b.raw(name("ffn_up"), c.FFN, c.Embedding)),
		Down:    b.single(name("ffn_down"), c.Embedding, c.FFN),
	}
}

func (b *builder) llamaConfig() Config {
	c := Config{
		Arch:      b.arch,
		Layers:    b.dim("block_count"),
		Context:   b.dim("context_length"),
		Embedding: b.dim("embedding_length"),
		FFN:       b.dim("feed_forward_length"),
		Heads:     b.dim("attention.head_count"),
		NormEps:   float32(b.positive("attention.layer_norm_rms_epsilon")),
		Pairing:   PairNeighbours,
	}
	c.KVHeads = b.dimOr("attention.head_count_kv", c.Heads)
	c.KeyDim = b.dimOr("attention.key_length", c.Embedding/c.Heads)
	c.ValueDim = b.dimOr("attention.value_length", c.Embedding/c.Heads)
	c.RotaryDims = b.dimOr("rope.dimension_count", c.KeyDim)
	b.refuseExperts()
	b.vocab(&c)
	b.checkHeads(&c)
	if b.err == nil {
		b.keep(c.Layout().Validate())
	}
	b.rotary(&c)
	return c
}

func (b *builder) refuseExperts() {
	key := b.arch + ".expert_count"
	if n, ok := b.file.Metadata.Int(key); ok && n != 0 {
		b.fail("key %s is %d, want 0: a mixture of experts has no place in this architecture", key, n)
	}
}

// vocab takes the number of tokens from the embedding, and holds the other
// places that state it against it.
func (b *builder) vocab(c *Config) {
	t, ok := b.file.Tensor("token_embd.weight")
	if !ok || len(t.Dims) != 2 || t.Dims[1] > dimMax {
		b.fail("tensor token_embd.weight is missing or has dimensions %v, want two", t.Dims)
		return
	}
	c.Vocab = t.Dims[1]
	if n := b.dimOr("vocab_size", c.Vocab); n != c.Vocab {
		b.fail("key %s.vocab_size is %d, tensor token_embd.weight has %d rows", b.arch, n, c.Vocab)
	}
}

// headDimMultiple is what the attention kernels want head sizes to be a multiple of.
const headDimMultiple = 16

func (b *builder) checkHeads(c *Config) {
	switch {
	case b.err != nil:
	case c.KVHeads > c.Heads || c.Heads%c.KVHeads != 0:
		b.fail("%d KV heads for %d heads, want a divisor", c.KVHeads, c.Heads)
	case c.KeyDim < 1 || c.KeyDim%headDimMultiple != 0 || c.ValueDim < 1 || c.ValueDim%headDimMultiple != 0:
		b.fail("keys of %d and values of %d dimensions a head, want multiples of %d", c.KeyDim, c.ValueDim, headDimMultiple)
	case c.RotaryDims%2 != 0 || c.RotaryDims > c.KeyDim:
		b.fail("%d rotary dimensions of %d, want an even number up to it", c.RotaryDims, c.KeyDim)
	case c.QKVCols() > dimMax || c.AttnCols() > dimMax:
		b.fail("%d heads of %d and %d dimensions, want at most %d together", c.Heads, c.KeyDim, c.ValueDim, dimMax)
	}
}

// rotary computes the pairs' frequencies: base^(-2i/dims), divided by the linear
// scaling factor and by the file's factor for the pair where it has them. Llama 3
// files carry their long-context scaling as such factors.
func (b *builder) rotary(c *Config) {
	base := b.positiveOr("rope.freq_base", 10000)
	scale := b.ropeScale()
	pairs := c.RotaryDims / 2
	factors := b.ropeFactors(pairs)
	if b.err != nil {
		return
	}
	c.RotaryFreqs = make([]float64, pairs)
	for i := range c.RotaryFreqs {
		c.RotaryFreqs[i] = math.Pow(base, -2*float64(i)/float64(c.RotaryDims)) / scale
		if factors != nil {
			c.RotaryFreqs[i] /= factors[i]
		}
	}
}

func (b *builder) ropeScale() float64 {
	key := b.arch + ".rope.scaling.type"
	if !b.file.Metadata.Has(key) {
		return b.positiveOr("rope.scale_linear", 1)
	}
	switch kind, _ := b.file.Metadata.String(key); kind {
	case "none":
		return 1
	case "linear":
		return b.positive("rope.scaling.factor")
	default:
		b.fail("key %s is %q, known are: none, linear", key, kind)
		return 1
	}
}

const ropeFactorsName = "rope_freqs.weight"

func (b *builder) ropeFactors(pairs int) []float64 {
	if b.err != nil || !b.has(ropeFactorsName) {
		return nil
	}
	t, _ := b.tensor(ropeFactorsName, pairs)
	if b.err != nil {
		return nil
	}
	if t.Type.String() != "F32" {
		b.fail("tensor %s has type %v, want F32", ropeFactorsName, t.Type)
		return nil
	}
	factors := make([]float64, pairs)
	for i := range factors {
		factors[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
		if !(factors[i] > 0) || math.IsInf(factors[i], 0) {
			b.fail("tensor %s has %g at %d, want a finite number above 0", ropeFactorsName, factors[i], i)
		}
	}
	return factors
}
