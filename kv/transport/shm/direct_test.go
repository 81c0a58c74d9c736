package shm

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

const directSlots = 8

// directPair is a direct link whose source sends nothing; its part in a page is
// played by the test, which writes the hazard word.
type directPair struct {
	t      *testing.T
	link   *session.Session
	target *directTarget
	events chan transport.Event
	source *sharedSlab // a mapping of its own
	wire   *session.Session
	other  chan transport.Event
}

var directGrant = transport.Grant{X: kv.TransferID{Epoch: 2, Sequence: 1}, Tenant: 3, Tokens: 30,
	Pages: []kv.PageRef{{Slot: 1, Generation: 5}, {Slot: 2, Generation: 5}}}

func newDirectPair(t *testing.T, process *os.File) *directPair {
	t.Helper()
	p := &directPair{t: t, events: make(chan transport.Event, 16), other: make(chan transport.Event, 16)}
	slab, err := sealedFile("test-slab", directSlots*layout.StrideBytes())
	if err != nil {
		t.Fatal(err)
	}
	wordsFile, err := sealedFile("test-words", wordsBytes(directSlots))
	if err != nil {
		t.Fatal(err)
	}
	var mapped, written *sharedSlab
	for _, side := range []**sharedSlab{&mapped, &written, &p.source} {
		if *side, err = mapSlab(slab, wordsFile, layout, directSlots, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&offered{fds: []int{slab, wordsFile}}).close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.source.close(); err != nil {
			t.Error(err)
		}
	})
	gate := transport.NewGate(layout, directSlots, mapped.page)
	near, far := socketPair(t)
	targetGreeted, sourceGreeted := make(chan *session.Greeted), make(chan *session.Greeted)
	go greet(t, near, config(transfer.RoleDecode, "d", 2, p.events, gate), targetGreeted)
	go greet(t, far, sourceConfig(p.other), sourceGreeted)
	one, two := <-targetGreeted, <-sourceGreeted
	if one == nil || two == nil {
		t.FailNow()
	}
	p.target = newDirectTarget(mapped, process, layout, guards{})
	p.link = one.Start(func(kick func()) session.Door { return p.target.door(gate.Door(kick)) },
		func(s *session.Session) session.Carrier { return p.target.start(s) })
	p.wire = two.Start(nil, func(s *session.Session) session.Carrier { return newDirectSource(s, written, pidfd(t, os.Getpid())) })
	expect(t, p.events, transport.Up)
	expect(t, p.other, transport.Up)
	if err := p.link.Open(directGrant); err != nil {
		t.Fatal(err)
	}
	return p
}

// stick is a source that entered a page of the grant and was stopped there.
func (p *directPair) stick() { p.source.hazard().Store(2) }

// checkHeld fails unless the fence of the grant waits for the source.
func (p *directPair) checkHeld() {
	p.t.Helper()
	p.target.mu.Lock()
	_, held := p.target.leave[directGrant.X]
	p.target.mu.Unlock()
	if !held {
		p.t.Error("the fence doesn't wait for a source that is in a page of the grant")
	}
	select {
	case e := <-p.events:
		p.t.Errorf("with the source in a page of the grant there was %v (%v)", e.Kind, e.Err)
	default:
	}
	again := directGrant
	again.X.Sequence++
	if p.link.Open(again) == nil {
		p.t.Error("the pages are granted again with the source in one of them")
	}
}

func TestAFenceWaitsForASourceInThePage(t *testing.T) {
	p := newDirectPair(t, pidfd(t, os.Getpid()))
	p.stick()
	p.link.Fence(directGrant.X)
	p.link.Fence(directGrant.X)
	if p.link.Shut(directGrant.X) {
		t.Error("a grant counts as drained with the source in a page of it")
	}
	p.checkHeld()
	if got := p.source.owner(1).Load(); got != 0 {
		t.Errorf("the owner word of a fenced page is %#x, want nobody", got)
	}
	p.source.hazard().Store(0)
	expect(t, p.events, transport.Fenced)
	expect(t, p.events, transport.Fenced)
	if err := errors.Join(p.link.Close(), p.wire.Close()); err != nil {
		t.Error(err)
	}
	expect(t, p.events, transport.Down)
	expect(t, p.other, transport.Down)
}

