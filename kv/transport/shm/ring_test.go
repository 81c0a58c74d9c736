package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

var layout = kv.Layout{Layers: 2, KVHeads: 2, KeyDim: 64, ValueDim: 64}

func config(role transfer.Role, node string, epoch kv.Epoch, events chan transport.Event, gate *transport.Gate) transport.Config {
	c := transport.Default()
	c.Hello = transfer.Hello{Version: kv.WireVersion, Role: role, Epoch: epoch, Node: node, Fingerprint: kv.Fingerprint{1},
		Layout: layout, PoolPages: 16, ContextTokens: 256}
	c.Events, c.Gate = events, gate
	return c
}

func sourceConfig(events chan transport.Event) transport.Config {
	return config(transfer.RolePrefill, "p", 1, events, nil)
}

// memfd is an anonymous file of that size with those seals.
func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func announce(magic uint32, pages, stride int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, magic)
	b = binary.LittleEndian.AppendUint32(b, uint32(pages))
	return binary.LittleEndian.AppendUint64(b, uint64(stride))
}

// A source maps only what is sealed, of the announced size, and shaped as its own
// pages; everything else is turned away before a byte is written to it, and no
// descriptor is kept.
func TestBadRingsAreTurnedAway(t *testing.T) {
	stride := layout.StrideBytes()
	size := int64(8 * stride)
	for _, c := range []struct {
		name  string
		offer []byte
		fds   func(*testing.T) []int
		want  string
	}{
		{"unsealed", announce(ringMagic, 8, stride), func(t *testing.T) []int { return []int{memfd(t, size, unix.F_SEAL_GROW)} }, "a ring with seals"},
		{"shorter than announced", announce(ringMagic, 8, stride), func(t *testing.T) []int { return []int{memfd(t, size-1, ringSeals)} }, "is announced and has"},
		{"of other pages", announce(ringMagic, 8, stride+64), func(t *testing.T) []int { return []int{memfd(t, size, ringSeals)} }, "a ring of 8 pages of"},
		{"of too few pages", announce(ringMagic, 3, stride), func(t *testing.T) []int { return []int{memfd(t, size, ringSeals)} }, "a ring of 3 pages"},
		{"of too many pages", announce(ringMagic, 1<<31, stride), func(t *testing.T) []int { return []int{memfd(t, size, ringSeals)} }, "a ring of 2147483648 pages"},
		{"that is none", announce(7, 8, stride), func(t *testing.T) []int { return []int{memfd(t, size, ringSeals)} }, "no offer but 16 bytes of kind 00000007 and 1 descriptors"},
		{"without a descriptor", announce(ringMagic, 8, stride), func(*testing.T) []int { return nil }, "no offer but 16 bytes of kind 31524b42 and 0 descriptors"},
		{"with two descriptors", announce(ringMagic, 8, stride), func(t *testing.T) []int {
			return []int{memfd(t, size, ringSeals), memfd(t, size, ringSeals)}
		}, "descriptors"},
		{"cut short", announce(ringMagic, 8, stride)[:9], func(t *testing.T) []int { return []int{memfd(t, size, ringSeals)} }, "no offer but 9 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := make(chan transport.Event, 4)
			l, err := Listen(fmt.Sprintf("@%s-%d", t.Name(), os.Getpid()), sourceConfig(events))
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			fds := c.fds(t)
			before := len(openFiles(t))
			if _, _, err := conn.(*net.UnixConn).WriteMsgUnix(c.offer, unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			hello := config(transfer.RoleDecode, "d", 2, nil, nil).Hello.Append(nil)
			// A source that has turned us away doesn't listen any more.
			_, _ = conn.Write(append(binary.LittleEndian.AppendUint32([]byte("BKM1"), uint32(len(hello))), hello...))
			e := <-events
			if e.Kind != transport.Rejected || !errors.Is(e.Err, transport.ErrProtocol) || !strings.Contains(e.Err.Error(), c.want) {
				t.Errorf("a ring %s gives %v with %v, want rejected with %q", c.name, e.Kind, e.Err, c.want)
			}
			if err := errors.Join(l.Close(), conn.Close()); err != nil {
				t.Error(err)
			}
			if after := len(openFiles(t)); after > before {
				t.Errorf("%d files are open after a ring %s, %d were before", after, c.name, before)
			}
			if err := (&offered{fds: fds}).close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func openFiles(t *testing.T) []os.DirEntry {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestOnlyOurOwnUserIsLetIn(t *testing.T) {
	if err := checkUser(1000, 1000); err != nil {
		t.Errorf("our own user is refused: %v", err)
	}
	if err := checkUser(1001, 1000); err == nil || !strings.Contains(err.Error(), "1001") || !strings.Contains(err.Error(), "1000") {
		t.Errorf("another user gives %v, want a refusal with both", err)
	}
}

func TestASocketLeftByADeadProcessIsReplacedAndALiveOneIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prefill.sock")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	events := make(chan transport.Event, 4)
	l, err := Listen(path, sourceConfig(events))
	if err != nil {
		t.Fatalf("a socket that nobody listens on is in the way: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("the socket's mode is %o, want 600", got)
	}
	if _, err := Listen(path, sourceConfig(events)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second listener at a live socket gives %v", err)
	}
	if e := <-events; e.Kind != transport.Rejected {
		t.Errorf("the live listener had %v, want the probe rejected", e.Kind)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there after its listener: %v", err)
	}
}

// A side believes no count that a ring can't have.
func TestImpossibleCountsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		side side
		note []byte
	}{
		{"more put than the ring holds", targetSide, binary.LittleEndian.AppendUint64(nil, 15)},
		{"fewer put than were taken", targetSide, binary.LittleEndian.AppendUint64(nil, 9)},
		{"more taken than the ring holds", sourceSide, binary.LittleEndian.AppendUint64(nil, 15)},
		{"fewer taken than before", sourceSide, binary.LittleEndian.AppendUint64(nil, 9)},
		{"a short note", targetSide, []byte{1, 2, 3}},
		{"a long note", sourceSide, make([]byte, 9)},
	} {
		counting := &carrier{ring: &ring{pages: 4}, side: c.side, room: make(chan struct{}, 1)}
		counting.taken.Store(10)
		counting.put = 12
		if err := counting.Note(c.note); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%s gives %v, want %v", c.name, err, transport.ErrProtocol)
		}
	}
}

// pair links a target with a source, whose process and ring are in the test's
// hands.
type pair struct {
	targetEvents, sourceEvents chan transport.Event
	target, source             *session.Session
	pages                      [][]byte
	ring                       *ring // as the source sees it
}

// newPair makes a pair. process stands for the source's; wrap may put another
// door before the gate's.
func newPair(t *testing.T, process *os.File, wrap func(session.Door, *pair) session.Door) *pair {
	t.Helper()
	p := &pair{targetEvents: make(chan transport.Event, 16), sourceEvents: make(chan transport.Event, 16)}
	for range 8 {
		p.pages = append(p.pages, make([]byte, layout.FrameBytes()))
	}
	gate := transport.NewGate(layout, len(p.pages), func(slot kv.Slot) []byte { return p.pages[slot] })
	reading, err := newRing(layout)
	if err != nil {
		t.Fatal(err)
	}
	p.ring = &ring{fd: reading.fd, pages: reading.pages, stride: reading.stride, frame: reading.frame}
	if err := p.ring.mapIn(unix.PROT_READ | unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	p.ring.fd = -1
	near, far := socketPair(t)
	targetGreeted, sourceGreeted := make(chan *session.Greeted), make(chan *session.Greeted)
	go greet(t, near, config(transfer.RoleDecode, "d", 2, p.targetEvents, gate), targetGreeted)
	go greet(t, far, sourceConfig(p.sourceEvents), sourceGreeted)
	target, source := <-targetGreeted, <-sourceGreeted
	if target == nil || source == nil {
		t.FailNow()
	}
	p.target = target.Start(func(kick func()) session.Door { return wrap(gate.Door(kick), p) },
		func(s *session.Session) session.Carrier { return newCarrier(s, reading, process, targetSide) })
	p.source = source.Start(nil, func(s *session.Session) session.Carrier {
		return newCarrier(s, p.ring, pidfd(t, os.Getpid()), sourceSide)
	})
	expect(t, p.targetEvents, transport.Up)
	expect(t, p.sourceEvents, transport.Up)
	return p
}

func greet(t *testing.T, conn net.Conn, c transport.Config, greeted chan<- *session.Greeted) {
	g, err := session.Greet(context.Background(), conn, c)
	if err != nil {
		t.Error(err)
	}
	greeted <- g
}

func expect(t *testing.T, events <-chan transport.Event, kind transport.Kind) transport.Event {
	t.Helper()
	e := <-events
	if e.Kind != kind {
		t.Fatalf("the next event is %v (refusal %v, error %v), want %v", e.Kind, e.Refusal, e.Err, kind)
	}
	return e
}

func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return conns[0], conns[1]
}

func pidfd(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "process")
}

func plainDoor(d session.Door, _ *pair) session.Door { return d }

// The socket alone doesn't tell: somebody else may hold the dead process's end.
func TestADeadProcessEndsTheLinkThoughItsSocketLives(t *testing.T) {
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	p := newPair(t, pidfd(t, process.Process.Pid), plainDoor)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	e := expect(t, p.targetEvents, transport.Down)
	if e.Err == nil || !strings.Contains(e.Err.Error(), "process has ended") {
		t.Errorf("a dead process ended its link with %v", e.Err)
	}
	expect(t, p.sourceEvents, transport.Down)
	if process.Wait() == nil {
		t.Error("the process ended as if it had not been killed")
	}
}

// scribbler is a source that rewrites a page's header in the ring while the
// target is about to place the page.
type scribbler struct {
	session.Door
	pair *pair
	into kv.Tag
}

func (s scribbler) Begin(header []byte) ([]byte, transport.Refusal) {
	into, refusal := s.Door.Begin(header)
	s.into.Put(s.pair.ring.page(0))
	return into, refusal
}

func TestAHeaderChangedInTheRingAfterTheCheckChangesNothing(t *testing.T) {
	g := transport.Grant{X: kv.TransferID{Epoch: 2, Sequence: 1}, Tenant: 3, Tokens: 16, Pages: []kv.PageRef{{Slot: 1, Generation: 5}}}
	tag := kv.Tag{Layout: layout.ID(), Tokens: 16, Transfer: g.X, Generation: 5, Tenant: 3, Slot: 1}
	elsewhere := tag
	elsewhere.Slot, elsewhere.Tenant = 2, 4
	p := newPair(t, pidfd(t, os.Getpid()), func(d session.Door, p *pair) session.Door { return scribbler{d, p, elsewhere} })
	if err := p.target.Open(g); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, layout.BodyBytes())
	body[0] = 9
	if err := p.source.Write(transport.Page{Tag: tag, Body: body}); err != nil {
		t.Fatal(err)
	}
	expect(t, p.targetEvents, transport.Landed)
	if !tag.Matches(p.pages[1]) || p.pages[1][kv.HeaderBytes] != 9 {
		t.Error("the page isn't in the slot that was checked, under the tag that was checked")
	}
	for i, b := range p.pages[2] {
		if b != 0 {
			t.Fatalf("byte %d of a slot that was never granted was written", i)
		}
	}
	if err := errors.Join(p.target.Close(), p.source.Close()); err != nil {
		t.Error(err)
	}
	expect(t, p.targetEvents, transport.Down)
}
