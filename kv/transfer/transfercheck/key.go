package transfercheck

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// fresh reports whether an id is never used again, so that what an ended transfer
// left behind can matter to nobody.
func (w *World) fresh() bool { return !w.config.Unreduced && !w.missing(guard.FreshID) }

// remembers reports whether a source that knows a transfer cannot be moved by its
// GRANT or ABORT again.
func (w *World) remembers() bool {
	return w.fresh() && w.config.Strays == 0 && !w.missing(guard.Tombstone)
}

// forget drops messages and marks that can matter to nobody any more: delivering
// such a message, now or later, changes nothing.
//
//   - CLOSED(x), when decode has no x: with fresh ids it never has again.
//   - GRANT(x), when prefill knows x: it repeats CLOSED, which is in the network
//     already. ABORT(x), when x has ended at prefill, likewise.
//   - Anything on a link whose receiving end is gone.
//
// A message also carries the low-water mark. Raising it ends transfers that decode
// has closed, which their own ABORT does too, and turns away messages of them,
// which is as good as their loss.
func (w *World) forget() {
	if !w.fresh() {
		return
	}
	w.forgetReplies()
	w.forgetRanked()
	w.letters = slices.DeleteFunc(w.letters, func(m letter) bool { return !w.matters(&m) })
	for i := range w.decodes {
		d := w.decodes[i]
		if slices.ContainsFunc(d.fenced, func(x kv.TransferID) bool { return !w.mayWrite(x) }) {
			d = w.mutDecode(uint8(i))
			d.fenced = slices.DeleteFunc(d.fenced, func(x kv.TransferID) bool { return !w.mayWrite(x) })
		}
	}
}

func (w *World) matters(m *letter) bool {
	l := w.link(m.link)
	if w.config.Strays == 0 && !w.arrives(m, l) {
		return false
	}
	p := w.prefills[l.prefill]
	switch m := m.message.(type) {
	case transfer.Grant:
		return !w.remembers() || p.source.Stage(m.X) == ""
	case transfer.Abort:
		stage := p.source.Stage(m.X)
		return !w.remembers() || stage != "closed" && stage != "draining"
	case transfer.Closed:
		return w.decodes[l.decode].target.Has(m.X)
	}
	return false
}

// mayWrite reports whether a write of x is on its way or may still be posted.
func (w *World) mayWrite(x kv.TransferID) bool {
	if slices.ContainsFunc(w.writes, func(r write) bool { return r.x == x }) {
		return true
	}
	if slices.ContainsFunc(w.letters, func(m letter) bool { return m.toSource && letterX(&m) == x }) {
		return true
	}
	for _, p := range w.prefills {
		if stage := p.source.Stage(x); stage != "" && stage != "closed" {
			return true
		}
	}
	return false
}

func letterX(m *letter) kv.TransferID {
	switch m := m.message.(type) {
	case transfer.Grant:
		return m.X
	case transfer.Abort:
		return m.X
	case transfer.Closed:
		return m.X
	}
	return kv.TransferID{}
}

// has reports whether decode still has x.
func (w *World) has(x kv.TransferID) bool {
	d := w.decodes[w.home(x)]
	return d.epoch == x.Epoch && d.target.Has(x)
}

// encoder makes one key.
type encoder struct {
	w         *World
	fresh     bool
	remembers bool
	name      [][]uint64 // canonical page numbers, by decode worker and slot
}

