package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// draft is a model file that a test may change before it is written.
type draft struct {
	metadata []gguf.Pair
	tensors  []gguf.Source
}

func (d *draft) set(key string, value any) {
	for i := range d.metadata {
		if d.metadata[i].Key == key {
			d.metadata[i].Value = value
			return
		}
	}
	d.metadata = append(d.metadata, gguf.Pair{Key: key, Value: value})
}

func (d *draft) drop(key string) {
	d.metadata = removed(d.metadata, func(p gguf.Pair) bool { return p.Key == key })
}

func (d *draft) dropTensor(name string) {
	d.tensors = removed(d.tensors, func(s gguf.Source) bool { return s.Name == name })
}

func removed[T any](list []T, drop func(T) bool) (kept []T) {
	for _, v := range list {
		if !drop(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// put adds or replaces a tensor.
func (d *draft) put(name string, typ gguf.Type, bytesPerValue float64, dims ...int) {
	n := 1
	for _, dim := range dims {
		n *= dim
	}
	data := make([]byte, int(float64(n)*bytesPerValue))
	for i := range data {
		data[i] = byte(i*7+len(name)) & 0x3f // no half of such bytes is a NaN
	}
	if typ == gguf.F32 {
		for i := range n {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(i%13)-float32(len(name))))
		}
	}
	d.dropTensor(name)
	d.tensors = append(d.tensors, gguf.Source{Name: name, Type: typ, Dims: dims, Data: data})
}

const q8, f32 = 34.0 / 32, 4.0

// good is a file of one layer: width 64, feed-forward 96, 4 heads over 2, keys of 32, values of 16, 40 tokens.
func good() *draft {
	d := new(draft)
	d.set("general.architecture", "llama")
	for _, p := range []struct {
		key   string
		value uint32
	}{{"block_count", 1}, {"context_length", 128}, {"embedding_length", 64}, {"feed_forward_length", 96}, {"attention.head_count", 4},
		{"attention.head_count_kv", 2}, {"attention.key_length", 32}, {"attention.value_length", 16}, {"rope.dimension_count", 16},
		{"vocab_size", 40}} {
		d.set("llama."+p.key, p.value)
	}
	d.set("llama.attention.layer_norm_rms_epsilon", float32(1e-5))
	d.set("tokenizer.chat_template", "{{ messages }}")
	d.put("token_embd.weight", gguf.Q8_0, q8, 64, 40)
	d.put("output_norm.weight", gguf.F32, f32, 64)
	d.put("blk.0.attn_norm.weight", gguf.F32, f32, 64)
	d.put("blk.0.attn_q.weight", gguf.F32, f32, 64, 128)
	d.put("blk.0.attn_k.weight", gguf.Q8_0, q8, 64, 64)
	d.put("blk.0.attn_v.weight", gguf.Q8_0, q8, 64, 32)
	d.put("blk.0.attn_output.weight", gguf.Q8_0, q8, 64, 64)
	d.put("blk.0.ffn_norm.weight", gguf.F32, f32, 64)
	d.put("blk.0.ffn_gate.weight", gguf.Q8_0, q8, 64, 96)
	d.put("blk.0.ffn_up.weight", gguf.Q8_0, q8, 64, 96)
	d.put("blk.0.ffn_down.weight", gguf.Q8_0, q8, 96, 64)
	return d
}

func (d *draft) bytes(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := gguf.Write(&out, d.metadata, d.tensors); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (d *draft) file(t testing.TB) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(d.bytes(t))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func load(t testing.TB, f *gguf.File) *Model {
	t.Helper()
	m, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeModel(t, m) })
	return m
}

