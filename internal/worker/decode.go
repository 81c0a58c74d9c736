package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/sample"
	"github.com/bulkhead-kv/bulkhead/internal/scheduler"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// Source is a prefill worker that a decode worker links to.
type Source struct {
	Node string
	Dial Dial
}

// Decode takes pages in, checks them, and generates the answers.
//
// Life of a job: submitted -> pages for prompt and output taken, GRANT sent ->
// pages land -> fenced -> verified -> running, a token a step -> finished -> pages
// free. Whatever goes wrong answers the request at once and keeps the pages until
// prefill has closed the transfer or its writes are fenced off.
type Decode struct {
	*base
	target  *transfer.Target
	gate    *transport.Gate
	sources []Source
	refusal chan dialFailure

	byJob    map[cluster.ID]*sequence
	byX      map[kv.TransferID]*sequence
	byID     map[scheduler.ID]*sequence
	nextID   scheduler.ID
	failures map[string]string // why there is no link to a node
	dialers  map[string]*dialer
	pending  []transfer.TargetEvent // the one being stepped first
	buffers  [][]float32            // logits, by row of the step
	rows     []engine.Row           // of the step
	running  []*sequence            // by row of the step
	scratch  sample.Scratch
}

const (
	// FenceAfter is how long pages wait for the proof that nobody can write them any
	// more, before the link of the one who could is torn down, which is one.
	FenceAfter = 3 * time.Second
	// quarantineAfter is how long they wait before they count as lost.
	quarantineAfter = 5 * time.Second
)

// sequence is a job at the decode worker.
type sequence struct {
	*job
	id      scheduler.ID
	x       kv.TransferID
	grant   *transfer.Grant
	link    transport.Link
	refs    []kv.PageRef // prompt pages, then pages of the output
	slots   []kv.Slot    // of refs
	digest  kv.Sum       // of the prompt's token ids, under the grant's key
	roots   []kv.Digest  // of the prompt's pages, as verified
	sampler *sample.Sampler
	started bool  // verified and running
	last    int32 // token to compute next
	at      int   // its position
	index   int   // tokens delivered
	over    bool  // the gateway has its terminal event; pages may still be held
	// late: the source wrote after its CLOSED, the transport's fence is awaited;
	// released: the machine has let the pages go.
	late, released bool
}

type dialFailure struct {
	node string
	err  error
}

// NewDecode makes a worker with an empty pool. Run must be called once.
func NewDecode(c Config, sources []Source) (*Decode, error) {
	b, err := newBase(c, cluster.Decode)
	if err != nil {
		return nil, err
	}
	config := transfer.TargetConfig{Epoch: c.Epoch, FenceTicks: int(FenceAfter / tickInterval), QuarantineTicks: int(quarantineAfter / tickInterval)}
	b.refused = map[transport.Refusal]int{}
	b.journal = conform.NewTargetJournal(config, c.Build, transfer.NewVeil(randomKey()), b.record)
	return &Decode{
		base: b, sources: sources, gate: transport.NewGate(c.Model.Layout(), c.PoolPages, b.slab.Page),
		target:  transfer.NewTarget(config),
		refusal: make(chan dialFailure, len(sources)+1),
		byJob:   map[cluster.ID]*sequence{}, byX: map[kv.TransferID]*sequence{}, byID: map[scheduler.ID]*sequence{},
		failures: map[string]string{}, dialers: map[string]*dialer{},
	}, nil
}

// Run is the worker's life. It ends when ctx does, or after a drain.
func (d *Decode) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	stop := d.dialAll(ctx)
	defer stop()
	return d.loop(ctx, d)
}

func (d *Decode) submit(j *job) {
	s := &sequence{job: j}
	d.byJob[j.ID()] = s
	if err := d.open(s); err != nil {
		d.end(s, err)
	}
}

// open takes pages for the prompt and the whole granted output and starts the
// transfer. When it fails nothing is held.
func (d *Decode) open(s *sequence) error {
	peer, link := d.links.node(s.Prefill)
	if link == nil {
		return fault.New(fault.Unavailable, "decode %s has no link to prefill %s", d.Node, s.Prefill)
	}
	if link.Peer().Epoch != s.PrefillEpoch {
		return fault.New(fault.Unavailable, "prefill %s is in epoch %016x, the job names %016x", s.Prefill, uint64(link.Peer().Epoch), uint64(s.PrefillEpoch))
	}
	sampler, err := d.newSampler(s)
	if err != nil {
		return err
	}
	if err := d.fits(s, link.Peer()); err != nil {
		return err
	}
	s.x = d.target.Next()
	granted := d.reserve(s)
	key := randomKey()
	s.link, s.sampler, s.digest = link, sampler, kv.TokenDigest(key, s.Tokens)
	d.byX[s.x] = s
	d.apply(transfer.Open{X: s.x, Peer: peer, Request: s.Request, Attempt: s.Attempt, GatewayBoot: s.GatewayBoot, Tenant: s.Tenant,
		Tokens: uint32(len(s.Tokens)), TokenDigest: s.digest, Key: key, Pages: granted})
	return nil
}

