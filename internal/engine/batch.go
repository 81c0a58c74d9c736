package engine

import (
	"math"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// token is one token of a step. Its index in the batch is its row in the
// activations.
type token struct {
	row   *Row
	id    int32
	pos   int
	angle int // index into rope
}

// place is the token's index in its row's logits; negative when it has none.
func (t *token) place() int { return t.pos - (t.row.Start + len(t.row.Tokens) - len(t.row.Logits)) }

// span is the tokens lo to hi-1 of a batch, which one page holds.
type span struct {
	lo, hi int
	page   int // index in the row's page table
	hash   bool
}

// run is the tokens lo to hi-1 of a batch, which are one row's. Its pages' leaves
// stand in the engine's list from leaf on.
type run struct{ lo, hi, leaf int }

// batch is the tokens of a step, row after row.
type batch struct {
	tokens []token
	spans  []span
	runs   []run
	rope   rope
}

func (b *batch) fill(rows []Row) {
	b.tokens = b.tokens[:0]
	for i := range rows {
		r := &rows[i]
		for j, id := range r.Tokens {
			b.tokens = append(b.tokens, token{r, id, r.Start + j, len(b.tokens)})
		}
	}
	b.split()
	b.rope.fill(b.tokens)
}

// split finds the batch's runs and spans.
func (b *batch) split() {
	b.spans, b.runs = b.spans[:0], b.runs[:0]
	for i, t := range b.tokens {
		page := t.pos / kv.PageTokens
		newRow := i == 0 || b.tokens[i-1].row != t.row
		if newRow {
			b.runs = append(b.runs, run{lo: i})
		}
		if newRow || t.pos%kv.PageTokens == 0 {
			b.spans = append(b.spans, span{lo: i, page: page})
		}
		b.runs[len(b.runs)-1].hi = i + 1
		s := &b.spans[len(b.spans)-1]
		s.hi = i + 1
		last := t.row.Start+len(t.row.Tokens)-1 == t.pos
		s.hash = t.row.Hash != nil && (last || t.pos%kv.PageTokens == kv.PageTokens-1)
	}
}

// cancel marks the rows that want to be cancelled and reports whether any does.
func (b *batch) cancel() (any bool) {
	for _, run := range b.runs {
		if r := b.tokens[run.lo].row; r.Cancelled != nil && r.Cancelled() {
			r.Err = ErrCancelled
			any = true
		}
	}
	return any
}

// keep leaves only the wanted tokens, and has the activations of each that moves
// moved.
func (b *batch) keep(wanted func(*token) bool, move func(to, from int)) {
	kept := 0
	for i := range b.tokens {
		if !wanted(&b.tokens[i]) {
			continue
		}
		if kept != i {
			b.tokens[kept] = b.tokens[i]
			move(kept, i)
		}
		kept++
	}
	b.tokens = b.tokens[:kept]
	b.split()
}

// rope holds the cosines and sines of the rotary angles at the step's positions.
type rope struct {
	freqs    []float64
	cos, sin []float32 // [token][pair]
}

func newRope(tokensMax int, freqs []float64) rope {
	n := tokensMax * len(freqs)
	return rope{freqs, make([]float32, n), make([]float32, n)}
}

func (r *rope) fill(tokens []token) {
	n := len(r.freqs)
	for i, t := range tokens {
		for j, f := range r.freqs {
			sin, cos := math.Sincos(float64(t.pos) * f)
			r.cos[i*n+j], r.sin[i*n+j] = float32(cos), float32(sin)
		}
	}
}

func (r *rope) at(t *token) (cos, sin []float32) {
	n := len(r.freqs)
	return r.cos[t.angle*n:][:n], r.sin[t.angle*n:][:n]
}