// AppendKey appends the canonical form of a state. Pages of a decode worker are
// numbered by what refers to them, so that a permutation of pages is one state;
// bytes of a request that is over are just foreign, and a tag of a transfer that
// is over never matches.
func (m Model) AppendKey(key []byte, w *World) []byte {
	e := &encoder{w: w, fresh: w.fresh(), remembers: w.remembers()}
	for d := range w.decodes {
		e.name = append(e.name, e.names(d))
	}
	for d := range w.decodes {
		key = e.decode(key, d)
	}
	for p := range w.prefills {
		key = e.prefill(key, p)
	}
	key = e.links(key)
	key = e.flights(key)
	for _, q := range w.requests {
		key = append(key, bit(q.done), q.attempts, q.open)
	}
	key = w.ranksKey(w.gatewayKey(key))
	u := w.used
	key = append(key, u.prefillCrashes, u.decodeCrashes, u.suspicions, u.breaks, u.strays, u.lost, u.astray, u.late)
	if w.shadow != nil {
		key = w.shadow.appendKey(key, e)
	}
	return append(key, w.broken...)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// page is the form of a page of decode worker d: its number, and whether the
// reference is to its present generation.
func (e *encoder) page(d int, ref kv.PageRef) uint64 {
	current := e.w.decodes[d].pool.Page(ref.Slot).Ref.Generation == ref.Generation
	n := e.name[d][ref.Slot] << 1
	if current {
		n |= 1
	}
	return n
}

func (e *encoder) content(c content) []byte {
	if e.fresh && c.request != 0 && c.request < common {
		if q := e.w.requests[c.request-1]; q.done && q.open == 0 {
			c = content{}
		}
	}
	return []byte{c.request, c.block}
}

func (e *encoder) x(key []byte, x kv.TransferID) []byte {
	key = binary.AppendUvarint(key, uint64(x.Epoch))
	return append(binary.AppendUvarint(key, x.Sequence), x.Rank)
}

// memory is a page's bytes. A tag is told by whether it is still its page's.
func (e *encoder) memory(key []byte, d int, slot kv.Slot) []byte {
	m := e.w.decodes[d].memory[slot]
	key = append(key, e.content(m.body)...)
	h := m.header
	if e.fresh && !e.w.has(h.x) {
		return append(key, 0)
	}
	key = append(e.x(key, h.x), h.block, bit(e.w.decodes[d].pool.Page(slot).Ref.Generation == h.generation))
	return append(key, e.content(h.sum)...)
}

func (e *encoder) decode(key []byte, i int) []byte {
	d := e.w.decodes[i]
	key = append(key, 0xd0)
	key = d.target.AppendKey(key, transfer.View{Page: func(ref kv.PageRef) uint64 { return e.page(i, ref) }})
	order := make([]kv.Slot, len(d.memory))
	for slot, n := range e.name[i] {
		order[n] = kv.Slot(slot)
	}
	for _, slot := range order {
		key = e.memory(d.pool.AppendKey(key, slot), i, slot)
	}
	for k := range d.jobs {
		j := &d.jobs[k]
		key = e.x(append(key, 0xd1, j.request, byte(j.link), j.landed, byte(len(j.roots)), bit(j.fencing)|bit(j.checking)<<1|bit(j.started)<<2|bit(j.answered)<<3|
			bit(j.kernel)<<4|bit(j.stopping)<<5|bit(j.owed)<<6|bit(j.verified)<<7, j.ticket.boot, j.ticket.number, j.ticket.try), j.x)
		for _, ref := range append(slices.Clone(j.pages), j.grown...) {
			key = binary.AppendUvarint(key, e.page(i, ref))
		}
	}
	key = append(e.decodeCache(key, i), 0xd2)
	for _, x := range d.fenced {
		key = e.x(key, x)
	}
	for _, s := range d.stale {
		key = append(key, 0xd3, s.request)
		for _, slot := range s.slots {
			key = append(key, byte(e.name[i][slot]))
		}
	}
	return key
}

func (e *encoder) prefill(key []byte, i int) []byte {
	p := e.w.prefills[i]
	view := transfer.View{
		Page: func(ref kv.PageRef) uint64 { return uint64(ref.Slot) },
		Skip: func(x kv.TransferID) bool { return e.remembers && !e.w.has(x) },
	}
	key = p.source.AppendKey(append(key, 0xa0), view)
	for slot := range p.memory {
		key = p.pool.AppendKey(key, kv.Slot(slot))
		key = append(key, e.content(p.memory[slot])...)
	}
	for k := range p.jobs {
		j := &p.jobs[k]
		key = e.x(append(key, 0xa1, byte(j.computed), byte(j.want), bit(j.joining)|bit(j.kernel)<<1|bit(j.stopping)<<2|bit(j.owed)<<3|bit(j.cancelled)<<4), j.x)
		for _, ref := range j.pages {
			key = append(key, byte(ref.Slot))
		}
	}
	key = e.sourceCache(key, i)
	for _, s := range p.stale {
		key = append(key, 0xa2, s.request)
		for _, slot := range s.slots {
			key = append(key, byte(slot))
		}
	}
	return key
}

func (e *encoder) links(key []byte) []byte {
	for i := range e.w.links {
		l := &e.w.links[i]
		target, source := e.w.targetUp(l), e.w.sourceUp(l)
		key = append(key, 0xb0, byte(l.low)*bit(source), bit(target)|bit(source)<<1|bit(l.doubted && target)<<2|bit(l.sourceDoubt && source)<<3)
	}
	return key
}

// flights is what is on its way: messages and writes.
func (e *encoder) flights(key []byte) []byte {
	for i := range e.w.letters {
		m := &e.w.letters[i]
		key = append(key, 0xc0, byte(m.link))
		key = e.message(key, m)
	}
	for i := range e.w.writes {
		r := &e.w.writes[i]
		d := int(e.w.link(r.link).decode)
		key = e.x(append(key, 0xc1, byte(r.link), r.block, bit(r.left)|bit(r.body)<<1|bit(r.tags)<<2|bit(r.landed)<<3|bit(r.refused)<<4|bit(r.reported)<<5|bit(r.poisoned)<<6), r.x)
		key = binary.AppendUvarint(key, e.page(d, r.to))
		key = append(key, byte(e.name[d][r.slot]))
		key = append(key, e.content(r.sum)...)
		if r.left {
			key = append(key, e.content(r.bytes)...)
		} else {
			key = append(key, byte(r.from.Slot))
		}
	}
	return key
}

func (e *encoder) message(key []byte, m *letter) []byte {
	switch m := m.message.(type) {
	case transfer.Grant:
		key = append(e.x(append(key, 'g'), m.X), byte(m.Request), byte(m.Low))
		d := e.w.home(m.X)
		for _, ref := range m.Pages {
			key = binary.AppendUvarint(key, e.page(d, ref))
		}
	case transfer.Abort:
		key = append(e.x(append(key, 'a'), m.X), byte(m.Low))
	case transfer.Closed:
		key = append(e.x(append(key, 'c'), m.X), byte(m.Outcome), byte(m.Reason), byte(len(m.Roots)))
	}
	return key
}

// names numbers the pages of a decode worker by everything that refers to them;
// pages that tie are interchangeable. Any numbering is sound: pages are compared
// only for equality.
func (e *encoder) names(d int) []uint64 {
	n := len(e.w.decodes[d].memory)
	names := make([]uint64, n)
	for i := range names {
		names[i] = uint64(i)
	}
	if e.w.config.Unreduced {
		return names
	}
	marks := e.marks(d)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return bytes.Compare(marks[a], marks[b]) })
	for rank, slot := range order {
		names[slot] = uint64(rank)
	}
	return names
}

