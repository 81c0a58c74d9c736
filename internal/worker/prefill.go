package worker

import (
	"context"
	"errors"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/scheduler"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	// joinTicks is how long a grant waits for its job, and a job for its grant. No
	// page is held meanwhile.
	joinTicks = 50
	// rejectedTicks is the least time between two lines about refused links.
	rejectedTicks = 50
	// grantsWaitingMax bounds grants that came before their jobs.
	grantsWaitingMax = 1024
)

// Prefill computes prompts and writes their pages into the pools of decode workers.
//
// Life of a job: submitted -> (grant joined, source pages taken) -> computing, each
// full page sent as it is done -> closed -> pages free. A grant may come before its
// job and waits for it; either alone holds no page.
type Prefill struct {
	*base
	source *transfer.Source
	local  uint64 // sequence of the last id given to source pages

	byJob   map[cluster.ID]*prompt
	byX     map[kv.TransferID]*prompt
	byID    map[scheduler.ID]*prompt
	waiting map[kv.TransferID]*early
	now     int                    // ticks
	pending []transfer.SourceEvent // the one being stepped first

	rejected   int // links refused since the log said so
	quietUntil int // tick
}

// prompt is a job at the prefill worker.
type prompt struct {
	*job
	id       scheduler.ID
	grant    *transfer.Grant // nil until joined
	own      kv.TransferID   // owner of the source pages
	refs     []kv.PageRef
	roots    []kv.Digest // of the pages that are complete
	computed int         // tokens
	since    int         // tick of arrival
	over     bool        // the gateway has its terminal event; pages may still be sent or held
}

type early struct {
	grant *transfer.Grant
	since int
}

// NewPrefill makes a worker with an empty pool. Run must be called once.
func NewPrefill(c Config) (*Prefill, error) {
	b, err := newBase(c, cluster.Prefill)
	if err != nil {
		return nil, err
	}
	config := transfer.SourceConfig{Epoch: c.Epoch, PagesMax: c.PoolPages - c.ReservedPages, TokensMax: c.ContextTokens, TransfersMax: JobsMax}
	b.journal = conform.NewSourceJournal(config, c.Build, transfer.NewVeil(randomKey()), b.record)
	return &Prefill{
		base: b, source: transfer.NewSource(config),
		byJob: map[cluster.ID]*prompt{}, byX: map[kv.TransferID]*prompt{}, byID: map[scheduler.ID]*prompt{}, waiting: map[kv.TransferID]*early{},
	}, nil
}

// Transport is what listeners of this worker need: links post their events to it.
func (p *Prefill) Transport() transport.Config {
	c := transport.Default()
	c.Hello, c.Events = p.hello(), p.events
	return c
}

// Run is the worker's life. It ends when ctx does, or after a drain.
func (p *Prefill) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, p.close()) }()
	defer p.closeLinks()
	return p.loop(ctx, p)
}

func (p *Prefill) submit(j *job) {
	pr := &prompt{job: j, id: scheduler.ID(p.nextLocal()), since: p.now}
	p.byJob[j.ID()] = pr
	for _, w := range ordered(p.waiting, compareTransfers) {
		if jobOf(w.grant) == j.ID() {
			delete(p.waiting, w.grant.X)
			p.join(pr, w.grant)
			return
		}
	}
}

// jobOf is the job that a grant is for.
func jobOf(g *transfer.Grant) cluster.ID {
	return cluster.ID{GatewayBoot: g.GatewayBoot, Request: g.Request, Attempt: g.Attempt}
}

func (p *Prefill) nextLocal() uint64 { p.local++; return p.local }

