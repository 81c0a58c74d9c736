package transfercheck

import (
	"bytes"
	"cmp"
	"slices"
	"sort"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// stepTarget gives decode's machine an event and does what it asks for.
func (w *World) stepTarget(i uint8, e transfer.TargetEvent) {
	d := w.mutDecode(i)
	w.followTarget(i, d)
	for _, effect := range d.target.Step(e) {
		w.doTarget(i, d, effect)
	}
	w.settleRanks()
}

func (w *World) doTarget(i uint8, d *decode, e transfer.Effect) {
	j := d.job(e.X)
	switch e.Kind {
	case transfer.DoSend:
		w.send(e.Peer, true, e.Message)
	case transfer.DoFencePeer:
		w.link(e.Peer).doubted = true
	case transfer.DoRevoke:
		w.must(d.pool.Revoke(e.X))
	case transfer.DoFence:
		j.fencing = true
	case transfer.DoWriterGone:
		j.fencing = false
		w.proved(d, j)
		w.must(d.pool.Fenced(e.X))
	case transfer.DoVerify:
		w.ready(d, j, len(e.Roots))
		j.checking, j.roots = true, e.Roots
	case transfer.DoStart:
		w.start(d, j)
	case transfer.DoAnswer:
		w.answer(j, e.Code)
	case transfer.DoStopKernel:
		j.stopping = true
	case transfer.DoRelease:
		w.release(d, e.X)
	default:
	}
}

// proved: when a writer is said to be gone, no write of it is on its way or will
// ever be posted, or none can land.
func (w *World) proved(d *decode, j *job) {
	l := w.link(j.link)
	if l.torn || slices.Contains(d.fenced, j.x) {
		return
	}
	for i := range w.writes {
		if r := &w.writes[i]; r.x == j.x && !r.landed && !r.refused {
			w.fail("ProofBeforeRelease: the writer of " + showX(j.x) + " is said to be gone, a write is on its way")
			return
		}
	}
	p := w.prefills[l.prefill]
	stage := p.source.Stage(j.x)
	never := stage == "closed" || stage == "" && j.x.Sequence < l.low // below the low mark nothing is started
	if p.epoch == l.source && !l.sourceGone && !never {
		w.fail("ProofBeforeRelease: the writer of " + showX(j.x) + " is said to be gone, prefill may still write")
	}
}

// ready: what is verified has been covered by the manifest, placed, and fenced.
func (w *World) ready(d *decode, j *job, roots int) {
	t := w.config.Transport
	switch {
	case roots != len(j.pages):
		w.fail("Coverage: pages are verified that the manifest does not name")
	case t.Places && int(j.landed) != (1<<len(j.pages)-1)<<len(j.prefix):
		w.fail("LandedBeforeVerify: pages are verified that were never placed")
	case t.Fences && !w.link(j.link).torn && !slices.Contains(d.fenced, j.x):
		w.fail("FencedBeforeVerify: pages are verified that can still be written")
	}
}

// must says that the pool allows what the machine asks for.
func (w *World) must(err error) {
	if err != nil {
		w.fail("PageStates: " + err.Error())
	}
}

// start adopts verified pages and begins a step on them.
func (w *World) start(d *decode, j *job) {
	w.must(d.pool.Verified(j.x, len(j.table())*kv.PageTokens, len(j.prefix)))
	w.must(d.pool.Adopt(j.x, len(j.pages)-1))
	w.must(d.pool.HoldKernel(j.x))
	j.started, j.kernel = true, true
	w.startedAlone(j)
	w.startedOnLostPins(d, j)
	for n, ref := range j.table() {
		if m := d.memory[ref.Slot]; m.body != w.wanted(j.request, n) || n >= len(j.prefix) && m.header.x != j.x {
			w.fail("SoundStart: decode starts on a page that is not what was granted")
		}
	}
}

// answer ends a request's attempt. The gateway may try again.
func (w *World) answer(j *job, code transfer.Code) {
	if j.answered {
		w.fail("OneOutcome: a transfer is answered twice")
		return
	}
	j.answered = true
	j.finished(code)
	switch {
	case w.config.ranks() > 1:
		w.tellRank(j.x, transfer.RankAnswered{Rank: j.x.Rank, Code: code})
	case w.config.Gateway:
		w.requests[j.request-1].open--
		w.reply(j, code)
	default:
		w.settleRequest(j.request, code)
	}
}

// settleRequest ends an attempt of a request.
func (w *World) settleRequest(request uint8, code transfer.Code) {
	r := &w.requests[request-1]
	r.open--
	if code == transfer.CodeDone && w.config.Requests[request-1] > w.config.SourcePages {
		w.fail("Admission: a request that is too large for prefill is answered")
	}
	last := int(r.attempts) >= w.config.Attempts
	r.done = r.done || code == transfer.CodeDone || code == transfer.CodeTooLarge || (last && r.open == 0)
}

// release gives pages back, unless the pool refuses: then they stay until what
// holds them has gone.
func (w *World) release(d *decode, x kv.TransferID) {
	i := slices.IndexFunc(d.jobs, func(j job) bool { return j.x == x })
	j := &d.jobs[i]
	w.keep(d, j)
	if err := d.pool.Free(x); err != nil {
		if !d.scrubs(j) {
			w.fail("ReleaseHeld: decode's machine releases pages that are held: " + err.Error())
		}
		j.owed = true
		return
	}
	if j.kernel {
		d.stale = append(d.stale, kernel{x: x, request: j.request, slots: slotsOf(append(slices.Clone(j.pages), j.grown...))})
	}
	d.jobs = slices.Delete(d.jobs, i, i+1)
}

func slotsOf(refs []kv.PageRef) (slots []kv.Slot) {
	for _, ref := range refs {
		slots = append(slots, ref.Slot)
	}
	return slots
}

// stepSource gives prefill's machine an event and does what it asks for.
func (w *World) stepSource(i uint8, e transfer.SourceEvent) {
	p := w.mutPrefill(i)
	w.followSource(i, p, e)
	for _, effect := range p.source.Step(e) {
		w.doSource(i, p, effect)
	}
	for !w.config.SlowJoin {
		n := slices.IndexFunc(p.jobs, func(j sourceJob) bool { return j.joining })
		if n < 0 {
			return
		}
		p = w.join(i, p.jobs[n].x, true)
	}
}

// jobOf is whose job prefill joins with a request's grant.
func (w *World) jobOf(request uint8) uint8 {
	if w.config.MixedJobs {
		return request%uint8(len(w.requests)) + 1
	}
	return request
}

// join answers DoAdmit: with the job and pages, or with busy where there are none
// or the job does not come.
func (w *World) join(i uint8, x kv.TransferID, jobCame bool) *prefill {
	p := w.mutPrefill(i)
	j := p.job(x)
	j.joining, j.want = false, len(j.grant.Pages)
	if j.want > w.config.SourcePages {
		j.want = 1 // only where nobody refuses it: a placeholder goes on in its place
		w.fail("NoPlaceholder: prefill computes something in place of a prompt that is too large")
	}
	p.pool.Prefer(slotsInOrder(w.config.SourcePages)...)
	pins := w.pins(p.pool, p.cache, j.request, int(j.grant.FirstBlock))
	w.pin(p.pool, x, j.grant.Tenant, pins)
	pages, err := p.pool.AllocLocal(x, j.grant.Tenant, j.want-len(pins))
	if err != nil || !jobCame {
		if err == nil || len(pins) > 0 {
			w.must(p.pool.Free(x))
		}
		p.jobs = slices.DeleteFunc(p.jobs, func(j sourceJob) bool { return j.x == x })
		w.stepSource(i, transfer.Refused{X: x, Reason: transfer.ReasonBusy})
		return w.prefills[i]
	}
	j.pages, j.pinned = append(refsOf(pins), pages...), len(pins)
	w.stepSource(i, transfer.Admitted{X: x, Tokens: j.grant.Tokens, TokenDigest: digest(j.of)})
	return w.prefills[i]
}

func slotsInOrder(n int) (slots []kv.Slot) {
	for i := range n {
		slots = append(slots, kv.Slot(i))
	}
	return slots
}

func (w *World) doSource(i uint8, p *prefill, e transfer.Effect) {
	j := p.job(e.X)
	switch e.Kind {
	case transfer.DoSend:
		w.send(e.Peer, false, e.Message)
	case transfer.DoFencePeer:
		w.link(e.Peer).sourceDoubt = true
	case transfer.DoAdmit:
		p.jobs = append(p.jobs, sourceJob{x: e.X, request: uint8(e.Grant.Request), of: w.jobOf(uint8(e.Grant.Request)), joining: true, grant: e.Grant})
	case transfer.DoWithdraw:
		p.jobs = slices.DeleteFunc(p.jobs, func(j sourceJob) bool { return j.x == e.X })
	case transfer.DoCompute:
		if j.of != j.request {
			w.fail("RightTokens: prefill computes another job's tokens for " + showX(e.X))
		}
		w.must(p.pool.HoldKernel(e.X))
		j.kernel = true
	case transfer.DoWrite:
		w.post(p, j, e)
	case transfer.DoStopKernel:
		j.stopping = true
	case transfer.DoRelease:
		w.releaseSource(p, e.X)
	default:
	}
}

// post starts a write: its tag and sum are made now, its bytes are read when it lands.
func (w *World) post(p *prefill, j *sourceJob, e transfer.Effect) {
	tag, _ := e.Grant.Tag(e.Block, 0)
	from := j.pages[e.Block-e.Grant.FirstBlock]
	w.must(p.pool.Hold(from, pool.Sender))
	n := write{link: e.Peer, x: e.X, block: uint8(e.Block), to: kv.PageRef{Slot: tag.Slot, Generation: tag.Generation}, slot: tag.Slot,
		from: from, sum: p.memory[from.Slot]}
	i := sort.Search(len(w.writes), func(i int) bool { return !w.writes[i].before(&n) })
	w.writes = slices.Insert(w.writes, i, n)
}

func (a *write) before(b *write) bool {
	return cmp.Or(cmp.Compare(a.link, b.link), compareX(a.x, b.x), cmp.Compare(a.block, b.block)) < 0
}

func compareX(a, b kv.TransferID) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Rank, b.Rank))
}

