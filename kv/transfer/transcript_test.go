package transfer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// TestTranscripts drives a Target and its Sources by a small language and records
// what each of them asks of its shell. Sent messages get a number and wait:
// nothing arrives unless the transcript says so, and anything may arrive twice.
//
//	link source=p [epoch=N] [drain-only] [one-sided]   a new link to a source; a new epoch is a new incarnation
//	unlink source=p [end=target|source]                the link is lost, at one end or at both
//	open source=p tokens=N [first=N] [unpinned] [request=N]  the target takes pages and grants those from block first on
//	deliver m=N [source=p]                             a message arrives, at source p's other incarnation if named
//	admitted|refused|computed|written|failed|stop-source|cancel-source x=N ...   what a source's shell reports
//	landed|page-refused|fenced|verified|finished|fault|stop-target|cancel x=N ... what the target's shell reports
//	suspect source=p, tick, state
//	without guards=(A,B)                               take guards away, before the first link
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		p := newPlay()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return p.run(t, d)
		})
	})
}

const targetEpoch kv.Epoch = 0xd

// play is one target, its sources and the messages between them.
type play struct {
	target   *Target
	sources  map[string]*actor
	guards   guard.Set
	messages []letter
	peers    Peer
	slots    kv.Slot
	grants   map[uint64]Grant
	out      strings.Builder
}

// actor is one source and the link to it.
type actor struct {
	name   string
	epoch  kv.Epoch
	source *Source
	peer   Peer // the same number at both ends
}

// letter is a message on its way.
type letter struct {
	to      string // a source's name, or "" for the target
	peer    Peer
	message Message
}

func newPlay() *play {
	config := TargetConfig{Epoch: targetEpoch, RepeatTicks: 1, FenceTicks: 3, QuarantineTicks: 5}
	return &play{target: NewTarget(config), sources: map[string]*actor{}, grants: map[uint64]Grant{}}
}

func (p *play) run(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	switch d.Cmd {
	case "without":
		p.without(t, d)
	case "link":
		p.link(t, d)
	case "unlink":
		p.unlink(t, d)
	case "open":
		p.open(t, d)
	case "deliver":
		p.deliver(t, d)
	case "suspect":
		p.tell(Suspect{Peer: p.sources[text(t, d, "source", "p")].peer})
	case "tick":
		p.tell(Tick{})
	case "state":
		p.state()
	default:
		p.report(t, d)
	}
	if p.out.Len() == 0 {
		return "nothing\n"
	}
	return p.out.String()
}

func (p *play) without(t *testing.T, d *datadriven.TestData) {
	var list []guard.Guard
	for _, arg := range d.CmdArgs {
		for _, name := range arg.Vals {
			g, ok := guard.Named(name)
			if !ok {
				t.Fatalf("no guard is called %q", name)
			}
			list = append(list, g)
		}
	}
	p.guards = guard.Without(list...)
	p.target.Without(p.guards)
}

// link connects to a source, which is a new incarnation when its epoch is new.
func (p *play) link(t *testing.T, d *datadriven.TestData) {
	name := text(t, d, "source", "p")
	epoch := kv.Epoch(number(t, d, "epoch", 0xa))
	a := p.sources[name]
	if a == nil || a.epoch != epoch {
		a = &actor{name: name, epoch: epoch, source: NewSource(SourceConfig{Epoch: epoch, PagesMax: 4, TokensMax: 64, TransfersMax: 8}).Without(p.guards)}
	}
	p.peers++
	a.peer = p.peers
	p.sources[name] = a
	p.tell(PeerUp{Peer: a.peer, Hello: Hello{Node: name, Epoch: epoch}, Places: !d.HasArg("one-sided"), Fences: !d.HasArg("drain-only")})
	p.ask(a, PeerUp{Peer: a.peer, Hello: Hello{Node: "d", Epoch: targetEpoch}})
}

