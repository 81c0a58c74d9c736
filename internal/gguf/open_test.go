package gguf

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What stands in a model file's place is refused, not waited for.
func TestOpenWaitsForNoFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := Open(path); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a FIFO opens as %v with %v", f, err)
	}
}
