package model

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// hugeBytes is the size and alignment of the large pages that one entry of a
	// processor's tables maps.
	hugeBytes = 2 << 20
	// collapseBytes is how much is made huge by one call, which can't be stopped.
	collapseBytes = 8 * hugeBytes
)

// mapping is memory at a multiple of hugeBytes, so that large pages can map it.
type mapping struct {
	bytes    []byte
	reserved []byte // the address space around it

	stop      atomic.Bool // collapsing ends soon
	collapser sync.WaitGroup
}

// mapFile maps a memory file for reading and has its pages made huge behind the
// caller's back: the system's own setting for memory files is mostly "never", but
// who asks for his own range is heard (Linux 6.1 on). Weights that every token
// streams through come a sixth faster then. Pages of other processes that map the
// file are the same ones.
func mapFile(fd, size int) (*mapping, error) {
	reserved, err := unix.Mmap(-1, 0, size+hugeBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", size+hugeBytes, err)
	}
	m := &mapping{reserved: reserved}
	start := unsafe.Pointer(unsafe.SliceData(reserved))
	aligned := unsafe.Add(start, -uintptr(start)&(hugeBytes-1))
	at, err := unix.MmapPtr(fd, 0, aligned, uintptr(size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, closing(err, m))
	}
	m.bytes = unsafe.Slice((*byte)(at), size)
	m.collapser.Go(m.collapse)
	return m, nil
}

// collapse is a matter of speed: where it fails, small pages do.
func (m *mapping) collapse() {
	for at := 0; at < len(m.bytes)/hugeBytes*hugeBytes && !m.stop.Load(); at += collapseBytes {
		_ = unix.Madvise(m.bytes[at:min(at+collapseBytes, len(m.bytes)/hugeBytes*hugeBytes)], unix.MADV_COLLAPSE)
	}
}

// close gives the memory back, the file's and what was reserved around it.
func (m *mapping) close() error {
	m.stop.Store(true)
	m.collapser.Wait()
	return unix.Munmap(m.reserved)
}

// closing closes m and gives the first error.
func closing(err error, m *mapping) error {
	if closeErr := m.close(); err == nil {
		return closeErr
	}
	return err
}
