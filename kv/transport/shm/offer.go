package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// An offer is the first thing a target says: magic 4, pages 4, stride 8,
// little-endian, with the descriptors of the memory that is meant.
const (
	ringMagic  uint32 = 0x31524b42 // "BKR1": a ring
	slabMagic  uint32 = 0x31534b42 // "BKS1": a slab, and its words
	offerBytes        = 16
	offerFiles        = 2 // at most
)

func sendOffer(conn *net.UnixConn, magic uint32, pages, stride int, fds ...int) error {
	offer := binary.LittleEndian.AppendUint32(nil, magic)
	offer = binary.LittleEndian.AppendUint32(offer, uint32(pages))
	offer = binary.LittleEndian.AppendUint64(offer, uint64(stride))
	n, _, err := conn.WriteMsgUnix(offer, unix.UnixRights(fds...), nil)
	if err != nil || n != len(offer) {
		return fmt.Errorf("hand memory over, %d of %d bytes: %w", n, len(offer), err)
	}
	return nil
}

// offered is memory as the target describes it, not yet believed.
type offered struct {
	magic  uint32
	pages  uint32
	stride uint64
	fds    []int // one of a ring, two of a slab
}

// receive takes an offer off the connection, and no byte more than belongs to it.
func receive(ctx context.Context, conn *net.UnixConn) (*offered, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return nil, fmt.Errorf("take an offer: %w", err)
		}
	}
	// A context that is cancelled ends the wait at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var offer [offerBytes]byte
	rights := make([]byte, unix.CmsgSpace(4*offerFiles))
	n, rightsBytes, flags, _, err := conn.ReadMsgUnix(offer[:], rights)
	if err != nil {
		return nil, fmt.Errorf("take an offer: %w", err)
	}
	fds, err := descriptors(rights[:rightsBytes])
	if err != nil {
		return nil, err
	}
	o := &offered{magic: binary.LittleEndian.Uint32(offer[:]), pages: binary.LittleEndian.Uint32(offer[4:]), stride: binary.LittleEndian.Uint64(offer[8:]), fds: fds}
	files := map[uint32]int{ringMagic: 1, slabMagic: 2}[o.magic]
	if n != offerBytes || files == 0 || len(fds) != files || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		return nil, errors.Join(fmt.Errorf("%w: no offer but %d bytes of kind %08x and %d descriptors", transport.ErrProtocol, n, o.magic, len(fds)), o.close())
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

func (o *offered) close() error {
	var errs []error
	for _, fd := range o.fds {
		errs = append(errs, unix.Close(fd))
	}
	o.fds = nil
	return errors.Join(errs...)
}

// checkFile refuses a file whose size isn't as announced or could change.
func checkFile(fd int, what string, size uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&ringSeals != ringSeals {
		return fmt.Errorf("%w: %s with seals %#x, must have %#x", transport.ErrProtocol, what, seals, ringSeals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || uint64(stat.Size) != size {
		return fmt.Errorf("%w: %s of %d bytes is announced and has %d", transport.ErrProtocol, what, size, stat.Size)
	}
	return nil
}
