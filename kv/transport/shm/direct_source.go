package shm

import (
	"fmt"
	"os"
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// directSource is the source's side of a direct link.
type directSource struct {
	slab  *sharedSlab
	peer  *os.File // pidfd
	watch sync.WaitGroup
}

func newDirectSource(s *session.Session, slab *sharedSlab, peer *os.File) *directSource {
	d := &directSource{slab: slab, peer: peer}
	d.watch.Go(func() { mourn(s, peer, func() {}) })
	return d
}

// Put implements session.Carrier: it writes a page, if it is still the page's
// owner, and tells the target in any case.
func (d *directSource) Put(out *session.Output, p transport.Page) error {
	if int(p.Tag.Slot) < d.slab.slots {
		d.enter(p)
	}
	var header [kv.HeaderBytes]byte
	p.Tag.Put(header[:])
	kv.PutSum(header[:], p.Sum)
	out.Note(header[:])
	return nil
}

// enter writes a page between the two writes of the hazard word.
func (d *directSource) enter(p transport.Page) {
	d.slab.hazard().Store(uint64(p.Tag.Slot) + 1)
	defer d.slab.hazard().Store(0)
	owner := d.slab.owner(p.Tag.Slot).Load()
	if owner&^largeBit != ownerOf(p.Tag) {
		return
	}
	page := d.slab.page(p.Tag.Slot)
	// Until the last write the page names nobody.
	clear(page[:kv.HeaderBytes])
	if owner&largeBit != 0 {
		stream(page[kv.HeaderBytes:], p.Body)
	} else {
		copy(page[kv.HeaderBytes:], p.Body)
	}
	p.Tag.PutTrailer(page[len(page)-kv.TrailerBytes:])
	p.Tag.Put(page)
	kv.PutSum(page, p.Sum)
}

// Settle implements session.Carrier: notes keep their order by themselves.
func (d *directSource) Settle(*session.Output) error { return nil }

// Page implements session.Carrier.
func (d *directSource) Page(*session.Input) error {
	return fmt.Errorf("%w: a page for a source", transport.ErrProtocol)
}

// Note implements session.Carrier.
func (d *directSource) Note(note []byte) error {
	return fmt.Errorf("%w: a note of %d bytes for a source", transport.ErrProtocol, len(note))
}

// Stop implements session.Carrier.
func (d *directSource) Stop() {}

// Release implements session.Carrier.
func (d *directSource) Release() {
	// Errors here would be of descriptors and mappings that are ours alone, and
	// there is nobody left to tell.
	_ = d.peer.Close()
	d.watch.Wait()
	_ = d.slab.close()
}
