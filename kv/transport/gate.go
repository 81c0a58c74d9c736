package transport

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Grant says which pages a transfer may fill: page i of Pages takes block
// FirstBlock+i of a prompt of Tokens tokens.
type Grant struct {
	X          kv.TransferID
	Tenant     kv.TenantTag
	FirstBlock uint32
	Tokens     uint32
	Pages      []kv.PageRef // immutable once opened
}

// Gate decides which page may land in which slot. A target worker has one, and
// each of its links a Door in it. Safe for concurrent use.
//
// Life of a grant: Open -> (Begin -> End or Cut)* -> Shut -> drained. A slot belongs to
// at most one grant, from Open until drained. A page lands only through the door
// that its grant was opened on, so that the end of a link is the end of all that
// it could write.
type Gate struct {
	layout   kv.Layout
	layoutID uint16
	place    func(kv.Slot) []byte

	mu    sync.Mutex
	slots []*grant // the grant that a slot's bytes may come from; protected by mu
}

// NewGate makes the gate of a slab of that many slots. place gives a slot's
// bytes from header to trailer, layout.FrameBytes of them or more; it is called
// under the gate's lock and must neither block nor call the gate.
func NewGate(layout kv.Layout, slots int, place func(slot kv.Slot) []byte) *Gate {
	return &Gate{layout: layout, layoutID: layout.ID(), place: place, slots: make([]*grant, slots)}
}

// Slots is the number of pages behind the gate.
func (g *Gate) Slots() int { return len(g.slots) }

// Layout is the shape of the pages behind the gate.
func (g *Gate) Layout() kv.Layout { return g.layout }

// Door is one link's way through the gate.
type Door struct {
	gate *Gate
	kick func()

	grants map[kv.TransferID]*grant // protected by gate.mu
	ended  []kv.TransferID          // grants that were shut lately, a ring of endedMax; protected by gate.mu
	oldest int                      // of a full ring; protected by gate.mu
	closed bool                     // protected by gate.mu

	// One placement at a time. All but revoked belong to the link's reader, and
	// placing is changed under gate.mu only.
	placing *grant
	page    int
	frame   []byte
	header  [kv.HeaderBytes]byte
	tag     kv.Tag
	revoked atomic.Bool
}

// endedMax bounds the grants that a door remembers. It tells late pages from foreign
// ones in what is reported; both are refused.
const endedMax = 1024

type grant struct {
	Grant
	state   []pageState
	drained []func()
	shut    bool
}

type pageState uint8

const (
	absent pageState = iota
	filling
	landed
)

// Door adds a link. kick is called when a page that is being placed loses its
// grant: it must make the link's reader look at Live soon, and neither block nor
// call the gate.
func (g *Gate) Door(kick func()) *Door {
	return &Door{gate: g, kick: kick, grants: map[kv.TransferID]*grant{}}
}

// Open lets the pages of a grant land. It refuses a grant that could overlap
// another one or that says more than its prompt has. Behind a closed door it does
// nothing, as nothing can land there.
func (d *Door) Open(want Grant) error {
	if err := want.validate(len(d.gate.slots)); err != nil {
		return err
	}
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.grants[want.X] != nil {
		return fmt.Errorf("open the gate for %v: it is open already", want.X)
	}
	for _, ref := range want.Pages {
		if other := d.gate.slots[ref.Slot]; other != nil {
			return fmt.Errorf("open the gate for %v: slot %d still belongs to %v", want.X, ref.Slot, other.X)
		}
	}
	opened := &grant{Grant: want, state: make([]pageState, len(want.Pages))}
	for i, ref := range want.Pages {
		if d.gate.slots[ref.Slot] != nil {
			d.gate.forget(opened, i)
			return fmt.Errorf("open the gate for %v: slot %d is granted twice", want.X, ref.Slot)
		}
		d.gate.slots[ref.Slot] = opened
	}
	d.grants[want.X] = opened
	return nil
}

func (w Grant) validate(slots int) error {
	if w.X.IsZero() || w.Tenant == 0 {
		return fmt.Errorf("open the gate for %v: transfer or tenant is zero", w.X)
	}
	if len(w.Pages) == 0 || w.Tokens == 0 {
		return fmt.Errorf("open the gate for %v: a grant of %d pages for %d tokens is empty", w.X, len(w.Pages), w.Tokens)
	}
	if got, limit := uint64(w.FirstBlock)+uint64(len(w.Pages)), uint64(kv.PagesFor(int(w.Tokens))); got > limit {
		return fmt.Errorf("open the gate for %v: blocks up to %d are granted, the prompt has %d", w.X, got, limit)
	}
	for _, ref := range w.Pages {
		if int(ref.Slot) >= slots {
			return fmt.Errorf("open the gate for %v: slot %d is outside the slab of %d", w.X, ref.Slot, slots)
		}
		if ref.Generation == 0 {
			return fmt.Errorf("open the gate for %v: slot %d is granted without a generation", w.X, ref.Slot)
		}
	}
	return nil
}

