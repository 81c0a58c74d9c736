package pool

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

const tenant kv.TenantTag = 77

func id(sequence uint64) kv.TransferID { return kv.TransferID{Epoch: 5, Sequence: sequence} }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bring makes a pool whose transfer 1 has one page in the given state, by the
// shortest way there.
func bring(t testing.TB, s State) (*Pool, kv.PageRef) {
	t.Helper()
	p := New(2, 0)
	x := id(1)

	switch s {
	case Free:
		return p, kv.PageRef{}
	case Open, Sealed, Cached:
		ref := first(p.AllocLocal(x, tenant, 1))
		ok(t, p.Write(ref, 3))
		if s != Open {
			ok(t, p.Seal(ref))
		}
		if s == Cached {
			ok(t, p.Cache(ref))
		}
		return p, ref
	default:
	}
	ref := first(p.Grant(x, tenant, 1))
	if s == Revoking || s == Quarantined {
		ok(t, p.Revoke(x))
	}
	if s == Quarantined {
		ok(t, p.Quarantine(x))
	}
	if s == Fenced || s == Verified {
		ok(t, p.Fenced(x))
	}
	if s == Verified {
		ok(t, p.Verified(x, 3, 0))
	}
	return p, ref
}

func first(refs []kv.PageRef, err error) kv.PageRef { return all(refs, err)[0] }

// all gives the pages of a call that must not be refused.
func all(refs []kv.PageRef, err error) []kv.PageRef {
	if err != nil {
		panic(err)
	}
	return refs
}

// perform does one action to the page through the exported calls.
func perform(p *Pool, ref kv.PageRef, a Action) error {
	x := id(1)
	switch a {
	case ActAlloc:
		return p.takeSlot(ref, x, ActAlloc)
	case ActGrant:
		return p.takeSlot(ref, x, ActGrant)
	case ActWrite:
		return p.Write(ref, 5)
	case ActSeal:
		return p.Seal(ref)
	case ActRevoke:
		return p.Revoke(x)
	case ActFence:
		return p.Fenced(x)
	case ActVerify:
		return p.Verified(x, 3, 0)
	case ActAdopt:
		return p.Adopt(x, -1)
	case ActAdoptTail:
		return p.Adopt(x, 0)
	case ActQuarantine:
		return p.Quarantine(x)
	case ActCache:
		return p.Cache(ref)
	case ActEvict:
		return p.Evict(ref)
	case ActHold:
		return p.Hold(ref, Scrub)
	case ActPin:
		return p.Pin(id(2), tenant, []kv.PageRef{ref})
	case ActFree:
		return p.Free(x)
	default:
	}
	return fmt.Errorf("no such action: %v", a)
}

// takeSlot tries to take exactly the page's slot.
func (p *Pool) takeSlot(ref kv.PageRef, x kv.TransferID, a Action) error {
	p.Prefer(ref.Slot)
	if p.free[0] != ref.Slot {
		return &Refusal{Ref: show(ref), Action: a, State: p.page(ref.Slot).state}
	}
	_, err := p.take(x, tenant, 1, a, 0)
	return err
}

// Every cell of the table is visited through the pool's calls: the page goes
// where the table says, or the action is refused and nothing has changed.
func TestEveryCellOfTheTable(t *testing.T) {
	for s := range States {
		for a := range Actions {
			p, ref := bring(t, s)
			before := p.Page(ref.Slot)
			err := perform(p, ref, a)
			next, allowed := Next(s, a)
			switch after := p.Page(ref.Slot); {
			case allowed && err != nil:
				t.Errorf("%v of a page that is %v: refused (%v), want %v", a, s, err, next)
			case allowed && after.State != next:
				t.Errorf("%v of a page that is %v makes it %v, want %v", a, s, after.State, next)
			case !allowed && err == nil:
				t.Errorf("%v of a page that is %v is done, want a refusal", a, s)
			case !allowed && cmp.Diff(before, after) != "":
				t.Errorf("a refused %v of a page that is %v changed it:\n%s", a, s, cmp.Diff(before, after))
			}
			if err := p.Identity(); err != nil {
				t.Errorf("after %v of a page that is %v: %v", a, s, err)
			}
		}
	}
}

// A page that is given back is refused while any kind of holder is left.
func TestFreeIsRefusedWhileHeld(t *testing.T) {
	for _, h := range []Holder{Kernel, Sender, Scrub, Offload} {
		for _, s := range []State{Open, Sealed, Fenced, Verified, Cached} {
			p, ref := bring(t, s)
			ok(t, p.Hold(ref, h))
			give := func() error { return p.Free(id(1)) }
			if s == Cached {
				give = func() error { return p.Evict(ref) }
			}
			var refusal *Refusal
			if err := give(); !errors.As(err, &refusal) || refusal.Holder != h.String() {
				t.Errorf("giving back a page that is %v and held by %v: got %v", s, h, err)
			}
			ok(t, p.Unhold(ref, h))
			ok(t, give())
			ok(t, p.Identity())
		}
	}
}

