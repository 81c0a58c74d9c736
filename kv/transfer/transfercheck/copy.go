package transfercheck

import (
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// owned is a set of workers.
type owned struct{ decodes, prefills uint32 }

// stock keeps the memory of what is not needed any more: three quarters of all
// worlds turn out to be known.
type stock struct{ worlds, decodes, prefills, encoders sync.Pool }

func newStock() *stock {
	return &stock{
		worlds:   sync.Pool{New: func() any { return new(World) }},
		decodes:  sync.Pool{New: func() any { return &decode{target: new(transfer.Target), pool: new(pool.Pool)} }},
		prefills: sync.Pool{New: func() any { return &prefill{source: new(transfer.Source), pool: new(pool.Pool)} }},
		encoders: sync.Pool{New: func() any { return new(encoder) }},
	}
}

// clone shares everything. Workers that change are copied by the mut functions,
// letters and what is the gateway's or of ranks by whoever changes them.
func (w *World) clone() *World {
	n := w.stock.worlds.Get().(*World)
	decodes, prefills := append(n.decodes[:0], w.decodes...), append(n.prefills[:0], w.prefills...)
	links, writes, requests := append(n.links[:0], w.links...), append(n.writes[:0], w.writes...), append(n.requests[:0], w.requests...)
	*n = *w
	n.decodes, n.prefills, n.links, n.writes, n.requests, n.own = decodes, prefills, links, writes, requests, owned{}
	n.shadow = w.shadow.clone()
	return n
}

// Recycle gives the memory of a world back that was never cloned, and that nobody
// needs any more.
func (m Model) Recycle(w *World) {
	for i, d := range w.decodes {
		if w.own.decodes>>i&1 != 0 {
			w.stock.decodes.Put(d)
		}
	}
	for i, p := range w.prefills {
		if w.own.prefills>>i&1 != 0 {
			w.stock.prefills.Put(p)
		}
	}
	w.stock.worlds.Put(w)
}

// mutDecode makes a decode worker this world's own.
func (w *World) mutDecode(i uint8) *decode {
	from := w.decodes[i]
	if w.own.decodes>>i&1 != 0 {
		return from
	}
	w.own.decodes |= 1 << i
	d := w.stock.decodes.Get().(*decode)
	*d = decode{epoch: from.epoch, target: from.target.CloneInto(d.target), pool: from.pool.CloneInto(d.pool), memory: append(d.memory[:0], from.memory...),
		jobs: append(d.jobs[:0], from.jobs...), fenced: append(d.fenced[:0], from.fenced...), stale: append(d.stale[:0], from.stale...), opened: from.opened,
		cache: append(d.cache[:0], from.cache...), scrubbed: from.scrubbed}
	w.decodes[i] = d
	return d
}

// mutPrefill makes a prefill worker this world's own.
func (w *World) mutPrefill(i uint8) *prefill {
	from := w.prefills[i]
	if w.own.prefills>>i&1 != 0 {
		return from
	}
	w.own.prefills |= 1 << i
	p := w.stock.prefills.Get().(*prefill)
	*p = prefill{epoch: from.epoch, source: from.source.CloneInto(p.source), pool: from.pool.CloneInto(p.pool), memory: append(p.memory[:0], from.memory...),
		jobs: append(p.jobs[:0], from.jobs...), stale: append(p.stale[:0], from.stale...), cache: append(p.cache[:0], from.cache...)}
	w.prefills[i] = p
	return p
}
