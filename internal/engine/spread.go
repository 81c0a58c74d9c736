package engine

import (
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// A few parts over long contexts leave threads idle: three KV heads of one sequence
// occupy two threads for the time of two. They are spread more finely then, in a
// phase each for scores, their softmax and sums, which costs two more meetings of
// the threads. Each score and each sum is still one chain of the same operations.
const (
	// spreadTokens is the length from which on that pays.
	spreadTokens = 1024
	// spreadParts is the number of parts a thread from which on they even out.
	spreadParts = 4
	spreadPages = 16 // of which one thread computes the scores at a time
	spreadDims  = 32 // of values that one thread sums up at a time
)

// spreadPart is a part whose scores all threads share.
type spreadPart struct {
	part
	length int // tokens of its pages
	scores []float32
}

// spreads lists the batch's parts if they are few and long.
func (e *Engine) spreads() []spreadPart {
	n, longest := 0, 0
	for _, r := range e.batch.runs {
		n += e.parts(r) * e.layout.KVHeads
		longest = max(longest, e.batch.tokens[r.hi-1].pos+1)
	}
	if e.config.Threads == 1 || n >= spreadParts*e.config.Threads || longest < spreadTokens {
		return nil
	}
	e.spread = e.spread[:0]
	room := 0
	for i := range n {
		p := e.part(i)
		length := (e.column(p, p.hi-p.lo-1).pos/kv.PageTokens + 1) * kv.PageTokens
		e.spread = append(e.spread, spreadPart{part: p, length: length})
		room += (p.hi - p.lo) * length
	}
	if len(e.spreadScores) < room {
		e.spreadScores = make([]float32, room)
	}
	at := e.spreadScores
	for i := range e.spread {
		p := &e.spread[i]
		n := (p.hi - p.lo) * p.length
		p.scores, at = at[:n], at[n:]
	}
	return e.spread
}

// attendSpread is attend for parts that several threads work on together.
func (e *Engine) attendSpread(parts []spreadPart) {
	blocks, columns, slices := 0, 0, (e.model.Config.ValueDim+spreadDims-1)/spreadDims
	for _, p := range parts {
		blocks = max(blocks, (p.length/kv.PageTokens+spreadPages-1)/spreadPages)
		columns = max(columns, p.hi-p.lo)
	}
	e.team.Run(func(t *tensor.Thread) {
		eachOf(t, parts, blocks, func(p *spreadPart, block int) { e.spreadScoresOf(&e.own[t.ID], p, block) })
	})
	e.team.Run(func(t *tensor.Thread) {
		eachOf(t, parts, columns, func(p *spreadPart, c int) {
			if c < p.hi-p.lo {
				tensor.Softmax(p.scores[c*p.length:][:p.length], e.column(p.part, c).pos+1, e.scale)
			}
		})
	})
	e.team.Run(func(t *tensor.Thread) {
		eachOf(t, parts, slices, func(p *spreadPart, slice int) { e.spreadSums(&e.own[t.ID], p, slice) })
	})
}

// eachOf shares n pieces of each part among the threads.
func eachOf(t *tensor.Thread, parts []spreadPart, n int, do func(p *spreadPart, i int)) {
	t.Each(len(parts)*n, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			do(&parts[i/n], i%n)
		}
	})
}

// spreadScoresOf computes the scores of one block of the part's pages, if it has it.
func (e *Engine) spreadScoresOf(own *ownMemory, p *spreadPart, block int) {
	lo, dim := block*spreadPages, e.model.Config.KeyDim
	hi := min(lo+spreadPages, p.length/kv.PageTokens)
	if lo >= hi {
		return
	}
	e.gather(own, p.part)
	leaves := e.leaves[p.run.leaf+lo : p.run.leaf+hi]
	tensor.AttnQKPages(leaves, p.head*dim*kv.PageTokens, own.query, dim, p.hi-p.lo, p.scores[lo*kv.PageTokens:], p.length, dim)
}

// spreadSums computes the part's result in one slice of the dimensions.
func (e *Engine) spreadSums(own *ownMemory, p *spreadPart, slice int) {
	from := slice * spreadDims
	to := min(from+spreadDims, e.model.Config.ValueDim)
	e.sumValues(own, p.part, p.scores, p.length, from, to)
	e.scatter(own, p.part, from, to)
}
