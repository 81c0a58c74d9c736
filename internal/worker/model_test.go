package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/sample"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/slab"
)

const (
	testVocab   = 320
	testContext = 512
)

// smallModel is two layers of random weights: enough for every value of a page to
// depend on every token before it.
func smallModel(t testing.TB) *model.Model {
	t.Helper()
	const width, ffn, heads, kvHeads, dim = 64, 128, 2, 1, 32
	r := rand.New(rand.NewPCG(3, 5))
	var sources []gguf.Source
	tensor := func(name string, mean, deviation float64, dims ...int) {
		n := 1
		for _, d := range dims {
			n *= d
		}
		data := make([]byte, 0, 4*n)
		for range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(mean+deviation*r.NormFloat64())))
		}
		sources = append(sources, gguf.Source{Name: name, Type: gguf.F32, Dims: dims, Data: data})
	}
	tensor("token_embd.weight", 0, 1, width, testVocab)
	tensor("output_norm.weight", 1, 0.1, width)
	for i := range 2 {
		p := fmt.Sprintf("blk.%d.", i)
		tensor(p+"attn_norm.weight", 1, 0.1, width)
		tensor(p+"attn_q.weight", 0, 0.3, width, heads*dim)
		tensor(p+"attn_k.weight", 0, 0.3, width, kvHeads*dim)
		tensor(p+"attn_v.weight", 0, 0.3, width, kvHeads*dim)
		tensor(p+"attn_output.weight", 0, 0.3, heads*dim, width)
		tensor(p+"ffn_norm.weight", 1, 0.1, width)
		tensor(p+"ffn_gate.weight", 0, 0.3, width, ffn)
		tensor(p+"ffn_up.weight", 0, 0.3, width, ffn)
		tensor(p+"ffn_down.weight", 0, 0.3, ffn, width)
	}
	u := func(key string, v uint32) gguf.Pair { return gguf.Pair{Key: "llama." + key, Value: v} }
	metadata := []gguf.Pair{{Key: "general.architecture", Value: "llama"}, u("block_count", 2), u("context_length", testContext),
		u("embedding_length", width), u("feed_forward_length", ffn), u("attention.head_count", heads), u("attention.head_count_kv", kvHeads),
		u("attention.key_length", dim), u("attention.value_length", dim), u("rope.dimension_count", dim),
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)}, {Key: "llama.rope.freq_base", Value: float32(10000)}}
	var out bytes.Buffer
	if err := gguf.Write(&out, metadata, sources); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(f)
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

// solo computes an answer with nothing but the engine: one sequence, one chunk,
// pages of its own. It gives the greedy tokens and the root over the roots of the
// prompt's pages.
func solo(t testing.TB, m *model.Model, prompt []int32, n int) (tokens []int32, root kv.Digest) {
	t.Helper()
	pages := kv.PagesFor(len(prompt) + n)
	s, err := slab.New(m.Layout(), pages)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(m, s, engine.Config{Threads: 1, TokensMax: testContext, LogitsMax: 1, ContextMax: testContext})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	slots := make([]kv.Slot, pages)
	for i := range slots {
		slots[i] = kv.Slot(pages - 1 - i)
	}
	logits := make([]float32, testVocab)
	compute := func(tokens []int32, at int) {
		rows := []engine.Row{{Tokens: tokens, Start: at, Pages: slots, Logits: []engine.Logits{{Values: logits}}, Hash: func(page, layer int) { s.HashLeaf(slots[page], layer) }}}
		if err := e.Step(rows); err != nil || rows[0].Err != nil {
			t.Fatal(err, rows[0].Err)
		}
	}
	compute(prompt, 0)
	var roots []kv.Digest
	for i := range kv.PagesFor(len(prompt)) {
		roots = append(roots, s.Root(slots[i]))
	}
	sampler := sample.New(sample.Config{TopP: 1, RepetitionPenalty: 1}, kv.Origin{}, prompt)
	var scratch sample.Scratch
	for at := len(prompt); ; at++ {
		choice, err := sampler.Next(&scratch, sample.Logits{From: kv.Origin{Index: len(tokens)}, Values: logits})
		if err != nil {
			t.Fatal(err)
		}
		if tokens = append(tokens, choice.Token); len(tokens) == n {
			return tokens, kv.Root(roots)
		}
		compute([]int32{choice.Token}, at)
	}
}
