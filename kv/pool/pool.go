// Package pool decides which page is whose and what was written in it.
//
// A page has one state, one owner and any number of holders. Owner and written
// extent are two facts: pages that are reserved are owned and unwritten, and a
// reader is bound by the extent. A page is free when it has no owner, and can
// become free only when it has no holder.
//
// The pool never sees bytes. Whoever takes pages zeroes them before any use.
package pool

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/assert"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// Pool keeps the pages of one slab. It has one owner and is not safe for
// concurrent use.
type Pool struct {
	pages    []page
	free     []kv.Slot // in the order in which they will be taken
	reserved int       // the last free pages, which only probes take
	owners   []owner   // ordered by transfer
	counts   [States]int
	without  guard.Set
}

// page is what is known of one slot.
type page struct {
	state      State
	tokens     uint8 // written extent
	generation kv.Generation
	x          kv.TransferID
	tenant     kv.TenantTag
	holders    [Holders]uint16
}

// owner lists a transfer's pages: those that a remote writer was granted, in
// block order, then those of this worker, in the order of their allocation. Pages
// that it has pinned are its tenant's cache's, not its own.
type owner struct {
	x       kv.TransferID
	tenant  kv.TenantTag
	granted []kv.Slot
	local   []kv.Slot
	pinned  []kv.PageRef // in block order
}

// Page describes a slot.
type Page struct {
	Ref     kv.PageRef
	X       kv.TransferID
	Tenant  kv.TenantTag
	State   State
	Tokens  int // written extent, 0 to kv.PageTokens
	Holders [Holders]uint16
}

// New makes a pool of free pages. The last reserved of the free ones are kept
// for AllocProbe and GrantProbe.
func New(pages, reserved int) *Pool {
	assert.That(pages > 0 && reserved >= 0 && reserved < pages, "a pool has pages beyond its reserve")
	p := &Pool{pages: make([]page, pages), free: make([]kv.Slot, pages), reserved: reserved}
	for i := range p.free {
		p.free[i] = kv.Slot(i)
	}
	p.counts[Free] = pages
	return p
}

// AllocLocal takes n pages for a local writer, all or none. Taking more under an
// id that has pages adds to them.
func (p *Pool) AllocLocal(x kv.TransferID, tenant kv.TenantTag, n int) ([]kv.PageRef, error) {
	return p.take(x, tenant, n, ActAlloc, p.reserved)
}

// AllocProbe is AllocLocal that may use the reserve.
func (p *Pool) AllocProbe(x kv.TransferID, tenant kv.TenantTag, n int) ([]kv.PageRef, error) {
	return p.take(x, tenant, n, ActAlloc, 0)
}

// Grant takes n pages for a remote writer, all or none, once for each id.
func (p *Pool) Grant(x kv.TransferID, tenant kv.TenantTag, n int) ([]kv.PageRef, error) {
	return p.take(x, tenant, n, ActGrant, p.reserved)
}

// GrantProbe is Grant that may use the reserve.
func (p *Pool) GrantProbe(x kv.TransferID, tenant kv.TenantTag, n int) ([]kv.PageRef, error) {
	return p.take(x, tenant, n, ActGrant, 0)
}

func (p *Pool) take(x kv.TransferID, tenant kv.TenantTag, n int, action Action, reserve int) ([]kv.PageRef, error) {
	if x.IsZero() || tenant == 0 || n < 1 {
		return nil, fmt.Errorf("%v of %d pages for transfer %v of tenant %016x: none of them may be zero", action, n, x, uint64(tenant))
	}
	if usable := max(0, len(p.free)-reserve); n > usable {
		return nil, &ShortError{X: x, Want: n, Have: usable, Total: len(p.pages)}
	}
	i, known := p.find(x)
	if known && action == ActGrant && len(p.owners[i].granted) > 0 {
		return nil, fmt.Errorf("grant of %d pages for transfer %v: it already has %d", n, x, len(p.owners[i].granted))
	}
	if known && p.owners[i].tenant != tenant {
		return nil, fmt.Errorf("%v of %d pages for transfer %v: it is another tenant's", action, n, x)
	}
	if !known {
		p.owners = slices.Insert(p.owners, i, owner{x: x, tenant: tenant})
	}
	slots := p.free[:n]
	for _, slot := range slots {
		p.occupy(slot, x, tenant, action)
	}
	list := pick(action == ActGrant, &p.owners[i].granted, &p.owners[i].local)
	*list = append(slices.Clip(*list), slots...)
	refs := p.refs(slots)
	p.free = p.free[n:]
	return refs, nil
}