func TestFreeWithoutItsGuardLosesTheHolder(t *testing.T) {
	p, ref := bring(t, Open)
	p.Without(guard.Without(guard.Holders))
	ok(t, p.Hold(ref, Kernel))
	ok(t, p.Free(id(1)))
}

func TestTakingIsAllOrNothing(t *testing.T) {
	p := New(4, 1)
	if _, err := p.AllocLocal(id(1), tenant, 4); err == nil {
		t.Fatal("the reserved page was given to a request")
	}
	var short *ShortError
	_, err := p.Grant(id(1), tenant, 9)
	if !errors.As(err, &short) || short.Want != 9 || short.Have != 3 || !strings.Contains(err.Error(), "9 pages wanted, 3 of 4") {
		t.Fatalf("got %v, want an error with both numbers", err)
	}
	if got := p.Pages(id(1)); len(got) != 0 {
		t.Fatalf("a refused request has pages %v", got)
	}
	all(p.Grant(id(1), tenant, 3))
	if _, err := p.Grant(id(2), tenant, 1); err == nil {
		t.Fatal("the reserved page was granted")
	}
	all(p.GrantProbe(id(2), tenant, 1))
	ok(t, p.Identity())
}

func TestZeroIsRefused(t *testing.T) {
	p := New(4, 0)
	for name, call := range map[string]func() error{
		"no pages":       func() error { _, err := p.AllocLocal(id(1), tenant, 0); return err },
		"negative pages": func() error { _, err := p.Grant(id(1), tenant, -1); return err },
		"no transfer":    func() error { _, err := p.Grant(kv.TransferID{}, tenant, 1); return err },
		"no tenant":      func() error { _, err := p.AllocLocal(id(1), 0, 1); return err },
		"no generation":  func() error { return p.Write(kv.PageRef{Slot: 1}, 1) },
		"no such slot":   func() error { return p.Seal(kv.PageRef{Slot: 9, Generation: 1}) },
		"no owner":       func() error { return p.Free(id(9)) },
		"no granted":     func() error { return p.Fenced(id(9)) },
		"no kernel":      func() error { return p.ReleaseKernel(id(9)) },
		"no kernel page": func() error { return p.HoldKernel(id(9)) },
	} {
		if call() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	ok(t, p.Identity())
}

func TestAnotherTenantCannotAddPages(t *testing.T) {
	p := New(4, 0)
	all(p.Grant(id(1), tenant, 1))
	if _, err := p.AllocLocal(id(1), tenant+1, 1); err == nil {
		t.Fatal("a transfer grew by another tenant's page")
	}
	if _, err := p.Grant(id(1), tenant, 1); err == nil {
		t.Fatal("a transfer was granted pages twice")
	}
}

func TestGenerationsRiseAndOldReferencesDie(t *testing.T) {
	p := New(1, 0)
	var last kv.Generation
	for sequence := uint64(1); sequence < 5; sequence++ {
		ref := first(p.AllocLocal(id(sequence), tenant, 1))
		if ref.Generation <= last {
			t.Fatalf("generation %d follows %d", ref.Generation, last)
		}
		old := kv.PageRef{Slot: ref.Slot, Generation: last}
		if p.Write(old, 1) == nil || p.Hold(old, Scrub) == nil {
			t.Fatal("a reference to an older generation is accepted")
		}
		if _, ok := p.Extent(old); ok {
			t.Fatal("a reference to an older generation has an extent")
		}
		last = ref.Generation
		ok(t, p.Free(id(sequence)))
		if p.Write(ref, 1) == nil {
			t.Fatal("a freed page is written")
		}
	}
}

// Owner and written extent are two facts.
func TestExtentIsWhatWasWrittenNotWhatWasReserved(t *testing.T) {
	p := New(8, 0)
	x := id(1)
	granted := all(p.Grant(x, tenant, 3))
	local := all(p.AllocLocal(x, tenant, 2))
	extents := func() (list []int) {
		for _, ref := range p.Pages(x) {
			n, known := p.Extent(ref)
			if !known {
				t.Fatalf("page %v has no extent", ref)
			}
			list = append(list, n)
		}
		return list
	}
	if diff := cmp.Diff([]int{0, 0, 0, 0, 0}, extents()); diff != "" {
		t.Fatalf("reserved pages have an extent (-want +got):\n%s", diff)
	}
	ok(t, p.Fenced(x))
	for _, tokens := range []int{0, 32, 49} {
		if p.Verified(x, tokens, 0) == nil {
			t.Errorf("three granted pages are verified for %d tokens", tokens)
		}
	}
	ok(t, p.Verified(x, 35, 0))
	ok(t, p.Adopt(x, 2))
	ok(t, p.Write(granted[2], 4))
	ok(t, p.Write(local[0], 16))
	if diff := cmp.Diff([]int{16, 16, 4, 16, 0}, extents()); diff != "" {
		t.Fatalf("extents differ (-want +got):\n%s", diff)
	}
	if p.Write(granted[2], 3) == nil || p.Write(granted[2], 17) == nil || p.Seal(local[1]) == nil {
		t.Error("an extent falls, grows over the page, or an unwritten page is sealed")
	}
}

func TestKernelHoldsWhatWasThereWhenItStarted(t *testing.T) {
	p := New(4, 0)
	x := id(1)
	all(p.AllocLocal(x, tenant, 1))
	ok(t, p.HoldKernel(x))
	if p.HoldKernel(x) == nil {
		t.Fatal("two steps hold the same page")
	}
	grown := first(p.AllocLocal(x, tenant, 1))
	if got := p.Page(grown.Slot).Holders[Kernel]; got != 0 {
		t.Fatalf("a page taken while a step runs has %d kernel holders", got)
	}
	if p.Free(x) == nil {
		t.Fatal("pages are freed under a running step")
	}
	ok(t, p.ReleaseKernel(x))
	ok(t, p.Free(x))
	ok(t, p.Identity())
}

// A page in a state where a remote writer may write has no local holder.
func TestRemotePagesAreNotHeldLocally(t *testing.T) {
	for _, s := range []State{Granted, Revoking, Quarantined} {
		p, ref := bring(t, s)
		if p.Hold(ref, Kernel) == nil || p.HoldKernel(id(1)) == nil {
			t.Errorf("a page that is %v has a local holder", s)
		}
		if p.Unhold(ref, RemoteWriter) == nil {
			t.Errorf("the remote writer of a page that is %v went without a proof", s)
		}
	}
}

// A reader comes with a pin and goes with its transfer, not by itself.
func TestReadersComeWithPins(t *testing.T) {
	p, ref := bring(t, Cached)
	if p.Hold(ref, Reader) == nil {
		t.Error("a page has a reader that nobody knows of")
	}
	ok(t, p.Pin(id(2), tenant, []kv.PageRef{ref}))
	if p.Unhold(ref, Reader) == nil {
		t.Error("a reader goes before its transfer")
	}
}

func TestIdentityFindsWhatIsWrong(t *testing.T) {
	for name, harm := range map[string]func(p *Pool){
		"a page with two owners":      func(p *Pool) { p.owners = append(p.owners, owner{x: id(9), local: p.owners[0].local}) },
		"a page that nobody owns":     func(p *Pool) { p.owners = nil },
		"an owned page that is free":  func(p *Pool) { p.free = append(p.free, p.owners[0].local[0]) },
		"a lost free page":            func(p *Pool) { p.free = p.free[1:] },
		"counts that are off":         func(p *Pool) { p.counts[Open]++ },
		"a free page with a holder":   func(p *Pool) { p.pages[p.free[0]].holders[Scrub]++ },
		"a free page with an extent":  func(p *Pool) { p.pages[p.free[0]].tokens = 1 },
		"an open page with a writer":  func(p *Pool) { p.pages[p.owners[0].local[0]].holders[RemoteWriter] = 1 },
		"a granted page without one":  func(p *Pool) { p.pages[p.owners[0].granted[0]].holders[RemoteWriter] = 0 },
		"an open page without owner":  func(p *Pool) { p.pages[p.owners[0].local[0]].x = kv.TransferID{} },
		"a page whose owner is wrong": func(p *Pool) { p.pages[p.owners[0].local[0]].x = id(8) },
		"a pin of a page of its own":  func(p *Pool) { p.owners[0].pinned = p.Pages(id(1)) },
	} {
		p := New(4, 0)
		all(p.AllocLocal(id(1), tenant, 1))
		all(p.Grant(id(1), tenant, 1))
		ok(t, p.Identity())
		harm(p)
		if p.Identity() == nil {
			t.Errorf("%s is not found", name)
		}
	}
}

func TestCloneIsApart(t *testing.T) {
	p, ref := bring(t, Open)
	c := p.Clone()
	ok(t, p.Free(id(1)))
	all(p.Grant(id(2), tenant, 2))
	if got := c.Page(ref.Slot).State; got != Open {
		t.Fatalf("the clone's page is %v, want open", got)
	}
	ok(t, c.Identity())
	ok(t, p.Identity())
}
