package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

// Description is what a model's file says of itself. Numbers that it does not
// state are 0.
type Description struct {
	Architecture  string
	Title         string // general.name
	Licence       string // general.license, or its name where that is "other"
	ContextTokens int    // positions it was made for
	Layers        int
	Heads         int // query heads
	KVHeads       int
	KeyDim        int // values of a key, per head
	ValueDim      int // values of a value, per head
	Embedding     int
	FeedForward   int
	Vocabulary    int
	Parameters    int64 // values in all tensors
	Formats       []FormatShare
	HasTemplate   bool // a chat template
}

// FormatShare is how much of a model is stored in one format.
type FormatShare struct {
	Format     string
	Parameters int64
	Bytes      int64
}

// Describe reads a file's description. What no file can mean is an error;
// whether the engine can run the model is not looked at.
func Describe(f *gguf.File) (Description, error) {
	arch, _ := f.Metadata.String("general.architecture")
	if arch == "" {
		return Description{}, fmt.Errorf("describe model: it names no architecture")
	}
	d := Description{Architecture: arch}
	d.Title, _ = f.Metadata.String("general.name")
	d.Licence, _ = f.Metadata.String("general.license")
	if named, _ := f.Metadata.String("general.license.name"); d.Licence == "" || d.Licence == "other" {
		d.Licence = cmp.Or(named, d.Licence)
	}
	d.HasTemplate = f.Metadata.Has("tokenizer.chat_template")
	for _, n := range []struct {
		key  string
		into *int
	}{
		{"context_length", &d.ContextTokens}, {"block_count", &d.Layers}, {"attention.head_count", &d.Heads},
		{"attention.head_count_kv", &d.KVHeads}, {"attention.key_length", &d.KeyDim}, {"attention.value_length", &d.ValueDim},
		{"embedding_length", &d.Embedding}, {"feed_forward_length", &d.FeedForward}, {"vocab_size", &d.Vocabulary},
	} {
		value, ok := f.Metadata.Int(arch + "." + n.key)
		if ok && (value < 0 || value > 1<<31-1) {
			return Description{}, fmt.Errorf("describe model: %s.%s is %d", arch, n.key, value)
		}
		*n.into = int(value)
	}
	d.fillIn(f)
	d.countTensors(f)
	return d, nil
}

// fillIn derives what the format lets a file leave out.
func (d *Description) fillIn(f *gguf.File) {
	d.KVHeads = cmp.Or(d.KVHeads, d.Heads)
	if d.Heads > 0 {
		d.KeyDim = cmp.Or(d.KeyDim, d.Embedding/d.Heads)
	}
	d.ValueDim = cmp.Or(d.ValueDim, d.KeyDim)
	if t, ok := f.Tensor("token_embd.weight"); ok && len(t.Dims) == 2 {
		d.Vocabulary = t.Dims[1]
	}
}

func (d *Description) countTensors(f *gguf.File) {
	shares := map[string]FormatShare{}
	for t := range f.Tensors() {
		s := shares[t.Type.String()]
		s.Format = t.Type.String()
		s.Parameters += int64(t.Elements())
		s.Bytes += int64(len(t.Data))
		shares[s.Format] = s
		d.Parameters += int64(t.Elements())
	}
	d.Formats = slices.SortedFunc(maps.Values(shares), func(a, b FormatShare) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Format, b.Format))
	})
}