// occupy gives a free slot to an owner, in a new generation.
func (p *Pool) occupy(slot kv.Slot, x kv.TransferID, tenant kv.TenantTag, action Action) {
	g := p.page(slot)
	assert.That(g.state == Free && g.holders == [Holders]uint16{} && g.x.IsZero(), "a page that is taken was free and had no holder")
	p.move(g, action)
	g.generation++
	g.x, g.tenant, g.tokens = x, tenant, 0
	if action == ActGrant {
		g.holders[RemoteWriter] = 1
	}
}

// Write raises the written extent of an open page to tokens.
func (p *Pool) Write(ref kv.PageRef, tokens int) error {
	g, err := p.at(ref, ActWrite)
	if err != nil {
		return err
	}
	if tokens < int(g.tokens) || tokens > kv.PageTokens {
		return fmt.Errorf("page %s: extent %d cannot become %d, a page holds %d", show(ref), g.tokens, tokens, kv.PageTokens)
	}
	g.tokens = uint8(tokens)
	return nil
}

// Seal says that nobody writes an open page any more and that its sum is known.
// A page with nothing written cannot be sealed.
func (p *Pool) Seal(ref kv.PageRef) error {
	g, err := p.at(ref, ActSeal)
	if err != nil {
		return err
	}
	if g.tokens == 0 {
		return fmt.Errorf("page %s: seal refused, nothing is written in it", show(ref))
	}
	p.move(g, ActSeal)
	return nil
}

// Revoke says that the transfer has ended while its pages may still be written.
func (p *Pool) Revoke(x kv.TransferID) error { return p.moveGranted(x, ActRevoke) }

// Fenced says that the remote writer of x is proved gone. Requires: CLOSED, a
// fence, or the end of the link.
func (p *Pool) Fenced(x kv.TransferID) error {
	if err := p.moveGranted(x, ActFence); err != nil {
		return err
	}
	for _, slot := range p.owned(x).granted {
		p.page(slot).holders[RemoteWriter] = 0
	}
	return nil
}

// Verified says that the pages granted to x hold what was granted: blocks from
// firstBlock on of a sequence of tokens, those before it being pinned. Only now do
// they have an extent.
func (p *Pool) Verified(x kv.TransferID, tokens, firstBlock int) error {
	list := p.owned(x).granted
	if pins := len(p.owned(x).pinned); pins != firstBlock {
		return fmt.Errorf("transfer %v: verified from block %d on, %d blocks before it are pinned", x, firstBlock, pins)
	}
	if got := kv.PagesFor(tokens) - firstBlock; got != len(list) || tokens < 1 || firstBlock < 0 {
		return fmt.Errorf("transfer %v: verified %d tokens from block %d on, which is %d pages, %d were granted", x, tokens, firstBlock, got, len(list))
	}
	if err := p.moveGranted(x, ActVerify); err != nil {
		return err
	}
	for i, slot := range list {
		p.page(slot).tokens = uint8(kv.ExtentAt(tokens, firstBlock+i))
	}
	return nil
}

// Adopt takes verified pages into a page table. The granted page at index tail
// is opened to be written further; with tail -1 none is.
func (p *Pool) Adopt(x kv.TransferID, tail int) error {
	list := p.owned(x).granted
	if len(list) == 0 || tail < -1 || tail >= len(list) {
		return fmt.Errorf("transfer %v: adopt with tail %d of %d pages", x, tail, len(list))
	}
	if err := p.allow(list, ActAdopt); err != nil {
		return err
	}
	for i, slot := range list {
		p.move(p.page(slot), pick(i == tail, ActAdoptTail, ActAdopt))
	}
	return nil
}

// Quarantine stops counting on pages whose writer is not proved gone.
func (p *Pool) Quarantine(x kv.TransferID) error { return p.moveGranted(x, ActQuarantine) }

