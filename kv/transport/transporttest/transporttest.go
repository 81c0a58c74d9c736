// Package transporttest is the suite every transport must pass.
//
// A transport's own test calls Main from TestMain, so that the test binary can
// also be the peer process that is stopped and killed, and Run from a test.
package transporttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// Door is what stands between a link's reader and the slab: the gate's own, or
// in the tests that show what it is good for, one that doesn't guard.
type Door = session.Door

// Transport is what the suite needs of a transport.
type Transport struct {
	// Environment is what the peer process needs to know, as KEY=value.
	Environment []string
	// Listen listens at an address of its own choice.
	Listen func(transport.Config) (Listener, error)
	// Dial connects to a listener's address, given as text.
	Dial func(ctx context.Context, addr string, config transport.Config, slab *os.File) (transport.Link, error)
	// DialDoor is Dial with another door than the gate's.
	DialDoor func(ctx context.Context, addr string, config transport.Config, slab *os.File, newDoor func(kick func()) Door) (transport.Link, error)
	// DialPlain is DialDoor without copies past the cache, where there are any; nil
	// where there aren't. Benchmarks compare with it.
	DialPlain func(ctx context.Context, addr string, config transport.Config, slab *os.File, newDoor func(kick func()) Door) (transport.Link, error)
	// Memory makes the memory of a target's slab, and its file, which is given to
	// Dial; nil for a transport to which any memory is good.
	Memory func(t testing.TB, n int) ([]byte, *os.File)
	// FenceNeedsPeer says that a fence may wait for a source that has been stopped
	// in the middle of a page.
	FenceNeedsPeer bool
}

// Listener is a transport's listener.
type Listener interface {
	Addr() string
	Close() error
}

// Run holds a transport to the suite.
func Run(t *testing.T, tr Transport) {
	for _, test := range []struct {
		sentence string
		run      func(*testing.T, Transport)
	}{
		{"each side learns who the other is", testPeers},
		{"peers that do not pair are told both values", testMixed},
		{"pages land byte for byte", testBytes},
		{"pages and messages keep their order", testOrder},
		{"a page whose tag is not its slot's owner is refused for its reason", testRefusals},
		{"a grant that says more than its prompt is never opened", testOverlong},
		{"the source may change a page once it is written", testStaleSource},
		{"a fence ends what a transfer can write", testFence},
		{"the end of a link is the end of all it could write", testDown},
		{"a restarted peer cannot write what its old self was granted", testEpochBump},
		{"a slow taker of events loses nothing", testSlowReader},
		{"dropped pages are not sent and stand in nobody's way", testDrop},
		{"a queue that is full ends the link and accounts for every page", testQueueFull},
		{"close does not wait for the taker of events", testClose},
		{"a source opens no grants and a target writes no pages", testRoles},
		{"a stopped peer is fenced at once and its silence ends the link", testStopped},
		{"a killed peer ends the link", testKilled},
		{"late writes of aborted transfers corrupt nothing", testStorm},
		{"late writes corrupt when the fence is taken out", testStormWithoutFence},
		{"late writes corrupt when the owner check is taken out", testStormWithoutCheck},
	} {
		t.Run(test.sentence, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			test.run(t, tr)
		})
	}
}

// layout gives pages of 16 KiB and some.
var layout = kv.Layout{Layers: 4, KVHeads: 2, KeyDim: 32, ValueDim: 32}

func hello(role transfer.Role, node string, epoch kv.Epoch, layout kv.Layout) transfer.Hello {
	return transfer.Hello{Version: kv.WireVersion, Role: role, Epoch: epoch, Node: node, Fingerprint: kv.Fingerprint{1},
		Layout: layout, PoolPages: 1 << 16, ContextTokens: 1 << 16}
}

