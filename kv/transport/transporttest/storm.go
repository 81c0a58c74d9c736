package transporttest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	lateByte = 0xaa // what the aborted transfers' pages are made of
	nextByte = 0xbb // what the next owner writes
)

// testStopped stops the source in the middle of its pages.
func testStopped(t *testing.T, tr Transport) {
	p := startPeer(t, tr, "big")
	target := newTargetOn(t, tr, shapes["big"], slots, mapped(t))
	target.dial(tr, p.addr, nil)
	g := grantedIn(shapes["big"], 1, 0, 40)
	target.open(g)
	target.send(g.message())
	for range 3 {
		target.expect(transport.Landed)
	}
	p.signal(syscall.SIGSTOP)
	target.link.Fence(g.X)
	if tr.FenceNeedsPeer {
		p.signal(syscall.SIGCONT)
	}
	kinds := []transport.Kind{transport.Landed, transport.Fenced, transport.Refused}
	if tr.FenceNeedsPeer {
		kinds = append(kinds, transport.Message) // a source that places the pages itself may have been done before it was stopped
	}
	closed := false
	for e := target.nextOf(kinds...); e.Kind != transport.Fenced; e = target.nextOf(kinds...) {
		closed = closed || e.Kind == transport.Message
	}
	target.takeOver(g)
	if !tr.FenceNeedsPeer {
		p.signal(syscall.SIGCONT)
	}
	if !closed {
		target.untilClosed()
	}
	if bad := target.overwritten(g); bad != 0 {
		t.Errorf("%d pages were overwritten after their fence by a source that had been stopped", bad)
	}
	target.down()

	target.config.SilenceTimeout = 50 * time.Millisecond
	target.dial(tr, p.addr, nil)
	p.signal(syscall.SIGSTOP)
	if e := target.until(transport.Down); !errors.Is(e.Err, transport.ErrSilent) {
		t.Errorf("the link to a stopped peer ended with %v, want %v", e.Err, transport.ErrSilent)
	}
	p.signal(syscall.SIGCONT)
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

// testKilled kills the source in the middle of its pages.
func testKilled(t *testing.T, tr Transport) {
	p := startPeer(t, tr, "big")
	target := newTargetOn(t, tr, shapes["big"], slots, mapped(t))
	target.dial(tr, p.addr, nil)
	g := grantedIn(shapes["big"], 1, 0, 40)
	target.open(g)
	target.send(g.message())
	for range 3 {
		target.expect(transport.Landed)
	}
	p.signal(syscall.SIGKILL)
	landed := 3
	for {
		e := target.nextOf(transport.Landed, transport.Refused, transport.Down)
		if e.Kind == transport.Landed {
			landed++
		}
		if e.Kind == transport.Refused && e.Refusal != transport.Cut {
			t.Errorf("a page of a killed source is refused as %v, want %v", e.Refusal, transport.Cut)
		}
		if e.Kind == transport.Down {
			break
		}
	}
	// A source that places the pages itself may have been done by then.
	if landed == len(g.Pages) && !tr.FenceNeedsPeer {
		t.Error("every page landed, so the source was not killed in the middle of them")
	}
	if !target.link.Shut(g.X) {
		t.Error("a grant is not drained after its link went down")
	}
	if p.end() == nil {
		t.Error("the peer ended as if it had not been killed")
	}
}

// report is what a storm did.
type report struct {
	aborts, landed, refused, corrupted int
	quarantined, back                  int // pages from their abort until their fence, and after it
	fences                             []time.Duration
	spun                               uint64 // see wait
}

// aborts is how many transfers a storm aborts: BULKHEAD_STORM, or 1,000, or 200
// in short tests.
func aborts(t testing.TB) int {
	if text := os.Getenv("BULKHEAD_STORM"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("BULKHEAD_STORM is %q, must be a number of aborts", text)
		}
		return n
	}
	if testing.Short() {
		return 200
	}
	return 1000
}

