package ledger

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVisitSaysWhereEntriesStand(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		l := open(t, Config{Dir: dir})
		appendAll(t, l, sample(1), sample(2))
		closed(t, l)
	}
	var got []Place
	report, err := Visit(dir, func(e Entry, p Place) bool {
		if e.X.Sequence != uint64(len(got)%2+1) {
			t.Errorf("entry %d is of transfer %d", len(got), e.X.Sequence)
		}
		got = append(got, p)
		return true
	})
	want := []Place{{segmentPath(dir, 1), 2}, {segmentPath(dir, 1), 3}, {segmentPath(dir, 2), 2}, {segmentPath(dir, 2), 3}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("visit ends with %v and the places differ (-want +got):\n%s", err, diff)
	}
	verified, err := Verify(dir)
	if diff := cmp.Diff(verified, report); err != nil || diff != "" {
		t.Errorf("verify ends with %v and the reports differ (-verify +visit):\n%s", err, diff)
	}
	if n, err := Bytes(dir); err != nil || n == 0 {
		t.Errorf("the segments have %d bytes, error %v", n, err)
	}
}

// Half a line is no finding at the end of the last segment, and one anywhere else.
func TestVisitTellsATornEndFromABrokenChain(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		l := open(t, Config{Dir: dir})
		appendAll(t, l, sample(1), sample(2))
		closed(t, l)
	}
	for segment, torn := range map[uint64]bool{1: false, 2: true} {
		path := segmentPath(dir, segment)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range []int{1, 20, len(whole) - 10} {
			if err := os.WriteFile(path, whole[:len(whole)-cut], 0o600); err != nil {
				t.Fatal(err)
			}
			report, err := Visit(dir, func(Entry, Place) bool { return true })
			if report.Torn != torn || (err == nil) != torn {
				t.Errorf("segment %d without its last %d bytes: torn is %v, error %v", segment, cut, report.Torn, err)
			}
		}
		edited := bytes.Clone(whole)
		edited[len(edited)-70] ^= 1
		if err := os.WriteFile(path, edited, 0o600); err != nil {
			t.Fatal(err)
		}
		if report, err := Visit(dir, func(Entry, Place) bool { return true }); err == nil || report.Torn {
			t.Errorf("segment %d with a changed byte at its end passes, torn is %v", segment, report.Torn)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHeadIsHeldUntilItIsCutOff(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	appendAll(t, l, sample(1))
	closed(t, l)
	before, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	l = open(t, Config{Dir: dir})
	appendAll(t, l, sample(2))
	closed(t, l)
	head, err := ParseHash(before.Head.String())
	if err != nil || head != before.Head {
		t.Fatalf("the head %v is read as %v, error %v", before.Head, head, err)
	}
	after, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []Hash{before.Head, after.Head} {
		if held, err := Holds(dir, h); !held || err != nil {
			t.Errorf("the head %v is not held, error %v", h, err)
		}
	}
	if err := os.Remove(segmentPath(dir, 2)); err != nil {
		t.Fatal(err)
	}
	if held, err := Holds(dir, after.Head); held || err != nil {
		t.Errorf("a head that was cut off is held, error %v", err)
	}
}

func TestFolders(t *testing.T) {
	root := t.TempDir()
	if got, err := Folders(root); err != nil || len(got) != 0 {
		t.Errorf("an empty folder has the ledgers %v, error %v", got, err)
	}
	var want []string
	for _, node := range []string{"d0", "p0"} {
		dir := filepath.Join(root, node)
		want = append(want, dir)
		closed(t, open(t, Config{Dir: dir}))
		if got, err := Folders(dir); err != nil || !cmp.Equal(got, []string{dir}) {
			t.Errorf("the ledger %s is found as %v, error %v", dir, got, err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := Folders(root); err != nil || !cmp.Equal(got, want) {
		t.Errorf("the ledgers are %v, want %v, error %v", got, want, err)
	}
	if _, err := Folders(filepath.Join(root, "missing")); err == nil {
		t.Error("a folder that is not there is listed")
	}
}