func seed(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("BULKHEAD_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("BULKHEAD_SEED is %q, must be a number", text)
		}
		s = given
	}
	t.Logf("seed: BULKHEAD_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// node is one side of a link and the taker of its events.
type node struct {
	t      testing.TB
	config transport.Config
	events chan transport.Event
	link   transport.Link

	pages    [][]byte // a target's slab
	slab     *os.File // its file, if the transport needs one
	nextPage []byte   // see next
}

const slots = 64

func newNode(t testing.TB, h transfer.Hello) *node {
	n := &node{t: t, config: transport.Default(), events: make(chan transport.Event, 16)}
	n.config.Hello = h
	n.config.Events = n.events
	// Only the tests of silence are about silence, whatever the machine is doing.
	n.config.SilenceTimeout = time.Minute
	return n
}

func newSource(t testing.TB) *node { return newNode(t, hello(transfer.RolePrefill, "p", 0x50, layout)) }

func newTarget(t testing.TB, tr Transport) *node { return newTargetOn(t, tr, layout, slots, heap) }

func heap(n int) []byte { return make([]byte, n) }

// newTargetOn makes a target whose slab lies in the memory it is given, unless the
// transport needs its own kind.
func newTargetOn(t testing.TB, tr Transport, layout kv.Layout, slots int, memory func(n int) []byte) *node {
	n := newNode(t, hello(transfer.RoleDecode, "d", 0xd0, layout))
	var slab []byte
	if tr.Memory != nil {
		slab, n.slab = tr.Memory(t, slots*layout.StrideBytes())
	} else {
		slab = memory(slots * layout.StrideBytes())
	}
	for i := range slots {
		n.pages = append(n.pages, slab[i*layout.StrideBytes():][:layout.FrameBytes():layout.FrameBytes()])
	}
	n.config.Gate = transport.NewGate(layout, slots, func(slot kv.Slot) []byte { return n.pages[slot] })
	return n
}

// join links a target with a source in this process.
func join(t testing.TB, tr Transport, target, source *node) {
	joinDoor(t, tr, target, source, nil)
}

func joinDoor(t testing.TB, tr Transport, target, source *node, newDoor func(kick func()) Door) {
	listener, err := tr.Listen(source.config)
	if err != nil {
		t.Fatal(err)
	}
	target.dial(tr, listener.Addr(), newDoor)
	source.link = source.expect(transport.Up).Link
	if err := listener.Close(); err != nil {
		t.Fatalf("closing the listener: %v", err)
	}
}

func (n *node) dial(tr Transport, addr string, newDoor func(kick func()) Door) {
	var link transport.Link
	var err error
	if newDoor == nil {
		link, err = tr.Dial(context.Background(), addr, n.config, n.slab)
	} else {
		link, err = tr.DialDoor(context.Background(), addr, n.config, n.slab, newDoor)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if n.link = n.expect(transport.Up).Link; n.link != link {
		n.t.Fatal("the first event names another link than Dial")
	}
}

// expect takes the next event, which must be of that kind.
func (n *node) expect(kind transport.Kind) transport.Event {
	n.t.Helper()
	e := <-n.events
	if e.Kind != kind {
		n.t.Fatalf("the next event is %v (transfer %v, block %d, refusal %v, error %v), want %v", e.Kind, e.X, e.Block, e.Refusal, e.Err, kind)
	}
	return e
}

// until takes events up to and with the first of a kind.
func (n *node) until(kind transport.Kind) transport.Event {
	for {
		if e := <-n.events; e.Kind == kind {
			return e
		}
	}
}

// drain takes all events in the background, to the last; the channel is closed
// after it.
func (n *node) drain() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		n.until(transport.Down)
		close(done)
	}()
	return done
}

// down closes the link and takes what is left of its events.
func (n *node) down() {
	n.t.Helper()
	if err := n.link.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.until(transport.Down)
}

func part(nodes ...*node) {
	for _, n := range nodes {
		n.down()
	}
}

// grant is a transport.Grant that can make its own pages.
type grant struct {
	transport.Grant
	layout kv.Layout
}

