package slab

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// allocate maps n zero bytes that belong to this process alone: no descriptor leads
// to them, so none can be inherited or passed on. They become resident when they are
// first touched, in large pages where the system has them: a step reads a few
// kilobytes of each page of a sequence, which small pages would spread over as many
// entries of the processor's tables. A memory file would get small pages, as long as
// the system's setting for those is the default.
func allocate(n int) ([]byte, error) {
	bytes, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE) // a matter of speed: where there are none, small ones do
	return bytes, nil
}

func release(bytes []byte) error {
	if bytes == nil {
		return nil
	}
	return unix.Munmap(bytes)
}
