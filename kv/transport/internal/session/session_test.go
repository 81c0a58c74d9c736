package session_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

var layout = kv.Layout{Layers: 2, KVHeads: 2, KeyDim: 64, ValueDim: 64}

func hello(role transfer.Role, node string, epoch kv.Epoch) transfer.Hello {
	return transfer.Hello{Version: kv.WireVersion, Role: role, Epoch: epoch, Node: node, Fingerprint: kv.Fingerprint{1},
		Layout: layout, PoolPages: 16, ContextTokens: 256}
}

// target is a decode worker whose peer's end of the connection is in the test's
// hands.
type target struct {
	t      testing.TB
	link   *session.Session
	events chan transport.Event
	pages  [8][]byte
	wire   net.Conn
}

var grant = transport.Grant{X: kv.TransferID{Epoch: 0xd, Sequence: 1}, Tenant: 3, Tokens: 40,
	Pages: []kv.PageRef{{Slot: 1, Generation: 5}, {Slot: 2, Generation: 5}, {Slot: 3, Generation: 5}}}

func tagOf(page int) kv.Tag {
	return kv.Tag{Layout: layout.ID(), Tokens: uint8(kv.ExtentAt(int(grant.Tokens), page)), Transfer: grant.X,
		Generation: grant.Pages[page].Generation, Tenant: grant.Tenant, Slot: grant.Pages[page].Slot, Block: uint32(page)}
}

// frame is a page as it travels, its body all ones.
func frame(tag kv.Tag) []byte {
	b := make([]byte, layout.FrameBytes())
	for i := range b {
		b[i] = 1
	}
	tag.Put(b)
	tag.PutTrailer(b[len(b)-kv.TrailerBytes:])
	return b
}

func message(payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("BKM1"), uint32(len(payload)))
	return append(b, payload...)
}

func config(h transfer.Hello, events chan transport.Event, gate *transport.Gate) transport.Config {
	c := transport.Default()
	c.Hello, c.Events, c.Gate = h, events, gate
	return c
}

// greeted makes a target whose grant is open, over a connection that is secured
// on the way if secure says how.
func greeted(t testing.TB, secure *tls.Config) *target {
	near, far := net.Pipe()
	if secure != nil {
		server := secure.Clone()
		server.ClientAuth = tls.RequireAndVerifyClientCert
		client := secure.Clone()
		client.ServerName = "127.0.0.1"
		near, far = tls.Client(near, client), tls.Server(far, server)
	}
	n := &target{t: t, events: make(chan transport.Event), wire: far}
	for i := range n.pages {
		n.pages[i] = make([]byte, layout.FrameBytes())
	}
	gate := transport.NewGate(layout, len(n.pages), func(slot kv.Slot) []byte { return n.pages[slot] })
	started := make(chan *session.Session)
	go func() {
		g, err := session.Greet(context.Background(), near, config(hello(transfer.RoleDecode, "d", 0xd), n.events, gate))
		if err != nil {
			t.Error(err)
			close(started)
			return
		}
		started <- g.Start(func(kick func()) session.Door { return gate.Door(kick) }, func(s *session.Session) session.Carrier { return session.NewInline(s) })
	}()
	own := message(hello(transfer.RolePrefill, "p", 0xe).Append(nil))
	theirs := make([]byte, len(own))
	if _, err := far.Read(theirs); err != nil {
		t.Fatal(err)
	}
	n.say(own)
	if n.link = <-started; n.link == nil {
		t.FailNow()
	}
	n.expect(transport.Up)
	if err := n.link.Open(grant); err != nil {
		t.Fatal(err)
	}
	return n
}

// say writes to the wire what the peer would.
func (n *target) say(b []byte) {
	n.t.Helper()
	if _, err := n.wire.Write(b); err != nil {
		n.t.Fatal(err)
	}
}

// hear takes and forgets what the target says, to the end.
func (n *target) hear() {
	b := make([]byte, 4096)
	for {
		if _, err := n.wire.Read(b); err != nil {
			return
		}
	}
}

func (n *target) expect(kind transport.Kind) transport.Event {
	n.t.Helper()
	e := <-n.events
	if e.Kind != kind {
		n.t.Fatalf("the next event is %v (refusal %v, error %v), want %v", e.Kind, e.Refusal, e.Err, kind)
	}
	return e
}