// Free gives back every page of x, all or none, and ends its pins. It is refused while a page has a
// holder or a state that it cannot leave: the second layer under every rule that
// says when pages may go.
func (p *Pool) Free(x kv.TransferID) error {
	i, known := p.find(x)
	if !known {
		return fmt.Errorf("transfer %v: free refused, it has no pages", x)
	}
	slots := p.owners[i].slots()
	if err := p.allow(slots, ActFree); err != nil {
		return err
	}
	for _, slot := range slots {
		p.clear(slot, ActFree)
	}
	for _, ref := range p.owners[i].pinned {
		if g, err := p.current(ref); err == nil {
			g.holders[Reader]--
		}
	}
	p.owners = slices.Delete(p.owners, i, i+1)
	return nil
}

// Cache gives a sealed page to its tenant's cache. It is no longer x's; whoever
// goes on reading it pins it.
func (p *Pool) Cache(ref kv.PageRef) error {
	g, err := p.at(ref, ActCache)
	if err != nil {
		return err
	}
	p.disown(g.x, ref.Slot)
	p.move(g, ActCache)
	g.x = kv.TransferID{}
	return nil
}

// Evict takes a page from the cache and frees it. Refused while it has a holder.
func (p *Pool) Evict(ref kv.PageRef) error {
	if _, err := p.at(ref, ActEvict); err != nil {
		return err
	}
	if err := p.allow([]kv.Slot{ref.Slot}, ActEvict); err != nil {
		return err
	}
	p.clear(ref.Slot, ActEvict)
	return nil
}

// Pin makes x a reader of cached pages until it is freed, all or none: the first
// blocks of its prompt, in order. Pinning more adds to them. It is refused for a
// page that has left the cache, is in another generation or is another tenant's.
func (p *Pool) Pin(x kv.TransferID, tenant kv.TenantTag, refs []kv.PageRef) error {
	i, known := p.find(x)
	if x.IsZero() || tenant == 0 || len(refs) == 0 || known && p.owners[i].tenant != tenant {
		return fmt.Errorf("pin of %d pages for transfer %v of tenant %016x: none of them may be zero, nor the transfer another tenant's", len(refs), x, uint64(tenant))
	}
	for _, ref := range refs {
		if err := p.pinnable(ref, tenant); err != nil {
			return err
		}
	}
	if !known {
		p.owners = slices.Insert(p.owners, i, owner{x: x, tenant: tenant})
	}
	for _, ref := range refs {
		g := p.page(ref.Slot)
		g.holders[Reader]++
		assert.That(g.holders[Reader] != 0, "the readers of a page can be counted")
	}
	p.owners[i].pinned = append(slices.Clip(p.owners[i].pinned), refs...)
	return nil
}

// Pinned lists the pages that x has pinned, in block order. An error says that one
// of them is not what was pinned any more: nothing that was read from it counts.
func (p *Pool) Pinned(x kv.TransferID) ([]kv.PageRef, error) {
	o := p.owned(x)
	for _, ref := range o.pinned {
		if err := p.pinnable(ref, o.tenant); err != nil && !p.without.Missing(guard.Pins) {
			return nil, err
		}
	}
	return slices.Clone(o.pinned), nil
}

// pinnable says why a page is not one of the tenant's cache.
func (p *Pool) pinnable(ref kv.PageRef, tenant kv.TenantTag) error {
	g, err := p.at(ref, ActPin)
	if err != nil {
		return err
	}
	if g.tenant != tenant && !p.without.Missing(guard.Tenant) {
		return fmt.Errorf("page %s: pin refused, it is another tenant's", show(ref))
	}
	return nil
}

// Hold adds a holder to a page.
func (p *Pool) Hold(ref kv.PageRef, h Holder) error {
	g, err := p.at(ref, ActHold)
	if err != nil {
		return err
	}
	if !h.byHold() {
		return fmt.Errorf("page %s: %d is not a holder that comes by itself", show(ref), h)
	}
	g.holders[h]++
	assert.That(g.holders[h] != 0, "the holders of a page can be counted")
	return nil
}

