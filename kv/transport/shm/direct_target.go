package shm

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// guards names those that are missing, which happens in tests only.
type guards struct {
	noStream bool // no grant is copied past the cache, to compare with
	noWait   bool // a fence doesn't look at the hazard word
	noRevoke bool // a fence doesn't clear owner words either
}

// directTarget is the target's side of a direct link: the carrier, which learns
// from notes which pages the source says it wrote, and the door before the gate's,
// which keeps the owner words.
//
// Lock order: mu, then the gate's.
type directTarget struct {
	slab    *sharedSlab
	layout  kv.Layout
	missing guards
	peer    *os.File // pidfd
	session *session.Session
	gate    session.Door
	watch   sync.WaitGroup
	dead    chan struct{} // closed when the peer's process has ended
	waits   sync.WaitGroup
	large   int // bytes of a grant that is copied past the cache

	// Of the reader.
	tag   kv.Tag
	whole bool // the slot carries the header of the note

	mu     sync.Mutex
	closed bool                              // protected by mu
	open   map[kv.TransferID]transport.Grant // protected by mu
	leave  map[kv.TransferID][]func()        // taken back, but the source may be in them; protected by mu
}

func newDirectTarget(slab *sharedSlab, peer *os.File, layout kv.Layout, missing guards) *directTarget {
	large := cacheBytes() / 2
	if missing.noStream {
		large = math.MaxInt
	}
	return &directTarget{slab: slab, layout: layout, missing: missing, peer: peer, dead: make(chan struct{}), large: large,
		open: map[kv.TransferID]transport.Grant{}, leave: map[kv.TransferID][]func(){}}
}

func (d *directTarget) door(gate session.Door) session.Door {
	d.gate = gate
	return (*directDoor)(d)
}

func (d *directTarget) start(s *session.Session) session.Carrier {
	d.session = s
	d.watch.Go(func() { mourn(s, d.peer, func() { close(d.dead) }) })
	return d
}

// Put implements session.Carrier.
func (d *directTarget) Put(*session.Output, transport.Page) error {
	return fmt.Errorf("%w: a target sends no pages", transport.ErrProtocol)
}

// Settle implements session.Carrier.
func (d *directTarget) Settle(*session.Output) error { return nil }

// Page implements session.Carrier.
func (d *directTarget) Page(*session.Input) error {
	return fmt.Errorf("%w: a page in the stream of a direct link", transport.ErrProtocol)
}

// Note implements session.Carrier: it is the header of a page that the source
// wrote, or would have if the page had been its own.
func (d *directTarget) Note(note []byte) error {
	if len(note) != kv.HeaderBytes {
		return fmt.Errorf("%w: a note of %d bytes, must be %d", transport.ErrProtocol, len(note), kv.HeaderBytes)
	}
	return d.session.Land(note, func(session.Place) (bool, error) { return d.whole, nil })
}

// Stop implements session.Carrier.
func (d *directTarget) Stop() {}

// Release implements session.Carrier: it waits until the source can't be in a page
// any more.
func (d *directTarget) Release() {
	if !d.missing.noWait {
		d.await(d.slab.hazard().Load())
	}
	d.waits.Wait()
	d.gate.Close()
	// Errors here would be of descriptors and mappings that are ours alone, and
	// there is nobody left to tell.
	_ = d.peer.Close()
	d.watch.Wait()
	_ = d.slab.close()
}

// await returns when the source has left the page that it was seen in, or is dead.
func (d *directTarget) await(seen uint64) {
	const spins, pauseMax = 200, time.Millisecond
	pause := 10 * time.Microsecond
	for i := 0; seen != 0 && d.slab.hazard().Load() == seen; i++ {
		if i < spins {
			runtime.Gosched()
			continue
		}
		select {
		case <-d.dead:
			return
		case <-time.After(pause):
			pause = min(2*pause, pauseMax)
		}
	}
}