func testStorm(t *testing.T, tr Transport) {
	if r := storm(t, tr, aborts(t), heap, nil, func(report) bool { return false }); r.corrupted != 0 {
		t.Errorf("%d pages were overwritten after their fence, in %d aborts", r.corrupted, r.aborts)
	}
}

func testStormWithoutFence(t *testing.T, tr Transport) {
	r := storm(t, tr, futileMax, mapped(t), func(n *node) func(func()) Door {
		return func(func()) Door { return Unfenced{n.config.Gate.Door(func() {})} }
	}, harmful)
	if r.corrupted == 0 {
		t.Errorf("%d aborts without a fence corrupted nothing: this storm shows nothing", r.aborts)
	}
}

func testStormWithoutCheck(t *testing.T, tr Transport) {
	r := storm(t, tr, futileMax, mapped(t), func(n *node) func(func()) Door {
		return func(func()) Door { return &Unchecked{pages: n.pages} }
	}, harmful)
	if r.corrupted == 0 {
		t.Errorf("%d aborts without an owner check corrupted nothing: this storm shows nothing", r.aborts)
	}
}

// futileMax is how many aborts a storm without its guard may need to do harm, and
// harmful ends it when it has done some.
const futileMax = 20000

func harmful(r report) bool { return r.aborts >= 100 && r.corrupted > 0 }

// storm aborts transfers while their pages arrive and gives the pages to their
// next owner the moment the fence is reported. The source goes on writing.
func storm(t *testing.T, tr Transport, aborts int, memory func(int) []byte, doors func(*node) func(func()) Door, enough func(report) bool) report {
	random := seed(t)
	p := startPeer(t, tr, "storm")
	target := newTargetOn(t, tr, shapes["storm"], slots, memory)
	var newDoor func(func()) Door
	if doors != nil {
		newDoor = doors(target)
	}
	target.dial(tr, p.addr, newDoor)
	r := report{}
	for r.aborts < aborts && !enough(r) {
		r.aborts++
		target.abort(random, grantedIn(shapes["storm"], uint64(r.aborts), random.IntN(slots), 32), &r)
	}
	target.down()
	if err := p.end(); err != nil {
		t.Error(err)
	}
	slices.Sort(r.fences)
	t.Logf("measured %d aborts, %d pages landed, %d refused, %d quarantined, %d got back, %d corrupted; fence p50 %v, p99 %v, max %v",
		r.aborts, r.landed, r.refused, r.quarantined, r.back, r.corrupted,
		r.fences[len(r.fences)/2], r.fences[len(r.fences)*99/100], r.fences[len(r.fences)-1])
	return r
}

// abort lets some pages of a grant land, fences it, hands its slots to their next
// owner and looks at them when the source has no more to write.
func (n *node) abort(random *rand.Rand, g grant, r *report) {
	n.open(g)
	n.send(g.message())
	for range random.IntN(len(g.Pages)) {
		n.expect(transport.Landed)
		r.landed++
	}
	r.spun ^= wait(random.IntN(20000))
	begun := time.Now()
	n.link.Fence(g.X)
	r.quarantined += len(g.Pages)
	closed := false
	for fenced := false; !fenced; {
		e := n.nextOf(transport.Landed, transport.Fenced, transport.Refused, transport.Message)
		fenced = e.Kind == transport.Fenced
		closed = closed || e.Kind == transport.Message
		r.count(e)
	}
	r.fences = append(r.fences, time.Since(begun))
	n.takeOver(g)
	r.back += len(g.Pages)
	for !closed {
		e := n.nextOf(transport.Refused, transport.Landed, transport.Message)
		closed = e.Kind == transport.Message
		r.count(e)
	}
	r.corrupted += n.overwritten(g)
}

func (r *report) count(e transport.Event) {
	switch e.Kind {
	case transport.Landed:
		r.landed++
	case transport.Refused:
		r.refused++
	default:
	}
}