// fits refuses what prefill, by its own word, or this worker has no room for, before
// there is an id, a page or a message of the transfer.
func (d *Decode) fits(s *sequence, prefill transfer.Hello) error {
	if err := prefill.Takes(len(s.Tokens)); err != nil {
		return fault.New(fault.OverContext, "%w", err)
	}
	if s.positions() > d.ContextTokens {
		return fault.New(fault.OverContext, "prompt of %d tokens and output of %d, the limit is %d tokens", len(s.Tokens), s.MaxTokens, d.ContextTokens)
	}
	pages := kv.PagesFor(s.positions())
	if pages > d.attainable() && !s.Probe {
		return fault.New(fault.Unavailable, "decode %s: %d pages needed, the pool has %d while others are quarantined", d.Node, pages, d.attainable())
	}
	if free := d.free(s.Probe); pages > free {
		return fault.New(fault.Busy, "decode %s: %d pages needed, %d free", d.Node, pages, free)
	}
	return nil
}

// positions is how many tokens of the sequence are stored at most. The last one of an
// answer is never computed on: it needs no place.
func (s *sequence) positions() int { return len(s.Tokens) + s.MaxTokens - 1 }

// reserve takes the pages of prompt and output: the prompt's for the remote writer, the
// rest zeroed for this worker. Requires: they fit.
func (d *Decode) reserve(s *sequence) (granted []kv.PageRef) {
	prompt := kv.PagesFor(len(s.Tokens))
	output := kv.PagesFor(s.positions()) - prompt
	grant, local := d.pool.Grant, d.pool.AllocLocal
	if s.Probe {
		grant, local = d.pool.GrantProbe, d.pool.AllocProbe
	}
	granted, err := grant(s.x, s.Tenant, prompt)
	d.must("reserve prompt", err)
	s.refs = granted
	if output > 0 {
		more, err := local(s.x, s.Tenant, output)
		d.must("reserve output", err)
		s.refs = slices.Concat(granted, more)
		d.recordTaken(s.job, s.x, more, "output pages")
	}
	for _, ref := range s.refs {
		s.slots = append(s.slots, ref.Slot)
	}
	for i := prompt; i < len(s.refs); i++ {
		d.clean(d.tag(s, i, 0))
	}
	return granted
}

// tag is what page i must carry when that many positions of the sequence are written.
func (d *Decode) tag(s *sequence, i, positions int) kv.Tag {
	return kv.Tag{Layout: d.layoutID, Tokens: uint8(kv.ExtentAt(positions, i)), Transfer: s.x, Generation: s.refs[i].Generation,
		Tenant: s.Tenant, Slot: s.refs[i].Slot, Block: uint32(i)}
}

func (d *Decode) newSampler(s *sequence) (*sample.Sampler, error) {
	c := s.Sampling
	config := sample.Config{Temperature: float64(c.Temperature), TopK: c.TopK, TopP: float64(c.TopP), MinP: float64(c.MinP),
		RepetitionPenalty: float64(c.Repetition), FrequencyPenalty: float64(c.Frequency), PresencePenalty: float64(c.Presence),
		Seed: c.Seed, Logprobs: c.Logprobs != cluster.NoLogprobs, TopLogprobs: max(0, c.Logprobs)}
	if len(c.LogitBias) > 0 {
		config.LogitBias = map[sample.Token]float64{}
		for token, bias := range c.LogitBias {
			config.LogitBias[token] = float64(bias)
		}
	}
	if !c.HasSeed {
		config.Seed = binary.LittleEndian.Uint64(randomBytes(8))
	}
	if err := config.Validate(d.Model.Config.Vocab); err != nil {
		return nil, fault.New(fault.Invalid, "sampling: %w", err)
	}
	return sample.New(config, s.origin(0), s.Tokens), nil
}

func (d *Decode) cancel(id cluster.ID, cause error) {
	if s := d.byJob[id]; s != nil {
		d.giveUp(s, cancelled(cause))
	}
}

func (d *Decode) abandon(reason fault.Kind) {
	for _, s := range ordered(d.byJob, compareJobs) {
		d.giveUp(s, fault.New(reason, "worker %s is stopping", d.Node))
	}
}

// giveUp ends the job for its gateway and the transfer for its peer.
func (d *Decode) giveUp(s *sequence, err error) {
	d.end(s, err)
	d.apply(transfer.Cancel{X: s.x})
}