// Unhold takes one holder from a page.
func (p *Pool) Unhold(ref kv.PageRef, h Holder) error {
	g, err := p.current(ref)
	if err != nil {
		return err
	}
	if !h.byHold() || g.holders[h] == 0 {
		return fmt.Errorf("page %s: not held by holder %d", show(ref), h)
	}
	g.holders[h]--
	return nil
}

// HoldKernel makes a running step a holder of every page of x. Pages that x gets
// while the step runs are not part of it.
func (p *Pool) HoldKernel(x kv.TransferID) error {
	slots := p.owned(x).slots()
	if len(slots) == 0 {
		return fmt.Errorf("transfer %v: kernel hold refused, it has no pages", x)
	}
	if err := p.allow(slots, ActHold); err != nil {
		return err
	}
	for _, slot := range slots {
		if p.page(slot).holders[Kernel] != 0 {
			return fmt.Errorf("transfer %v: kernel hold refused, a step holds page %s", x, show(p.ref(slot)))
		}
	}
	for _, slot := range slots {
		p.page(slot).holders[Kernel] = 1
	}
	return nil
}

// ReleaseKernel ends the step's hold on the pages of x.
func (p *Pool) ReleaseKernel(x kv.TransferID) error {
	held := 0
	for _, slot := range p.owned(x).slots() {
		held += int(p.page(slot).holders[Kernel])
		p.page(slot).holders[Kernel] = 0
	}
	if held == 0 {
		return fmt.Errorf("transfer %v: no step holds its pages", x)
	}
	return nil
}

// Pages lists the pages of x: granted ones in block order, then local ones in
// the order of their allocation. There are none when x is unknown.
func (p *Pool) Pages(x kv.TransferID) []kv.PageRef { return p.refs(p.owned(x).slots()) }

// Page describes a slot.
func (p *Pool) Page(slot kv.Slot) Page {
	g := p.page(slot)
	return Page{Ref: p.ref(slot), X: g.x, Tenant: g.tenant, State: g.state, Tokens: int(g.tokens), Holders: g.holders}
}

// Extent is the number of tokens written in a page, or ok false when the
// reference is to another generation.
func (p *Pool) Extent(ref kv.PageRef) (tokens int, ok bool) {
	g, err := p.current(ref)
	if err != nil {
		return 0, false
	}
	return int(g.tokens), true
}

// Len is the number of pages.
func (p *Pool) Len() int { return len(p.pages) }

// Counts is the number of pages in each state.
func (p *Pool) Counts() [States]int { return p.counts }

// Usable is the number of pages that a request can be given now.
func (p *Pool) Usable() int { return max(0, len(p.free)-p.reserved) }

// Identity checks the whole pool: each page is free or has exactly one owner, its
// holders fit its state, and the counts add up to the total.
func (p *Pool) Identity() error {
	var counts [States]int
	for slot := range p.pages {
		g := &p.pages[slot]
		counts[g.state]++
		if err := p.sound(kv.Slot(slot)); err != nil {
			return err
		}
	}
	if counts != p.counts {
		return fmt.Errorf("pool: states count %v, %v are on record", counts, p.counts)
	}
	if len(p.free) != counts[Free] {
		return fmt.Errorf("pool: %d pages are in the free list, %d are free", len(p.free), counts[Free])
	}
	if err := p.ownership(counts); err != nil {
		return err
	}
	return p.pins()
}

// sound checks one page for itself.
func (p *Pool) sound(slot kv.Slot) error {
	g := p.page(slot)
	writer := g.state == Granted || g.state == Revoking || g.state == Quarantined
	switch {
	case (g.holders[RemoteWriter] != 0) != writer:
		return fmt.Errorf("page %s is %v with %d remote writers", show(p.ref(slot)), g.state, g.holders[RemoteWriter])
	case g.state == Free && (g.holders != [Holders]uint16{} || !g.x.IsZero() || g.tokens != 0):
		return fmt.Errorf("page %s is free with an owner, a holder or an extent", show(p.ref(slot)))
	case g.state != Free && g.state != Cached && g.x.IsZero():
		return fmt.Errorf("page %s is %v without an owner", show(p.ref(slot)), g.state)
	}
	return nil
}