func (p *play) unlink(t *testing.T, d *datadriven.TestData) {
	a := p.sources[text(t, d, "source", "p")]
	peer := Peer(number(t, d, "peer", uint64(a.peer)))
	end := text(t, d, "end", "both")
	if end != "source" {
		p.tell(PeerLost{Peer: peer})
	}
	if end != "target" {
		p.ask(a, PeerLost{Peer: peer})
	}
}

func (p *play) open(t *testing.T, d *datadriven.TestData) {
	tokens, firstBlock := number(t, d, "tokens", 16), number(t, d, "first", 0)
	x := p.target.Next()
	request := number(t, d, "request", x.Sequence)
	var pages []kv.PageRef
	for range kv.PagesFor(int(tokens)) {
		pages = append(pages, kv.PageRef{Slot: p.slots, Generation: 1})
		p.slots++
	}
	if d.HasArg("unpinned") {
		pages[0].Generation = 0
	}
	p.tell(Open{X: x, Peer: p.sources[text(t, d, "source", "p")].peer, Request: request, Attempt: 1, GatewayBoot: 1, Tenant: 1,
		Tokens: uint32(tokens), TokenDigest: digestOf(request), Key: kv.Key{1}, Prefix: pages[:firstBlock], Pages: pages[firstBlock:]})
}

func digestOf(request uint64) kv.Sum { return kv.Sum{byte(request)} }

// deliver hands a message over, after its wire form and back.
func (p *play) deliver(t *testing.T, d *datadriven.TestData) {
	n := number(t, d, "m", 0)
	if n == 0 || n > uint64(len(p.messages)) {
		t.Fatalf("there is no message %d", n)
	}
	l := p.messages[n-1]
	m, err := Parse(l.message.Append(nil))
	if err != nil {
		t.Fatalf("message %d does not survive the wire: %v", n, err)
	}
	peer := Peer(number(t, d, "peer", uint64(l.peer)))
	if l.to == "" {
		p.tell(Received{Peer: peer, Message: m})
		return
	}
	p.ask(p.sources[l.to], Received{Peer: peer, Message: m})
}

// report feeds what a shell reports.
func (p *play) report(t *testing.T, d *datadriven.TestData) {
	x := kv.TransferID{Epoch: targetEpoch, Sequence: number(t, d, "x", 1)}
	block, bad := uint32(number(t, d, "block", 0)), d.HasArg("bad")
	a := p.sources[text(t, d, "source", "p")]
	switch d.Cmd {
	case "admitted":
		g := p.grants[x.Sequence]
		p.ask(a, Admitted{X: x, Tokens: g.Tokens, TokenDigest: digestOf(number(t, d, "request", g.Request))})
	case "refused":
		p.ask(a, Refused{X: x, Reason: ReasonBusy})
	case "computed":
		p.ask(a, Computed{X: x, Block: block, Root: kv.Digest{byte(block + 1)}})
	case "written":
		p.ask(a, Written{X: x, Block: block, OK: !bad && !d.HasArg("refused"), Refused: d.HasArg("refused")})
	case "failed":
		p.ask(a, Failed{X: x, Reason: ReasonCompute})
	case "stop-source":
		p.ask(a, KernelStopped{X: x})
	case "cancel-source":
		p.ask(a, Cancel{X: x})
	case "landed":
		p.tell(Landed{X: x, Block: block})
	case "page-refused":
		p.tell(PageRefused{X: x, Block: block})
	case "fenced":
		p.tell(Fenced{X: x})
	case "verified":
		p.tell(Verified{X: x, OK: !bad})
	case "finished":
		p.tell(Finished{X: x})
	case "fault":
		p.tell(Fault{X: x})
	case "stop-target":
		p.tell(KernelStopped{X: x})
	case "cancel":
		p.tell(Cancel{X: x})
	default:
		t.Fatalf("there is no command %q", d.Cmd)
	}
}

// tell gives the target an event and records its effects.
func (p *play) tell(e TargetEvent) {
	for _, effect := range p.target.Step(e) {
		if g, ok := effect.Message.(Grant); ok {
			p.grants[g.X.Sequence] = g
		}
		p.record("target", effect, func(peer Peer) string { return p.nameOf(peer) })
	}
}

