package pool

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

// cached makes a pool of four pages, two of which are in the tenant's cache.
func cached(t testing.TB) (*Pool, []kv.PageRef) {
	t.Helper()
	p := New(4, 0)
	refs := all(p.AllocLocal(id(1), tenant, 2))
	for _, ref := range refs {
		ok(t, p.Write(ref, kv.PageTokens))
		ok(t, p.Seal(ref))
		ok(t, p.Cache(ref))
	}
	return p, refs
}

// A sequence reads its pinned pages and those that it was granted, and gives up
// both at its end. No page of the cache goes before that.
func TestPinsEndWithTheirTransfer(t *testing.T) {
	p, refs := cached(t)
	x, other := id(2), id(3)
	ok(t, p.Pin(x, tenant, refs[:1]))
	ok(t, p.Pin(x, tenant, refs[1:]))
	ok(t, p.Pin(other, tenant, refs[1:]))
	own := first(p.Grant(x, tenant, 1))
	if got, err := p.Pinned(x); err != nil || cmp.Diff(refs, got) != "" {
		t.Fatalf("pinned are %v, error %v, want %v", got, err, refs)
	}
	if diff := cmp.Diff([]kv.PageRef{own}, p.Pages(x)); diff != "" {
		t.Errorf("pinned pages count as the transfer's own (-want +got):\n%s", diff)
	}
	ok(t, p.Fenced(x))
	if p.Verified(x, 40, 1) == nil {
		t.Error("pages are verified from block 1 on, with two blocks pinned")
	}
	ok(t, p.Verified(x, 40, 2))
	ok(t, p.Identity())
	var refusal *Refusal
	for _, ref := range refs {
		if err := p.Evict(ref); !errors.As(err, &refusal) || refusal.Holder != Reader.String() {
			t.Errorf("page %v is evicted under its reader: %v", ref, err)
		}
	}
	ok(t, p.Free(x))
	ok(t, p.Evict(refs[0]))
	if p.Evict(refs[1]) == nil {
		t.Error("a page is evicted while another transfer has it pinned")
	}
	ok(t, p.Free(other))
	ok(t, p.Evict(refs[1]))
	ok(t, p.Identity())
	if got := p.Counts()[Free]; got != 4 {
		t.Errorf("%d of 4 pages are free at the end", got)
	}
}

func TestPinIsRefused(t *testing.T) {
	p, refs := cached(t)
	all(p.Grant(id(4), tenant+1, 1))
	dead := kv.PageRef{Slot: refs[1].Slot, Generation: refs[1].Generation + 1}
	for name, pin := range map[string]func() error{
		"of another tenant":           func() error { return p.Pin(id(2), tenant+1, refs) },
		"for another tenant's id":     func() error { return p.Pin(id(4), tenant, refs) },
		"of another generation":       func() error { return p.Pin(id(2), tenant, []kv.PageRef{refs[0], dead}) },
		"of a page that is not there": func() error { return p.Pin(id(2), tenant, []kv.PageRef{{Slot: 3, Generation: 1}}) },
		"of nothing":                  func() error { return p.Pin(id(2), tenant, nil) },
		"without a transfer":          func() error { return p.Pin(kv.TransferID{}, tenant, refs) },
		"without a tenant":            func() error { return p.Pin(id(2), 0, refs) },
	} {
		if pin() == nil {
			t.Errorf("a pin %s is accepted", name)
		}
	}
	if n := p.Page(refs[0].Slot).Holders[Reader]; n != 0 {
		t.Errorf("refused pins leave %d readers", n)
	}
	ok(t, p.Identity())
}

// Each guard of the pins is needed, and what stands behind one finds what it let through.
func TestPinsWithoutTheirGuards(t *testing.T) {
	p, refs := cached(t)
	ok(t, p.Without(guard.Without(guard.Tenant)).Pin(id(2), tenant+1, refs))

	p, refs = cached(t)
	ok(t, p.Pin(id(2), tenant, refs))
	ok(t, p.Without(guard.Without(guard.Readers)).Evict(refs[0]))
	if p.Identity() == nil {
		t.Error("a pin of a page that was evicted is not found")
	}
	if got, err := p.Pinned(id(2)); err == nil {
		t.Errorf("an evicted page is still pinned: %v", got)
	}
	p.Prefer(refs[0].Slot)
	all(p.Grant(id(3), tenant, 1))
	if got, err := p.Pinned(id(2)); err == nil {
		t.Errorf("a page of another generation is still pinned: %v", got)
	}
	if got, err := p.Without(guard.Without(guard.Readers, guard.Pins)).Pinned(id(2)); err != nil {
		t.Errorf("without its guard %v gives an error: %v", got, err)
	}
	ok(t, p.Free(id(2)))
	if n := p.Page(refs[0].Slot).Holders[Reader]; n != 0 {
		t.Errorf("a lost pin takes a reader from the page's next owner: %d are left", n)
	}
}
