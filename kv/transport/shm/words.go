package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// words are the memory through which the two ends of a direct link agree on who
// may write: the hazard word, then, a cache line further, one owner word a slot.
//
// The source enters a page by writing slot+1 to the hazard word, and only then
// looks whether the slot's owner word is the page's; it leaves by writing 0. The
// target takes a page back by clearing the owner word, and only then looks at the
// hazard word. Whoever comes second sees the other: either the source finds the
// page taken, or the target finds the source in it and waits.
type words struct {
	memory []byte
	slots  int
}

const wordsHead = 64

func wordsBytes(slots int) int { return wordsHead + 8*slots }

func (w *words) hazard() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&w.memory[0])) }

func (w *words) owner(slot kv.Slot) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.memory[wordsHead+8*int(slot)]))
}

// largeBit of an owner word says that the grant wouldn't stay in the cache.
const largeBit = 1

// ownerOf stands for a whole tag in an owner word. It is never 0, which is nobody,
// and leaves largeBit free.
func ownerOf(tag kv.Tag) uint64 {
	var header [kv.HeaderBytes]byte
	tag.Put(header[:])
	digest := kv.LeafDigest(header[:])
	return binary.LittleEndian.Uint64(digest[:])&^3 | 2
}

// sealedFile makes a memory file whose size can't change.
func sealedFile(name string, size int) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make %s: %w", name, err)
	}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, ringSeals)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("make %s of %d bytes: %w", name, size, err), unix.Close(fd))
	}
	return fd, nil
}