// Begin asks where the page with that header goes. With a Refusal of None the
// caller fills the returned bytes, which are body and trailer, looks at Live
// between its reads, and calls End or Cut; it may begin no other page before. Otherwise
// no byte of the page may be placed.
func (d *Door) Begin(header []byte) ([]byte, Refusal) {
	tag, ok := kv.ParseTag(header)
	if !ok {
		return nil, BadHeader
	}
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	g, page, refusal := d.judge(tag)
	if refusal != None {
		return nil, refusal
	}
	g.state[page] = filling
	d.placing, d.page, d.tag = g, page, tag
	bytes := d.gate.layout.FrameBytes()
	d.frame = d.gate.place(tag.Slot)[:bytes:bytes]
	copy(d.header[:], header)
	d.revoked.Store(false)
	// Until End the page names nobody, so that a torn one can't pass for whole.
	clear(d.frame[:kv.HeaderBytes])
	return d.frame[kv.HeaderBytes:], None
}

// judge compares a tag with the grant it claims. Requires: gate.mu is held.
func (d *Door) judge(tag kv.Tag) (*grant, int, Refusal) {
	g := d.grants[tag.Transfer]
	switch {
	case g != nil && g.shut || g == nil && slices.Contains(d.ended, tag.Transfer):
		return nil, 0, TransferEnded
	case g == nil:
		return nil, 0, ForeignTransfer
	case tag.Tenant != g.Tenant:
		return nil, 0, ForeignTenant
	case tag.Layout != d.gate.layoutID:
		return nil, 0, WrongLayout
	case tag.Block < g.FirstBlock || int(tag.Block-g.FirstBlock) >= len(g.Pages):
		return nil, 0, WrongBlock
	}
	page := int(tag.Block - g.FirstBlock)
	switch want := g.Pages[page]; {
	case tag.Slot != want.Slot:
		return nil, 0, WrongSlot
	case tag.Generation != want.Generation:
		return nil, 0, StaleGeneration
	case int(tag.Tokens) != kv.ExtentAt(int(g.Tokens), int(tag.Block)):
		return nil, 0, WrongExtent
	case g.state[page] != absent:
		return nil, 0, Duplicate
	}
	return g, page, None
}

// GrantBytes is the size of all pages of the grant whose page was begun.
func (d *Door) GrantBytes() int { return len(d.placing.Pages) * len(d.frame) }

// Live reports whether the page that was begun may still be filled.
func (d *Door) Live() bool { return !d.revoked.Load() }

// End lets go of the page that was begun. complete says that all its bytes are
// in place. report gets None when the page has landed and the reason when not,
// before anyone can learn that the grant has drained; it must neither block nor
// call the gate.
func (d *Door) End(complete bool, report func(Refusal)) {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	refusal := Torn
	if complete && d.tag.MatchesTrailer(d.frame[len(d.frame)-kv.TrailerBytes:]) {
		refusal = None
	}
	d.let(refusal, report)
}

// Cut is End for a page whose link has ended under way. It says nothing about the
// page or its grant: what is reported is Cut, and Down follows.
func (d *Door) Cut(report func(Refusal)) {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	d.let(Cut, report)
}

// let lets go of the page that was begun. Requires: gate.mu is held.
func (d *Door) let(refusal Refusal, report func(Refusal)) {
	g := d.placing
	d.placing = nil
	if g.shut {
		refusal = TransferEnded
	}
	g.state[d.page] = absent
	if refusal == None {
		copy(d.frame, d.header[:])
		g.state[d.page] = landed
	}
	d.frame = nil
	report(refusal)
	if g.shut {
		d.drain(g)
	}
}

// Shut takes the grant back. drained is called once nothing of x can land any
// more, which may be before Shut returns; it must neither block nor call the
// gate. For an x that isn't open that is at once.
func (d *Door) Shut(x kv.TransferID, drained func()) {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	g := d.grants[x]
	if g == nil {
		drained()
		return
	}
	g.drained = append(g.drained, drained)
	d.shut(g)
}

// Close shuts all grants of the door, for good.
// Requires: the link's reader has ended, so that no page is being placed.
func (d *Door) Close() {
	d.gate.mu.Lock()
	defer d.gate.mu.Unlock()
	d.closed = true
	for _, g := range d.grants {
		d.shut(g)
	}
}

// shut revokes a grant. Requires: gate.mu is held.
func (d *Door) shut(g *grant) {
	g.shut = true
	if d.placing == g {
		d.revoked.Store(true)
		d.kick()
		return
	}
	d.drain(g)
}

// drain gives a shut grant's slots back. Requires: gate.mu is held, g is shut and
// none of its pages is being placed.
func (d *Door) drain(g *grant) {
	d.gate.forget(g, len(g.Pages))
	delete(d.grants, g.X)
	d.remember(g.X)
	for _, drained := range g.drained {
		drained()
	}
}

// remember notes that a grant was shut. Requires: gate.mu is held.
func (d *Door) remember(x kv.TransferID) {
	if len(d.ended) < endedMax {
		d.ended = append(d.ended, x)
		return
	}
	d.ended[d.oldest] = x
	d.oldest = (d.oldest + 1) % endedMax
}

// forget clears the first pages of a grant from the slot table.
// Requires: mu is held.
func (g *Gate) forget(from *grant, pages int) {
	for _, ref := range from.Pages[:pages] {
		g.slots[ref.Slot] = nil
	}
}
