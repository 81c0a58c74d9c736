package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// DialDirect is Dial without the ring: the source writes pages into the target's
// slab itself. Slot s begins at s*StrideBytes of the slab's file, which must be
// sealed against shrinking and growing.
//
// The source can then read and write every page of the slab, so this form is for
// processes that trust each other's code. What it gives up is said by the hazard
// word: a fence waits until the source is out of the page that it is writing, and
// for a source that is stopped in there until it goes on or is dead. Down waits
// likewise.
func DialDirect(ctx context.Context, path string, config transport.Config, slab *os.File) (transport.Link, error) {
	if config.Gate == nil {
		return nil, errors.New("shm: only a target dials, and this one has no gate")
	}
	return dialDirect(ctx, path, config, slab, func(kick func()) session.Door { return config.Gate.Door(kick) }, guards{})
}

func dialDirect(ctx context.Context, path string, config transport.Config, slab *os.File, newDoor doorMaker, missing guards) (transport.Link, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.HelloTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	link, err := offerSlab(ctx, conn.(*net.UnixConn), config, slab, newDoor, missing)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return link, nil
}

// offerSlab hands a slab to the source and starts the link.
func offerSlab(ctx context.Context, conn *net.UnixConn, config transport.Config, slab *os.File, newDoor doorMaker, missing guards) (*session.Session, error) {
	peer, err := identify(conn)
	if err != nil {
		return nil, err
	}
	mapped, err := shareSlab(conn, slab, config.Hello.Layout, config.Gate.Slots())
	if err != nil {
		return nil, errors.Join(err, peer.Close())
	}
	greeted, err := session.Greet(ctx, conn, config)
	if err != nil {
		return nil, errors.Join(err, mapped.close(), peer.Close())
	}
	target := newDirectTarget(mapped, peer, config.Hello.Layout, missing)
	return greeted.Start(
		func(kick func()) session.Door { return target.door(newDoor(kick)) },
		func(s *session.Session) session.Carrier { return target.start(s) }), nil
}

// sharedSlab is a slab and its words, as one of the two sides has mapped them.
type sharedSlab struct {
	words
	pages  []byte
	stride int
	frame  int
}

// page is the bytes of a slot.
func (s *sharedSlab) page(slot kv.Slot) []byte {
	at := int(slot) * s.stride
	return s.pages[at : at+s.frame : at+s.frame]
}

func (s *sharedSlab) close() error {
	return errors.Join(unmap(s.pages), unmap(s.memory))
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	return unix.Munmap(memory)
}

// shareSlab makes words for a slab, hands both over, and maps the slab to read.
func shareSlab(conn *net.UnixConn, slab *os.File, layout kv.Layout, slots int) (*sharedSlab, error) {
	if slots < 1 {
		return nil, fmt.Errorf("shm: a slab of %d pages", slots)
	}
	wordsFile, err := sealedFile("bulkhead-words", wordsBytes(slots))
	if err != nil {
		return nil, err
	}
	s, err := mapSlab(int(slab.Fd()), wordsFile, layout, slots, unix.PROT_READ)
	if err == nil {
		err = sendOffer(conn, slabMagic, slots, layout.StrideBytes(), int(slab.Fd()), wordsFile)
	}
	if err = errors.Join(err, unix.Close(wordsFile)); err != nil && s != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, err
}

func mapSlab(slab, wordsFile int, layout kv.Layout, slots, protection int) (*sharedSlab, error) {
	stride := layout.StrideBytes()
	if err := checkFile(slab, "a slab", uint64(slots)*uint64(stride)); err != nil {
		return nil, err
	}
	if err := checkFile(wordsFile, "words", uint64(wordsBytes(slots))); err != nil {
		return nil, err
	}
	s := &sharedSlab{words: words{slots: slots}, stride: stride, frame: layout.FrameBytes()}
	var err error
	if s.pages, err = unix.Mmap(slab, 0, slots*stride, protection, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map a slab of %d bytes: %w", slots*stride, err)
	}
	if s.memory, err = unix.Mmap(wordsFile, 0, wordsBytes(slots), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return nil, errors.Join(fmt.Errorf("map the words of %d slots: %w", slots, err), s.close())
	}
	return s, nil
}

// openSlab maps the slab that was offered to write to. It takes the descriptors.
func openSlab(o *offered, layout kv.Layout) (*sharedSlab, error) {
	if want := uint64(layout.StrideBytes()); o.stride != want || o.pages < 1 {
		return nil, errors.Join(fmt.Errorf("%w: a slab of %d pages of %d bytes, must be some of %d", transport.ErrProtocol, o.pages, o.stride, want), o.close())
	}
	s, err := mapSlab(o.fds[0], o.fds[1], layout, int(o.pages), unix.PROT_READ|unix.PROT_WRITE)
	if err = errors.Join(err, o.close()); err != nil && s != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, err
}
