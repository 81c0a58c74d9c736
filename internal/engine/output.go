package engine

import (
	"math"

	"github.com/bulkhead-kv/bulkhead/internal/tensor"
)

// wanted is a token whose logits are wanted, and where.
type wanted struct {
	token int // index in the batch
	into  *Logits
}

// output computes the logits that the rows want.
func (e *Engine) output() {
	all := e.wanted()
	for len(all) > 0 {
		n := min(len(all), e.config.LogitsMax)
		e.outputPass(all[:n])
		all = all[n:]
	}
}

func (e *Engine) wanted() []wanted {
	var all []wanted
	for _, r := range e.batch.runs {
		row := e.batch.tokens[r.lo].row
		for i := range row.Logits {
			all = append(all, wanted{r.hi - len(row.Logits) + i, &row.Logits[i]})
		}
	}
	return all
}

// outputPass streams the output weights once for some tokens.
func (e *Engine) outputPass(tokens []wanted) {
	m, vocab := e.model.Output, e.model.Config.Vocab
	out := tokens[0].into.Values
	if len(tokens) > 1 {
		if e.logits == nil {
			e.logits = make([]float32, e.config.LogitsMax*vocab)
		}
		out = e.logits
	}
	normed := e.normed(e.model.OutputNorm)
	row := func(t *tensor.Thread, i int) []float32 { return normed(t, tokens[i].token) }
	e.product(m, len(tokens), row, func(t *tensor.Thread, acts *tensor.Acts) { m.Mul(t, acts, out, vocab) })
	for i, w := range tokens {
		if len(tokens) > 1 {
			copy(w.into.Values, out[i*vocab:])
		}
		// Whose they are is what the token says that they were computed from.
		t := &e.batch.tokens[w.token]
		w.into.From = t.row.From.At(t.row.From.Index + t.place())
		if !finite(w.into.Values) {
			t.row.Err = ErrNotFinite
		}
	}
}

// finite reports whether no value is a NaN or an infinity.
func finite(values []float32) bool {
	for _, v := range values {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}