// granted is a grant of some pages in slots from first on.
func granted(sequence uint64, first, pages int) grant {
	return grantedIn(layout, sequence, first, pages)
}

func grantedIn(l kv.Layout, sequence uint64, first, pages int) grant {
	g := transport.Grant{X: kv.TransferID{Epoch: 0xd0, Sequence: sequence}, Tenant: 7, Tokens: uint32(pages*kv.PageTokens - 3)}
	for i := range pages {
		g.Pages = append(g.Pages, kv.PageRef{Slot: kv.Slot((first + i) % slots), Generation: kv.Generation(1000*sequence) + 1})
	}
	return grant{g, l}
}

func (n *node) open(g grant) {
	n.t.Helper()
	if err := n.link.Open(g.Grant); err != nil {
		n.t.Fatal(err)
	}
}

// tag is the tag of the grant's page.
func (g grant) tag(page int) kv.Tag {
	block := g.FirstBlock + uint32(page)
	return kv.Tag{Layout: g.layout.ID(), Tokens: uint8(kv.ExtentAt(int(g.Tokens), int(block))), Transfer: g.X,
		Generation: g.Pages[page].Generation, Tenant: g.Tenant, Slot: g.Pages[page].Slot, Block: block}
}

// body is a page's body that tells its transfer and block.
func (g grant) body(page int) []byte {
	b := make([]byte, g.layout.BodyBytes())
	fill(b, g.X.Sequence<<20|uint64(page))
	return b
}

func fill(b []byte, value uint64) {
	r := rand.New(rand.NewPCG(value, 2))
	for i := 0; i+8 <= len(b); i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
}

var testSum = kv.Sum{3, 1, 4}

func (n *node) write(tag kv.Tag, body []byte) {
	n.t.Helper()
	if err := n.link.Write(transport.Page{Tag: tag, Sum: testSum, Body: body}); err != nil {
		n.t.Fatal(err)
	}
}

// mark is a message that carries a number and nothing else of interest.
func mark(number uint64) transfer.Message {
	return transfer.Abort{X: kv.TransferID{Epoch: 1, Sequence: 1}, SourceEpoch: 1, Low: number}
}

func (n *node) send(m transfer.Message) {
	n.t.Helper()
	if err := n.link.Send(m); err != nil {
		n.t.Fatal(err)
	}
}

// checkPage fails unless the slot holds that page and nothing else.
func (n *node) checkPage(tag kv.Tag, body []byte) {
	n.t.Helper()
	defer n.looked()
	frame := n.pages[tag.Slot]
	if !tag.Matches(frame) || kv.HeaderSum(frame) != testSum || !tag.MatchesTrailer(frame[len(frame)-kv.TrailerBytes:]) {
		n.t.Errorf("slot %d does not carry the tags of block %d of %v", tag.Slot, tag.Block, tag.Transfer)
	}
	if string(frame[kv.HeaderBytes:kv.HeaderBytes+len(body)]) != string(body) {
		n.t.Errorf("slot %d does not hold the body of block %d of %v", tag.Slot, tag.Block, tag.Transfer)
	}
}

func (n *node) checkUntouched(slot int) {
	n.t.Helper()
	defer n.looked()
	for i, b := range n.pages[slot] {
		if b != 0 {
			n.t.Fatalf("byte %d of slot %d is %#x, nothing may have written there", i, slot, b)
		}
	}
}

// looked orders what was read of the slab before what lands there later: by the
// gate's lock, as a worker's own reads are by Open. What comes through the kernel
// and shared memory tells the race detector nothing.
func (n *node) looked() { n.link.Shut(kv.TransferID{}) }

func describe(e transport.Event) string {
	if m, ok := e.Message.(transfer.Abort); ok {
		return fmt.Sprintf("mark %d", m.Low)
	}
	return fmt.Sprintf("%v %d", e.Kind, e.Block)
}
