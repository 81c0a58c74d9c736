package pool

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Whatever is done, in whatever order, right or wrong: each page is free or has
// one owner, the counts add up, references of older generations are dead, no
// state changes but along the table, and no held page becomes free.
func TestIdentityHoldsUnderRandomUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := New(rapid.IntRange(2, 12).Draw(t, "pages"), rapid.IntRange(0, 1).Draw(t, "reserved"))
		var refs []kv.PageRef
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			before := p.Clone()
			x := id(rapid.Uint64Range(1, 4).Draw(t, "x"))
			refs = append(refs, randomCall(t, p, x, refs)...)
			if err := p.Identity(); err != nil {
				t.Fatal(err)
			}
			for slot := range p.Len() {
				checkMove(t, before.Page(kv.Slot(slot)), p.Page(kv.Slot(slot)))
			}
		}
	})
}

// randomCall makes one call, often one that must be refused. Refusals are not
// failures here: TestEveryCellOfTheTable says which calls are refused.
func randomCall(t *rapid.T, p *Pool, x kv.TransferID, refs []kv.PageRef) (taken []kv.PageRef) {
	n := rapid.IntRange(0, 4).Draw(t, "n")
	ref := kv.PageRef{Slot: 0, Generation: 1}
	if len(refs) > 0 {
		ref = rapid.SampledFrom(refs).Draw(t, "ref")
	}
	holder := Holder(rapid.IntRange(0, int(Holders)).Draw(t, "holder"))
	calls := []func() error{
		func() (err error) { taken, err = p.AllocLocal(x, tenant, n); return err },
		func() (err error) { taken, err = p.Grant(x, tenant, n); return err },
		func() (err error) { taken, err = p.GrantProbe(x, tenant, n); return err },
		func() error { return p.Write(ref, 4*n) },
		func() error { return p.Seal(ref) },
		func() error { return p.Revoke(x) },
		func() error { return p.Fenced(x) },
		func() error { return p.Verified(x, 16*n+3, 0) },
		func() error { return p.Adopt(x, n-1) },
		func() error { return p.Quarantine(x) },
		func() error { return p.Free(x) },
		func() error { return p.Cache(ref) },
		func() error { return p.Evict(ref) },
		func() error { return p.Pin(x, tenant, []kv.PageRef{ref}) },
		func() error { return p.Hold(ref, holder) },
		func() error { return p.Unhold(ref, holder) },
		func() error { return p.HoldKernel(x) },
		func() error { return p.ReleaseKernel(x) },
	}
	if err := calls[rapid.IntRange(0, len(calls)-1).Draw(t, "call")](); err != nil {
		return nil
	}
	return taken
}

// checkMove holds one page's change against the table.
func checkMove(t *rapid.T, before, after Page) {
	if after.State == Free && before.State != Free && before.Holders != [Holders]uint16{} {
		t.Fatalf("a page that was %v with holders %v became free", before.State, before.Holders)
	}
	if before.State == Free && after.State != Free && after.Ref.Generation != before.Ref.Generation+1 {
		t.Fatalf("a page was taken in generation %d after %d", after.Ref.Generation, before.Ref.Generation)
	}
	if before.State == after.State {
		return
	}
	for a := range Actions {
		if next, ok := Next(before.State, a); ok && next == after.State {
			return
		}
	}
	t.Fatalf("a page went from %v to %v, which no action does", before.State, after.State)
}