// end tells the gateway how the job failed, once. The pages stay with the transfer
// until the machine lets them go.
func (d *Decode) end(s *sequence, err error) {
	e := d.failed(s.job, err)
	e.X = s.x
	d.endWith(s, e)
}

func (d *Decode) endWith(s *sequence, e cluster.Event) {
	if s.over {
		return
	}
	s.over = true
	delete(d.byJob, s.ID())
	d.unschedule(s)
	d.finish(s.job, e)
}

func (d *Decode) unschedule(s *sequence) {
	d.sched.Remove(s.id)
	delete(d.byID, s.id)
}

func (d *Decode) tick(now time.Time) {
	for _, s := range ordered(d.byJob, compareJobs) {
		if !s.Deadline.IsZero() && now.After(s.Deadline) {
			d.giveUp(s, fault.New(fault.Deadline, "request ran past its deadline"))
		}
	}
	d.noteDials()
	d.apply(transfer.Tick{})
}

func (d *Decode) onTransport(e transport.Event) {
	switch e.Kind {
	case transport.Up:
		delete(d.failures, e.Link.Peer().Node)
		d.apply(transfer.PeerUp{Peer: d.links.up(e.Link), Hello: e.Link.Peer(), Places: true, Fences: true})
	case transport.Down:
		d.linkDown(e)
	case transport.Message:
		if peer, known := d.links.peers[e.Link]; known {
			d.apply(transfer.Received{Peer: peer, Message: e.Message})
		}
	case transport.Landed:
		d.apply(transfer.Landed{X: e.X, Block: e.Block})
	case transport.Refused:
		d.refused[e.Refusal]++
		d.logRefused(e)
		// A page that was cut says nothing of its transfer: the link's end, which
		// follows, does.
		if e.Refusal != transport.Cut {
			d.apply(transfer.PageRefused{X: e.X, Block: e.Block})
		}
	case transport.Fenced:
		d.drained(d.byX[e.X])
		d.apply(transfer.Fenced{X: e.X})
	case transport.Written, transport.Rejected:
		d.Log.Warn("a target got an event of a source", "kind", e.Kind)
	}
}

func (d *Decode) linkDown(e transport.Event) {
	peer, known := d.links.down(e.Link)
	d.logDown(e)
	d.failures[e.Link.Peer().Node] = "the link has ended" // until another is up
	for _, s := range ordered(d.byX, compareTransfers) {
		if s.link == e.Link {
			d.drained(s)
		}
	}
	if known {
		d.apply(transfer.PeerLost{Peer: peer})
	}
	if dl := d.dialers[e.Link.Peer().Node]; dl != nil {
		select {
		case dl.down <- e.Link:
		default: // the dialer has ended
		}
	}
}

// apply steps the machine and performs the effects in order. Events that come up
// while effects are performed are stepped after them.
func (d *Decode) apply(ev transfer.TargetEvent) {
	d.pending = append(d.pending, ev)
	if len(d.pending) > 1 {
		return
	}
	for len(d.pending) > 0 {
		effects := d.target.Step(d.pending[0])
		d.recordStep(d.pending[0], effects)
		for i := range effects {
			d.perform(&effects[i])
		}
		d.pending = d.pending[1:]
	}
}

func (d *Decode) perform(e *transfer.Effect) {
	s := d.byX[e.X]
	switch e.Kind {
	case transfer.DoSend:
		if link := d.links.byID[e.Peer]; link != nil {
			if err := link.Send(e.Message); err != nil {
				d.Log.Warn("message is not sent", "node", link.Peer().Node, "error", err)
			}
		}
	case transfer.DoFencePeer:
		if link := d.links.byID[e.Peer]; link != nil {
			d.closeLink(link)
		}
	case transfer.DoAlarm:
		d.Log.Error("transfer is overdue", "x", e.X)
	default:
		if s == nil {
			d.Log.Error("effect for a transfer that is not known", "kind", e.Kind, "x", e.X)
			return
		}
		d.performOn(s, e)
	}
}