func (w *World) releaseSource(p *prefill, x kv.TransferID) {
	i := slices.IndexFunc(p.jobs, func(j sourceJob) bool { return j.x == x })
	if i < 0 {
		return
	}
	j := p.jobs[i]
	if err := p.pool.Free(x); err != nil {
		w.fail("ReleaseHeld: prefill's machine releases pages that are held: " + err.Error())
		p.jobs[i].owed = true
		return
	}
	if j.kernel {
		p.stale = append(p.stale, kernel{x: x, request: j.request, slots: slotsOf(j.pages)})
	}
	p.jobs = slices.Delete(p.jobs, i, i+1)
}

// send puts a message into the network, where it stays. Saying the same again
// adds nothing.
func (w *World) send(peer transfer.Peer, toSource bool, m transfer.Message) {
	n := letter{link: peer, toSource: toSource, message: m}
	if toSource != w.fromTarget(m) {
		w.fail("a message goes the wrong way")
	}
	i, there := slices.BinarySearchFunc(w.letters, n, compareLetters)
	if !there {
		w.letters = slices.Insert(slices.Clip(w.letters), i, n) // a copy
	}
}

func (w *World) fromTarget(m transfer.Message) bool {
	_, closed := m.(transfer.Closed)
	return !closed
}

// compareLetters orders letters by all that they say. Links and ids come first, so
// that the order of letters of different transfers depends on no page.
func compareLetters(a, b letter) int {
	if c := cmp.Or(cmp.Compare(a.link, b.link), cmp.Compare(kindOf(a.message), kindOf(b.message)), compareX(letterX(&a), letterX(&b))); c != 0 {
		return c
	}
	switch m := a.message.(type) {
	case transfer.Grant:
		n := b.message.(transfer.Grant)
		return cmp.Or(cmp.Compare(m.Request, n.Request), cmp.Compare(m.Attempt, n.Attempt), cmp.Compare(m.GatewayBoot, n.GatewayBoot),
			cmp.Compare(m.SourceEpoch, n.SourceEpoch), cmp.Compare(m.Low, n.Low), cmp.Compare(m.FirstBlock, n.FirstBlock), slices.CompareFunc(m.Pages, n.Pages, compareRefs))
	case transfer.Abort:
		n := b.message.(transfer.Abort)
		return cmp.Or(cmp.Compare(m.SourceEpoch, n.SourceEpoch), cmp.Compare(m.Low, n.Low))
	case transfer.Closed:
		n := b.message.(transfer.Closed)
		return cmp.Or(cmp.Compare(m.SourceEpoch, n.SourceEpoch), cmp.Compare(m.Outcome, n.Outcome), cmp.Compare(m.Reason, n.Reason), cmp.Compare(m.Tokens, n.Tokens),
			bytes.Compare(m.TokenDigest[:], n.TokenDigest[:]), slices.CompareFunc(m.Roots, n.Roots, compareDigests))
	}
	return 0
}

func kindOf(m transfer.Message) int {
	switch m.(type) {
	case transfer.Grant:
		return 1
	case transfer.Abort:
		return 2
	case transfer.Closed:
		return 3
	}
	return 0
}

func compareRefs(a, b kv.PageRef) int {
	return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Generation, b.Generation))
}

func compareDigests(a, b kv.Digest) int { return bytes.Compare(a[:], b[:]) }