// ownership checks that owners and the free list name each page exactly once.
func (p *Pool) ownership(counts [States]int) error {
	seen := make([]bool, len(p.pages))
	named := 0
	visit := func(slot kv.Slot, x kv.TransferID) error {
		if seen[slot] || p.page(slot).x != x {
			return fmt.Errorf("page %s is named twice, or is not %v's", show(p.ref(slot)), x)
		}
		seen[slot] = true
		named++
		return nil
	}
	for _, slot := range p.free {
		if err := visit(slot, kv.TransferID{}); err != nil {
			return err
		}
	}
	for _, o := range p.owners {
		for _, slot := range o.slots() {
			if err := visit(slot, o.x); err != nil {
				return err
			}
		}
	}
	if named+counts[Cached] != len(p.pages) {
		return fmt.Errorf("pool: %d pages are free or owned and %d cached, there are %d", named, counts[Cached], len(p.pages))
	}
	return nil
}

// pins checks that every pin is to a page that is still cached, and that readers
// are pins.
func (p *Pool) pins() error {
	readers := make([]uint16, len(p.pages))
	for _, o := range p.owners {
		for _, ref := range o.pinned {
			if err := p.pinnable(ref, o.tenant); err != nil {
				return fmt.Errorf("transfer %v has a lost pin: %w", o.x, err)
			}
			readers[ref.Slot]++
		}
	}
	for slot, n := range readers {
		if got := p.pages[slot].holders[Reader]; got != n {
			return fmt.Errorf("page %s has %d readers, %d pins are on record", show(p.ref(kv.Slot(slot))), got, n)
		}
	}
	return nil
}

// Prefer puts free slots at the head of the free list, for tests and the checker.
// Slots that are not free are left out.
func (p *Pool) Prefer(slots ...kv.Slot) {
	head := slices.DeleteFunc(slices.Clone(slots), func(s kv.Slot) bool { return !slices.Contains(p.free, s) })
	rest := slices.DeleteFunc(slices.Clone(p.free), func(s kv.Slot) bool { return slices.Contains(head, s) })
	p.free = append(head, rest...)
}

// Without takes guards away, for tests and the checker. Only packages below kv
// can name the argument.
func (p *Pool) Without(guards guard.Set) *Pool {
	p.without = guards
	return p
}

// Clone is a copy that shares nothing that changes.
func (p *Pool) Clone() *Pool { return p.CloneInto(new(Pool)) }

// CloneInto makes into a copy that shares nothing that changes, in the memory that
// into has. Requires: nobody needs what into was.
func (p *Pool) CloneInto(into *Pool) *Pool {
	pages, free, owners := append(into.pages[:0], p.pages...), append(into.free[:0], p.free...), append(into.owners[:0], p.owners...)
	*into = *p
	into.pages, into.free, into.owners = pages, free, owners
	return into
}

// AppendKey appends what a slot's page is, without its generation and its owner, in
// a canonical form: equal keys of equal owners behave equally.
func (p *Pool) AppendKey(key []byte, slot kv.Slot) []byte {
	g := p.page(slot)
	key = append(key, byte(g.state), g.tokens)
	key = binary.AppendUvarint(key, uint64(g.tenant))
	for _, n := range g.holders {
		key = binary.AppendUvarint(key, uint64(n))
	}
	return key
}

// ShortError says that there are too few free pages.
type ShortError struct {
	X     kv.TransferID
	Want  int
	Have  int // free pages that this request may use
	Total int // pages of the pool
}

// Error gives both numbers.
func (e *ShortError) Error() string {
	return fmt.Sprintf("transfer %v: %d pages wanted, %d of %d are free", e.X, e.Want, e.Have, e.Total)
}

func (p *Pool) page(slot kv.Slot) *page { return &p.pages[slot] }

func (p *Pool) ref(slot kv.Slot) kv.PageRef {
	return kv.PageRef{Slot: slot, Generation: p.page(slot).generation}
}

func (p *Pool) refs(slots []kv.Slot) []kv.PageRef {
	refs := make([]kv.PageRef, len(slots))
	for i, slot := range slots {
		refs[i] = p.ref(slot)
	}
	return refs
}

