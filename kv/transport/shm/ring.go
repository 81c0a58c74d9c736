package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

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

// offerMagic begins the offer of a ring: "BKR1", pages 4, stride 8, little-endian.
const (
	offerMagic uint32 = 0x31524b42
	offerBytes        = 16
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
	fd, err := unix.MemfdCreate("bulkhead-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a ring: %w", err)
	}
	r := &ring{fd: fd, pages: pages, stride: stride, frame: layout.FrameBytes()}
	if err := unix.Ftruncate(fd, int64(pages*stride)); err != nil {
		return nil, errors.Join(fmt.Errorf("make a ring of %d bytes: %w", pages*stride, err), r.close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, ringSeals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal a ring: %w", err), r.close())
	}
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
	offer := binary.LittleEndian.AppendUint32(nil, offerMagic)
	offer = binary.LittleEndian.AppendUint32(offer, uint32(r.pages))
	offer = binary.LittleEndian.AppendUint64(offer, uint64(r.stride))
	n, _, err := conn.WriteMsgUnix(offer, unix.UnixRights(r.fd), nil)
	if err != nil || n != len(offer) {
		return fmt.Errorf("hand a ring over, %d of %d bytes: %w", n, len(offer), err)
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

// offered is a ring as the target describes it, not yet believed.
type offered struct {
	fd     int
	pages  uint32
	stride uint64
}

// receive takes a ring's descriptor off the connection, and no byte more than
// belongs to it.
func receive(ctx context.Context, conn *net.UnixConn) (*offered, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return nil, fmt.Errorf("take a ring: %w", err)
		}
	}
	// A context that is cancelled ends the wait at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var offer [offerBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, rightsBytes, flags, _, err := conn.ReadMsgUnix(offer[:], rights)
	if err != nil {
		return nil, fmt.Errorf("take a ring: %w", err)
	}
	fds, err := descriptors(rights[:rightsBytes])
	if err != nil {
		return nil, err
	}
	o := &offered{fd: -1, pages: binary.LittleEndian.Uint32(offer[4:]), stride: binary.LittleEndian.Uint64(offer[8:])}
	if len(fds) == 1 {
		o.fd = fds[0]
	}
	if n != offerBytes || binary.LittleEndian.Uint32(offer[:]) != offerMagic || len(fds) != 1 || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		return nil, errors.Join(fmt.Errorf("%w: no ring but %d bytes and %d descriptors", transport.ErrProtocol, n, len(fds)), closeAll(fds))
	}
	return o, nil
}

func descriptors(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("%w: control data of %d bytes: %w", transport.ErrProtocol, len(rights), err)
	}
	var fds []int
	for i := range messages {
		// Any other kind of message carries no descriptor and doesn't count.
		if some, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds, nil
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

func (o *offered) close() error { return unix.Close(o.fd) }

// open maps the ring to write to, if it is what a target of that layout offers and
// nobody can change its size.
func (o *offered) open(layout kv.Layout) (*ring, error) {
	r := &ring{fd: o.fd, pages: int(o.pages), stride: layout.StrideBytes(), frame: layout.FrameBytes()}
	if err := o.check(layout); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if err := r.mapIn(unix.PROT_READ | unix.PROT_WRITE); err != nil {
		return nil, errors.Join(err, r.close())
	}
	fd := r.fd
	r.fd = -1
	return r, unix.Close(fd)
}

func (o *offered) check(layout kv.Layout) error {
	if want := uint64(layout.StrideBytes()); o.stride != want || o.pages < ringPagesMin || o.pages > ringPagesMax {
		return fmt.Errorf("%w: a ring of %d pages of %d bytes, must be %d to %d of %d", transport.ErrProtocol, o.pages, o.stride, ringPagesMin, ringPagesMax, want)
	}
	size := uint64(o.pages) * o.stride
	if size > ringBytesMax {
		return fmt.Errorf("%w: a ring of %d bytes, at most %d are allowed", transport.ErrProtocol, size, int64(ringBytesMax))
	}
	seals, err := unix.FcntlInt(uintptr(o.fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&ringSeals != ringSeals {
		return fmt.Errorf("%w: a ring with seals %#x, must have %#x", transport.ErrProtocol, seals, ringSeals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(o.fd, &stat); err != nil || uint64(stat.Size) != size {
		return fmt.Errorf("%w: a ring of %d bytes is announced and has %d", transport.ErrProtocol, size, stat.Size)
	}
	return nil
}
