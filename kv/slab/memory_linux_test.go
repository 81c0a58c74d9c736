package slab

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A peer that maps the file can neither shrink it under us nor make it grow.
func TestFileIsSealed(t *testing.T) {
	s, err := NewShared(layout, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if private := newSlab(t, 4); private.File() != nil {
		t.Error("a slab of this process alone has a file")
	}
	fd := int(s.File().Fd())
	for _, size := range []int64{0, int64(len(s.bytes)) + 4096} {
		if err := unix.Ftruncate(fd, size); err == nil {
			t.Errorf("the file took a size of %d bytes, has %d", size, len(s.bytes))
		}
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; seals != want {
		t.Errorf("the file has seals %#x, want %#x", seals, want)
	}
}