func closeModel(t testing.TB, m *Model) {
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// contents are all weights as numbers.
func contents(m *Model) map[string][]float32 {
	out := map[string][]float32{"output norm": m.OutputNorm}
	matrix := func(name string, w *tensor.Matrix) {
		for r := range w.Rows {
			row := make([]float32, w.Cols)
			w.Dequantize(r, row)
			out[name] = append(out[name], row...)
		}
	}
	matrix("embedding", m.Embedding)
	matrix("output", m.Output)
	for _, l := range m.Layers {
		out["norms"] = append(append(out["norms"], l.AttnNorm...), l.FFNNorm...)
		for _, p := range l.QKV {
			matrix("qkv", p.Matrix)
		}
		matrix("attn output", l.Output)
		matrix("gate up", l.GateUp)
		matrix("down", l.Down)
	}
	return out
}

func TestLoadReadsShapeAndWeights(t *testing.T) {
	m := load(t, good().file(t))
	want := Config{Arch: "llama", Layers: 1, Vocab: 40, Context: 128, Embedding: 64, FFN: 96, Heads: 4, KVHeads: 2, KeyDim: 32, ValueDim: 16,
		NormEps: 1e-5, RotaryDims: 16}
	for i := range 8 {
		want.RotaryFreqs = append(want.RotaryFreqs, math.Pow(10000, -float64(i)/8))
	}
	if diff := cmp.Diff(want, m.Config); diff != "" {
		t.Errorf("config differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kv.Layout{Layers: 1, KVHeads: 2, KeyDim: 32, ValueDim: 16}, m.Layout()); diff != "" {
		t.Errorf("layout differs (-want +got):\n%s", diff)
	}
	if m.Output != m.Embedding {
		t.Error("without output.weight the output is not the embedding")
	}
	parts := m.Layers[0].QKV
	if len(parts) != 2 || parts[0].Column != 0 || parts[1].Column != 128 || parts[1].Matrix.Rows != 96 {
		t.Errorf("queries in f32 with keys and values in Q8_0 make the parts %+v, want two", parts)
	}
	var q float32 = 5 - float32(len("blk.0.attn_q.weight")) // element 5 of row 0
	row := make([]float32, 64)
	parts[0].Matrix.Dequantize(0, row)
	if row[5] != q {
		t.Errorf("a query weight is %g, want %g", row[5], q)
	}
	if m.ParamBytes()%partAlign != 0 || m.ParamBytes() < 64*40 {
		t.Errorf("weights take %d bytes", m.ParamBytes())
	}
	if n, err := PackedBytes(good().file(t)); err != nil || n != m.ParamBytes() {
		t.Errorf("without loading, weights are said to take %d bytes (%v), they take %d", n, err, m.ParamBytes())
	}
}

func TestOptionalParts(t *testing.T) {
	d := good()
	d.put("output.weight", gguf.F16, 2, 64, 40)
	d.put("rope_freqs.weight", gguf.F32, f32, 8)
	for i := range 8 {
		binary.LittleEndian.PutUint32(d.tensors[len(d.tensors)-1].Data[4*i:], math.Float32bits(float32(1+i)))
	}
	d.put("blk.0.ffn_up.weight", gguf.F32, f32, 64, 96)
	d.set("llama.rope.freq_base", float32(100))
	d.set("llama.rope.scaling.type", "linear")
	d.set("llama.rope.scaling.factor", float32(2))
	m := load(t, d.file(t))
	if m.Output == m.Embedding || m.Output.Format != tensor.F16 {
		t.Error("output.weight is not the output")
	}
	for i, got := range m.Config.RotaryFreqs {
		if want := math.Pow(100, -float64(i)/8) / 2 / float64(1+i); math.Abs(got/want-1) > 1e-12 {
			t.Errorf("frequency %d is %g, want %g", i, got, want)
		}
	}
	// Gate rows in Q8_0 and up rows in F32 become one exact matrix.
	gate := load(t, good().file(t)).Layers[0].GateUp
	mixed := m.Layers[0].GateUp
	a, b := make([]float32, 64), make([]float32, 64)
	for r := range 8 {
		gate.Dequantize(r, a)
		mixed.Dequantize(r, b)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("gate row %d in a mixed matrix differs (-want +got):\n%s", r, diff)
		}
		mixed.Dequantize(8+r, b)
		if want := float32((r*64+3)%13) - float32(len("blk.0.ffn_up.weight")); b[3] != want {
			t.Errorf("up row %d in a mixed matrix has %g at 3, want %g", r, b[3], want)
		}
	}
}

func TestSharedWeightsAreTheSame(t *testing.T) {
	f := good().file(t)
	own := load(t, f)
	memfd, err := Share(f)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close()
	shared, err := FromShared(good().file(t), memfd) // another process parses the file again
	if err != nil {
		t.Fatal(err)
	}
	defer closeModel(t, shared)
	if diff := cmp.Diff(contents(own), contents(shared)); diff != "" {
		t.Errorf("shared weights differ (-own +shared):\n%s", diff)
	}
	if of, err := FingerprintOf(f); err != nil || of != own.Fingerprint() {
		t.Errorf("the file's fingerprint is %v (%v), that of its model %v", of, err, own.Fingerprint())
	}
	if own.Fingerprint() != shared.Fingerprint() || own.ParamBytes() != shared.ParamBytes() {
		t.Errorf("own fingerprint %v of %d bytes, shared %v of %d", own.Fingerprint(), own.ParamBytes(), shared.Fingerprint(), shared.ParamBytes())
	}
	if _, err := unix.Mmap(int(memfd.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("shared weights can be mapped for writing")
	}
}

func TestSharedWeightsOfAnotherFileAreRefused(t *testing.T) {
	f := good().file(t)
	memfd, err := Share(f)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close()
	other := good()
	other.set("tokenizer.chat_template", "{{ massages }}")
	if _, err := FromShared(other.file(t), memfd); err == nil || !strings.Contains(err.Error(), "packed from another file") {
		t.Errorf("weights of another file: error is %v", err)
	}
	whole := make([]byte, shareHeaderBytes+4096)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"short":      {[]byte(shareMagic), "8 bytes, the header alone has 4096"},
		"other text": {whole, "magic is not"},
		"half a slab": {shareHeader{slabBytes: 4096, fileBytes: uint64(len(f.Bytes())), head: headDigest(f)}.append(nil),
			"packed weights take more than the 4096 bytes"},
	} {
		data := append(c.data, make([]byte, max(0, len(whole)-len(c.data)))...)
		if name == "short" {
			data = c.data
		}
		if _, err := FromShared(f, sealed(t, data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
	fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	open := os.NewFile(uintptr(fd), "test")
	defer open.Close()
	if _, err := FromShared(f, open); err == nil || !strings.Contains(err.Error(), "seals are 0x0") {
		t.Errorf("memory that can still change: error is %v", err)
	}
}

func sealed(t *testing.T, data []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFingerprintCoversTheFile(t *testing.T) {
	seen := map[kv.Fingerprint]string{}
	for name, change := range map[string]func(*draft){
		"as it is": func(*draft) {},
		"weight":   func(d *draft) { d.tensors[3].Data[100] ^= 1 },
		"template": func(d *draft) { d.set("tokenizer.chat_template", "other") },
		"tokens":   func(d *draft) { d.set("tokenizer.ggml.tokens", []string{"a"}) },
		"rope":     func(d *draft) { d.set("llama.rope.freq_base", float32(10001)) },
		"heads":    func(d *draft) { d.set("llama.rope.dimension_count", uint32(32)) },
	} {
		d := good()
		change(d)
		m := load(t, d.file(t))
		if other, ok := seen[m.Fingerprint()]; ok {
			t.Errorf("%q and %q have one fingerprint", name, other)
		}
		seen[m.Fingerprint()] = name
	}
	if first, second := load(t, good().file(t)), load(t, good().file(t)); first.Fingerprint() != second.Fingerprint() {
		t.Error("one file has two fingerprints")
	}
}

func TestWhatDoesNotFitIsRefusedWithOneError(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*draft)
		want   string
	}{
		"no architecture":   {func(d *draft) { d.drop("general.architecture") }, "general.architecture is missing"},
		"other one":         {func(d *draft) { d.set("general.architecture", "gpt5") }, `architecture "gpt5" is unknown, known are: llama`},
		"no layers":         {func(d *draft) { d.set("llama.block_count", uint32(0)) }, "llama.block_count is 0, want 1 to"},
		"missing key":       {func(d *draft) { d.drop("llama.embedding_length") }, "llama.embedding_length is missing"},
		"text for a number": {func(d *draft) { d.set("llama.attention.head_count", "4") }, "head_count is missing or not an integer"},
		"heads by layer":    {func(d *draft) { d.set("llama.attention.head_count_kv", []int32{2}) }, "head_count_kv is missing or not an integer"},
		"huge":              {func(d *draft) { d.set("llama.feed_forward_length", uint32(1<<31)) }, "is 2147483648, want 1 to 16777216"},
		"more layers":       {func(d *draft) { d.set("llama.block_count", uint32(2)) }, "tensor blk.1.attn_norm.weight is missing"},
		"heads":             {func(d *draft) { d.set("llama.attention.head_count_kv", uint32(3)) }, "3 KV heads for 4 heads, want a divisor"},
		"key length":        {func(d *draft) { d.set("llama.attention.key_length", uint32(20)) }, "keys of 20 and values of 16"},
		"key length, huge":  {func(d *draft) { d.set("llama.attention.key_length", uint32(1<<20)) }, "key dim is 1048576, must be 1 to 65536"},
		"rotary":            {func(d *draft) { d.set("llama.rope.dimension_count", uint32(34)) }, "34 rotary dimensions of 32"},
		"epsilon":           {func(d *draft) { d.set("llama.attention.layer_norm_rms_epsilon", float32(math.NaN())) }, "is NaN, want a finite number above 0"},
		"rope base":         {func(d *draft) { d.set("llama.rope.freq_base", float32(-1)) }, "is -1, want a finite number above 0"},
		"yarn":              {func(d *draft) { d.set("llama.rope.scaling.type", "yarn") }, `is "yarn", known are: none, linear`},
		"experts":           {func(d *draft) { d.set("llama.expert_count", uint32(8)) }, "llama.expert_count is 8, want 0"},
		"vocabulary":        {func(d *draft) { d.set("llama.vocab_size", uint32(41)) }, "llama.vocab_size is 41, tensor token_embd.weight has 40 rows"},
		"no embedding":      {func(d *draft) { d.dropTensor("token_embd.weight") }, "token_embd.weight is missing"},
		"no norm":           {func(d *draft) { d.dropTensor("output_norm.weight") }, "tensor output_norm.weight is missing"},
		"transposed":        {func(d *draft) { d.put("blk.0.ffn_down.weight", gguf.Q8_0, q8, 64, 96) }, "ffn_down.weight has dimensions [64 96], want [96 64]"},
		"one dimension":     {func(d *draft) { d.put("blk.0.attn_k.weight", gguf.F32, f32, 4096) }, "attn_k.weight has dimensions [4096], want [64 64]"},
		"format":            {func(d *draft) { d.put("blk.0.attn_k.weight", gguf.I8, 1, 64, 64) }, "attn_k.weight has type I8, which can't be multiplied with"},
		"norm in f16":       {func(d *draft) { d.put("output_norm.weight", gguf.F16, 2, 64) }, "output_norm.weight has type F16, want F32"},
		"unknown tensor":    {func(d *draft) { d.put("blk.0.attn_q.bias", gguf.F32, f32, 128) }, "tensor blk.0.attn_q.bias has no place"},
		"rope factors":      {func(d *draft) { d.put("rope_freqs.weight", gguf.F32, f32, 8) }, "rope_freqs.weight has -17 at 0"},
		"gate rows": {func(d *draft) {
			d.set("llama.feed_forward_length", uint32(36))
			d.put("blk.0.ffn_gate.weight", gguf.Q8_0, q8, 64, 36)
			d.put("blk.0.ffn_up.weight", gguf.Q8_0, q8, 64, 36)
		}, "ffn_gate.weight has 36 rows, want a multiple of 8"},
	} {
		d := good()
		c.change(d)
		_, err := Load(d.file(t))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

// FuzzLoad demands an error or a model of any file.
func FuzzLoad(f *testing.F) {
	f.Add(good().bytes(f))
	d := good()
	d.set("llama.block_count", uint32(1<<20))
	f.Add(d.bytes(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		m, err := Load(file)
		if err != nil {
			return
		}
		m.Embedding.Dequantize(m.Config.Vocab-1, make([]float32, m.Config.Embedding))
		closeModel(t, m)
	})
}

func BenchmarkPack(b *testing.B) {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		b.Skip("BULKHEAD_SMOLLM2 does not name SmolLM2's GGUF file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		m, err := Load(f)
		if err != nil {
			b.Fatal(err)
		}
		closeModel(b, m)
	}
	b.SetBytes(int64(len(f.Bytes())))
}