// ask gives a source an event and records its effects.
func (p *play) ask(a *actor, e SourceEvent) {
	for _, effect := range a.source.Step(e) {
		p.record(fmt.Sprintf("%s.%x", a.name, uint64(a.epoch)), effect, func(Peer) string { return "" })
	}
}

func (p *play) nameOf(peer Peer) string {
	for name, a := range p.sources {
		if a.peer == peer {
			return name
		}
	}
	return ""
}

func (p *play) record(who string, e Effect, to func(Peer) string) {
	fmt.Fprintf(&p.out, "%s: %v", who, e.Kind)
	switch {
	case e.Kind == DoSend:
		name := to(e.Peer)
		if who == "target" && name == "" {
			name = "p" // the link was replaced: the message cannot arrive, but is on record
		}
		p.messages = append(p.messages, letter{to: name, peer: e.Peer, message: e.Message})
		fmt.Fprintf(&p.out, " m%d on link %d: %s", len(p.messages), e.Peer, describe(e.Message))
	case e.Kind == DoAnswer:
		fmt.Fprintf(&p.out, " x%d %v", e.X.Sequence, e.Code)
		if e.Reason != ReasonNone {
			fmt.Fprintf(&p.out, " (%v)", e.Reason)
		}
	case e.Kind == DoFencePeer:
		fmt.Fprintf(&p.out, " link %d", e.Peer)
	case e.Kind == DoWrite:
		tag, _ := e.Grant.Tag(e.Block, 0)
		fmt.Fprintf(&p.out, " x%d block %d, %d tokens, to slot %d generation %d", e.X.Sequence, e.Block, tag.Tokens, tag.Slot, tag.Generation)
	default:
		fmt.Fprintf(&p.out, " x%d", e.X.Sequence)
	}
	for i, ref := range e.Prefix {
		fmt.Fprintf(&p.out, ", block %d in slot %d generation %d", i, ref.Slot, ref.Generation)
	}
	p.out.WriteByte('\n')
}

func describe(m Message) string {
	switch m := m.(type) {
	case Grant:
		return fmt.Sprintf("GRANT x%d for source %x, %d tokens in %d pages from block %d, low %d", m.X.Sequence, uint64(m.SourceEpoch), m.Tokens, len(m.Pages), m.FirstBlock, m.Low)
	case Abort:
		return fmt.Sprintf("ABORT x%d for source %x, low %d", m.X.Sequence, uint64(m.SourceEpoch), m.Low)
	case Closed:
		if m.Outcome == OutcomeDone {
			return fmt.Sprintf("CLOSED x%d done, %d tokens, %d pages", m.X.Sequence, m.Tokens, len(m.Roots))
		}
		return fmt.Sprintf("CLOSED x%d %v, %v", m.X.Sequence, m.Outcome, m.Reason)
	}
	return "HELLO"
}

func (p *play) state() {
	for i := range p.target.open {
		x := &p.target.open[i]
		fmt.Fprintf(&p.out, "target: x%d %v, %d of %d pages landed\n", x.grant.X.Sequence, x.state, x.landed.count(), len(x.grant.Pages))
	}
	for _, name := range []string{"p", "q"} {
		a := p.sources[name]
		if a == nil {
			continue
		}
		for _, s := range a.source.known {
			fmt.Fprintf(&p.out, "%s.%x: x%d %v, %d writes in flight, kernel %v, pages %v\n", name, uint64(a.epoch), s.x.Sequence, s.state, s.flying.count(), s.running, s.holding)
		}
	}
}

func text(t *testing.T, d *datadriven.TestData, key, otherwise string) string {
	t.Helper()
	d.MaybeScanArgs(t, key, &otherwise)
	return otherwise
}

func number(t *testing.T, d *datadriven.TestData, key string, otherwise uint64) uint64 {
	t.Helper()
	d.MaybeScanArgs(t, key, &otherwise)
	return otherwise
}
