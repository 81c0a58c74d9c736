package ledger

import (
	"errors"
	"fmt"
	"os"
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
// does, until visit says no. A half line at the very end, which a writer that was
// killed leaves and one that is at work is about to finish, is no error here: the
// report says so.
func Visit(dir string, visit func(Entry, Place) bool) (Report, error) {
	var r Report
	segment, lines := uint64(0), 0
	err := walk(dir, func(h *header, l *line, head Hash) bool {
		if l == nil {
			segment, lines = h.Segment, 1
			r.note(nil, head)
			return true
		}
		lines++
		r.note(l, head)
		return visit(l.entry(h), Place{segmentPath(dir, segment), lines})
	})
	var bad *BadEntry
	if errors.As(err, &bad) && errors.Is(err, errTorn) && isLast(dir, bad.Path) {
		r.Torn, err = true, nil
	}
	return r, err
}

func isLast(dir, path string) bool {
	segments, err := list(dir)
	return err == nil && len(segments) > 0 && segmentPath(dir, segments[len(segments)-1]) == path
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