// join brings a grant and its job together and takes the source pages, or refuses
// the transfer for good.
func (p *Prefill) join(pr *prompt, g *transfer.Grant) {
	refuse := func(r transfer.Reason, err error) {
		p.apply(transfer.Refused{X: g.X, Reason: r})
		p.end(pr, err)
	}
	if len(pr.Tokens) != int(g.Tokens) || pr.Tenant != g.Tenant || pr.grant != nil {
		refuse(transfer.ReasonJobMismatch, fault.New(fault.Internal, "grant of %d tokens does not fit the job of %d", g.Tokens, len(pr.Tokens)))
		return
	}
	own := kv.TransferID{Epoch: p.Epoch, Sequence: p.nextLocal()}
	take := p.pool.AllocLocal
	if pr.Probe {
		take = p.pool.AllocProbe
	}
	refs, err := take(own, pr.Tenant, len(g.Pages))
	if err != nil {
		refuse(transfer.ReasonBusy, fault.New(fault.Busy, "prefill %s: %w", p.Node, err))
		return
	}
	pr.grant, pr.own, pr.refs = g, own, refs
	p.recordTaken(pr.job, g.X, refs, "source pages, tagged "+own.String())
	p.byX[g.X] = pr
	for i := range refs {
		p.clean(p.tag(pr, i, 0))
	}
	p.apply(transfer.Admitted{X: g.X, Tokens: g.Tokens, TokenDigest: kv.TokenDigest(g.Key, pr.Tokens)})
}

// tag is what source page i must carry when tokens of the prompt are computed.
func (p *Prefill) tag(pr *prompt, i, tokens int) kv.Tag {
	return kv.Tag{Layout: p.layoutID, Tokens: uint8(kv.ExtentAt(tokens, i)), Transfer: pr.own, Generation: pr.refs[i].Generation,
		Tenant: pr.Tenant, Slot: pr.refs[i].Slot, Block: uint32(i)}
}

func (p *Prefill) cancel(id cluster.ID, cause error) {
	if pr := p.byJob[id]; pr != nil {
		p.giveUp(pr, cancelled(cause))
	}
}

// cancelled keeps the kind of what ended a session, a deadline say.
func cancelled(cause error) error {
	if k := fault.Of(cause); k != fault.Internal {
		return cause
	}
	return fault.New(fault.Cancelled, "request was cancelled: %w", cause)
}

func (p *Prefill) peers() []cluster.PeerStatus { return p.links.statuses(nil) }

func (p *Prefill) queued() int {
	sum := 0
	for _, pr := range p.byJob {
		sum += len(pr.Tokens) - pr.computed
	}
	return sum
}

func (p *Prefill) abandon(reason fault.Kind) {
	for _, pr := range ordered(p.byJob, compareJobs) {
		p.giveUp(pr, fault.New(reason, "worker %s is stopping", p.Node))
	}
}

// giveUp ends the job and its transfer, if it has one.
func (p *Prefill) giveUp(pr *prompt, err error) {
	p.end(pr, err)
	if pr.grant != nil {
		p.apply(transfer.Cancel{X: pr.grant.X})
	}
}

// end tells the gateway that the job failed, once.
func (p *Prefill) end(pr *prompt, err error) { p.endWith(pr, p.failed(pr.job, err)) }

// endWith ends the job and forgets it, once. The pages stay with the transfer
// until the machine lets them go.
func (p *Prefill) endWith(pr *prompt, e cluster.Event) {
	if pr.over {
		return
	}
	pr.over = true
	delete(p.byJob, pr.ID())
	p.unschedule(pr)
	p.finish(pr.job, e)
}

func (p *Prefill) unschedule(pr *prompt) {
	p.sched.Remove(pr.id)
	delete(p.byID, pr.id)
}

