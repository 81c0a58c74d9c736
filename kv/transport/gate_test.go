package transport

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
)

var testLayout = kv.Layout{Layers: 2, KVHeads: 1, KeyDim: 4, ValueDim: 4}

// slab is the bytes behind a test's gate.
type slab struct {
	gate  *Gate
	pages [][]byte
}

func newSlab(slots int) *slab {
	s := &slab{pages: make([][]byte, slots)}
	for i := range s.pages {
		s.pages[i] = make([]byte, testLayout.StrideBytes())
	}
	s.gate = NewGate(testLayout, slots, func(slot kv.Slot) []byte { return s.pages[slot] })
	return s
}

// testGrant is a prompt of 37 tokens in slots 4, 5 and 6.
func testGrant(sequence uint64) Grant {
	return Grant{X: kv.TransferID{Epoch: 9, Sequence: sequence}, Tenant: 5, Tokens: 37,
		Pages: []kv.PageRef{{Slot: 4, Generation: 11}, {Slot: 5, Generation: 12}, {Slot: 6, Generation: 13}}}
}

func tagOf(g Grant, page int) kv.Tag {
	block := g.FirstBlock + uint32(page)
	return kv.Tag{Layout: testLayout.ID(), Tokens: uint8(kv.ExtentAt(int(g.Tokens), int(block))), Transfer: g.X,
		Generation: g.Pages[page].Generation, Tenant: g.Tenant, Slot: g.Pages[page].Slot, Block: block}
}

func headerOf(tag kv.Tag) []byte {
	header := make([]byte, kv.HeaderBytes)
	tag.Put(header)
	return header
}

// put carries one page with that tag through the door.
func put(d *Door, tag kv.Tag, fill byte) Refusal {
	body, refusal := d.Begin(headerOf(tag))
	if refusal != None {
		return refusal
	}
	for i := range body {
		body[i] = fill
	}
	tag.PutTrailer(body[len(body)-kv.TrailerBytes:])
	d.End(true, func(r Refusal) { refusal = r })
	return refusal
}

func TestAPageOfAnOpenGrantLandsWhole(t *testing.T) {
	s := newSlab(8)
	d := s.gate.Door(func() {})
	g := testGrant(1)
	if err := d.Open(g); err != nil {
		t.Fatal(err)
	}
	for page := range g.Pages {
		tag := tagOf(g, page)
		if r := put(d, tag, 0x55); r != None {
			t.Fatalf("page %d of an open grant is refused as %v", page, r)
		}
		frame := s.pages[tag.Slot][:testLayout.FrameBytes()]
		if !tag.Matches(frame) || !tag.MatchesTrailer(frame[len(frame)-kv.TrailerBytes:]) || frame[kv.HeaderBytes] != 0x55 {
			t.Fatalf("page %d landed without its tags or its bytes", page)
		}
	}
}

func TestEveryWrongTagIsRefusedForItsReason(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kv.Tag)
		want   Refusal
	}{
		{"another transfer", func(t *kv.Tag) { t.Transfer.Sequence++ }, ForeignTransfer},
		{"another epoch", func(t *kv.Tag) { t.Transfer.Epoch++ }, ForeignTransfer},
		{"another rank", func(t *kv.Tag) { t.Transfer.Rank++ }, ForeignTransfer},
		{"another tenant", func(t *kv.Tag) { t.Tenant++ }, ForeignTenant},
		{"another layout", func(t *kv.Tag) { t.Layout++ }, WrongLayout},
		{"a block behind the grant", func(t *kv.Tag) { t.Block = 3 }, WrongBlock},
		{"a block far behind the grant", func(t *kv.Tag) { t.Block = kv.BlockMax }, WrongBlock},
		{"the slot of another block", func(t *kv.Tag) { t.Slot = 5 }, WrongSlot},
		{"a slot outside the slab", func(t *kv.Tag) { t.Slot = 1 << 30 }, WrongSlot},
		{"an older generation", func(t *kv.Tag) { t.Generation-- }, StaleGeneration},
		{"fewer tokens", func(t *kv.Tag) { t.Tokens-- }, WrongExtent},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSlab(8)
			d := s.gate.Door(func() {})
			if err := d.Open(testGrant(1)); err != nil {
				t.Fatal(err)
			}
			tag := tagOf(testGrant(1), 0)
			c.change(&tag)
			if got := put(d, tag, 0x55); got != c.want {
				t.Errorf("a page with %s got %v, want %v", c.name, got, c.want)
			}
			for slot, page := range s.pages {
				if diff := cmp.Diff(make([]byte, len(page)), page); diff != "" {
					t.Errorf("a refused page changed slot %d", slot)
				}
			}
		})
	}
}

func TestAHeaderOfAnotherVersionIsRefused(t *testing.T) {
	d := newSlab(8).gate.Door(func() {})
	header := headerOf(tagOf(testGrant(1), 0))
	header[4]++
	if _, got := d.Begin(header); got != BadHeader {
		t.Errorf("a header of another version got %v, want %v", got, BadHeader)
	}
}

