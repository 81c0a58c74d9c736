package ledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// chained makes a ledger of three starts, a segment each, with 3 entries.
func chained(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for range 3 {
		l := open(t, Config{Dir: dir})
		appendAll(t, l, sample(1), sample(2), sample(3))
		closed(t, l)
	}
	return dir
}

// change replaces a segment's bytes.
func change(t *testing.T, path string, to func(whole []byte) []byte) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, to(bytes.Clone(whole)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replaceBy puts something that is no file in a segment's place.
func replaceBy(t *testing.T, path string, put func(string) error) {
	t.Helper()
	if err := errors.Join(os.Remove(path), put(path)); err != nil {
		t.Fatal(err)
	}
}

func fifo(path string) error   { return unix.Mkfifo(path, 0o600) }
func folder(path string) error { return os.Mkdir(path, 0o700) }

// A node does not chain new entries to a past that is broken, whatever part of it is.
func TestABrokenPastRefusesToOpen(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, path string) // segment 2 of 3
		want  string
	}{
		{"a changed byte", func(t *testing.T, path string) {
			change(t, path, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}, "000000000002.ledger line 3: hash is "},
		{"a torn end", func(t *testing.T, path string) {
			change(t, path, func(b []byte) []byte { return b[:len(b)-9] })
		}, "000000000002.ledger line 4: line is torn"},
		{"a line less", func(t *testing.T, path string) {
			change(t, path, func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] })
		}, "000000000003.ledger line 1: header: previous hash is "},
		{"a torn header", func(t *testing.T, path string) {
			change(t, path, func(b []byte) []byte { return b[:9] })
		}, "000000000002.ledger line 1: line is torn"},
		{"nothing in it", func(t *testing.T, path string) {
			change(t, path, func([]byte) []byte { return nil })
		}, "000000000002.ledger line 1: line is torn: segment is empty"},
		{"missing", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, "000000000003.ledger line 1: segment 3 follows segment 1"},
		{"a FIFO", func(t *testing.T, path string) { replaceBy(t, path, fifo) }, "000000000002.ledger line 1: it is no regular file, its mode is p"},
		{"a folder", func(t *testing.T, path string) { replaceBy(t, path, folder) }, "000000000002.ledger line 1: it is no regular file, its mode is d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := chained(t)
			tc.spoil(t, segmentPath(dir, 2))
			before := listing(t, dir)
			l, err := Open(Config{Dir: dir, Node: "d1", Epoch: 2})
			if err == nil {
				closed(t, l)
				t.Fatal("the ledger opens")
			}
			for _, want := range []string{tc.want, "bulkhead ledger verify " + dir, "go on in another folder"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if !errors.As(err, new(*BadEntry)) {
				t.Errorf("the error is no *BadEntry: %v", err)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("the folder was changed from %s to %s", before, after)
			}
			if _, err := Verify(dir); !errors.As(err, new(*BadEntry)) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("verify says %v, want %q", err, tc.want)
			}
		})
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Segments of which the ends are read lead to where reading them whole does, and with a
// broken end or neighbour they are refused as those.
func TestEndsOfSegmentsAreEnough(t *testing.T) {
	dir := chained(t)
	closed(t, open(t, Config{Dir: dir})) // a header alone
	var at position
	for n := uint64(1); n <= 4; n++ {
		whole, bad, err := scan(segmentPath(dir, n), n, at)
		if bad != nil || err != nil {
			t.Fatal(bad, err)
		}
		ends, bad, err := scanEnds(segmentPath(dir, n), n, at)
		if bad != nil || err != nil || ends.at != whole.at {
			t.Errorf("segment %d: its ends lead to %+v, its lines to %+v; %v, %v", n, ends.at, whole.at, bad, err)
		}
		change(t, segmentPath(dir, n), func(b []byte) []byte { return b[:len(b)-3] })
		if _, bad, err := scanEnds(segmentPath(dir, n), n, at); !errors.Is(bad, errTorn) || err != nil {
			t.Errorf("segment %d with a torn end: %v, %v", n, bad, err)
		}
		at = whole.at
	}
	if _, bad, _ := scanEnds(segmentPath(dir, 1), 1, position{segment: 3, begun: true}); bad == nil {
		t.Error("a segment that does not follow is taken")
	}
}

// A segment without its header is told from one with half a last line, and what is no
// file is not opened.
func TestVisitSaysWhatIsMissing(t *testing.T) {
	for _, tc := range []struct {
		name     string
		spoil    func(t *testing.T, path string)
		torn     bool
		headless bool
		broken   bool
		segments int
	}{
		{"whole", func(*testing.T, string) {}, false, false, false, 3},
		{"a torn end", func(t *testing.T, path string) { change(t, path, func(b []byte) []byte { return b[:len(b)-9] }) }, true, false, false, 3},
		{"half a header", func(t *testing.T, path string) { change(t, path, func(b []byte) []byte { return b[:9] }) }, true, true, false, 2},
		{"nothing in it", func(t *testing.T, path string) { change(t, path, func([]byte) []byte { return nil }) }, true, true, false, 2},
		{"a FIFO", func(t *testing.T, path string) { replaceBy(t, path, fifo) }, false, false, true, 2},
		{"a folder", func(t *testing.T, path string) { replaceBy(t, path, folder) }, false, false, true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := chained(t)
			tc.spoil(t, segmentPath(dir, 3))
			r, err := Visit(dir, func(Entry, Place) bool { return true })
			if r.Torn != tc.torn || r.Headless != tc.headless || r.Segments != tc.segments || errors.As(err, new(*BadEntry)) != tc.broken || (err != nil) != tc.broken {
				t.Errorf("torn %v, headless %v, %d segments, error %v; want %v, %v, %d and an error: %v",
					r.Torn, r.Headless, r.Segments, err, tc.torn, tc.headless, tc.segments, tc.broken)
			}
			if held, err := Holds(dir, Hash{1}); held || (err != nil) != tc.broken {
				t.Errorf("an unknown head is held: %v, error %v", held, err)
			}
		})
	}
}

// A ledger whose segments are gone is still one.
func TestAnEmptiedLedgerIsFound(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "d0")
	closed(t, open(t, Config{Dir: dir}))
	if err := os.Remove(segmentPath(dir, 1)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{root, dir} {
		if got, err := Folders(path); err != nil || len(got) != 1 || got[0] != dir {
			t.Errorf("the ledgers at %s are %v, want %s; error %v", path, got, dir, err)
		}
	}
	if r, err := Visit(dir, nil); err != nil || r.Segments != 0 {
		t.Errorf("it has %d segments, error %v", r.Segments, err)
	}
}
