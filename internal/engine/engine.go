// Package engine turns a batch of sequences into their next tokens.
//
// It computes keys, values and logits; choosing a token from logits is the
// caller's part. A step takes any mix of prompt chunks and single tokens, writes
// the K and V of every token into pages of the caller's, and reads of those
// pages only what the sequence has written: lanes and pages beyond a token's
// position never change a result, whatever stands in them.
//
// Results are bitwise the same whatever the batch, the chunking of a prompt and
// the number of threads, logits and KV bytes alike. That holds because a token's
// values at each stage are computed by one chain of operations of a fixed order,
// which is package tensor's promise for its products and kernels, and because
// nothing here depends on who stands beside a token.
package engine

import (
	"errors"
	"fmt"
	"math"

	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// What can become of a single row. Both leave the other rows of the step as they
// are, and the row's pages possibly half-written.
var (
	// ErrNotFinite: the row's logits contain a NaN or an infinity.
	ErrNotFinite = errors.New("logits are not finite")
	// ErrCancelled: the row's Cancelled reported true.
	ErrCancelled = errors.New("row was cancelled")
)

// Pages is the memory that page-table entries point into. Leaf is called from
// all threads of the engine at once.
type Pages interface {
	// Leaf returns the bytes of one layer's K and V in a page, of the size
	// and shape that kv.Layout gives, aligned to at least 2 bytes.
	Leaf(slot kv.Slot, layer int) []byte
}

// Logits are what a token of the vocabulary each is worth as the next one.
type Logits struct {
	// From is set by Step, with Values: that of the row whose token they were computed
	// from. It is zero when they were not computed.
	From kv.Origin
	// Values has the length of the vocabulary.
	Values []float32
}

// Row is one sequence's part of a step.
type Row struct {
	// Tokens are at the positions Start, Start+1, ... of the sequence; those
	// before Start were written by earlier steps.
	Tokens []int32
	Start  int
	// Pages is the sequence's page table. Its pages hold at least
	// Start + len(Tokens) positions. No two rows of a step share a page that
	// either of them writes.
	Pages []kv.Slot
	// From says whose the row is; its Index is that of the first of Logits, and later
	// ones count on. It is only carried, to where the logits are computed.
	From kv.Origin
	// Logits receive the logits after each of the last len(Logits) tokens, in order.
	Logits []Logits
	// Hash, if set, is called for each layer and each page that this step
	// wrote to and that is now full or holds the row's last token, once the
	// page's leaf of that layer is final for the step. page indexes Pages.
	// Calls come from several threads at once.
	Hash func(page, layer int)
	// Cancelled, if set, is polled between layers.
	Cancelled func() bool

	// Err is set by Step: nil, ErrNotFinite or ErrCancelled.
	Err error
}

// Config bounds an engine's threads and memory.
type Config struct {
	// Threads compute a step, 1 to 256.
	Threads int
	// TokensMax is the number of tokens of a step, all rows together.
	TokensMax int
	// LogitsMax is how many tokens' logits are computed in one pass over the
	// output weights. It costs LogitsMax x vocabulary x 4 bytes.
	LogitsMax int
	// ContextMax is the number of positions of a sequence. It costs about
	// 32 bytes a position and thread.
	ContextMax int
}

// Default is the configuration for a model: one thread, steps of 512 tokens.
func Default(m *model.Model) Config {
	return Config{Threads: 1, TokensMax: 512, LogitsMax: 16, ContextMax: m.Config.Context}
}

// Validate reports every bound that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, b := range []struct {
		name       string
		value, max int
	}{{"threads", c.Threads, 256}, {"tokens a step", c.TokensMax, 1 << 16}, {"logits a pass", c.LogitsMax, 1 << 12},
		{"context", c.ContextMax, 1 << 24}} {
		if b.value < 1 || b.value > b.max {
			errs = append(errs, fmt.Errorf("engine %s: %d, want 1 to %d", b.name, b.value, b.max))
		}
	}
	return errors.Join(errs...)
}

// Engine computes steps.
//
// Owner: one goroutine at a time calls Step, and Close after the last of them.
type Engine struct {
	model  *model.Model
	pages  Pages
	config Config
	layout kv.Layout
	team   *tensor.Team
	scale  float32 // of attention scores

	own    []ownMemory  // by thread
	shared *tensor.Acts // of a step whose tokens don't fit one tile
	batch  batch
	leaves [][]uint16 // of the layer at hand: run after run, each page that its tokens see
	// Of parts that all threads share.
	spread       []spreadPart
	spreadScores []float32
	// Activations, [token][columns].
	x, qkv, attn, hidden []float32
	logits               []float32 // [LogitsMax][vocabulary]; nil until first wanted
}

// ownMemory is what each thread has for itself.
type ownMemory struct {
	acts   *tensor.Acts // of a step whose tokens fit one tile
	norm   []float32    // one token, normalised
	query  []float32    // [column][key dim]
	scores []float32    // [column][position]
	sums   []float32    // [column][value dim]
}

