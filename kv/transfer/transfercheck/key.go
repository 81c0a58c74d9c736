package transfercheck

import (
	"encoding/binary"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
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
	gone := func(m letter) bool { return !w.matters(&m) }
	if i := slices.IndexFunc(w.letters, gone); i >= 0 {
		w.letters = slices.DeleteFunc(slices.Clone(w.letters), gone)
	}
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

func letterX(m *letter) kv.TransferID { return transfer.TransferOf(m.message) }

// has reports whether decode still has x.
func (w *World) has(x kv.TransferID) bool {
	d := w.decodes[w.home(x)]
	return d.epoch == x.Epoch && d.target.Has(x)
}

// encoder makes the key of a state under one naming of its workers.
type encoder struct {
	w         *World
	fresh     bool
	remembers bool
	naming
	names [][]uint8   // canonical page numbers, by decode worker and slot
	order [][]kv.Slot // the slots by their numbers
	rest  []unreferred
	forms []byte
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (e *encoder) key(key []byte) []byte {
	for _, d := range e.decodes.order {
		key = e.decode(key, int(d))
	}
	for _, p := range e.prefills.order {
		key = e.prefill(key, int(p))
	}
	for n, i := range e.links.order {
		key = e.link(key, &e.w.links[i])
		key = e.flights(key, transfer.Peer(i+1), byte(n+1))
	}
	for _, q := range e.w.requests {
		key = append(key, bit(q.done), q.attempts, q.open)
	}
	key = e.w.ranksKey(e.w.gatewayKey(key))
	u := e.w.used
	key = append(key, u.prefillCrashes, u.decodeCrashes, u.suspicions, u.breaks, u.strays, u.lost, u.astray, u.late, byte(e.w.healing))
	if e.w.shadow != nil {
		key = e.w.shadow.appendKey(key, e)
	}
	return append(key, e.w.broken...)
}

// page is the form of a page of decode worker d: its number, and whether the
// reference is to its present generation.
func (e *encoder) page(d int, ref kv.PageRef) byte {
	current := e.w.decodes[d].pool.Page(ref.Slot).Ref.Generation == ref.Generation
	return e.names[d][ref.Slot]<<1 | bit(current)
}

// Page, Peer, Epoch and Skip are how the machines' parts are told apart.
func (e *encoder) Page(x kv.TransferID, ref kv.PageRef) uint64 {
	return uint64(e.page(e.w.home(x), ref))
}

// Peer is a link's canonical number.
func (e *encoder) Peer(p transfer.Peer) transfer.Peer { return transfer.Peer(e.links.number[p-1] + 1) }

// Epoch is an incarnation with its worker's canonical number.
func (e *encoder) Epoch(epoch kv.Epoch) kv.Epoch {
	of := &e.decodes
	if epoch&0xf0 == prefillEpoch(0, 0) {
		of = &e.prefills
	}
	if epoch == 0 {
		return 0
	}
	return epoch&^0xf | kv.Epoch(of.number[epoch&0xf])
}

// Skip leaves out ended transfers of prefill that decode does not have.
func (e *encoder) Skip(x kv.TransferID) bool { return e.remembers && !e.w.has(x) }

func (e *encoder) content(key []byte, c content) []byte {
	if e.fresh && c.request != 0 && c.request < common {
		if q := &e.w.requests[c.request-1]; q.done && q.open == 0 {
			c = content{}
		}
	}
	return append(key, c.request, c.block)
}

func (e *encoder) x(key []byte, x kv.TransferID) []byte {
	key = binary.AppendUvarint(key, uint64(e.Epoch(x.Epoch)))
	return append(binary.AppendUvarint(key, x.Sequence), x.Rank)
}

// slot is a page of a pool: state, holders and owner.
func (e *encoder) slot(key []byte, p *pool.Pool, slot kv.Slot) []byte {
	return e.x(p.AppendKey(key, slot), p.Page(slot).X)
}

// memory is a page's bytes. A tag is told by whether it is still its page's.
func (e *encoder) memory(key []byte, d int, slot kv.Slot) []byte {
	m := &e.w.decodes[d].memory[slot]
	key = e.content(key, m.body)
	h := &m.header
	if e.fresh && !e.w.has(h.x) {
		return append(key, 0)
	}
	key = append(e.x(key, h.x), h.block, bit(e.w.decodes[d].pool.Page(slot).Ref.Generation == h.generation))
	return e.content(key, h.sum)
}

func (e *encoder) decode(key []byte, i int) []byte {
	d := e.w.decodes[i]
	key = append(key, 0xd0)
	key = d.target.AppendKey(key, e)
	for _, slot := range e.order[i] {
		key = e.memory(e.slot(key, d.pool, slot), i, slot)
	}
	for k := range d.jobs {
		j := &d.jobs[k]
		key = e.x(append(key, 0xd1, j.request, byte(e.Peer(j.link)), j.landed, byte(len(j.roots)), bit(j.fencing)|bit(j.checking)<<1|bit(j.started)<<2|bit(j.answered)<<3|
			bit(j.kernel)<<4|bit(j.stopping)<<5|bit(j.owed)<<6|bit(j.verified)<<7, j.ticket.boot, j.ticket.number, j.ticket.try), j.x)
		for _, list := range [...][]kv.PageRef{j.pages, j.grown} {
			for _, ref := range list {
				key = append(key, e.page(i, ref))
			}
		}
	}
	key = append(e.decodeCache(key, i), 0xd2)
	for _, x := range d.fenced {
		key = e.x(key, x)
	}
	for _, s := range d.stale {
		key = append(key, 0xd3, s.request)
		for _, slot := range s.slots {
			key = append(key, e.names[i][slot])
		}
	}
	return key
}

func (e *encoder) prefill(key []byte, i int) []byte {
	p := e.w.prefills[i]
	key = p.source.AppendKey(append(key, 0xa0), e)
	for slot := range p.memory {
		key = e.content(e.slot(key, p.pool, kv.Slot(slot)), p.memory[slot])
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

func (e *encoder) link(key []byte, l *link) []byte {
	target, source := e.w.targetUp(l), e.w.sourceUp(l)
	return append(key, 0xb0, e.decodes.number[l.decode], e.prefills.number[l.prefill], byte(l.low)*bit(source),
		bit(target)|bit(source)<<1|bit(l.doubted && target)<<2|bit(l.sourceDoubt && source)<<3)
}

// flights is what is on its way on a link: messages and writes.
func (e *encoder) flights(key []byte, peer transfer.Peer, number byte) []byte {
	for i := range e.w.letters {
		if m := &e.w.letters[i]; m.link == peer {
			key = e.message(append(key, 0xc0, number), m)
		}
	}
	for i := range e.w.writes {
		r := &e.w.writes[i]
		if r.link != peer {
			continue
		}
		d := int(e.w.link(peer).decode)
		key = e.x(append(key, 0xc1, number, r.block, bit(r.left)|bit(r.body)<<1|bit(r.tags)<<2|bit(r.landed)<<3|bit(r.refused)<<4|bit(r.reported)<<5|bit(r.poisoned)<<6), r.x)
		key = e.content(append(key, e.page(d, r.to), e.names[d][r.slot]), r.sum)
		if r.left {
			key = e.content(key, r.bytes)
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
			key = append(key, e.page(d, ref))
		}
	case transfer.Abort:
		key = append(e.x(append(key, 'a'), m.X), byte(m.Low))
	case transfer.Closed:
		key = append(e.x(append(key, 'c'), m.X), byte(m.Outcome), byte(m.Reason), byte(len(m.Roots)))
	}
	return key
}