func (n *target) close() {
	n.t.Helper()
	if err := n.link.Close(); err != nil {
		n.t.Error(err)
	}
	n.expect(transport.Down)
	// The other end of a pipe; there is nothing to lose.
	_ = n.wire.Close()
}

// A reader that is parked in the middle of a page lets go of it when the page's
// grant is fenced; the rest of the frame goes nowhere and the stream goes on.
func TestAFenceWakesAReaderParkedInMidPage(t *testing.T) {
	for name, secure := range map[string]func(testing.TB) *tls.Config{
		"plain": func(testing.TB) *tls.Config { return nil },
		"TLS": func(t testing.TB) *tls.Config {
			config, err := transporttest.MutualTLS(transporttest.Certificates(t))
			if err != nil {
				t.Fatal(err)
			}
			return config
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := greeted(t, secure(t))
				go n.hear()
				late := frame(tagOf(0))
				n.say(late[:len(late)/2])
				synctest.Wait() // everybody is parked, the reader in mid-page
				if n.pages[1][kv.HeaderBytes] != 1 {
					t.Fatal("half a page was sent and none of it was placed: the reader isn't where this test wants it")
				}
				n.link.Fence(grant.X)
				if e := n.expect(transport.Refused); e.Refusal != transport.TransferEnded || e.X != grant.X || e.Block != 0 {
					t.Errorf("the page that was cut is refused as %v, want %v", e.Refusal, transport.TransferEnded)
				}
				n.expect(transport.Fenced)
				clear(n.pages[1])

				n.say(late[len(late)/2:])
				n.say(frame(tagOf(1)))
				if e := n.expect(transport.Refused); e.Block != 1 {
					t.Errorf("block %d is refused, want 1", e.Block)
				}
				for i, b := range n.pages[1] {
					if b != 0 {
						t.Fatalf("byte %d of the fenced page was written after the fence", i)
					}
				}
				again := grant
				again.X.Sequence++
				if err := n.link.Open(again); err != nil {
					t.Fatal(err)
				}
				tag := tagOf(0)
				tag.Transfer = again.X
				n.say(frame(tag))
				n.expect(transport.Landed)
				n.close()
			})
		})
	}
}

func TestHeartbeatsKeepAnIdleLinkAndSilenceEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := greeted(t, nil)
		go n.hear()
		// A peer that says only that it lives.
		for range 1000 {
			time.Sleep(transport.Default().SilenceTimeout * 9 / 10)
			n.say(message(nil))
		}
		select {
		case e := <-n.events:
			t.Fatalf("an idle link whose peer lives had %v (%v)", e.Kind, e.Err)
		default:
		}
		silent := time.Now()
		if e := n.expect(transport.Down); !errors.Is(e.Err, transport.ErrSilent) {
			t.Errorf("a silent peer's link ended with %v, want %v", e.Err, transport.ErrSilent)
		}
		if took, limit := time.Since(silent), transport.Default().SilenceTimeout; took < limit*3/4 || took > limit*5/4 {
			t.Errorf("silence ended the link after %v, the limit is %v", took, limit)
		}
		_ = n.wire.Close()
	})
}

// A target whose worker takes no events reads nothing, which isn't the peer's
// silence.
func TestAStalledWorkerIsNotTakenForASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := greeted(t, nil)
		go n.hear()
		said := make(chan struct{})
		go func() {
			defer close(said)
			// More messages than may be pending.
			abort := message(transfer.Abort{X: grant.X, SourceEpoch: 1}.Append(nil))
			for range transport.Default().PendingMax + 10 {
				n.say(abort)
			}
		}()
		time.Sleep(100 * transport.Default().SilenceTimeout)
		for range transport.Default().PendingMax + 10 {
			n.expect(transport.Message)
		}
		<-said
		n.close()
	})
}

