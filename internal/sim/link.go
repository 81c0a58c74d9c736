package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/worker"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// errCut is why a simulated link ends that a fault cuts.
var errCut = errors.New("the connection was reset")

// end is one worker's end of a link, a transport.Link. What the peer sent is on the
// way to it in flight; what it shall send waits in queue, and its bytes are read when
// it leaves.
//
// Life: open -> closed, when nothing is placed, read or sent any more -> the worker
// has Down. The two ends of a link close at different times, and in between one of
// them still sends, places and lands.
type end struct {
	world  *world
	node   *node
	boot   int // of the node
	other  *end
	peer   transfer.Hello
	door   *transport.Door // at a target
	closed bool
	mute   bool // the node is gone or has had Down: no events any more

	queue       []*parcel // waits to leave
	unconfirmed []*parcel // pages that left, of which the worker does not know
	leaves      bool      // a departure is due
	flight      []*parcel // on the way here
	arrived     time.Duration
	placing     *parcel // a page that is being placed
	into        []byte
	kicked      bool
}

// parcel is a message, a page or the end of the link on its way.
type parcel struct {
	x       kv.TransferID
	message []byte
	page    transport.Page
	frame   []byte // of a page, once its bytes were read
	hangUp  bool
	at      time.Duration // arrives
}

func (p *parcel) isPage() bool { return p.page.Body != nil }

// link joins two workers.
func (w *world) link(d, p *node) *end {
	target := &end{world: w, node: d, boot: d.boot, peer: p.transport.Hello}
	source := &end{world: w, node: p, boot: p.boot, peer: d.transport.Hello, other: target}
	target.other = source
	target.door = d.transport.Gate.Door(target.kick)
	for _, e := range []*end{target, source} {
		e.node.ends = append(e.node.ends, e)
		e.post(transport.Event{Kind: transport.Up})
	}
	return target
}

// Peer implements transport.Link.
func (e *end) Peer() transfer.Hello { return e.peer }

// Send implements transport.Link.
func (e *end) Send(m transfer.Message) error {
	return e.enqueue(&parcel{message: m.Append(nil), x: transfer.TransferOf(m)})
}

// Write implements transport.Link.
func (e *end) Write(page transport.Page) error {
	p := &parcel{x: page.Tag.Transfer, page: page}
	if err := e.enqueue(p); err != nil || !e.world.bugs.writtenEarly {
		return err
	}
	e.post(transport.Event{Kind: transport.Written, X: p.x, Block: page.Tag.Block, OK: true})
	return nil
}

func (e *end) enqueue(p *parcel) error {
	if e.closed {
		return transport.ErrDown
	}
	e.queue = append(e.queue, p)
	e.depart()
	return nil
}

// Drop implements transport.Link.
func (e *end) Drop(x kv.TransferID) {
	e.queue = slices.DeleteFunc(e.queue, func(p *parcel) bool {
		if !p.isPage() || p.x != x {
			return false
		}
		e.written(p, false, true)
		return true
	})
}

// Open implements transport.Link.
func (e *end) Open(g transport.Grant) error { return e.door.Open(g) }

// Shut implements transport.Link.
func (e *end) Shut(x kv.TransferID) (drained bool) {
	if e.world.bugs.gateStaysOpen {
		return true
	}
	e.door.Shut(x, func() { drained = true })
	return drained || e.world.bugs.fenceLies
}

// Fence implements transport.Link.
func (e *end) Fence(x kv.TransferID) {
	proved := func() { e.post(transport.Event{Kind: transport.Fenced, X: x}) }
	if e.world.bugs.gateStaysOpen || e.world.bugs.fenceLies {
		proved()
		return
	}
	e.door.Shut(x, proved)
}

// Close implements transport.Link.
func (e *end) Close() error {
	e.close(nil)
	return nil
}

// close tears this end down and lets the peer know, sooner or later.
func (e *end) close(reason error) {
	if e.closed {
		return
	}
	e.world.trace("%s: link to %s ends: %v", e.node.name, e.peer.Node, reason)
	e.shutDown()
	for _, p := range append(e.unconfirmed, e.queue...) {
		if p.isPage() {
			e.written(p, false, false)
		}
	}
	e.unconfirmed, e.queue = nil, nil
	if d := e.node; d.role == decodeRole {
		e.world.redial(d, e.world.named(e.peer.Node), redialFirst)
	}
	e.post(transport.Event{Kind: transport.Down, Err: reason})
	e.mute = true
	e.hangUp()
}

// vanish is the end of a process: nobody is told anything here.
func (e *end) vanish() {
	if e.closed {
		return
	}
	e.mute = true
	e.shutDown()
	e.unconfirmed, e.queue = nil, nil
	e.hangUp()
}