func (p *Pool) find(x kv.TransferID) (int, bool) {
	return slices.BinarySearchFunc(p.owners, x, func(o owner, x kv.TransferID) int { return compare(o.x, x) })
}

func (p *Pool) owned(x kv.TransferID) owner {
	if i, ok := p.find(x); ok {
		return p.owners[i]
	}
	return owner{}
}

// current finds the page of a reference that is still in its generation.
func (p *Pool) current(ref kv.PageRef) (*page, error) {
	if int(ref.Slot) >= len(p.pages) || ref.Generation == 0 {
		return nil, fmt.Errorf("page %s: there are %d slots, and no generation 0", show(ref), len(p.pages))
	}
	g := p.page(ref.Slot)
	if g.generation != ref.Generation || g.state == Free {
		return nil, fmt.Errorf("page %s: the slot is in generation %d and %v", show(ref), g.generation, g.state)
	}
	return g, nil
}

// at finds a page and asks the table whether the action is for its state.
func (p *Pool) at(ref kv.PageRef, action Action) (*page, error) {
	g, err := p.current(ref)
	if err != nil {
		return nil, err
	}
	if _, ok := Next(g.state, action); !ok {
		return nil, &Refusal{Ref: show(ref), Action: action, State: g.state}
	}
	return g, nil
}

// allow asks the table about a list of pages and, for actions that free, about
// their holders.
func (p *Pool) allow(slots []kv.Slot, action Action) error {
	for _, slot := range slots {
		g := p.page(slot)
		next, ok := Next(g.state, action)
		if !ok {
			return &Refusal{Ref: show(p.ref(slot)), Action: action, State: g.state}
		}
		if h, held := p.holder(g); held && next == Free {
			return &Refusal{Ref: show(p.ref(slot)), Action: action, State: g.state, Holder: h.String()}
		}
	}
	return nil
}

func (p *Pool) moveGranted(x kv.TransferID, action Action) error {
	list := p.owned(x).granted
	if len(list) == 0 {
		return fmt.Errorf("transfer %v: %v refused, no pages were granted to it", x, action)
	}
	if err := p.allow(list, action); err != nil {
		return err
	}
	for _, slot := range list {
		p.move(p.page(slot), action)
	}
	return nil
}

func (p *Pool) move(g *page, action Action) {
	next, ok := Next(g.state, action)
	assert.That(ok, "a page's state allows what is done to it")
	p.counts[g.state]--
	p.counts[next]++
	g.state = next
}

// clear makes a page nobody's. Its generation stays, so that the next is higher.
func (p *Pool) clear(slot kv.Slot, action Action) {
	g := p.page(slot)
	p.move(g, action)
	*g = page{state: g.state, generation: g.generation}
	p.free = append(p.free, slot)
}

func (p *Pool) disown(x kv.TransferID, slot kv.Slot) {
	i, known := p.find(x)
	assert.That(known, "a page that is not cached has an owner")
	is := func(s kv.Slot) bool { return s == slot }
	o := &p.owners[i]
	o.granted = slices.DeleteFunc(slices.Clone(o.granted), is)
	o.local = slices.DeleteFunc(slices.Clone(o.local), is)
	if len(o.granted)+len(o.local)+len(o.pinned) == 0 {
		p.owners = slices.Delete(p.owners, i, i+1)
	}
}

func (o owner) slots() []kv.Slot { return append(slices.Clip(o.granted), o.local...) }

// holder is one that keeps a page from being freed.
func (p *Pool) holder(g *page) (Holder, bool) {
	for h, n := range g.holders {
		if n != 0 && !p.without.Missing(pick(Holder(h) == Reader, guard.Readers, guard.Holders)) {
			return Holder(h), true
		}
	}
	return 0, false
}

func compare(a, b kv.TransferID) int {
	switch {
	case a.Epoch != b.Epoch:
		return pick(a.Epoch < b.Epoch, -1, 1)
	case a.Sequence != b.Sequence:
		return pick(a.Sequence < b.Sequence, -1, 1)
	}
	return int(a.Rank) - int(b.Rank)
}

func pick[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

func show(ref kv.PageRef) string { return fmt.Sprintf("%d generation %d", ref.Slot, ref.Generation) }