func TestABlockLandsOnce(t *testing.T) {
	s := newSlab(8)
	d := s.gate.Door(func() {})
	g := testGrant(1)
	if err := d.Open(g); err != nil {
		t.Fatal(err)
	}
	put(d, tagOf(g, 0), 0x55)
	if got := put(d, tagOf(g, 0), 0x66); got != Duplicate {
		t.Errorf("the second copy of a block got %v, want %v", got, Duplicate)
	}
	if got := s.pages[4][kv.HeaderBytes]; got != 0x55 {
		t.Errorf("the second copy of a block changed the page to %#x", got)
	}
}

func TestATornPageNamesNobodyAndMayComeAgain(t *testing.T) {
	s := newSlab(8)
	d := s.gate.Door(func() {})
	g := testGrant(1)
	if err := d.Open(g); err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		name     string
		complete bool
	}{{"early end", false}, {"foreign trailer", true}} {
		if _, r := d.Begin(headerOf(tagOf(g, 0))); r != None {
			t.Fatalf("the page is refused as %v", r)
		}
		var got Refusal
		d.End(end.complete, func(r Refusal) { got = r })
		if got != Torn {
			t.Errorf("%s: a torn page got %v, want %v", end.name, got, Torn)
		}
		if _, ok := kv.ParseTag(s.pages[4]); ok {
			t.Errorf("%s: a torn page carries a header", end.name)
		}
	}
	if got := put(d, tagOf(g, 0), 0x55); got != None {
		t.Errorf("the page sent again got %v", got)
	}
}

func TestAPageThatItsLinkCutsSaysNothingOfItsGrant(t *testing.T) {
	for _, shut := range []bool{false, true} {
		s := newSlab(8)
		d := s.gate.Door(func() {})
		g := testGrant(1)
		if err := d.Open(g); err != nil {
			t.Fatal(err)
		}
		body, r := d.Begin(headerOf(tagOf(g, 0)))
		if r != None {
			t.Fatalf("the page is refused as %v", r)
		}
		tagOf(g, 0).PutTrailer(body[len(body)-kv.TrailerBytes:])
		drained, want := false, Cut
		if shut {
			want = TransferEnded
			d.Shut(g.X, func() { drained = true })
		}
		var got Refusal
		d.Cut(func(r Refusal) { got = r })
		if got != want || drained != shut {
			t.Errorf("a page that was cut, its grant shut: %v, got %v and drained %v, want %v and %v", shut, got, drained, want, shut)
		}
		if _, ok := kv.ParseTag(s.pages[4]); ok {
			t.Error("a page that was cut carries a header")
		}
	}
}

func TestShutWaitsForThePageBeingPlacedAndKicksItsReader(t *testing.T) {
	s := newSlab(8)
	kicks, drained := 0, 0
	d := s.gate.Door(func() { kicks++ })
	g := testGrant(1)
	if err := d.Open(g); err != nil {
		t.Fatal(err)
	}
	if _, r := d.Begin(headerOf(tagOf(g, 1))); r != None {
		t.Fatalf("the page is refused as %v", r)
	}
	d.Shut(g.X, func() { drained++ })
	if kicks != 1 || drained != 0 || d.Live() {
		t.Fatalf("after shut in mid-page: %d kicks, %d drained, live %v; want 1, 0, false", kicks, drained, d.Live())
	}
	if err := d.Open(Grant{X: kv.TransferID{Epoch: 9, Sequence: 2}, Tenant: 6, Tokens: 1, Pages: []kv.PageRef{{Slot: 5, Generation: 20}}}); err == nil {
		t.Fatal("a slot is granted anew before the old grant has drained")
	}
	var got Refusal
	d.End(true, func(r Refusal) {
		if got = r; drained != 0 {
			t.Error("the grant drained before the page's end was reported")
		}
	})
	if got != TransferEnded || drained != 1 {
		t.Fatalf("the revoked page got %v and %d drained, want %v and 1", got, drained, TransferEnded)
	}
	if r := put(d, tagOf(g, 2), 0x55); r != TransferEnded {
		t.Errorf("a page after the fence got %v, want %v", r, TransferEnded)
	}
}

func TestShutOfAnIdleOrUnknownGrantDrainsAtOnce(t *testing.T) {
	d := newSlab(8).gate.Door(func() { t.Error("kicked without a page being placed") })
	drained := 0
	d.Shut(kv.TransferID{Epoch: 1}, func() { drained++ })
	if err := d.Open(testGrant(1)); err != nil {
		t.Fatal(err)
	}
	d.Shut(testGrant(1).X, func() { drained++ })
	if drained != 2 {
		t.Fatalf("%d of 2 grants drained", drained)
	}
	if err := d.Open(testGrant(2)); err != nil {
		t.Errorf("slots of a drained grant can't be granted: %v", err)
	}
}