// wait passes a moment shorter than any timer's. Its result is of no meaning, and
// keeps the loop from being optimized away.
func wait(rounds int) uint64 {
	x := uint64(rounds)
	for range rounds {
		x = x*6364136223846793005 + 1
	}
	return x
}

// takeOver writes the next owner's bytes into a grant's slots.
func (n *node) takeOver(g grant) {
	for _, ref := range g.Pages {
		copy(n.pages[ref.Slot], n.next())
	}
}

// overwritten counts a grant's slots that hold anything but the next owner's bytes.
func (n *node) overwritten(g grant) int {
	bad := 0
	for _, ref := range g.Pages {
		if !bytes.Equal(n.pages[ref.Slot], n.next()) {
			bad++
		}
	}
	return bad
}

// next is a page of the next owner.
func (n *node) next() []byte {
	if n.nextPage == nil {
		n.nextPage = bytes.Repeat([]byte{nextByte}, n.config.Hello.Layout.FrameBytes())
	}
	return n.nextPage
}

// nextOf takes the next event, which must be of one of these kinds.
func (n *node) nextOf(kinds ...transport.Kind) transport.Event {
	n.t.Helper()
	e := <-n.events
	if !slices.Contains(kinds, e.Kind) {
		n.t.Fatalf("the next event is %v (transfer %v, block %d, refusal %v, error %v), want one of %v", e.Kind, e.X, e.Block, e.Refusal, e.Err, kinds)
	}
	return e
}

func (n *node) untilClosed() {
	n.t.Helper()
	for {
		e := n.nextOf(transport.Landed, transport.Refused, transport.Message)
		if _, ok := e.Message.(transfer.Closed); ok {
			return
		}
	}
}

// mapped gives memory outside Go's heap, where writes that race on purpose are
// nobody's business but the test's.
func mapped(t testing.TB) func(n int) []byte {
	return func(n int) []byte {
		b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Munmap(b); err != nil {
				t.Error(err)
			}
		})
		return b
	}
}

// Unfenced is the gate's door without the fence: a grant that is shut counts as
// drained at once, though a page of it may be in the middle of being placed.
type Unfenced struct{ *transport.Door }

// Live never takes a page back.
func (Unfenced) Live() bool { return true }

// Cut leaves the page as it is.
func (d *Unchecked) Cut(report func(transport.Refusal)) { report(transport.Cut) }

// Shut doesn't wait.
func (d Unfenced) Shut(x kv.TransferID, drained func()) {
	d.Door.Shut(x, func() {})
	drained()
}

// Unchecked is a door that places every page where its header says.
type Unchecked struct {
	pages  [][]byte
	frame  []byte
	header [kv.HeaderBytes]byte
}

// Open has nothing to open.
func (d *Unchecked) Open(transport.Grant) error { return nil }

// Begin believes the header.
func (d *Unchecked) Begin(header []byte) ([]byte, transport.Refusal) {
	tag, ok := kv.ParseTag(header)
	if !ok || int(tag.Slot) >= len(d.pages) {
		return nil, transport.BadHeader
	}
	copy(d.header[:], header)
	d.frame = d.pages[tag.Slot]
	return d.frame[kv.HeaderBytes:], transport.None
}

// GrantBytes is the size of the slab: an unchecked door knows no grants.
func (d *Unchecked) GrantBytes() int { return len(d.pages) * len(d.frame) }

// Live never takes a page back.
func (d *Unchecked) Live() bool { return true }

// End completes the page.
func (d *Unchecked) End(complete bool, report func(transport.Refusal)) {
	if !complete {
		report(transport.Torn)
		return
	}
	copy(d.frame, d.header[:])
	report(transport.None)
}

// Shut doesn't wait.
func (d *Unchecked) Shut(_ kv.TransferID, drained func()) { drained() }

// Close has nothing to close.
func (d *Unchecked) Close() {}
