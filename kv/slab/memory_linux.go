package slab

import (
	"fmt"
	"os"

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

// allocateShared maps a memory file of n zero bytes, sealed so that it can neither
// shrink under a reader nor grow.
func allocateShared(n int) ([]byte, *os.File, error) {
	fd, err := unix.MemfdCreate("bulkhead-kv", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "bulkhead-kv")
	bytes, err := mapFile(fd, n)
	if err != nil {
		return nil, nil, fmt.Errorf("memory file: %w", closing(err, file))
	}
	return bytes, file, nil
}

func mapFile(fd, n int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, err
	}
	bytes, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE)
	return bytes, nil
}

func release(bytes []byte, file *os.File) error {
	var err error
	if bytes != nil {
		err = unix.Munmap(bytes)
	}
	return closing(err, file)
}

// closing closes file, if there is one, and gives the first error.
func closing(err error, file *os.File) error {
	if file == nil {
		return err
	}
	if closeErr := file.Close(); err == nil {
		return closeErr
	}
	return err
}
