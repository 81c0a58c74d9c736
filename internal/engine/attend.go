package engine

import (
	"unsafe"

	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// A column is one query head of one token: the unit that attention is computed
// for. Columns of one run and one KV head read the same pages, so several of
// them go together; how many changes the speed and no result.
const (
	columnsMin = 8  // what the kernels take at once
	columnsMax = 24 // what one thread takes at once
	columnsFew = 4  // what one thread takes where there are not enough parts for all
	// scoresGoal is the number of scores a thread holds at once, as far as
	// columnsMin allows: 128 KiB stay in its cache.
	scoresGoal = 32 << 10
)

// store rotates the batch's queries and keys and writes keys and values into the
// pages of a layer.
func (e *Engine) store(t *tensor.Thread, layer int) {
	t.Each(len(e.batch.spans), 1, func(lo, hi int) {
		for _, s := range e.batch.spans[lo:hi] {
			row := e.batch.tokens[s.lo].row
			leaf := e.leaf(row.Pages[s.page], layer)
			for i := s.lo; i < s.hi; i++ {
				e.storeToken(leaf, i)
			}
			if s.hash {
				row.Hash(s.page, layer)
			}
		}
	})
}

func (e *Engine) storeToken(leaf []uint16, i int) {
	shape := &e.model.Config
	token := &e.batch.tokens[i]
	cols := shape.QKVCols()
	values := e.qkv[i*cols:][:cols]
	cos, sin := e.batch.rope.at(token)
	for h := range shape.Heads + shape.KVHeads {
		e.rotate(values[h*shape.KeyDim:][:shape.KeyDim], cos, sin)
	}
	lane := token.pos % kv.PageTokens
	for h := range shape.KVHeads {
		tensor.StoreK(e.keys(leaf, h), lane, values[shape.QueryCols()+h*shape.KeyDim:][:shape.KeyDim])
		tensor.F32toF16(e.values(leaf, h)[lane*shape.ValueDim:],
			values[shape.QueryCols()+shape.KeyCols()+h*shape.ValueDim:][:shape.ValueDim])
	}
}

// leaf views one layer's K and V of a page as halves.
func (e *Engine) leaf(slot kv.Slot, layer int) []uint16 {
	b := e.pages.Leaf(slot, layer)
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

func (e *Engine) keys(leaf []uint16, head int) []uint16 {
	n := e.layout.KeyDim * kv.PageTokens
	return leaf[head*n:][:n]
}

func (e *Engine) values(leaf []uint16, head int) []uint16 {
	n := e.layout.ValueDim * kv.PageTokens
	return leaf[e.layout.KVHeads*e.layout.KeyDim*kv.PageTokens+head*n:][:n]
}

// part is the columns lo to hi-1 of one KV head and one run. Column c is query
// head c%G of the KV head's G, and token c/G of the run.
type part struct {
	run    run
	head   int
	lo, hi int
}

// listLeaves collects the leaves that the batch's attention reads in a layer.
func (e *Engine) listLeaves(layer int) {
	e.leaves = e.leaves[:0]
	for i := range e.batch.runs {
		r := &e.batch.runs[i]
		r.leaf = len(e.leaves)
		last := &e.batch.tokens[r.hi-1]
		for _, slot := range last.row.Pages[:last.pos/kv.PageTokens+1] {
			e.leaves = append(e.leaves, e.leaf(slot, layer))
		}
	}
}

// attend computes the batch's attention in the layer whose leaves are listed.
func (e *Engine) attend(t *tensor.Thread) {
	n := 0
	for _, r := range e.batch.runs {
		n += e.parts(r) * e.layout.KVHeads
	}
	t.Each(n, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			e.attendPart(&e.own[t.ID], e.part(n-1-i)) // the longest first
		}
	})
}

// width is how many columns of a run go together.
func (e *Engine) width(r run) int {
	length := kv.PagesFor(e.batch.tokens[r.hi-1].pos+1) * kv.PageTokens
	if parts := ((r.hi-r.lo)*e.group() + columnsMin - 1) / columnsMin * e.layout.KVHeads; parts*len(e.batch.runs) < e.config.Threads {
		return columnsFew
	}
	return min(max(scoresGoal/length/columnsMin*columnsMin, columnsMin), columnsMax)
}