// marks gives each page what it holds and who refers to it, in a fixed order.
func (e *encoder) marks(i int) [][]byte {
	d := e.w.decodes[i]
	marks := make([][]byte, len(d.memory))
	for slot := range d.memory {
		marks[slot] = e.memory(d.pool.AppendKey(marks[slot], kv.Slot(slot)), i, kv.Slot(slot))
	}
	count := byte(0)
	refer := func(slot kv.Slot, generation kv.Generation) {
		current := d.pool.Page(slot).Ref.Generation == generation
		marks[slot] = append(marks[slot], count, bit(current))
		count++
	}
	for k := range d.jobs {
		for _, ref := range append(slices.Clone(d.jobs[k].pages), d.jobs[k].grown...) {
			refer(ref.Slot, ref.Generation)
		}
	}
	for k := range e.w.letters {
		if g, ok := e.w.letters[k].message.(transfer.Grant); ok && e.w.home(g.X) == i {
			for _, ref := range g.Pages {
				refer(ref.Slot, ref.Generation)
			}
		}
	}
	for k := range e.w.writes {
		if r := &e.w.writes[k]; int(e.w.link(r.link).decode) == i {
			refer(r.slot, r.to.Generation)
			refer(r.to.Slot, r.to.Generation)
		}
	}
	for _, p := range e.w.prefills {
		for k := range p.jobs {
			if j := &p.jobs[k]; e.w.home(j.x) == i {
				for _, ref := range j.grant.Pages {
					refer(ref.Slot, ref.Generation)
				}
			}
		}
	}
	d.markCache(refer)
	for _, s := range d.stale {
		for _, slot := range s.slots {
			refer(slot, 0)
		}
	}
	return marks
}