// New makes an engine that keeps K and V in pages.
func New(m *model.Model, pages Pages, c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.ContextMax > m.Config.Context {
		return nil, fmt.Errorf("engine context: %d, the model was made for %d", c.ContextMax, m.Config.Context)
	}
	shape := m.Config
	e := &Engine{
		model: m, pages: pages, config: c, layout: m.Layout(), team: tensor.NewTeam(c.Threads),
		scale:  float32(1 / math.Sqrt(float64(shape.KeyDim))),
		x:      make([]float32, c.TokensMax*shape.Embedding),
		qkv:    make([]float32, c.TokensMax*shape.QKVCols()),
		attn:   make([]float32, c.TokensMax*shape.AttnCols()),
		hidden: make([]float32, c.TokensMax*shape.FFN),
	}
	colsMax := max(shape.Embedding, shape.AttnCols(), shape.FFN)
	e.shared = tensor.NewActs(max(c.TokensMax, c.LogitsMax), colsMax)
	for range c.Threads {
		e.own = append(e.own, ownMemory{
			acts:   tensor.NewActs(tileTokens, colsMax),
			norm:   make([]float32, shape.Embedding),
			query:  make([]float32, columnsMax*shape.KeyDim),
			scores: make([]float32, max(scoresGoal, columnsMin*kv.PagesFor(c.ContextMax)*kv.PageTokens)),
			sums:   make([]float32, columnsMax*shape.ValueDim),
		})
	}
	e.batch.rope = newRope(c.TokensMax, shape.RotaryFreqs)
	return e, nil
}

// Close ends the engine's threads.
func (e *Engine) Close() { e.team.Close() }

// Step runs all layers over the rows' tokens. An error means that a row broke a
// requirement and that nothing was computed; what became of a single row is in
// its Err.
func (e *Engine) Step(rows []Row) error {
	if err := e.check(rows); err != nil {
		return err
	}
	e.batch.fill(rows)
	if len(e.batch.tokens) == 0 {
		return nil
	}
	e.embed()
	last := len(e.model.Layers) - 1
	for layer := range e.model.Layers {
		e.dropCancelled()
		e.keysAndValues(layer)
		if layer == last {
			e.keepWanted()
		}
		if len(e.batch.tokens) == 0 {
			return nil
		}
		e.attention(layer)
		e.feedForward(layer)
	}
	e.output()
	return nil
}

// dropCancelled takes cancelled rows out of the batch.
func (e *Engine) dropCancelled() {
	if e.batch.cancel() {
		e.keep(func(t *token) bool { return t.row.Err == nil })
	}
}

// keepWanted takes out of the batch what has no logits to give: behind the last
// layer's keys and values there is nothing left to compute for it.
func (e *Engine) keepWanted() {
	e.keep(func(t *token) bool { return t.place() >= 0 })
}

// keep takes all other tokens and their activations out of the batch.
func (e *Engine) keep(wanted func(*token) bool) {
	width, cols := e.model.Config.Embedding, e.model.Config.QKVCols()
	e.batch.keep(wanted, func(to, from int) {
		copy(e.x[to*width:][:width], e.x[from*width:][:width])
		copy(e.qkv[to*cols:][:cols], e.qkv[from*cols:][:cols])
	})
}

func (e *Engine) check(rows []Row) error {
	total := 0
	for i := range rows {
		r := &rows[i]
		r.Err = nil
		total += len(r.Tokens)
		if err := e.checkRow(r); err != nil {
			return fmt.Errorf("step: row %d of %d: %w", i, len(rows), err)
		}
	}
	if total > e.config.TokensMax {
		return fmt.Errorf("step: %d tokens in %d rows, the limit is %d", total, len(rows), e.config.TokensMax)
	}
	return nil
}

func (e *Engine) checkRow(r *Row) error {
	end := r.Start + len(r.Tokens)
	switch {
	case r.Start < 0 || end > e.config.ContextMax:
		return fmt.Errorf("positions %d to %d, the context is %d", r.Start, end, e.config.ContextMax)
	case len(r.Pages)*kv.PageTokens < end:
		return fmt.Errorf("%d pages of %d tokens for %d positions", len(r.Pages), kv.PageTokens, end)
	case len(r.Logits) > len(r.Tokens):
		return fmt.Errorf("logits of %d tokens wanted, the step has %d", len(r.Logits), len(r.Tokens))
	}
	vocab := e.model.Config.Vocab
	for i, t := range r.Tokens {
		if t < 0 || int(t) >= vocab {
			return fmt.Errorf("token at position %d is outside the vocabulary of %d", r.Start+i, vocab)
		}
	}
	for i := range r.Logits {
		l := &r.Logits[i]
		l.From = kv.Origin{}
		if len(l.Values) != vocab {
			return fmt.Errorf("room for logits %d has %d values, the vocabulary %d", i, len(l.Values), vocab)
		}
	}
	return nil
}