// tick lets late grants and the machine know that time passes.
func (p *Prefill) tick(now time.Time) {
	p.now++
	for _, w := range ordered(p.waiting, compareTransfers) {
		if p.now-w.since > joinTicks {
			delete(p.waiting, w.grant.X)
			p.apply(transfer.Refused{X: w.grant.X, Reason: transfer.ReasonJobUnknown})
		}
	}
	for _, pr := range ordered(p.byJob, compareJobs) {
		if pr.grant == nil && p.now-pr.since > joinTicks {
			p.giveUp(pr, fault.New(fault.Unavailable, "prefill %s: no grant of decode %s came for the job", p.Node, pr.Decode))
		}
		if !pr.Deadline.IsZero() && now.After(pr.Deadline) {
			p.giveUp(pr, fault.New(fault.Deadline, "request ran past its deadline"))
		}
	}
	p.apply(transfer.Tick{})
}

func (p *Prefill) onTransport(e transport.Event) {
	switch e.Kind {
	case transport.Up:
		p.apply(transfer.PeerUp{Peer: p.links.up(e.Link), Hello: e.Link.Peer(), Places: true, Fences: true})
	case transport.Down:
		p.logDown(e)
		if peer, known := p.links.down(e.Link); known {
			p.apply(transfer.PeerLost{Peer: peer})
		}
	case transport.Message:
		if peer, known := p.links.peers[e.Link]; known {
			if abort, ok := e.Message.(transfer.Abort); ok {
				e.Link.Drop(abort.X) // CLOSED need not wait behind pages that nobody wants
			}
			p.apply(transfer.Received{Peer: peer, Message: e.Message})
		}
	case transport.Written:
		p.written(transfer.Written{X: e.X, Block: e.Block, OK: e.OK, Refused: e.Dropped})
	case transport.Rejected:
		p.logRejected(e.Err)
	case transport.Landed, transport.Refused, transport.Fenced:
		p.Log.Warn("a source got an event of a target", "kind", e.Kind)
	}
}

// logRejected says that a connection came in that did not become a link. Anybody can
// make many, so one line stands for all of rejectedTicks.
func (p *Prefill) logRejected(err error) {
	p.rejected++
	if p.now < p.quietUntil {
		return
	}
	p.Log.Warn("incoming link is refused", "error", err, "refused_since_the_last_line", p.rejected)
	p.rejected, p.quietUntil = 0, p.now+rejectedTicks
}

func (p *Prefill) written(w transfer.Written) {
	if pr := p.byX[w.X]; pr != nil {
		p.must("unhold", p.pool.Unhold(pr.refs[w.Block], pool.Sender))
	}
	p.apply(w)
}

// apply steps the machine and performs the effects in order. Events that come up
// while effects are performed are stepped after them.
func (p *Prefill) apply(ev transfer.SourceEvent) {
	p.pending = append(p.pending, ev)
	if len(p.pending) > 1 {
		return
	}
	for len(p.pending) > 0 {
		effects := p.source.Step(p.pending[0])
		p.recordStep(p.pending[0], effects)
		for i := range effects {
			p.perform(&effects[i])
		}
		p.pending = p.pending[1:]
	}
}

func (p *Prefill) perform(e *transfer.Effect) {
	switch e.Kind {
	case transfer.DoSend:
		p.send(e)
	case transfer.DoAdmit:
		p.admitGrant(e.Grant)
	case transfer.DoWithdraw:
		delete(p.waiting, e.X)
	case transfer.DoCompute:
		if pr := p.byX[e.X]; pr != nil && !pr.over {
			p.byID[pr.id] = pr
			p.sched.Add(pr.id, pr.Tenant, pr.origin(0), len(pr.Tokens))
		}
	case transfer.DoWrite:
		p.write(e)
	case transfer.DoStopKernel:
		// Effects are performed between steps: nothing is running now.
		if pr := p.byX[e.X]; pr != nil {
			p.unschedule(pr)
		}
		p.apply(transfer.KernelStopped{X: e.X})
	case transfer.DoRelease:
		p.release(e.X)
	case transfer.DoFencePeer:
		if link := p.links.byID[e.Peer]; link != nil {
			p.closeLink(link)
		}
	default:
		p.Log.Error("a source asked for an effect of a target", "kind", e.Kind)
	}
}