func TestAFenceDoesNotWaitForASourceInAnothersPage(t *testing.T) {
	p := newDirectPair(t, pidfd(t, os.Getpid()))
	p.source.hazard().Store(6)
	p.link.Fence(directGrant.X)
	expect(t, p.events, transport.Fenced)
	p.source.hazard().Store(0)
	if err := errors.Join(p.link.Close(), p.wire.Close()); err != nil {
		t.Error(err)
	}
	expect(t, p.events, transport.Down)
	expect(t, p.other, transport.Down)
}

func TestDeathIsTheFenceOfASourceThatNeverLeft(t *testing.T) {
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	p := newDirectPair(t, pidfd(t, process.Process.Pid))
	p.stick()
	p.link.Fence(directGrant.X)
	p.checkHeld()
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	expect(t, p.events, transport.Fenced)
	if e := expect(t, p.events, transport.Down); e.Err == nil || !strings.Contains(e.Err.Error(), "process has ended") {
		t.Errorf("a dead process ended its link with %v", e.Err)
	}
	if process.Wait() == nil {
		t.Error("the process ended as if it had not been killed")
	}
	expect(t, p.other, transport.Down)
}

// Close comes back with the source still in a page; Down, which is the proof,
// doesn't come before it has left.
func TestDownWaitsForASourceInThePageAndCloseDoesNot(t *testing.T) {
	p := newDirectPair(t, pidfd(t, os.Getpid()))
	p.stick()
	if err := p.link.Close(); err != nil {
		t.Error(err)
	}
	select {
	case e := <-p.events:
		t.Errorf("with the source in a page there was %v", e.Kind)
	default:
	}
	again := directGrant
	again.X.Sequence++
	if err := p.link.Open(again); err == nil {
		t.Error("the pages are granted again with the source in one of them")
	}
	p.source.hazard().Store(0)
	expect(t, p.events, transport.Down)
	if err := p.wire.Close(); err != nil {
		t.Error(err)
	}
	expect(t, p.other, transport.Down)
}

func TestBadSlabsAreTurnedAway(t *testing.T) {
	size := int64(directSlots * layout.StrideBytes())
	for _, c := range []struct {
		name              string
		stride            int
		slab, words       int64
		slabSeals, sealed int
		want              string
	}{
		{"an unsealed slab", layout.StrideBytes(), size, int64(wordsBytes(directSlots)), 0, ringSeals, "a slab with seals"},
		{"unsealed words", layout.StrideBytes(), size, int64(wordsBytes(directSlots)), ringSeals, 0, "words with seals"},
		{"a short slab", layout.StrideBytes(), size - 64, int64(wordsBytes(directSlots)), ringSeals, ringSeals, "a slab of"},
		{"words of another slab", layout.StrideBytes(), size, int64(wordsBytes(directSlots + 1)), ringSeals, ringSeals, "words of"},
		{"other pages", layout.StrideBytes() + 64, size, int64(wordsBytes(directSlots)), ringSeals, ringSeals, "a slab of 8 pages of"},
	} {
		o := &offered{magic: slabMagic, pages: directSlots, stride: uint64(c.stride), fds: []int{memfd(t, c.slab, c.slabSeals), memfd(t, c.words, c.sealed)}}
		if _, err := openSlab(o, layout); !errors.Is(err, transport.ErrProtocol) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s gives %v, want %q", c.name, err, c.want)
		}
		if len(o.fds) != 0 {
			t.Errorf("%s: its descriptors are kept", c.name)
		}
	}
}