// Late pages and foreign ones have two reasons. A door remembers a bounded number
// of its own grants; what it has forgotten is foreign.
func TestLatePagesAreNotForeign(t *testing.T) {
	s := newSlab(8)
	d, other := s.gate.Door(func() {}), s.gate.Door(func() {})
	first := testGrant(1)
	for n := range uint64(endedMax + 1) {
		g := first
		g.X.Sequence = n + 1
		if n == endedMax {
			if got := put(d, tagOf(first, 0), 0x55); got != TransferEnded {
				t.Errorf("a page of the oldest of %d ended grants got %v, want %v", endedMax, got, TransferEnded)
			}
			if got := put(other, tagOf(first, 0), 0x55); got != ForeignTransfer {
				t.Errorf("a page of another door's ended grant got %v, want %v", got, ForeignTransfer)
			}
		}
		if err := d.Open(g); err != nil {
			t.Fatal(err)
		}
		d.Shut(g.X, func() {})
	}
	if got := put(d, tagOf(first, 0), 0x55); got != ForeignTransfer || len(d.ended) != endedMax {
		t.Errorf("after %d more grants it got %v and %d are remembered, want %v and %d", endedMax, got, len(d.ended), ForeignTransfer, endedMax)
	}
}

func TestAGrantIsOpenOnItsOwnDoorOnly(t *testing.T) {
	s := newSlab(8)
	d, other := s.gate.Door(func() {}), s.gate.Door(func() {})
	if err := d.Open(testGrant(1)); err != nil {
		t.Fatal(err)
	}
	if got := put(other, tagOf(testGrant(1), 0), 0x55); got != ForeignTransfer {
		t.Errorf("a page through another link's door got %v, want %v", got, ForeignTransfer)
	}
	d.Close()
	if got := put(d, tagOf(testGrant(1), 0), 0x55); got != TransferEnded {
		t.Errorf("a page through a closed door got %v, want %v", got, TransferEnded)
	}
	if err := other.Open(testGrant(2)); err != nil {
		t.Errorf("slots of a closed door can't be granted: %v", err)
	}
	if err := d.Open(testGrant(3)); err != nil {
		t.Errorf("a grant behind a closed door is refused: %v", err)
	}
	if got := put(d, tagOf(testGrant(3), 0), 0x55); got != ForeignTransfer {
		t.Errorf("a page of a grant that was opened behind a closed door got %v, want %v", got, ForeignTransfer)
	}
}

func TestBadGrantsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Grant)
	}{
		{"no transfer", func(g *Grant) { g.X = kv.TransferID{} }},
		{"no tenant", func(g *Grant) { g.Tenant = 0 }},
		{"no pages", func(g *Grant) { g.Pages = nil }},
		{"no tokens", func(g *Grant) { g.Tokens = 0 }},
		{"more pages than the prompt has", func(g *Grant) { g.Tokens = 32 }},
		{"blocks behind the prompt", func(g *Grant) { g.FirstBlock = 1 }},
		{"a slot outside the slab", func(g *Grant) { g.Pages[1].Slot = 8 }},
		{"no generation", func(g *Grant) { g.Pages[1].Generation = 0 }},
		{"a slot twice", func(g *Grant) { g.Pages[2].Slot = 4 }},
	} {
		d := newSlab(8).gate.Door(func() {})
		g := testGrant(1)
		c.change(&g)
		if d.Open(g) == nil {
			t.Errorf("a grant with %s is opened", c.name)
		}
		if err := d.Open(testGrant(2)); err != nil {
			t.Errorf("after a refused grant with %s its slots are lost: %v", c.name, err)
		}
	}
}

// Two writers of one slot never meet: many doors race for the same slots, each
// fills the pages it was granted, and looks whether anybody else's bytes came in
// between its grant's opening and its draining.
func TestGrantsOfOneSlotNeverOverlap(t *testing.T) {
	s := newSlab(8)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			d := s.gate.Door(func() {})
			for round := range 500 {
				g := testGrant(uint64(worker*1000 + round))
				if d.Open(g) != nil {
					continue
				}
				fill := byte(worker + 1)
				put(d, tagOf(g, 1), fill)
				if got := s.pages[5][kv.HeaderBytes]; got != fill {
					t.Errorf("a granted page holds %#x, its owner wrote %#x", got, fill)
				}
				d.Shut(g.X, func() {})
			}
		})
	}
	wg.Wait()
}

func TestRefusalNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range append(Refusals(), None) {
		if name := r.String(); name == "" || name == "unknown" || seen[name] {
			t.Errorf("refusal %d has no name of its own: %q", r, name)
		}
		seen[r.String()] = true
	}
	if got := Refusal(200).String(); got != "unknown" {
		t.Errorf("an undefined refusal is called %q", got)
	}
}

func BenchmarkGatePage(b *testing.B) {
	s := newSlab(8)
	d := s.gate.Door(func() {})
	if err := d.Open(testGrant(1)); err != nil {
		b.Fatal(err)
	}
	tag := tagOf(testGrant(1), 0)
	header := headerOf(tag)
	tag.PutTrailer(s.pages[4][testLayout.FrameBytes()-kv.TrailerBytes:])
	for b.Loop() {
		if _, r := d.Begin(header); r != None {
			b.Fatal(r)
		}
		d.End(true, func(Refusal) {})
		d.grants[testGrantX].state[0] = absent
	}
}

var testGrantX = kv.TransferID{Epoch: 9, Sequence: 1}
