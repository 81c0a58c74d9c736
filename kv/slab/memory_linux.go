package slab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes a zeroed memory file of n bytes, sealed so that it can neither
// shrink under a reader nor grow, and maps it shared.
func allocate(n int) ([]byte, *os.File, error) {
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
	// Huge pages are a matter of speed: where the kernel has none, nothing changes.
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE)
	return bytes, nil
}

func release(bytes []byte, file *os.File) error {
	if bytes == nil {
		return nil
	}
	return closing(unix.Munmap(bytes), file)
}

// closing closes file and gives the first error.
func closing(err error, file *os.File) error {
	if closeErr := file.Close(); err == nil {
		return closeErr
	}
	return err
}