func (e *Engine) group() int { return e.model.Config.Heads / e.layout.KVHeads }

// parts is the number of parts of a run, for each KV head.
func (e *Engine) parts(r run) int {
	w := e.width(r)
	return ((r.hi-r.lo)*e.group() + w - 1) / w
}

// part is the batch's i-th part.
func (e *Engine) part(i int) part {
	for _, r := range e.batch.runs {
		n := e.parts(r) * e.layout.KVHeads
		if i >= n {
			i -= n
			continue
		}
		w := e.width(r)
		lo := i / e.layout.KVHeads * w
		return part{r, i % e.layout.KVHeads, lo, min(lo+w, (r.hi-r.lo)*e.group())}
	}
	panic("engine: part beyond the batch")
}

// attendPart computes softmax(Q K / sqrt(dim)) V for a part's columns.
func (e *Engine) attendPart(own *ownMemory, p part) {
	shape := &e.model.Config
	cols := p.hi - p.lo
	last := e.column(p, cols-1)
	leaves := e.leaves[p.run.leaf:][:last.pos/kv.PageTokens+1]
	length := len(leaves) * kv.PageTokens
	keys := p.head * shape.KeyDim * kv.PageTokens
	e.gather(own, p)
	tensor.AttnQKPages(leaves, keys, own.query, shape.KeyDim, cols, own.scores, length, shape.KeyDim)
	for c := range cols {
		tensor.Softmax(own.scores[c*length:][:length], e.column(p, c).pos+1, e.scale)
	}
	e.sumValues(own, p, own.scores, length, 0, shape.ValueDim)
	e.scatter(own, p, 0, shape.ValueDim)
}

// sumValues adds up the values that a part's columns see, weighted by scores, which
// are length apart, in the dimensions from to to-1.
func (e *Engine) sumValues(own *ownMemory, p part, scores []float32, length, from, to int) {
	shape := &e.model.Config
	cols, dims, dim := p.hi-p.lo, to-from, shape.ValueDim
	leaves := e.leaves[p.run.leaf:][:length/kv.PageTokens]
	values := shape.KVHeads*shape.KeyDim*kv.PageTokens + p.head*dim*kv.PageTokens + from
	clear(own.sums[:cols*dims])
	whole := (e.column(p, 0).pos + 1) / kv.PageTokens // pages that all columns see all of
	tensor.AttnAVPages(leaves, values, dim, scores, length, cols, own.sums, dims, dims, whole*kv.PageTokens)
	for c := range cols {
		rest := e.column(p, c).pos + 1 - whole*kv.PageTokens
		tensor.AttnAVPages(leaves[whole:], values, dim, scores[c*length+whole*kv.PageTokens:], length, 1, own.sums[c*dims:], dims, dims, rest)
	}
}

func (e *Engine) column(p part, c int) *token {
	return &e.batch.tokens[p.run.lo+(p.lo+c)/e.group()]
}

// gather copies the part's queries side by side.
func (e *Engine) gather(own *ownMemory, p part) {
	shape, group := &e.model.Config, e.group()
	cols, dim := shape.QKVCols(), shape.KeyDim
	for c := p.lo; c < p.hi; c++ {
		head := p.head*group + c%group
		copy(own.query[(c-p.lo)*dim:][:dim], e.qkv[(p.run.lo+c/group)*cols+head*dim:])
	}
}

// scatter copies the part's results, of the dimensions from to to-1, to their tokens
// and heads.
func (e *Engine) scatter(own *ownMemory, p part, from, to int) {
	shape, group := &e.model.Config, e.group()
	for c := p.lo; c < p.hi; c++ {
		head := p.head*group + c%group
		copy(e.attn[(p.run.lo+c/group)*shape.AttnCols()+head*shape.ValueDim+from:][:to-from], own.sums[(c-p.lo)*(to-from):])
	}
}