func (b *base) closeLink(link transport.Link) {
	if err := link.Close(); err != nil {
		b.Log.Warn("link did not close cleanly", "node", link.Peer().Node, "error", err)
	}
}

func (p *Prefill) admitGrant(g *transfer.Grant) {
	if pr := p.byJob[jobOf(g)]; pr != nil {
		p.join(pr, g)
		return
	}
	if len(p.waiting) >= grantsWaitingMax {
		p.apply(transfer.Refused{X: g.X, Reason: transfer.ReasonBusy})
		return
	}
	p.waiting[g.X] = &early{grant: g, since: p.now}
}

// send passes a message on; a CLOSED(done) is also this worker's verdict to the gateway.
func (p *Prefill) send(e *transfer.Effect) {
	link := p.links.byID[e.Peer]
	if link == nil {
		return // the link is gone, its Down is on the way or was handled
	}
	if err := link.Send(e.Message); err != nil {
		p.Log.Warn("message is not sent", "node", link.Peer().Node, "error", err)
	}
	closed, ok := e.Message.(transfer.Closed)
	if !ok {
		return
	}
	pr := p.byX[closed.X]
	if pr == nil || pr.over {
		return
	}
	if closed.Outcome != transfer.OutcomeDone {
		p.end(pr, closedFault(p.Node, closed))
		return
	}
	p.conclude(pr, closed)
}

// errTooLarge is for the client: it names no node and no transfer.
var errTooLarge = fault.New(fault.OverContext, "the prompt is over the limit of the prefill worker")

func closedFault(node string, c transfer.Closed) error {
	kind := fault.Unavailable
	switch c.Reason {
	case transfer.ReasonBusy:
		kind = fault.Busy
	case transfer.ReasonTooLarge:
		return errTooLarge
	case transfer.ReasonCancelled:
		kind = fault.Cancelled
	case transfer.ReasonJobMismatch, transfer.ReasonMalformed:
		kind = fault.Internal
	default:
	}
	return fault.New(kind, "prefill %s closed the transfer: %v, %v", node, c.Outcome, c.Reason)
}

// conclude gives the gateway prefill's verdict: what it computed, not only how much.
func (p *Prefill) conclude(pr *prompt, c transfer.Closed) {
	p.lastTransfer = p.Now()
	e := p.event(pr.job, cluster.Computed)
	e.X, e.PromptTokens, e.TokenDigest, e.Root = c.X, pr.computed, c.TokenDigest, kv.Root(c.Roots)
	pr.send(e)
	done := p.event(pr.job, cluster.Finished)
	done.X, done.Reason = c.X, cluster.ReasonDone
	p.endWith(pr, done)
}

// write posts a page to the decode worker under the grant's tag and key.
func (p *Prefill) write(e *transfer.Effect) {
	pr := p.byX[e.X]
	tag, ok := e.Grant.Tag(e.Block, p.layoutID)
	if pr == nil || !ok {
		p.Log.Error("a page to write has no job or no place", "x", e.X, "block", e.Block)
		p.apply(transfer.Written{X: e.X, Block: e.Block})
		return
	}
	ref := pr.refs[e.Block]
	p.must("hold", p.pool.Hold(ref, pool.Sender))
	page := transport.Page{Tag: tag, Sum: p.sum(e.Grant.Key, tag, pr.roots[e.Block]), Body: p.slab.Body(ref.Slot)}
	link := p.links.byID[e.Peer]
	if link == nil || link.Write(page) != nil {
		p.written(transfer.Written{X: e.X, Block: e.Block})
	}
}

func (p *Prefill) release(x kv.TransferID) {
	pr := p.byX[x]
	if pr == nil {
		return
	}
	p.must("free", p.pool.Free(pr.own))
	p.recordPool("free", x)
	delete(p.byX, x)
	p.end(pr, fault.New(fault.Unavailable, "prefill %s gave the transfer up", p.Node))
}

