package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// errTorn is a line that ends before its end.
var errTorn = errors.New("line is torn")

// Place is where an entry stands.
type Place struct {
	Path string // of the segment
	Line int    // 1 is the segment's header
}

// String is the place as compilers write it.
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.Path, p.Line) }

// Visit gives all entries in dir in order with their places, checked as Verify
// does, until visit says no. A half line at the very end of the newest segment, which a
// writer that was killed leaves and one that is at work is about to finish, is no error
// here: the report says so.
func Visit(dir string, visit func(Entry, Place) bool) (Report, error) {
	var r Report
	var at Place
	err := walk(dir, func(h *header, l *line, head Hash) bool {
		if l == nil {
			at = Place{segmentPath(dir, h.Segment), 1}
			r.note(nil, head)
			return true
		}
		at.Line++
		r.note(l, head)
		return visit(l.entry(h), at)
	})
	if bad := tornEnd(dir, err); bad != nil {
		r.Torn, r.Headless, err = true, bad.Line == 1, nil
	}
	return r, err
}

// tornEnd is the half line at the end of the newest segment, if that is the error.
func tornEnd(dir string, err error) *BadEntry {
	var bad *BadEntry
	if errors.As(err, &bad) && errors.Is(err, errTorn) && isLast(dir, bad.Path) {
		return bad
	}
	return nil
}

func isLast(dir, path string) bool {
	segments, err := list(dir)
	return err == nil && len(segments) > 0 && segmentPath(dir, segments[len(segments)-1]) == path
}

// Holds reports whether a line in dir ends with this hash: a head that was kept
// elsewhere is held as long as nothing before it was changed or cut off. A half line at
// the end holds nothing.
func Holds(dir string, head Hash) (held bool, err error) {
	err = walk(dir, func(_ *header, _ *line, h Hash) bool {
		held = h == head
		return !held
	})
	if tornEnd(dir, err) != nil {
		err = nil
	}
	return held, err
}

// ParseHash reads what Hash.String writes.
func ParseHash(s string) (Hash, error) { return parseHash([]byte(s)) }

// Folders lists the ledgers at path: the folder itself if it is one, otherwise the
// folders in it that are, by name. A folder that a writer has locked is one, even if
// its segments are gone.
func Folders(path string) ([]string, error) {
	is, err := isLedger(path)
	switch {
	case err != nil:
		return nil, err
	case is:
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("list ledgers: %w", err)
	}
	var folders []string
	for _, e := range entries {
		dir := filepath.Join(path, e.Name())
		if !e.IsDir() {
			continue
		}
		is, err := isLedger(dir)
		if err != nil {
			return nil, err
		}
		if is {
			folders = append(folders, dir)
		}
	}
	return folders, nil
}

func isLedger(dir string) (bool, error) {
	segments, err := list(dir)
	if err != nil || len(segments) > 0 {
		return err == nil, err
	}
	_, err = os.Lstat(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Bytes is the size of all segments in dir; 0 if there are none.
func Bytes(dir string) (n int64, err error) {
	segments, err := list(dir)
	for _, s := range segments {
		info, err := os.Stat(segmentPath(dir, s))
		if err != nil {
			return n, fmt.Errorf("list ledger: %w", err)
		}
		n += info.Size()
	}
	return n, err
}
