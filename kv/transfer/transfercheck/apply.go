package transfercheck

import (
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Model is a configured world for the checker.
type Model struct{ Config *Config }

// Initial is the start state.
func (m Model) Initial() *World { return NewWorld(m.Config) }

// Apply gives the state after an action.
func (m Model) Apply(w *World, a Action) *World {
	n := w.clone()
	n.broken = ""
	n.apply(a)
	n.agree()
	n.forget()
	return n
}

func (w *World) apply(a Action) {
	switch a.kind {
	case submit:
		w.submit(a)
	case cancel:
		w.stepTarget(uint8(a.a), transfer.Cancel{X: a.x})
	case deliver:
		w.deliver(w.letters[a.a], w.link(w.letters[a.a].link))
	case stray:
		w.used.strays++
		w.deliver(w.letters[a.a], &w.links[a.b])
	case join, joinNot:
		w.join(uint8(a.a), a.x, a.kind == join)
	case compute:
		w.compute(uint8(a.a), a.x)
	case land:
		w.land(a.a)
	case landBody, landTags, poison:
		w.landPart(a.a, a.kind)
	case report:
		w.report(a.a)
	case fence:
		w.fence(uint8(a.a), a.x)
	case verify:
		w.verify(uint8(a.a), a.x)
	case grow:
		w.grow(uint8(a.a), a.x, a.slots[0])
	case finish, detect, stopDecode:
		w.endDecode(uint8(a.a), a.x, a.kind)
	case stopPrefill:
		w.stopPrefill(uint8(a.a), a.x)
	case staleDecode, stalePrefill:
		w.writeStale(uint8(a.a), a.b>>4, a.b&15, a.kind == staleDecode)
	default:
		w.applyFault(a)
	}
}

func (w *World) applyFault(a Action) {
	switch a.kind {
	case tear:
		w.tear(&w.links[a.a])
	case breakLink:
		w.used.breaks += uint8(a.b)
		w.breakSource(a.a)
	case reconnect:
		w.connect(uint8(a.a), uint8(a.b))
	case suspect:
		w.used.suspicions++
		w.stepTarget(w.links[a.a].decode, transfer.Suspect{Peer: w.links[a.a].peer})
	case crashPrefill:
		w.used.prefillCrashes++
		w.crashPrefill(uint8(a.a))
	case crashDecode:
		w.used.decodeCrashes++
		w.crashDecode(uint8(a.a))
	case loseWrite:
		w.used.lost++
		w.writes[a.a].landed = true
		w.report(a.a)
	case misplaceWrite:
		w.used.astray++
		w.writes[a.a].slot = kv.Slot(a.b)
		w.land(a.a)
	case reportEarly:
		w.used.late++
		w.leave(&w.writes[a.a])
		w.complete(a.a, true, false)
	case hear, crashGateway, orphan, orphanSource:
		w.applyGateway(a)
	default:
		w.applyCache(a)
	}
}

// submit is the gateway's: admission, then pages, then the transfer.
func (w *World) submit(a Action) {
	q := &w.requests[a.a]
	q.attempts++
	if a.b < 0 {
		q.done = true
		return
	}
	i, p := uint8(a.b>>4), uint8(a.b&15)
	if w.config.Requests[a.a] > w.config.SourcePages {
		w.fail("Admission: a request that is too large for prefill is given pages")
	}
	q.open++
	if w.config.ranks() > 1 {
		w.openRanks(a.a, a.slots)
		return
	}
	w.open(i, p, a.a, a.slots, w.issue(a.a))
}

// open takes pages for a request at a decode node, and grants them to a prefill node.
func (w *World) open(i, p uint8, r int, slots []kv.Slot, ticket ticket) {
	need, tenant := w.config.Requests[r], w.config.tenant(uint8(r+1))
	d := w.mutDecode(i)
	x := d.target.Next()
	d.opened = x.Sequence
	pins := w.decodePins(int(i), uint8(r+1))
	w.pin(d.pool, x, tenant, pins)
	d.pool.Prefer(slots...)
	pages, err := d.pool.Grant(x, tenant, need-len(pins))
	w.must(err)
	d.jobs = append(d.jobs, job{x: x, request: uint8(r + 1), ticket: ticket, link: w.healthy(i, p).peer, prefix: pins, pages: pages})
	w.stepTarget(i, transfer.Open{X: x, Peer: w.healthy(i, p).peer, Request: uint64(r + 1), Attempt: uint32(w.requests[r].attempts), GatewayBoot: uint64(ticket.boot), Tenant: tenant,
		Tokens: uint32(need * kv.PageTokens), TokenDigest: digest(uint8(r + 1)), Key: kv.Key{1}, Prefix: refsOf(pins), Pages: pages})
}

func (w *World) deliver(m letter, l *link) {
	e := transfer.Received{Peer: l.peer, Message: m.message}
	if m.toSource {
		if !l.sourceDoubt && letterX(&m).Rank == w.config.rank(int(l.prefill)) {
			l.low = max(l.low, lowOf(m.message))
		}
		w.stepSource(l.prefill, e)
	} else {
		w.stepTarget(l.decode, e)
	}
}

func lowOf(m transfer.Message) uint64 {
	switch m := m.(type) {
	case transfer.Grant:
		return m.Low
	case transfer.Abort:
		return m.Low
	}
	return 0
}

// compute completes the next block of a prompt in its source page.
func (w *World) compute(i uint8, x kv.TransferID) {
	p := w.mutPrefill(i)
	j := p.job(x)
	block := uint8(j.grant.FirstBlock) + uint8(j.computed)
	c := w.wanted(j.of, int(block))
	if len(j.grant.Pages) > w.config.SourcePages {
		c.block = placeholder
	}
	if j.computed >= j.pinned {
		p.memory[j.pages[j.computed].Slot] = c
		w.followCompute(i, p, x, block)
	}
	j.computed++
	if j.computed == j.want {
		w.must(p.pool.ReleaseKernel(x))
		j.kernel = false
		w.keepSource(p, j)
	}
	w.stepSource(i, transfer.Computed{X: x, Block: uint32(block), Root: root(c)})
	if j := w.prefills[i].job(x); j != nil && !j.kernel && j.stopping {
		w.stepSource(i, transfer.KernelStopped{X: x})
	}
	w.retryFree(i, x)
}

// accepts reports whether a write may land now.
func (w *World) accepts(r *write) bool {
	l := w.link(r.link)
	d := w.decodes[l.decode]
	if !w.targetUp(l) || slices.Contains(d.fenced, r.x) {
		return false
	}
	if w.config.Transport.Places && !w.missing(guard.Gate) {
		page := d.pool.Page(r.slot)
		return page.State == pool.Granted && page.X == r.x && page.Ref == r.to
	}
	return true
}

// bytes are what a write carries if it lands now.
func (w *World) carried(r *write) content {
	if r.left {
		return r.bytes
	}
	return w.prefills[w.link(r.link).prefill].memory[r.from.Slot]
}

func (r *write) header() header {
	return header{x: r.x, generation: r.to.Generation, block: r.block, sum: r.sum}
}

// land lets a write land whole, or be refused.
func (w *World) land(i int) {
	r := &w.writes[i]
	l := w.link(r.link)
	placed := w.accepts(r)
	if placed {
		d := w.mutDecode(l.decode)
		w.foreign(d, r)
		d.memory[r.slot] = memory{body: w.carried(r), header: r.header()}
		w.followLand(r, true, true)
		w.followEnd(r)
		if j := d.job(r.x); j != nil {
			j.landed |= 1 << r.block
		}
		if w.config.Transport.Places {
			w.stepTarget(l.decode, transfer.Landed{X: r.x, Block: uint32(r.block)})
		}
	}
	w.landed(i, placed)
}

// foreign: a write does not land in a page that its transfer does not have.
func (w *World) foreign(d *decode, r *write) {
	if page := d.pool.Page(r.slot); page.X != r.x || page.Ref != r.to {
		w.fail("ForeignLanding: a write of " + showX(r.x) + " lands in a page that it does not have")
	}
}

// landPart lets the body or the tags of a write land, or their poison.
func (w *World) landPart(i int, part kind) {
	r := &w.writes[i]
	d := w.mutDecode(w.link(r.link).decode)
	w.foreign(d, r)
	w.followLand(r, part == landBody, part == landTags)
	switch part {
	case poison:
		d.memory[r.slot].header = header{}
		r.poisoned = true
	case landBody:
		d.memory[r.slot].body = w.carried(r)
		r.body = true
	case landTags:
		d.memory[r.slot].header = r.header()
		r.tags = true
	default:
	}
	if r.body && r.tags {
		w.landed(i, true)
	}
}

// landed ends a write's flight. Its report follows, at once unless reports are slow.
func (w *World) landed(i int, placed bool) {
	r := &w.writes[i]
	w.followEnd(r)
	r.landed, r.refused = placed, !placed
	if r.reported || !w.sourceUp(w.link(r.link)) {
		w.writes = slices.Delete(w.writes, i, i+1)
		return
	}
	if !w.config.SlowReports {
		w.report(i)
	}
}

// report tells the source how a write ended. A receiver that places refuses in
// silence; where a link is torn, the source cannot know.
func (w *World) report(i int) {
	r := &w.writes[i]
	if !r.landed && !r.refused {
		w.leave(r) // handed over: the page is no longer read
	}
	w.complete(i, r.landed || w.config.Transport.Places, !w.link(r.link).torn)
	w.writes = slices.DeleteFunc(w.writes, func(r write) bool { return r.reported && (r.landed || r.refused) })
}

// complete reports a write and gives up its hold on the source page.
func (w *World) complete(i int, ok, refused bool) {
	r := w.writes[i]
	w.writes[i].reported = true
	n := w.link(r.link).prefill
	w.must(w.mutPrefill(n).pool.Unhold(r.from, pool.Sender))
	w.stepSource(n, transfer.Written{X: r.x, Block: uint32(r.block), OK: ok, Refused: !ok && refused})
	w.retryFree(n, r.x)
}

// retryFree gives back source pages that the pool would not take before.
func (w *World) retryFree(i uint8, x kv.TransferID) {
	if j := w.prefills[i].job(x); j != nil && j.owed {
		p := w.mutPrefill(i)
		if p.pool.Free(x) == nil {
			p.jobs = slices.DeleteFunc(p.jobs, func(j sourceJob) bool { return j.x == x })
		}
	}
}

// leave makes a write independent of its sender.
func (w *World) leave(r *write) {
	if !r.left {
		w.followLeave(r)
		r.bytes = w.carried(r)
		r.left, r.from = true, kv.PageRef{Slot: r.from.Slot, Generation: r.from.Generation}
	}
}

func (w *World) fence(i uint8, x kv.TransferID) {
	d := w.mutDecode(i)
	d.job(x).fencing = false
	d.fenced = append(d.fenced, x)
	w.followFence(func(m made) bool { return m.x == x })
	w.stepTarget(i, transfer.Fenced{X: x})
}

// verify reads the pages as slab.Check does, and compares the manifest.
func (w *World) verify(i uint8, x kv.TransferID) {
	d := w.mutDecode(i)
	j := d.job(x)
	j.checking = false
	_, err := d.pool.Pinned(x)
	ok := err == nil
	for n, ref := range j.pages {
		m := d.memory[ref.Slot]
		if !w.missing(guard.TagVerify) {
			ok = ok && m.header.x == x && m.header.generation == ref.Generation && int(m.header.block) == len(j.prefix)+n
		}
		if !w.missing(guard.SumVerify) {
			ok = ok && m.header.x == x && m.header.sum == m.body && n < len(j.roots) && root(m.body) == j.roots[n]
		}
	}
	if j.verified = ok; w.config.ranks() > 1 {
		w.stepJoin(x, transfer.RankVerified{Rank: x.Rank, OK: ok})
		return
	}
	w.stepTarget(i, transfer.Verified{X: x, OK: ok})
}

// grow gives a running sequence a page of its own, zeroed and written by it.
func (w *World) grow(i uint8, x kv.TransferID, slot kv.Slot) {
	d := w.mutDecode(i)
	j := d.job(x)
	d.pool.Prefer(slot)
	refs, err := d.pool.AllocLocal(x, w.config.tenant(j.request), 1)
	w.must(err)
	w.must(d.pool.Write(refs[0], 1))
	own := w.wanted(j.request, len(j.table()))
	j.grown = refs
	d.memory[slot] = memory{body: own, header: header{x: x, generation: refs[0].Generation, block: own.block, sum: own}}
	w.followGrow(i, x, slot)
}

// endDecode ends a step: by itself, by a tag that is not right, or because it was told to stop.
func (w *World) endDecode(i uint8, x kv.TransferID, how kind) {
	d := w.mutDecode(i)
	j := d.job(x)
	if how == detect {
		w.stepTarget(i, transfer.Fault{X: x})
		return
	}
	if j.kernel {
		w.must(d.pool.ReleaseKernel(x))
		j.kernel = false
	}
	j.stopping = false
	if j.owed {
		j.owed = false
		w.release(d, x)
		return
	}
	if how == finish {
		w.stepTarget(i, transfer.Finished{X: x})
	} else {
		w.stepTarget(i, transfer.KernelStopped{X: x})
	}
}

func (w *World) stopPrefill(i uint8, x kv.TransferID) {
	p := w.mutPrefill(i)
	j := p.job(x)
	w.must(p.pool.ReleaseKernel(x))
	j.kernel, j.stopping = false, false
	w.stepSource(i, transfer.KernelStopped{X: x})
	w.retryFree(i, x)
}

// writeStale is the last write of a step whose pages are no longer its own.
func (w *World) writeStale(i uint8, k, n int, atDecode bool) {
	if atDecode {
		d := w.mutDecode(i)
		s := d.stale[k]
		d.memory[s.slots[n]].body = content{request: s.request, block: uint8(n)}
		d.stale = slices.Delete(d.stale, k, k+1)
		return
	}
	p := w.mutPrefill(i)
	s := p.stale[k]
	p.memory[s.slots[n]] = content{request: s.request, block: uint8(n)}
	p.stale = slices.Delete(p.stale, k, k+1)
}

// tear ends a link at the target: nothing of it lands any more.
func (w *World) tear(l *link) {
	l.torn = true
	peer, d := l.peer, l.decode
	w.refuse(peer)
	w.followFence(func(m made) bool { return m.link == peer })
	w.stepTarget(d, transfer.PeerLost{Peer: peer})
}

// refuse ends the flight of a link's writes; their reports are still to come.
func (w *World) refuse(peer transfer.Peer) {
	kept := w.writes[:0:0]
	for _, r := range w.writes {
		if r.link == peer && !r.landed {
			w.followEnd(&r)
			r.refused = true
		}
		if r.link != peer || (!r.reported && w.sourceUp(w.link(peer))) {
			kept = append(kept, r)
		}
	}
	w.writes = kept
}

// breakSource ends a link at the source. What was posted may still land, from
// bytes that have left; to the source all of it has failed.
func (w *World) breakSource(i int) {
	peer, p := w.links[i].peer, w.links[i].prefill
	for n := 0; n < len(w.writes); n++ {
		if w.writes[n].link == peer && !w.writes[n].reported {
			w.leave(&w.writes[n])
			w.complete(n, false, false)
		}
	}
	w.writes = slices.DeleteFunc(w.writes, func(r write) bool { return r.link == peer && (r.landed || r.refused) })
	w.links[i].sourceGone = true
	w.stepSource(p, transfer.PeerLost{Peer: peer})
	for _, j := range slices.Clone(w.prefills[p].jobs) {
		w.retryFree(p, j.x)
	}
}

// crashPrefill ends an incarnation. Its writes go on without it.
func (w *World) crashPrefill(i uint8) {
	old := w.prefills[i].epoch
	for n := range w.writes {
		if l := w.link(w.writes[n].link); l.prefill == i && l.source == old {
			w.leave(&w.writes[n])
		}
	}
	w.writes = slices.DeleteFunc(w.writes, func(r write) bool {
		l := w.link(r.link)
		return l.prefill == i && l.source == old && (r.landed || r.refused)
	})
	w.prefills[i] = newPrefill(w.config, int(i), old+0x1000)
	w.followCrashPrefill(i)
}

// crashDecode ends an incarnation. Its pages' bytes are still there for the next
// one, its links are not.
func (w *World) crashDecode(i uint8) {
	old := w.decodes[i]
	for r := range w.requests {
		q := &w.requests[r]
		for k := range old.jobs {
			if j := &old.jobs[k]; int(j.request) == r+1 && !j.answered {
				q.open--
				q.done = q.done || (int(q.attempts) >= w.config.Attempts && q.open == 0)
			}
		}
	}
	d := newDecode(w.config, int(i), old.epoch+0x1000)
	d.memory = slices.Clone(old.memory)
	w.decodes[i] = d
	for n := range w.links {
		if w.links[n].decode == i && w.links[n].target == old.epoch {
			w.links[n].torn = true
			w.refuse(w.links[n].peer)
		}
	}
	w.followCrashDecode(i)
}
