package store

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

func parseModel(t *testing.T, pairs []gguf.Pair, tensors []gguf.Source) *gguf.File {
	t.Helper()
	var out bytes.Buffer
	if err := gguf.Write(&out, pairs, tensors); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDescribe(t *testing.T) {
	f := parseModel(t, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"}, {Key: "general.name", Value: "Tiny"}, {Key: "general.license", Value: "mit"},
		{Key: "llama.context_length", Value: uint32(2048)}, {Key: "llama.block_count", Value: uint32(3)},
		{Key: "llama.embedding_length", Value: uint32(64)}, {Key: "llama.attention.head_count", Value: uint32(4)},
		{Key: "tokenizer.chat_template", Value: "{{ messages }}"},
	}, []gguf.Source{
		{Name: "token_embd.weight", Type: gguf.F16, Dims: []int{64, 10}, Data: make([]byte, 1280)},
		{Name: "output_norm.weight", Type: gguf.F32, Dims: []int{64}, Data: make([]byte, 256)},
	})
	got, err := Describe(f)
	if err != nil {
		t.Fatal(err)
	}
	want := Description{Architecture: "llama", Title: "Tiny", Licence: "mit", ContextTokens: 2048, Layers: 3, Heads: 4, KVHeads: 4,
		KeyDim: 16, ValueDim: 16, Embedding: 64, Vocabulary: 10, Parameters: 704, HasTemplate: true,
		Formats: []FormatShare{{"F16", 640, 1280}, {"F32", 64, 256}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("description (-want +got):\n%s", diff)
	}
}

func TestDescribeNamesTheLicence(t *testing.T) {
	for _, test := range []struct{ licence, name, want string }{
		{"", "", ""}, {"mit", "", "mit"}, {"mit", "MIT License", "mit"}, {"other", "", "other"}, {"other", "llama3.2", "llama3.2"}, {"", "llama3.2", "llama3.2"},
	} {
		d, err := Describe(parseModel(t, []gguf.Pair{{Key: "general.architecture", Value: "llama"},
			{Key: "general.license", Value: test.licence}, {Key: "general.license.name", Value: test.name}}, nil))
		if err != nil || d.Licence != test.want {
			t.Errorf("a file with licence %q and its name %q has %q, error %v; want %q", test.licence, test.name, d.Licence, err, test.want)
		}
	}
}

func TestDescribeRefusesNonsense(t *testing.T) {
	tests := []struct {
		pairs []gguf.Pair
		want  string
	}{
		{nil, "names no architecture"},
		{[]gguf.Pair{{Key: "general.architecture", Value: "llama"}, {Key: "llama.block_count", Value: int64(-1)}}, "llama.block_count is -1"},
		{[]gguf.Pair{{Key: "general.architecture", Value: "llama"}, {Key: "llama.block_count", Value: uint64(1) << 40}}, "llama.block_count is"},
	}
	for _, test := range tests {
		if _, err := Describe(parseModel(t, test.pairs, nil)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error is %v, want %q", err, test.want)
		}
	}
}

func TestDescribeTheRealModel(t *testing.T) {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 is not set")
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	d, err := Describe(f)
	if err != nil {
		t.Fatal(err)
	}
	got := []int{d.ContextTokens, d.Layers, d.Heads, d.KVHeads, d.KeyDim, d.Vocabulary, int(d.Parameters / 1e6)}
	if diff := cmp.Diff([]int{8192, 30, 9, 3, 64, 49152, 134}, got); diff != "" || !d.HasTemplate {
		t.Errorf("template %v, numbers (-want +got):\n%s", d.HasTemplate, diff)
	}
}
