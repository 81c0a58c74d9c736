package engine

import (
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
)

// tileTokens is the number of tokens up to which every thread prepares the
// activations of a product for itself: that costs less than another phase.
const tileTokens = 6

// embed fills x with the tokens' embeddings.
func (e *Engine) embed() {
	width := e.model.Config.Embedding
	tokens := e.batch.tokens
	e.team.Run(func(t *tensor.Thread) {
		t.Each(len(tokens), 4, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				e.model.Embedding.Dequantize(int(tokens[i].id), e.x[i*width:][:width])
			}
		})
	})
}

// keysAndValues computes the queries, keys and values of one layer, and writes
// the latter two into the pages.
func (e *Engine) keysAndValues(layer int) {
	if len(e.batch.tokens) == 0 {
		return
	}
	w, cols := &e.model.Layers[layer], e.model.Config.QKVCols()
	for _, part := range w.QKV {
		e.product(part.Matrix, len(e.batch.tokens), e.normed(w.AttnNorm), func(t *tensor.Thread, acts *tensor.Acts) {
			part.Matrix.Mul(t, acts, e.qkv[part.Column:], cols)
		})
	}
	e.team.Run(func(t *tensor.Thread) { e.store(t, layer) })
}

// attention adds the attention of one layer to x.
func (e *Engine) attention(layer int) {
	shape, w := &e.model.Config, &e.model.Layers[layer]
	e.listLeaves(layer)
	if parts := e.spreads(); parts != nil {
		e.attendSpread(parts)
	} else {
		e.team.Run(e.attend)
	}
	attn := shape.AttnCols()
	values := func(_ *tensor.Thread, i int) []float32 { return e.attn[i*attn:][:attn] }
	e.product(w.Output, len(e.batch.tokens), values, func(t *tensor.Thread, acts *tensor.Acts) {
		w.Output.MulAdd(t, acts, e.x, shape.Embedding)
	})
}

// feedForward adds the gated feed-forward part of one layer to x.
func (e *Engine) feedForward(layer int) {
	shape, w := &e.model.Config, &e.model.Layers[layer]
	e.product(w.GateUp, len(e.batch.tokens), e.normed(w.FFNNorm), func(t *tensor.Thread, acts *tensor.Acts) {
		w.GateUp.MulGated(t, acts, e.hidden, shape.FFN)
	})
	hidden := func(_ *tensor.Thread, i int) []float32 { return e.hidden[i*shape.FFN:][:shape.FFN] }
	e.product(w.Down, len(e.batch.tokens), hidden, func(t *tensor.Thread, acts *tensor.Acts) {
		w.Down.MulAdd(t, acts, e.x, shape.Embedding)
	})
}

// rowFunc is the activations of a batch's i-th token, in memory of the thread's.
type rowFunc func(t *tensor.Thread, i int) []float32

// normed is the residual stream, normalised with the weights.
func (e *Engine) normed(weights []float32) rowFunc {
	width := e.model.Config.Embedding
	return func(t *tensor.Thread, i int) []float32 {
		out := e.own[t.ID].norm
		tensor.RmsNorm(out, e.x[i*width:][:width], weights, e.model.Config.NormEps)
		return out
	}
}

// product prepares tokens rows of activations for m and has them multiplied.
func (e *Engine) product(m *tensor.Matrix, tokens int, row rowFunc, multiply func(t *tensor.Thread, acts *tensor.Acts)) {
	if tokens <= tileTokens {
		e.team.Run(func(t *tensor.Thread) {
			acts := e.own[t.ID].acts
			acts.Reset(m, tokens)
			acts.Pack(t, func(i int) []float32 { return row(t, i) })
			multiply(t, acts)
		})
		return
	}
	e.shared.Reset(m, tokens)
	e.team.Run(func(t *tensor.Thread) {
		t.Each(e.shared.Tiles(), 4, func(lo, hi int) {
			for tile := lo; tile < hi; tile++ {
				e.shared.PackTile(t, tile, func(i int) []float32 { return row(t, i) })
			}
		})
	})
	e.team.Run(func(t *tensor.Thread) { multiply(t, e.shared) })
}

// rotate turns one head's leading values.
func (e *Engine) rotate(head, cos, sin []float32) {
	if e.model.Config.Pairing == model.PairHalves {
		tensor.RopeNeox(head, cos, sin)
	} else {
		tensor.RopeNorm(head, cos, sin)
	}
}
