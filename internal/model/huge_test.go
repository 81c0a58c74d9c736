package model

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A mapping can be given back while its pages are being made huge, and holds the
// file's bytes, at an address that large pages can have, before and after.
func TestMappingIsTheFileAtAHugeAddress(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 3*hugeBytes/16+100)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "test")
	defer file.Close()
	if _, err := file.Write(want); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []bool{false, true} {
		m, err := mapFile(fd, len(want))
		if err != nil {
			t.Fatal(err)
		}
		if wait {
			m.collapser.Wait()
		}
		if at := uintptr(unsafe.Pointer(&m.bytes[0])); at%hugeBytes != 0 {
			t.Errorf("mapped at %#x, want a multiple of %d", at, hugeBytes)
		}
		if !bytes.Equal(m.bytes, want) {
			t.Error("the mapping does not hold the file's bytes")
		}
		if err := m.close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := mapFile(-1, hugeBytes); err == nil {
		t.Error("mapped a file that is none")
	}
}
