package transporttest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

func testPeers(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	if diff := cmp.Diff(source.config.Hello, target.link.Peer()); diff != "" {
		t.Errorf("the target's peer differs from the source (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(target.config.Hello, source.link.Peer()); diff != "" {
		t.Errorf("the source's peer differs from the target (-want +got):\n%s", diff)
	}
	part(target, source)
}

func testMixed(t *testing.T, tr Transport) {
	other := layout
	other.Layers++
	for _, c := range []struct {
		name   string
		change func(*transfer.Hello)
		says   []string
	}{
		{"version", func(h *transfer.Hello) { h.Version = 2 }, []string{"version 1", "version 2"}},
		{"fingerprint", func(h *transfer.Hello) { h.Fingerprint = kv.Fingerprint{2} }, []string{kv.Fingerprint{1}.String(), kv.Fingerprint{2}.String()}},
		{"layout", func(h *transfer.Hello) { h.Layout = other }, []string{"Layers:4", "Layers:5"}},
		{"epoch", func(h *transfer.Hello) { h.Epoch = 0xd0 }, []string{"00000000000000d0"}},
	} {
		target, source := newTarget(t, tr), newSource(t)
		c.change(&source.config.Hello)
		listener, err := tr.Listen(source.config)
		if err != nil {
			t.Fatal(err)
		}
		_, dialled := tr.Dial(context.Background(), listener.Addr(), target.config, target.slab)
		accepted := source.expect(transport.Rejected).Err
		for side, err := range map[string]error{"target": dialled, "source": accepted} {
			if err == nil {
				t.Errorf("the %s takes a peer of another %s", side, c.name)
				continue
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the %s's refusal of another %s does not say %q: %v", side, c.name, want, err)
				}
			}
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}
}

func testBytes(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g := granted(1, 3, 50)
	target.open(g)
	for i := range g.Pages {
		source.write(g.tag(i), g.body(i))
	}
	for i := range g.Pages {
		if e := target.expect(transport.Landed); e.X != g.X || int(e.Block) != i {
			t.Fatalf("landed %v block %d, want %v block %d", e.X, e.Block, g.X, i)
		}
		if e := source.expect(transport.Written); e.X != g.X || int(e.Block) != i || !e.OK {
			t.Fatalf("written %v block %d ok %v, want %v block %d ok", e.X, e.Block, e.OK, g.X, i)
		}
		target.checkPage(g.tag(i), g.body(i))
	}
	for _, slot := range []int{0, 1, 2, 53, 63} {
		target.checkUntouched(slot)
	}
	part(target, source)
}

func testOrder(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	random := seed(t)
	g := granted(1, 0, 60)
	target.open(g)
	var want []string
	drained := source.drain()
	for block, number := 0, uint64(0); block < len(g.Pages); {
		if random.IntN(3) == 0 {
			source.send(mark(number))
			want = append(want, describe(transport.Event{Message: mark(number)}))
			number++
			continue
		}
		source.write(g.tag(block), g.body(block))
		want = append(want, describe(transport.Event{Kind: transport.Landed, Block: uint32(block)}))
		block++
	}
	var got []string
	for range want {
		got = append(got, describe(<-target.events))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events differ from what was sent (-want +got):\n%s", diff)
	}
	if err := source.link.Close(); err != nil {
		t.Error(err)
	}
	target.until(transport.Down)
	<-drained
}

func testRefusals(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g, other := granted(1, 10, 3), granted(2, 20, 3)
	target.open(g)
	target.open(other)
	for _, c := range []struct {
		name   string
		change func(*kv.Tag)
		want   transport.Refusal
	}{
		{"a transfer nobody granted", func(t *kv.Tag) { t.Transfer.Sequence = 9 }, transport.ForeignTransfer},
		{"a transfer of an older epoch", func(t *kv.Tag) { t.Transfer.Epoch-- }, transport.ForeignTransfer},
		{"another tenant", func(t *kv.Tag) { t.Tenant++ }, transport.ForeignTenant},
		{"an old generation", func(t *kv.Tag) { t.Generation-- }, transport.StaleGeneration},
		{"the slot of another block", func(t *kv.Tag) { t.Slot = 11 }, transport.WrongSlot},
		{"the slot of another transfer", func(t *kv.Tag) { t.Slot = 20 }, transport.WrongSlot},
		{"a slot outside the slab", func(t *kv.Tag) { t.Slot = 1 << 31 }, transport.WrongSlot},
		{"a block behind the grant", func(t *kv.Tag) { t.Block = 3 }, transport.WrongBlock},
		{"another layout", func(t *kv.Tag) { t.Layout ^= 1 }, transport.WrongLayout},
		{"more tokens than the prompt has", func(t *kv.Tag) { t.Block, t.Slot = 2, 12; t.Tokens = 16 }, transport.WrongExtent},
	} {
		tag := g.tag(0)
		c.change(&tag)
		source.write(tag, g.body(0))
		if e := target.expect(transport.Refused); e.Refusal != c.want || e.X != tag.Transfer || e.Block != tag.Block {
			t.Errorf("a page with %s: refused %v as %v, want %v", c.name, e.X, e.Refusal, c.want)
		}
		source.expect(transport.Written)
	}
	for slot := range slots {
		target.checkUntouched(slot)
	}
	// The stream goes on as if nothing had been, once for each block.
	source.write(g.tag(0), g.body(0))
	target.expect(transport.Landed)
	source.write(g.tag(0), make([]byte, layout.BodyBytes()))
	if e := target.expect(transport.Refused); e.Refusal != transport.Duplicate {
		t.Errorf("the second copy of a block is refused as %v, want %v", e.Refusal, transport.Duplicate)
	}
	target.checkPage(g.tag(0), g.body(0))
	part(target, source)
}

func testOverlong(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	long := granted(1, 0, 3)
	long.Tokens = 32
	if target.link.Open(long.Grant) == nil {
		t.Error("three pages are granted for a prompt of two")
	}
	twice := granted(2, 0, 3)
	twice.Pages[2] = twice.Pages[0]
	if target.link.Open(twice.Grant) == nil {
		t.Error("one slot is granted for two blocks")
	}
	source.write(long.tag(2), long.body(2))
	if e := target.expect(transport.Refused); e.Refusal != transport.ForeignTransfer {
		t.Errorf("a page of a grant that was never opened is refused as %v, want %v", e.Refusal, transport.ForeignTransfer)
	}
	target.checkUntouched(2)
	part(target, source)
}

func testStaleSource(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g := granted(1, 0, 40)
	target.open(g)
	reused := make([]byte, layout.BodyBytes())
	for i := range g.Pages {
		copy(reused, g.body(i))
		source.write(g.tag(i), reused)
		source.expect(transport.Written)
		clear(reused)
	}
	for i := range g.Pages {
		target.expect(transport.Landed)
		target.checkPage(g.tag(i), g.body(i))
	}
	part(target, source)
}

func testFence(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g, neighbour := granted(1, 0, 4), granted(2, 10, 4)
	target.open(g)
	target.open(neighbour)
	source.write(g.tag(0), g.body(0))
	target.expect(transport.Landed)
	target.link.Fence(g.X)
	if e := target.expect(transport.Fenced); e.X != g.X {
		t.Fatalf("fenced %v, want %v", e.X, g.X)
	}
	source.write(g.tag(1), g.body(1))
	if e := target.expect(transport.Refused); e.Refusal != transport.TransferEnded {
		t.Errorf("a page after the fence is refused as %v, want %v", e.Refusal, transport.TransferEnded)
	}
	target.checkUntouched(1)
	source.write(neighbour.tag(0), neighbour.body(0))
	if e := target.expect(transport.Landed); e.X != neighbour.X {
		t.Errorf("landed %v, want the neighbour of the fenced transfer %v", e.X, neighbour.X)
	}
	if !target.link.Shut(neighbour.X) {
		t.Error("an idle grant is not drained when it is shut")
	}
	target.link.Fence(neighbour.X)
	target.expect(transport.Fenced)
	again := granted(3, 0, 4)
	target.open(again)
	source.write(again.tag(0), again.body(0))
	target.expect(transport.Landed)
	target.checkPage(again.tag(0), again.body(0))
	part(target, source)
}

func testDown(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g := granted(1, 0, 4)
	target.open(g)
	if err := source.link.Close(); err != nil {
		t.Fatal(err)
	}
	if e := source.until(transport.Down); e.Err != nil {
		t.Errorf("a link that was closed ended with %v", e.Err)
	}
	if e := target.until(transport.Down); e.Err == nil {
		t.Error("a link whose peer left ended without an error")
	}
	target.open(granted(2, 8, 1))
	if err := source.link.Write(transport.Page{Tag: g.tag(0), Body: g.body(0)}); !errors.Is(err, transport.ErrDown) {
		t.Errorf("writing to a link that is down gives %v, want %v", err, transport.ErrDown)
	}
	if err := target.link.Send(mark(1)); !errors.Is(err, transport.ErrDown) {
		t.Errorf("sending on a link that is down gives %v, want %v", err, transport.ErrDown)
	}
	if !target.link.Shut(g.X) {
		t.Error("a grant of a link that is down is not drained")
	}
	// The slots are free for another link at once.
	next := newSource(t)
	join(t, tr, target, next)
	target.open(granted(3, 0, 4))
	part(target, next)
}

func testEpochBump(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	old := target.link
	g := granted(1, 0, 4)
	target.open(g)

	// The source restarts; its old connection lingers.
	restarted := newSource(t)
	restarted.config.Hello.Epoch = 0x51
	join(t, tr, target, restarted)
	if got := target.link.Peer().Epoch; got != 0x51 {
		t.Errorf("the restarted peer's epoch is %x, want 51", got)
	}
	restarted.write(g.tag(0), g.body(0))
	if e := target.expect(transport.Refused); e.Refusal != transport.ForeignTransfer {
		t.Errorf("a page of the old self's grant is refused as %v, want %v", e.Refusal, transport.ForeignTransfer)
	}
	target.checkUntouched(0)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if e := target.expect(transport.Down); e.Link != old {
		t.Error("the wrong link went down")
	}
	source.until(transport.Down)
	part(target, restarted)
}
