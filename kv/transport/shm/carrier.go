package shm

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

type side uint8

const (
	targetSide side = iota
	sourceSide
)

// noteBytes is the size of a note: how many pages have gone into the ring, or, to
// the source, have been taken out of it, since the link began.
const noteBytes = 8

// carrier moves pages through a ring.
//
//	0          taken            put
//	|  taken    |  in the ring   |  to come, at most taken+pages
type carrier struct {
	session *session.Session
	ring    *ring
	side    side
	peer    *os.File // pidfd
	watch   sync.WaitGroup
	// streamed is the size of a grant from which on pages are copied past the
	// cache, immutable.
	streamed int

	// Of the source's writer.
	put     uint64
	settled uint64 // put, as the target knows it
	// Of the source's reader, and read by its writer. At a target, of its reader.
	taken  atomic.Uint64
	room   chan struct{} // has an entry when taken has risen
	stop   chan struct{}
	header [kv.HeaderBytes]byte
	told   uint64 // taken, as the source knows it; of the target's reader
}

func newCarrier(s *session.Session, r *ring, peer *os.File, side side) *carrier {
	c := &carrier{session: s, ring: r, side: side, peer: peer, streamed: cacheBytes() / 2, room: make(chan struct{}, 1), stop: make(chan struct{})}
	c.watch.Go(func() { mourn(s, peer, func() {}) })
	return c
}

// Put implements session.Carrier: it copies a page into the ring and waits for
// room if it must.
func (c *carrier) Put(out *session.Output, p transport.Page) error {
	for c.put-c.taken.Load() >= uint64(c.ring.pages) {
		if err := c.Settle(out); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
		select {
		case <-c.room:
		case <-c.stop:
			return transport.ErrDown
		}
	}
	frame := c.ring.page(c.put)
	p.Tag.Put(frame)
	kv.PutSum(frame, p.Sum)
	copy(frame[kv.HeaderBytes:], p.Body)
	p.Tag.PutTrailer(frame[len(frame)-kv.TrailerBytes:])
	c.put++
	return nil
}

// Settle implements session.Carrier: it tells the target of the pages put.
func (c *carrier) Settle(out *session.Output) error {
	if c.settled != c.put {
		c.settled = c.put
		out.Note(binary.LittleEndian.AppendUint64(nil, c.put))
	}
	return nil
}

// Page implements session.Carrier.
func (c *carrier) Page(*session.Input) error {
	return fmt.Errorf("%w: a page in the stream of a link that has a ring", transport.ErrProtocol)
}

// Note implements session.Carrier.
func (c *carrier) Note(note []byte) error {
	if len(note) != noteBytes {
		return fmt.Errorf("%w: a note of %d bytes, must be %d", transport.ErrProtocol, len(note), noteBytes)
	}
	count := binary.LittleEndian.Uint64(note)
	if c.side == sourceSide {
		return c.free(count)
	}
	return c.takeUpTo(count)
}

// free learns that the target has taken more pages.
func (c *carrier) free(count uint64) error {
	if taken := c.taken.Load(); count-taken > uint64(c.ring.pages) {
		return fmt.Errorf("%w: %d pages taken after %d, of a ring of %d", transport.ErrProtocol, count, taken, c.ring.pages)
	}
	c.taken.Store(count)
	select {
	case c.room <- struct{}{}:
	default: // the writer has one to find already
	}
	return nil
}

// takeUpTo takes the pages out of the ring that the source says are there.
func (c *carrier) takeUpTo(count uint64) error {
	taken := c.taken.Load()
	if count-taken > uint64(c.ring.pages) {
		return fmt.Errorf("%w: %d pages put while %d are taken, in a ring of %d", transport.ErrProtocol, count, taken, c.ring.pages)
	}
	for ; taken != count; taken++ {
		if err := c.take(c.ring.page(taken)); err != nil {
			return err
		}
		c.taken.Store(taken + 1)
		if taken+1-c.told >= uint64(c.ring.pages)/4 {
			if err := c.tell(); err != nil {
				return err
			}
		}
	}
	return nil
}

// take places one page, by a header that the source can't change any more. A
// grant that wouldn't stay in the cache until it is verified goes past it.
func (c *carrier) take(frame []byte) error {
	copy(c.header[:], frame)
	return c.session.Land(c.header[:], func(p session.Place) (bool, error) {
		// One copy is short enough to be waited for.
		if p.GrantBytes > c.streamed {
			stream(p.Into, frame[kv.HeaderBytes:])
		} else {
			copy(p.Into, frame[kv.HeaderBytes:])
		}
		return p.Live(), nil
	})
}

// tell gives the ring's room back to the source.
func (c *carrier) tell() error {
	c.told = c.taken.Load()
	return c.session.Note(binary.LittleEndian.AppendUint64(nil, c.told))
}

// Stop implements session.Carrier.
func (c *carrier) Stop() { close(c.stop) }

// Release implements session.Carrier.
func (c *carrier) Release() {
	// Errors here would be of descriptors and mappings that are ours alone, and
	// there is nobody left to tell.
	_ = c.peer.Close()
	c.watch.Wait()
	_ = c.ring.close()
}
