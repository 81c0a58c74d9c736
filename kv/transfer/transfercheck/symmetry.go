package transfercheck

import (
	"bytes"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// AppendKey appends the canonical form of a state. Pages of a decode worker are
// numbered by what refers to them, so that a permutation of pages is one state;
// bytes of a request that is over are just foreign, and a tag of a transfer that
// is over never matches.
//
// Workers of a kind are alike: they are configured alike, every pair is linked, and
// what can happen to one can happen to any. So a run in which two of them are
// exchanged, with their links, epochs and transfers, is a run too. The key is the
// least of those under every order of the workers. An order is tried only if the
// workers' marks, which depend on no order, rise in it. Ranks are not alike, and the
// proved machine beside a world knows workers by their names.
func (m Model) AppendKey(key []byte, w *World) []byte {
	e := w.stock.encoders.Get().(*encoder)
	defer w.stock.encoders.Put(e)
	e.w, e.fresh, e.remembers = w, w.fresh(), w.remembers()
	decodes, prefills := e.orders(len(w.decodes), e.markDecode), e.orders(len(w.prefills), e.markPrefill)
	var least, next []byte
	for _, d := range decodes {
		for _, p := range prefills {
			e.name(d, p)
			if len(decodes)*len(prefills) == 1 {
				return e.key(key)
			}
			next = e.key(next[:0])
			if least == nil || bytes.Compare(next, least) < 0 {
				least, next = next, least
			}
		}
	}
	return append(key, least...)
}

// ranking is an order of things that are numbered from 0, and their places in it.
type ranking struct{ order, number []uint8 }

// take makes it the ranking of an order.
func (r *ranking) take(order []uint8) {
	r.order = append(r.order[:0], order...)
	r.number = append(r.number[:0], order...)
	for n, i := range order {
		r.number[i] = uint8(n)
	}
}

// naming is how workers and links are called in a key.
type naming struct{ decodes, prefills, links ranking }

// one is the only order of a single worker.
var one = [][]uint8{{0}}

// orders lists the orders of n workers in which their marks rise.
func (e *encoder) orders(n int, mark func(mark []byte, i int) []byte) (all [][]uint8) {
	if n == 1 {
		return one
	}
	marks := make([][]byte, n)
	for i := range marks {
		marks[i] = mark(nil, i)
		if e.w.config.Unreduced || e.w.config.ranks() > 1 || e.w.shadow != nil {
			marks[i] = []byte{byte(i)}
		}
	}
	var grow func(order []uint8)
	grow = func(order []uint8) {
		if len(order) == n {
			all = append(all, slices.Clone(order))
			return
		}
		var least []byte
		for i, m := range marks {
			if !slices.Contains(order, uint8(i)) && (least == nil || bytes.Compare(m, least) < 0) {
				least = m
			}
		}
		for i, m := range marks {
			if !slices.Contains(order, uint8(i)) && bytes.Equal(m, least) {
				grow(append(order, uint8(i)))
			}
		}
	}
	grow(make([]uint8, 0, n))
	return all
}

func (e *encoder) markDecode(mark []byte, i int) []byte {
	d := e.w.decodes[i]
	mark = append(mark, byte(d.epoch>>12), byte(d.opened))
	for k := range d.jobs {
		j := &d.jobs[k]
		mark = append(mark, j.request, j.landed, bit(j.fencing)|bit(j.started)<<1|bit(j.answered)<<2)
	}
	return mark
}

func (e *encoder) markPrefill(mark []byte, i int) []byte {
	p := e.w.prefills[i]
	mark = append(mark, byte(p.epoch>>12))
	for slot := range p.memory {
		mark = e.content(mark, p.memory[slot])
	}
	for k := range p.jobs {
		mark = append(mark, p.jobs[k].request, byte(p.jobs[k].computed))
	}
	return mark
}

// name takes the workers in these orders, and names links and pages by them.
func (e *encoder) name(decodes, prefills []uint8) {
	e.decodes.take(decodes)
	e.prefills.take(prefills)
	var room [16]uint8
	links := room[:0]
	for _, d := range decodes {
		for _, p := range prefills {
			for i := range e.w.links {
				if l := &e.w.links[i]; l.decode == d && l.prefill == p {
					links = append(links, uint8(i))
				}
			}
		}
	}
	e.links.take(links)
	for d := range e.w.decodes {
		e.namePages(d)
	}
}

// unnamed is the number of a page that has none yet.
const unnamed = 0xff

// namePages numbers the pages of a decode worker in the order in which something
// refers to them first, and the others by what they hold. Others that hold the same
// are interchangeable. Any numbering is sound: pages are compared only for equality.
func (e *encoder) namePages(d int) {
	if d == len(e.names) {
		e.names, e.order = append(e.names, nil), append(e.order, nil)
	}
	e.names[d], e.order[d] = e.names[d][:0], e.order[d][:0]
	for slot := range e.w.decodes[d].memory {
		e.names[d] = append(e.names[d], unnamed)
		if e.w.config.Unreduced {
			e.refer(d, kv.Slot(slot))
		}
	}
	e.referAll(d)
	e.nameRest(d)
}

func (e *encoder) refer(d int, slot kv.Slot) {
	if e.names[d][slot] == unnamed {
		e.names[d][slot] = uint8(len(e.order[d]))
		e.order[d] = append(e.order[d], slot)
	}
}

func (e *encoder) referPages(d int, refs []kv.PageRef) {
	for i := range refs {
		e.refer(d, refs[i].Slot)
	}
}

// referAll visits what refers to pages of a decode worker, in an order that
// depends on no page.
func (e *encoder) referAll(i int) {
	d := e.w.decodes[i]
	for k := range d.jobs {
		e.referPages(i, d.jobs[k].pages)
		e.referPages(i, d.jobs[k].grown)
	}
	for _, n := range e.links.order {
		if int(e.w.links[n].decode) == i {
			e.referFlights(i, transfer.Peer(n+1))
		}
	}
	for _, n := range e.prefills.order {
		p := e.w.prefills[n]
		for k := range p.jobs {
			if j := &p.jobs[k]; e.w.home(j.x) == i {
				e.referPages(i, j.grant.Pages)
			}
		}
	}
	d.markCache(func(slot kv.Slot, _ kv.Generation) { e.refer(i, slot) })
	for _, s := range d.stale {
		for _, slot := range s.slots {
			e.refer(i, slot)
		}
	}
}

func (e *encoder) referFlights(d int, peer transfer.Peer) {
	for k := range e.w.letters {
		if g, ok := e.w.letters[k].message.(transfer.Grant); ok && e.w.letters[k].link == peer {
			e.referPages(d, g.Pages)
		}
	}
	for k := range e.w.writes {
		if r := &e.w.writes[k]; r.link == peer {
			e.refer(d, r.slot)
			e.refer(d, r.to.Slot)
		}
	}
}

// unreferred is a page that nothing refers to, and what it holds.
type unreferred struct {
	slot kv.Slot
	form []byte
}

// nameRest numbers the pages that nothing refers to.
func (e *encoder) nameRest(d int) {
	e.rest = e.rest[:0]
	forms := e.forms[:0]
	for slot, name := range e.names[d] {
		if name == unnamed {
			begin := len(forms)
			forms = e.memory(e.slot(forms, e.w.decodes[d].pool, kv.Slot(slot)), d, kv.Slot(slot))
			e.rest = append(e.rest, unreferred{kv.Slot(slot), forms[begin:]})
		}
	}
	e.forms = forms
	slices.SortStableFunc(e.rest, func(a, b unreferred) int { return bytes.Compare(a.form, b.form) })
	for _, r := range e.rest {
		e.refer(d, r.slot)
	}
}