// step computes the next chunks, checks the pages that were read, and hands what
// is complete to the machine.
func (p *Prefill) step() bool {
	chunks := p.sched.Step(StepTokensMax, StepRowsMax)
	if len(chunks) == 0 {
		return false
	}
	rows := make([]engine.Row, len(chunks))
	prompts := make([]*prompt, len(chunks))
	for i, c := range chunks {
		prompts[i] = p.byID[c.ID]
		p.must("schedule", prompts[i].origin(prompts[i].computed).Expect(c.From))
		rows[i] = p.row(prompts[i], c.Tokens)
		p.holdKernel(prompts[i].own)
	}
	err := p.engine.Step(rows)
	for _, pr := range prompts {
		p.releaseKernel(pr.own)
	}
	for i, pr := range prompts {
		// Taking in one prompt's result can end others': a write that fails ends its link.
		if p.byX[pr.grant.X] == pr && !pr.over {
			p.advance(pr, len(rows[i].Tokens), errors.Join(err, rows[i].Err))
		}
	}
	return true
}

func (p *Prefill) row(pr *prompt, tokens int) engine.Row {
	slots := make([]kv.Slot, kv.PagesFor(pr.computed+tokens))
	for i := range slots {
		slots[i] = pr.refs[i].Slot
	}
	return engine.Row{
		From:   pr.origin(pr.computed),
		Tokens: pr.Tokens[pr.computed : pr.computed+tokens], Start: pr.computed, Pages: slots,
		Hash: p.hash(slots),
	}
}

// advance takes a chunk's result in: tags of all pages that the chunk read or wrote
// are compared before anything of it leaves.
func (p *Prefill) advance(pr *prompt, tokens int, err error) {
	if err == nil && !p.tagsHold(pr, pr.computed+tokens) {
		err = fault.New(fault.Corrupt, "prefill %s: a source page carries a foreign tag", p.Node)
	}
	if err != nil {
		p.Log.Error("prefill failed", "request", pr.Request, "x", pr.grant.X, "error", err)
		p.end(pr, err)
		p.apply(transfer.Failed{X: pr.grant.X, Reason: transfer.ReasonCompute})
		return
	}
	before := pr.computed
	pr.computed += tokens
	var complete []int
	for i := before / kv.PageTokens; i*kv.PageTokens < pr.computed; i++ {
		if p.extend(pr, i) {
			complete = append(complete, i)
		}
	}
	// What follows may end the transfer and free its pages: a write that fails at once.
	for _, i := range complete {
		p.apply(transfer.Computed{X: pr.grant.X, Block: uint32(i), Root: pr.roots[i]})
	}
	if pr.over {
		return
	}
	progress := p.event(pr.job, cluster.Progress)
	progress.X, progress.PromptTokens = pr.grant.X, pr.computed
	if !pr.send(progress) {
		p.giveUp(pr, errUnheard)
	}
}

// tagsHold compares the tags of the pages that hold the first tokens positions:
// those read, and those just written, which still carry their extent from before.
func (p *Prefill) tagsHold(pr *prompt, tokens int) bool {
	if p.omit.tags {
		return true
	}
	for i := range kv.PagesFor(tokens) {
		tag := p.tag(pr, i, pr.computed)
		if !p.slab.TagOK(tag.Slot, &tag) {
			return false
		}
	}
	return true
}

// extend raises the written extent of source page i and, when that completes it,
// seals it.
func (p *Prefill) extend(pr *prompt, i int) (complete bool) {
	ref, tag := pr.refs[i], p.tag(pr, i, pr.computed)
	p.must("write", p.pool.Write(ref, int(tag.Tokens)))
	if pr.computed < len(pr.Tokens) && tag.Tokens < kv.PageTokens {
		p.mark(tag)
		return false
	}
	p.seal(tag)
	p.must("seal", p.pool.Seal(ref))
	pr.roots = append(pr.roots, p.root(ref.Slot))
	return true
}