func TestGarbledFramesEndTheLinkWithOneError(t *testing.T) {
	tooLong := binary.LittleEndian.AppendUint32([]byte("BKM1"), uint32(transfer.MessageBytesMax)+1)
	for _, c := range []struct {
		name string
		said []byte
		want string
	}{
		{"a frame of no kind", []byte("GET / HTTP/1.1\r\n"), "a frame of unknown kind 20544547"},
		{"a message that is too long", tooLong, "a message of 2097409 bytes, at most 2097408 are allowed"},
		{"a message that isn't one", message([]byte{77}), "message of unknown kind 77"},
		{"a second HELLO", message(hello(transfer.RolePrefill, "p", 0xe).Append(nil)), "a second HELLO"},
		{"a note where there are none", binary.LittleEndian.AppendUint32([]byte("BKN1"), 0), "a note of 0 bytes"},
		{"a note that is too long", binary.LittleEndian.AppendUint32([]byte("BKN1"), 65), "a note of 65 bytes, at most 64 are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := greeted(t, nil)
			go n.hear()
			n.say(c.said)
			e := n.expect(transport.Down)
			if !errors.Is(e.Err, transport.ErrProtocol) || !strings.Contains(e.Err.Error(), c.want) {
				t.Errorf("%s ended the link with %q, want a broken protocol and %q", c.name, e.Err, c.want)
			}
			if !n.link.Shut(grant.X) {
				t.Error("the link is down and its grant isn't drained")
			}
		})
	}
}

// A page header of another version is a page whose owner isn't known; the length
// of the frame is, and the stream goes on.
func TestAPageOfAnotherVersionIsRefused(t *testing.T) {
	n := greeted(t, nil)
	go n.hear()
	odd := frame(tagOf(0))
	odd[4]++
	n.say(odd)
	if e := n.expect(transport.Refused); e.Refusal != transport.BadHeader {
		t.Errorf("the page is refused as %v, want %v", e.Refusal, transport.BadHeader)
	}
	n.say(frame(tagOf(0)))
	n.expect(transport.Landed)
	n.close()
}

func TestAPageForASourceEndsTheLink(t *testing.T) {
	near, far := net.Pipe()
	events := make(chan transport.Event)
	n := &target{t: t, events: events, wire: far}
	go func() {
		g, err := session.Greet(context.Background(), near, config(hello(transfer.RolePrefill, "p", 0xe), events, nil))
		if err != nil {
			t.Error(err)
			return
		}
		g.Start(nil, func(s *session.Session) session.Carrier { return session.NewInline(s) })
	}()
	own := message(hello(transfer.RoleDecode, "d", 0xd).Append(nil))
	if _, err := far.Read(make([]byte, len(own))); err != nil {
		t.Fatal(err)
	}
	n.say(own)
	n.expect(transport.Up)
	go n.hear()
	n.say(frame(tagOf(0))[:kv.HeaderBytes])
	if e := n.expect(transport.Down); !errors.Is(e.Err, transport.ErrProtocol) {
		t.Errorf("a source that was sent a page ended with %v, want %v", e.Err, transport.ErrProtocol)
	}
}

func TestAPeerThatLeavesInMidPageCutsIt(t *testing.T) {
	n := greeted(t, nil)
	go n.hear()
	n.say(frame(tagOf(0))[:1000])
	_ = n.wire.Close()
	if e := n.expect(transport.Refused); e.Refusal != transport.Cut {
		t.Errorf("half a page is refused as %v, want %v", e.Refusal, transport.Cut)
	}
	if _, ok := kv.ParseTag(n.pages[1]); ok {
		t.Error("half a page carries a header")
	}
	n.expect(transport.Down)
}

// Whatever arrives, the link ends in good order and no slot is written that
// wasn't granted.
func FuzzStream(f *testing.F) {
	whole := frame(tagOf(0))
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append(frame(tagOf(1)), message(transfer.Abort{X: grant.X, SourceEpoch: 1}.Append(nil))...))
	f.Add(message(nil))
	f.Add([]byte("BKM1\xff\xff\xff\xff"))
	f.Add([]byte("BKN1\x08\x00\x00\x0012345678"))
	f.Add([]byte("BKV1"))
	f.Fuzz(func(t *testing.T, said []byte) {
		n := greeted(t, nil)
		go n.hear()
		go func() {
			// The link may end before all has been said.
			_, _ = n.wire.Write(said)
			_ = n.wire.Close()
		}()
		for {
			if e := <-n.events; e.Kind == transport.Down {
				break
			}
		}
		for _, slot := range []int{0, 4, 5, 6, 7} {
			for _, b := range n.pages[slot] {
				if b != 0 {
					t.Fatalf("slot %d was never granted and was written", slot)
				}
			}
		}
	})
}
