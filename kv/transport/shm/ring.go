package shm

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	// ringBytes is how large a ring is, pages permitting: well within the last
	// level of cache, where what the source has written is when the target reads it.
	ringBytes = 8 << 20
	// ringPagesMin lets source and target work at the same time however large the
	// pages are.
	ringPagesMin = 4
	ringPagesMax = 1024
	// ringBytesMax bounds what a target can make us map.
	ringBytesMax = 4 << 30
)

// ringSeals keep a ring's size as it is, so that no access to it can fault.
const ringSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// ring is memory for some pages, shared by two processes.
type ring struct {
	fd     int // -1 once nobody else needs it
	memory []byte
	pages  int
	stride int
	frame  int
}

// newRing makes the ring for pages of a layout, to read from.
func newRing(layout kv.Layout) (*ring, error) {
	stride := layout.StrideBytes()
	pages := min(ringPagesMax, max(ringPagesMin, ringBytes/stride))
	if stride > ringBytesMax/ringPagesMin {
		return nil, fmt.Errorf("shm: a ring of %d pages of %d bytes is over the limit of %d", ringPagesMin, stride, int64(ringBytesMax))
	}
	fd, err := sealedFile("bulkhead-ring", pages*stride)
	if err != nil {
		return nil, err
	}
	r := &ring{fd: fd, pages: pages, stride: stride, frame: layout.FrameBytes()}
	if err := r.mapIn(unix.PROT_READ); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *ring) mapIn(protection int) error {
	memory, err := unix.Mmap(r.fd, 0, r.pages*r.stride, protection, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map a ring of %d bytes: %w", r.pages*r.stride, err)
	}
	r.memory = memory
	return nil
}

// page is the place of the n-th page that goes through the ring.
func (r *ring) page(n uint64) []byte {
	at := int(n%uint64(r.pages)) * r.stride
	return r.memory[at : at+r.frame : at+r.frame]
}

// send hands the ring to the source and lets go of its descriptor.
func (r *ring) send(conn *net.UnixConn) error {
	if err := sendOffer(conn, ringMagic, r.pages, r.stride, r.fd); err != nil {
		return err
	}
	fd := r.fd
	r.fd = -1
	return unix.Close(fd)
}

func (r *ring) close() error {
	var errs []error
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
		r.fd = -1
	}
	if r.memory != nil {
		errs = append(errs, unix.Munmap(r.memory))
		r.memory = nil
	}
	return errors.Join(errs...)
}

// openRing maps the ring that was offered to write to, if it is what a target of
// that layout offers and nobody can change its size. It takes the descriptors.
func openRing(o *offered, layout kv.Layout) (*ring, error) {
	r := &ring{fd: -1, pages: int(o.pages), stride: layout.StrideBytes(), frame: layout.FrameBytes()}
	if err := o.checkRing(layout); err != nil {
		return nil, errors.Join(err, o.close())
	}
	r.fd = o.fds[0]
	err := r.mapIn(unix.PROT_READ | unix.PROT_WRITE)
	r.fd = -1
	if err = errors.Join(err, o.close()); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (o *offered) checkRing(layout kv.Layout) error {
	if want := uint64(layout.StrideBytes()); o.stride != want || o.pages < ringPagesMin || o.pages > ringPagesMax {
		return fmt.Errorf("%w: a ring of %d pages of %d bytes, must be %d to %d of %d", transport.ErrProtocol, o.pages, o.stride, ringPagesMin, ringPagesMax, want)
	}
	size := uint64(o.pages) * o.stride
	if size > ringBytesMax {
		return fmt.Errorf("%w: a ring of %d bytes, at most %d are allowed", transport.ErrProtocol, size, int64(ringBytesMax))
	}
	return checkFile(o.fds[0], "a ring", size)
}
