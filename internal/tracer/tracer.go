// Package tracer builds a model that continues text from its own context.
//
// It is a transformer of the llama architecture whose weights are computed, not
// trained. It looks for the latest place where its last eight tokens occurred
// before and repeats what followed there; where they never did, it ends the
// answer. So its answer is its KV cache made visible: a foreign, stale or
// unwritten page shows as foreign, stale or missing text.
//
// How it works, in two layers over a residual stream of these parts:
//
//	[0,12)    E: the token's code, twelve values of +-1, zero for <|bos|>
//	[12,108)  P1..P8: the codes of the eight tokens before it
//	[108,120) O: the code of the token to say
//	120       one, at every token but <|bos|>
//	121       the root of 13, at <|bos|> alone: all tokens have one norm
//
// Layer 1 has eight heads over one KV head. Keys are one vector at every
// position; head k's query is that vector turned back by k positions, so that
// rotary positions alone make it attend to the token k before, whose code it
// writes to Pk.
//
// Layer 2 uses one head. Its query is [E, P1..P7], its key [P1..P8], its value
// E: it finds the position that follows the same eight tokens and writes that
// position's token to O. Two pairs of rotary dimensions, which layer 1 leaves
// alone, add to the score. One does not turn at all: there <|bos|> offers a
// score between that of eight equal tokens and the best that seven can reach,
// and the code of <|im_end|> as its value. The other turns by a quarter in
// ContextMax positions: there a later place scores a little more than an
// earlier one.
//
// Feed-forward weights are zero, and the output matrix compares O with each code.
package tracer

import (
	"bytes"
	"math"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

// ContextMax is the number of positions that the model's margins are made for.
const ContextMax = 131072

// SuffixTokens is how many tokens must have occurred before, in order, for the
// model to go on from there.
const SuffixTokens = 8

// The special tokens, behind the 256 bytes.
const (
	BOS     = 256 // <|bos|>, begins every sequence
	EOS     = 257 // <|eos|>
	IMStart = 258 // <|im_start|>
	IMEnd   = 259 // <|im_end|>, ends a message and an answer
	Vocab   = 260
)

// Name is the model's name.
const Name = "tracer"

const (
	codeDims   = 12
	headDim    = 128 // of queries and keys
	valueDim   = 16  // holds a code
	rotaryDims = 32  // in front; the codes of SuffixTokens tokens follow
	pairs      = rotaryDims / 2
	heads      = SuffixTokens
	width      = 128
	ffn        = 32
	ropeBase   = 10000

	// Parts of the residual stream.
	partE    = 0
	partP    = codeDims
	partO    = partP + SuffixTokens*codeDims
	oneAt    = partO + codeDims
	bosAt    = oneAt + 1
	normEps  = 1e-9
	tokenSum = codeDims + 1 // sum of squares of an embedding
	// matchSum is the sum of squares in front of layer 2, of a token that has
	// SuffixTokens others in front of it.
	matchSum = tokenSum + SuffixTokens*codeDims

	// Rotary pairs: the first ones place layer 1's heads, the last two serve layer 2.
	placePairs = pairs - 2
	recentPair = pairs - 2
	stillPair  = pairs - 1
)

// Scores in nats, after softmax's division by the root of headDim. The smallest
// gap between two different tokens' codes is codeGap of codeDims, so eight equal
// tokens score codeGap x matchUnit above anything else. The score of <|bos|> lies
// in the middle of that gap. Latest and earliest place differ by recentSwing.
const (
	placeNats   = 80.0 // for each of placePairs
	matchUnit   = 1000.0
	codeGap     = 4
	recentNats  = 1600.0
	recentSwing = recentNats * math.Sqrt2
	outputNats  = 10.0 // for each of codeDims
)

// Bytes returns the model as a GGUF file, about 1.6 MB.
func Bytes() []byte {
	var out bytes.Buffer
	if err := gguf.Write(&out, metadata(), tensors()); err != nil {
		panic("tracer: its own file can't be written: " + err.Error())
	}
	return out.Bytes()
}

// File returns the model as a parsed GGUF file.
func File() *gguf.File {
	f, err := gguf.Parse(Bytes())
	if err != nil {
		panic("tracer: its own file can't be read: " + err.Error())
	}
	return f
}

func metadata() []gguf.Pair {
	kinds := make([]int32, Vocab)
	for i := range kinds {
		kinds[i] = 1 // a normal token
		if i >= BOS {
			kinds[i] = 3 // a control token
		}
	}
	return []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "general.type", Value: "model"},
		{Key: "general.name", Value: Name},
		{Key: "general.size_label", Value: "700K"},
		{Key: "general.file_type", Value: uint32(0)},
		{Key: "llama.block_count", Value: uint32(2)},
		{Key: "llama.context_length", Value: uint32(ContextMax)},
		{Key: "llama.embedding_length", Value: uint32(width)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "llama.attention.head_count_kv", Value: uint32(1)},
		{Key: "llama.attention.key_length", Value: uint32(headDim)},
		{Key: "llama.attention.value_length", Value: uint32(valueDim)},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(normEps)},
		{Key: "llama.rope.dimension_count", Value: uint32(rotaryDims)},
		{Key: "llama.rope.freq_base", Value: float32(ropeBase)},
		{Key: "llama.vocab_size", Value: uint32(Vocab)},
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "gpt-2"},
		{Key: "tokenizer.ggml.tokens", Value: spellings()},
		{Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.merges", Value: []string{}},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(BOS)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(EOS)},
		{Key: "tokenizer.ggml.eot_token_id", Value: uint32(IMEnd)},
		{Key: "tokenizer.ggml.add_bos_token", Value: true},
		{Key: "tokenizer.chat_template", Value: chatTemplate},
	}
}

// chatTemplate leaves the last message open: the answer continues it, so that
// its last eight bytes are what the model looks for.
const chatTemplate = `{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] -}}
{%- if not loop.last or not add_generation_prompt -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endfor -%}`

// spellings are the tokens' texts: the 256 bytes as GPT-2 spells them, with a
// printable rune for each, then the special tokens.
func spellings() []string {
	texts := make([]string, 0, Vocab)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		texts = append(texts, string(r))
	}
	return append(texts, "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
}
