package regular

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("text"), 0o600), os.Symlink("file", at("link")), unix.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("folder"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link"} {
		f, info, err := Open(at(name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if text, err := io.ReadAll(f); string(text) != "text" || info.Size() != 4 || err != nil {
			t.Errorf("%s reads as %q of %d bytes, %v", name, text, info.Size(), err)
		}
		_ = f.Close()
	}
	for _, path := range []string{at("fifo"), at("folder"), "/dev/zero"} {
		var not *NotRegular
		if _, _, err := Open(path); !errors.As(err, &not) || not.Path != path {
			t.Errorf("%s opens with %v, want a *NotRegular", path, err)
		}
	}
	if _, _, err := Open(at("absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there opens with %v", err)
	}
}