// directDoor is the door's half of a directTarget.
type directDoor directTarget

// Open lets the source write the pages of a grant.
func (d *directDoor) Open(g transport.Grant) error {
	if err := d.gate.Open(g); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.open[g.X] = g
	for i, ref := range g.Pages {
		owner := ownerOf(d.tagOf(g, i))
		if len(g.Pages)*d.slab.frame > d.large {
			owner |= largeBit
		}
		d.slab.owner(ref.Slot).Store(owner)
	}
	return nil
}

// tagOf is the tag of the grant's page i.
func (d *directDoor) tagOf(g transport.Grant, i int) kv.Tag {
	block := g.FirstBlock + uint32(i)
	return kv.Tag{Layout: d.layout.ID(), Tokens: uint8(kv.ExtentAt(int(g.Tokens), int(block))), Transfer: g.X,
		Generation: g.Pages[i].Generation, Tenant: g.Tenant, Slot: g.Pages[i].Slot, Block: block}
}

// Begin judges a page that the source has written.
func (d *directDoor) Begin(header []byte) ([]byte, transport.Refusal) {
	d.whole = false
	if tag, ok := kv.ParseTag(header); ok && int(tag.Slot) < d.slab.slots {
		d.tag = tag
		// The gate clears the header until End, so it is looked at before.
		d.whole = string(d.slab.page(tag.Slot)[:kv.HeaderBytes]) == string(header)
	}
	return d.gate.Begin(header)
}

// GrantBytes implements session.Door.
func (d *directDoor) GrantBytes() int { return d.gate.GrantBytes() }

// Live implements session.Door.
func (d *directDoor) Live() bool { return d.gate.Live() }

// End takes a page that has landed away from the source.
func (d *directDoor) End(complete bool, report func(transport.Refusal)) {
	d.gate.End(complete, func(r transport.Refusal) {
		if r == transport.None && !d.missing.noRevoke {
			d.slab.owner(d.tag.Slot).Store(0)
		}
		report(r)
	})
}

// Cut implements session.Door.
func (d *directDoor) Cut(report func(transport.Refusal)) { d.gate.Cut(report) }

// Shut takes a grant away from the source, and from the gate once the source is
// out of its pages.
func (d *directDoor) Shut(x kv.TransferID, drained func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if waiting, ok := d.leave[x]; ok {
		d.leave[x] = append(waiting, drained)
		return
	}
	g, ok := d.open[x]
	if !ok {
		d.gate.Shut(x, drained)
		return
	}
	delete(d.open, x)
	seen := d.revoke(g)
	if seen == 0 {
		d.gate.Shut(x, drained)
		return
	}
	d.leave[x] = []func(){drained}
	d.waits.Go(func() { d.left(x, seen) })
}

// revoke clears a grant's owner words and returns the hazard word if the source is
// in one of its pages, else 0. Requires: mu is held.
func (d *directDoor) revoke(g transport.Grant) uint64 {
	if d.missing.noRevoke {
		return 0
	}
	for _, ref := range g.Pages {
		d.slab.owner(ref.Slot).Store(0)
	}
	seen := d.slab.hazard().Load()
	if seen == 0 || d.missing.noWait {
		return 0
	}
	for _, ref := range g.Pages {
		if uint64(ref.Slot)+1 == seen {
			return seen
		}
	}
	return 0
}

// left waits for the source to leave a page of x, and shuts the gate then.
func (d *directDoor) left(x kv.TransferID, seen uint64) {
	(*directTarget)(d).await(seen)
	d.mu.Lock()
	waiting := d.leave[x]
	delete(d.leave, x)
	d.mu.Unlock()
	for _, drained := range waiting {
		d.gate.Shut(x, drained)
	}
}

// Close takes all grants away from the source. That it is out of them, and that
// the gate is closed, is Release's to say.
func (d *directDoor) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for x, g := range d.open {
		d.revoke(g)
		delete(d.open, x)
	}
}