// shutDown ends reading and placing.
func (e *end) shutDown() {
	e.closed = true
	if p := e.placing; p != nil {
		e.placing = nil
		e.door.Cut(func(r transport.Refusal) { e.report(p, r) })
	}
	if e.door != nil {
		e.door.Close()
	}
	e.flight = nil
	e.node.ends = slices.DeleteFunc(e.node.ends, func(o *end) bool { return o == e })
}

// hangUp tells the peer that this end is gone, behind what has left; some of that may
// be lost, and when a machine dies, only silence tells.
func (e *end) hangUp() {
	o, w := e.other, e.world
	if o.closed {
		return
	}
	if n := len(o.flight); n > 0 && w.net.chance(2) {
		o.flight = o.flight[:w.net.IntN(n+1)]
		o.arrived = w.clock.now
		for _, p := range o.flight {
			o.arrived = max(o.arrived, p.at)
		}
	}
	delay := w.net.between(0, w.swarm.netMax)
	if w.net.chance(4) {
		delay = w.net.between(0, silence)
	}
	o.arrive(&parcel{hangUp: true}, delay)
}

// post hands an event to the worker's loop.
func (e *end) post(ev transport.Event) {
	if e.mute || e.node.boot != e.boot {
		return
	}
	ev.Link = e
	e.node.post(func(d *worker.Driver) error { return d.Handle(ev) })
}

func (e *end) written(p *parcel, ok, dropped bool) {
	if e.world.bugs.writtenEarly || e.world.bugs.writtenNever && !ok {
		return
	}
	e.post(transport.Event{Kind: transport.Written, X: p.x, Block: p.page.Tag.Block, OK: ok, Dropped: dropped})
}

// depart makes the queue's first entry leave soon.
func (e *end) depart() {
	if !e.leaves && len(e.queue) > 0 {
		e.leaves = true
		e.world.clock.after(e.world.net.between(0, e.world.swarm.sendMax), func() { e.leaves = false; e.leave() })
	}
}

// leave sends the first entry. A page's bytes are read now.
func (e *end) leave() {
	if e.closed || len(e.queue) == 0 || e.node.stopped {
		return
	}
	p := e.queue[0]
	e.queue = e.queue[1:]
	if p.isPage() {
		p.frame = frameOf(p.page)
		e.unconfirmed = append(e.unconfirmed, p)
		e.world.clock.after(e.world.net.between(0, e.world.swarm.sendMax), func() { e.confirm(p) })
	}
	e.other.arrive(p, e.world.net.between(e.world.swarm.netMin, e.world.swarm.netMax))
	e.depart()
}

func frameOf(p transport.Page) []byte {
	frame := make([]byte, kv.HeaderBytes+len(p.Body)+kv.TrailerBytes)
	p.Tag.Put(frame)
	kv.PutSum(frame, p.Sum)
	copy(frame[kv.HeaderBytes:], p.Body)
	p.Tag.PutTrailer(frame[len(frame)-kv.TrailerBytes:])
	return frame
}

// confirm tells the worker that a page has left.
func (e *end) confirm(p *parcel) {
	if i := slices.Index(e.unconfirmed, p); i >= 0 {
		e.unconfirmed = slices.Delete(e.unconfirmed, i, i+1)
		e.written(p, true, false)
	}
}

// arrive puts a parcel behind what is in flight.
func (e *end) arrive(p *parcel, delay time.Duration) {
	if e.closed {
		return
	}
	e.arrived = max(e.arrived, e.world.clock.now+delay)
	p.at = e.arrived
	e.flight = append(e.flight, p)
	e.world.clock.at(p.at, e.receive)
}

// receive takes what has arrived, until a page takes its time.
func (e *end) receive() {
	for e.placing == nil && !e.closed && !e.node.stopped {
		i := e.due()
		if i < 0 {
			return
		}
		p := e.flight[i]
		e.flight = slices.Delete(e.flight, i, i+1)
		e.take(p)
	}
}

// due is the index of the next parcel that has arrived, or -1. Where the order of
// different transfers is not kept, that may be any transfer's first.
func (e *end) due() int {
	if len(e.flight) == 0 || e.flight[0].at > e.world.clock.now {
		return -1
	}
	if !e.world.swarm.reorder || e.flight[0].hangUp {
		return 0
	}
	i := e.world.net.IntN(min(len(e.flight), reorderMax))
	p := e.flight[i]
	if p.at > e.world.clock.now || p.hangUp || slices.ContainsFunc(e.flight[:i], func(q *parcel) bool { return q.x == p.x }) {
		return 0
	}
	return i
}