func (d *Decode) performOn(s *sequence, e *transfer.Effect) {
	switch e.Kind {
	case transfer.DoOpenGate:
		s.grant = e.Grant
		g := transport.Grant{X: s.x, Tenant: s.Tenant, FirstBlock: e.Grant.FirstBlock, Tokens: e.Grant.Tokens, Pages: e.Grant.Pages}
		d.must("open gate", s.link.Open(g))
	case transfer.DoRevoke:
		d.must("revoke", d.pool.Revoke(s.x))
		s.link.Shut(s.x)
	case transfer.DoFence:
		s.link.Fence(s.x)
	case transfer.DoWriterGone:
		d.writerGone(s)
	case transfer.DoVerify:
		d.apply(transfer.Verified{X: s.x, OK: d.verify(s, e)})
	case transfer.DoStart:
		d.start(s)
	case transfer.DoAnswer:
		d.answer(s, e)
	case transfer.DoStopKernel:
		// Effects are performed between steps: nothing is running now.
		d.unschedule(s)
		d.apply(transfer.KernelStopped{X: s.x})
	case transfer.DoQuarantine:
		d.must("quarantine", d.pool.Quarantine(s.x))
		d.recordPool("quarantined", s.x)
	case transfer.DoRelease:
		d.release(s)
	default:
		d.Log.Error("a target asked for an effect of a source", "kind", e.Kind)
	}
}

// writerGone takes the remote writer off the transfer's pages. A page that is being
// placed all the same, which only a source that writes after its CLOSED brings
// about, is waited for: the pages stay until the transport proves its end.
func (d *Decode) writerGone(s *sequence) {
	if s.link == nil || s.link.Shut(s.x) {
		d.must("fenced", d.pool.Fenced(s.x))
		return
	}
	d.Log.Error("a page is written after the transfer was closed", "x", s.x, "node", s.Prefill)
	s.late = true
	s.link.Fence(s.x)
}

// drained is the transport's proof that no write of x can land any more.
func (d *Decode) drained(s *sequence) {
	if s == nil || !s.late {
		return
	}
	s.late = false
	d.must("fenced", d.pool.Fenced(s.x))
	if s.released {
		d.release(s)
	}
}

// release gives every page of the transfer back.
func (d *Decode) release(s *sequence) {
	s.released = true
	d.end(s, fault.New(fault.Internal, "decode %s: pages are released before an answer", d.Node))
	if s.late {
		return
	}
	d.must("free", d.pool.Free(s.x))
	d.recordPool("free", s.x)
	delete(d.byX, s.x)
}

// verify recomputes every granted page from the bytes found and compares it with
// what this worker granted and what prefill says it computed.
func (d *Decode) verify(s *sequence, e *transfer.Effect) bool {
	if len(e.Roots) != len(e.Grant.Pages) {
		return false
	}
	ok := true
	for i := range e.Grant.Pages {
		tag, fits := e.Grant.Tag(e.Grant.FirstBlock+uint32(i), d.layoutID)
		if !fits || !d.sound(tag, e.Grant.Key, e.Roots[i]) {
			d.Log.Error("page is not what was granted", "x", s.x, "block", i)
			ok = false
		}
	}
	s.roots = e.Roots
	return ok
}

// start adopts the verified pages and schedules the sequence. The last prompt
// token is computed again here, since its logits are what the answer begins with:
// its page is the open tail.
func (d *Decode) start(s *sequence) {
	n := len(s.Tokens)
	tail := (n - 1) / kv.PageTokens
	d.must("verified", d.pool.Verified(s.x, n, 0))
	d.must("adopt", d.pool.Adopt(s.x, tail))
	root := kv.Root(s.roots)
	d.record(ledger.Entry{Kind: ledger.Pool, Event: "adopted", X: s.x, Output: root[:]})
	for i := range kv.PagesFor(n) {
		d.seal(d.tag(s, i, n))
	}
	if s.over {
		return
	}
	d.lastTransfer = d.Now()
	d.nextID++
	s.id, s.started, s.last, s.at = d.nextID, true, s.Tokens[n-1], n-1
	d.byID[s.id] = s
	d.sched.Add(s.id, s.Tenant, s.origin(0), 1)
	e := d.event(s.job, cluster.Committed)
	e.X, e.PromptTokens, e.TokenDigest, e.Root = s.x, n, s.digest, root
	d.emit(s, e)
}

// emit sends an event, or lets the job go when its gateway lags too far behind.
func (d *Decode) emit(s *sequence, e cluster.Event) {
	if !s.send(e) {
		d.giveUp(s, errUnheard)
	}
}

// answer is the machine's word on how the transfer ended.
func (d *Decode) answer(s *sequence, e *transfer.Effect) {
	kind := fault.Internal
	switch e.Code {
	case transfer.CodeDone:
		return // finish has said it
	case transfer.CodeBusy:
		kind = fault.Busy
	case transfer.CodeTooLarge:
		d.end(s, errTooLarge)
		return
	case transfer.CodeCancelled:
		kind = fault.Cancelled
	case transfer.CodePrefill, transfer.CodePeerLost:
		kind = fault.Unavailable
	case transfer.CodeCorrupt:
		kind = fault.Corrupt
	case transfer.CodeInvalid:
	}
	d.end(s, fault.New(kind, "transfer %v ended: %v, %v", s.x, e.Code, e.Reason))
}
