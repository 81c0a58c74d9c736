package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// The model of a simulation: a token's "KV" is a stamp that says whose it is and
// where it stands, chained to all stamps before it. The next token depends on every
// stamp of the sequence as it is read through the page table, so that one lane of a
// foreign, stale or unwritten page gives another answer.
const (
	vocabulary = 1024
	stopToken  = int32(0)
	// identityTokens at a prompt's head name the request and the attempt.
	identityTokens = 2
	dims           = 16 // of a key and of a value
	laneBytes      = dims * 2
	keyBytes       = dims * kv.PageTokens * 2
	contextMax     = 1 << 20
)

// stamp is what a lane holds.
type stamp struct {
	identity uint64 // of the prompt's first tokens
	position uint64 // from 1: a zero lane is no stamp
	chain    uint64 // of all stamps before it and this token
}

// mix is a step of a hash: different inputs give different outputs nearly always.
func mix(a, b uint64) uint64 {
	a ^= b * 0x9E3779B97F4A7C15
	a ^= a >> 32
	a *= 0xD6E8FEB86659FD93
	return a ^ a>>29
}

// fold adds a stamp to what attention has read so far; key is its copy in the K part.
func fold(sum uint64, s stamp, key uint64) uint64 {
	return mix(mix(mix(mix(sum, s.identity), s.position), s.chain), key)
}

// next is the stamp of a token whose predecessors fold to sum.
func next(sum, identity uint64, position int, token int32) stamp {
	if position < identityTokens {
		identity |= (uint64(token) + 1) << (16 * position)
	}
	return stamp{identity: identity, position: uint64(position) + 1, chain: mix(mix(sum, uint64(token)+1), uint64(position))}
}

// choose is the token that follows a sequence; one in 24 is the end.
func choose(sum uint64) int32 {
	u := mix(sum, 7)
	if u>>32%24 == 0 {
		return stopToken
	}
	return 1 + int32(u%(vocabulary-1))
}

// solo is the answer to a prompt, computed with nothing but the prompt: at most
// tokensMax tokens, and whether a stop token ended it.
func solo(prompt []int32, tokensMax int) (answer []int32, stopped bool) {
	var sum, identity uint64
	take := func(position int, token int32) {
		s := next(sum, identity, position, token)
		sum, identity = fold(sum, s, s.chain), s.identity
	}
	for i, token := range prompt {
		take(i, token)
	}
	for len(answer) < tokensMax {
		token := choose(sum)
		if token == stopToken {
			return answer, true
		}
		answer = append(answer, token)
		take(len(prompt)+len(answer)-1, token)
	}
	return answer, false
}

func (s stamp) put(leaf []byte, lane int) {
	le := binary.LittleEndian
	value := leaf[keyBytes+lane*laneBytes:][:laneBytes]
	le.PutUint64(value, s.identity)
	le.PutUint64(value[8:], s.position)
	le.PutUint64(value[16:], s.chain)
	for i := range 4 {
		le.PutUint16(leaf[i*laneBytes+lane*2:], uint16(s.chain>>(16*i)))
	}
}

func read(leaf []byte, lane int) (s stamp, key uint64) {
	le := binary.LittleEndian
	value := leaf[keyBytes+lane*laneBytes:][:laneBytes]
	for i := range 4 {
		key |= uint64(le.Uint16(leaf[i*laneBytes+lane*2:])) << (16 * i)
	}
	return stamp{le.Uint64(value), le.Uint64(value[8:]), le.Uint64(value[16:])}, key
}

// kernel is the engine of a simulated worker.
type kernel struct {
	pages engine.Pages
	// meanwhile lets the network go on between two accesses to pages, as it does on
	// other threads of a real worker.
	meanwhile func()
	// table is how a row's page table is read; tests plant bugs in it.
	table func(pages []kv.Slot) []kv.Slot
	// odd is told of stamps that are not those of one sequence. They are a leak only
	// if a token comes of it.
	odd func(string)
}

// Step implements worker.Engine.
func (k *kernel) Step(rows []engine.Row) error {
	for i := range rows {
		k.row(&rows[i])
	}
	k.meanwhile()
	return nil
}

// Close implements worker.Engine.
func (k *kernel) Close() {}

func (k *kernel) row(r *engine.Row) {
	r.Err = nil
	table := k.table(r.Pages)
	k.meanwhile()
	sum, identity := k.attend(table, r.Start)
	k.meanwhile()
	for i, token := range r.Tokens {
		position := r.Start + i
		s := next(sum, identity, position, token)
		s.put(k.pages.Leaf(table[position/kv.PageTokens], 0), position%kv.PageTokens)
		sum, identity = fold(sum, s, s.chain), s.identity
		if last := i == len(r.Tokens)-1; r.Hash != nil && (last || position%kv.PageTokens == kv.PageTokens-1) {
			r.Hash(position/kv.PageTokens, 0)
		}
	}
	for i := range r.Logits { // never more than the last token's
		clear(r.Logits[i].Values)
		r.Logits[i].Values[choose(sum)] = 1
		r.Logits[i].From = r.From
	}
}

// attend reads the stamps of the positions before end through the page table.
func (k *kernel) attend(table []kv.Slot, end int) (sum, identity uint64) {
	for position := range end {
		slot := table[position/kv.PageTokens]
		s, key := read(k.pages.Leaf(slot, 0), position%kv.PageTokens)
		if s.position != uint64(position)+1 || key != s.chain || position >= identityTokens && s.identity != identity {
			k.odd(fmt.Sprintf("slot %d lane %d holds position %d of identity %x where position %d of identity %x is due",
				slot, position%kv.PageTokens, int64(s.position)-1, s.identity, position, identity))
		}
		sum, identity = fold(sum, s, key), s.identity
	}
	return sum, identity
}

// layoutModel makes a model for its shape and fingerprint: nothing computes with its weights.
func layoutModel() (*model.Model, error) {
	var sources []gguf.Source
	tensor := func(name string, dimensions ...int) {
		n := 4
		for _, d := range dimensions {
			n *= d
		}
		sources = append(sources, gguf.Source{Name: name, Type: gguf.F32, Dims: dimensions, Data: make([]byte, n)})
	}
	const width = 32
	tensor("token_embd.weight", width, vocabulary)
	tensor("output_norm.weight", width)
	for name, shape := range map[string][]int{"attn_norm": {width}, "attn_q": {width, dims}, "attn_k": {width, dims}, "attn_v": {width, dims},
		"attn_output": {dims, width}, "ffn_norm": {width}, "ffn_gate": {width, width}, "ffn_up": {width, width}, "ffn_down": {width, width}} {
		tensor("blk.0."+name+".weight", shape...)
	}
	count := func(key string, v uint32) gguf.Pair { return gguf.Pair{Key: "llama." + key, Value: v} }
	metadata := []gguf.Pair{{Key: "general.architecture", Value: "llama"}, count("block_count", 1), count("context_length", contextMax),
		count("embedding_length", width), count("feed_forward_length", width), count("attention.head_count", 1),
		count("attention.head_count_kv", 1), count("attention.key_length", dims), count("attention.value_length", dims),
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(math.Exp2(-16))}}
	var out bytes.Buffer
	if err := gguf.Write(&out, metadata, sources); err != nil {
		return nil, fmt.Errorf("simulated model: %w", err)
	}
	file, err := gguf.Parse(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("simulated model: %w", err)
	}
	return model.Load(file)
}