func (e *end) take(p *parcel) {
	switch {
	case p.hangUp:
		e.close(transport.ErrEnded)
	case p.isPage():
		e.place(p)
	default:
		m, err := transfer.Parse(p.message)
		if err != nil {
			e.world.fail("%s got a message that is none: %v", e.node.name, err)
			return
		}
		e.post(transport.Event{Kind: transport.Message, Message: m})
	}
}

// place begins to place a page, if the gate lets it, and ends it a little later.
func (e *end) place(p *parcel) {
	if e.world.bugs.noGate {
		copy(e.node.bytes(p.page.Tag.Slot), p.frame)
		e.post(transport.Event{Kind: transport.Landed, X: p.x, Block: p.page.Tag.Block})
		return
	}
	if e.world.bugs.placesNothing {
		e.post(transport.Event{Kind: transport.Landed, X: p.x, Block: p.page.Tag.Block})
		return
	}
	into, refusal := e.door.Begin(p.frame)
	if refusal != transport.None {
		e.world.trace("%s: page %d of %v is refused: %v", e.node.name, p.page.Tag.Block, p.x, refusal)
		if refusal != transport.TransferEnded {
			e.world.fail("%s refuses page %d of %v: %v", e.node.name, p.page.Tag.Block, p.x, refusal)
		}
		e.report(p, refusal)
		return
	}
	e.placing, e.into, e.kicked = p, into, false
	rest := p.frame[kv.HeaderBytes:]
	copy(into[:len(rest)/2], rest)
	delay := e.world.net.between(0, e.world.swarm.placeMax)
	if e.world.net.chance(e.world.swarm.slowPlaceEvery) {
		delay = e.world.net.between(0, slowPlaceMax)
	}
	e.world.clock.after(delay, func() { e.finish(p) })
}

// finish places the rest of a page, unless its grant was taken back meanwhile.
func (e *end) finish(p *parcel) {
	if e.placing != p || e.node.stopped {
		return
	}
	live := e.door.Live()
	if live {
		rest := p.frame[kv.HeaderBytes:]
		copy(e.into[len(rest)/2:], rest[len(rest)/2:])
	}
	e.placing = nil
	e.door.End(live, func(r transport.Refusal) { e.report(p, r) })
	e.receive()
}

func (e *end) report(p *parcel, r transport.Refusal) {
	ev := transport.Event{Kind: transport.Landed, X: p.x, Block: p.page.Tag.Block}
	if r != transport.None {
		ev.Kind, ev.Refusal = transport.Refused, r
	}
	e.post(ev)
}

// kick makes the reader look at a grant that was taken back. It runs under the
// gate's lock.
func (e *end) kick() {
	if p := e.placing; p != nil && !e.kicked {
		e.kicked = true
		delay := e.world.net.between(0, e.world.swarm.placeMax)
		if e.world.swarm.slowPlaceEvery > 0 && e.world.net.chance(3) {
			delay = e.world.net.between(0, slowPlaceMax)
		}
		e.world.clock.after(delay, func() { e.finish(p) })
	}
}

// advance does what could happen now at this end while the worker computes.
func (e *end) advance() {
	switch {
	case e.placing != nil:
		e.finish(e.placing)
	case len(e.flight) > 0 && e.flight[0].at <= e.world.clock.now:
		e.receive()
	case len(e.queue) > 0:
		e.leave()
	}
}

// resume goes on after the process was stopped.
func (e *end) resume() {
	if e.placing != nil {
		p := e.placing
		e.world.clock.after(0, func() { e.finish(p) })
	}
	e.depart()
	e.world.clock.after(0, e.receive)
}

// dialing keeps a link from a decode to a prefill worker.
const (
	redialFirst = 50 * time.Millisecond
	redialMax   = time.Second
)

// redial tries again after a while, slower after each failure.
func (w *world) redial(d, p *node, wait time.Duration) {
	boot := d.boot
	w.clock.after(w.net.between(wait/2, wait), func() {
		switch {
		case d.boot != boot || d.driver == nil:
		case d.stopped:
			w.redial(d, p, wait)
		case !w.reachable(d, p):
			d.post(func(drv *worker.Driver) error { return drv.NoLink(p.name, fmt.Errorf("dial %s: no answer", p.name)) })
			w.redial(d, p, min(2*wait, redialMax))
		default:
			w.link(d, p)
		}
	})
}

func (w *world) reachable(d, p *node) bool {
	return p.driver != nil && !p.stopped && w.apart(d, p) <= w.clock.now
}
