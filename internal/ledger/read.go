package ledger

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/regular"
)

const (
	segmentSuffix = ".ledger"
	tornSuffix    = ".torn"
)

// BadEntry says where a chain breaks.
type BadEntry struct {
	Path string // of the segment
	Line int    // 1 is the segment's header
	Err  error
}

// Error names the place and the reason.
func (b *BadEntry) Error() string {
	return fmt.Sprintf("ledger %s line %d: %v", b.Path, b.Line, b.Err)
}

// Unwrap gives the reason.
func (b *BadEntry) Unwrap() error { return b.Err }

// Report is what Verify found intact.
type Report struct {
	Segments int
	Entries  int
	First    uint64 // sequence of the first entry; 0 if there is none
	Last     uint64 // sequence of the last entry; 0 if there is none
	Head     Hash   // of the last line: kept elsewhere, it shows later that nothing was cut off
	Torn     bool   // of Visit: half a line stands at the end
	Headless bool   // of Visit: that half line is the newest segment's header, or the segment is empty
}

// Verify checks the whole chain in dir. At the first bad entry it stops and
// returns a *BadEntry; the report is of what stands before it. Missing segments
// at the beginning are retention, in between they are an error. A chain that was
// cut at its end is intact in itself: compare Head or Last with a copy kept
// elsewhere. While a process writes, the last line may be half there: an error at
// the end of the last segment is then no finding.
func Verify(dir string) (Report, error) {
	var r Report
	err := walk(dir, func(_ *header, l *line, head Hash) bool {
		r.note(l, head)
		return true
	})
	return r, err
}

// note counts a line; l is nil for a segment's header.
func (r *Report) note(l *line, head Hash) {
	r.Head = head
	if l == nil {
		r.Segments++
		return
	}
	if r.Entries == 0 {
		r.First = l.Sequence
	}
	r.Entries++
	r.Last = l.Sequence
}

// Read gives all entries in dir in order, checked as Verify does. The error, a
// *BadEntry for a broken chain, comes last and once.
func Read(dir string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		stopped := false
		err := walk(dir, func(h *header, l *line, _ Hash) bool {
			stopped = l != nil && !yield(l.entry(h), nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(Entry{}, err)
		}
	}
}

// position is a place in the chain, behind a line.
type position struct {
	segment  uint64
	sequence uint64
	head     Hash
	begun    bool // false: nothing was read yet, anything may come
}

// walk visits all lines of all segments; l is nil for a segment's header.
func walk(dir string, visit func(h *header, l *line, head Hash) bool) error {
	segments, err := list(dir)
	if err != nil {
		return err
	}
	var at position
	for _, n := range segments {
		more, err := walkSegment(dir, n, &at, visit)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func walkSegment(dir string, n uint64, at *position, visit func(*header, *line, Hash) bool) (more bool, err error) {
	path := segmentPath(dir, n)
	f, err := openSegment(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	s := &scanner{r: bufio.NewReaderSize(f, 1<<16), at: *at}
	h, err := s.header(n)
	if err == nil {
		*at = s.at
		if !visit(h, nil, s.at.head) {
			return false, nil
		}
	}
	for err == nil {
		var l *line
		if l, err = s.entry(); err == nil {
			*at = s.at
			if !visit(h, l, s.at.head) {
				return false, nil
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, &BadEntry{path, s.lines + 1, err}
}

// openSegment opens a segment to be read. What is no regular file is a *BadEntry: a
// FIFO would be waited for and a device might never end.
func openSegment(path string) (*os.File, error) {
	f, _, err := regular.Open(path)
	var not *regular.NotRegular
	if errors.As(err, &not) {
		return nil, &BadEntry{path, 1, fmt.Errorf("it is no regular file, its mode is %v", not.Mode)}
	}
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return f, nil
}

// scanner reads one segment.
type scanner struct {
	r     *bufio.Reader
	at    position // behind the last good line
	lines int      // good lines
	bytes int64    // of good lines
	buf   []byte   // of raw
}

// header reads the first line. It must join on to the position, if that has begun.
func (s *scanner) header(segment uint64) (*header, error) {
	raw, err := s.raw()
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: segment is empty", errTorn)
	}
	if err != nil {
		return nil, err
	}
	h := new(header)
	// The previous hash stands in the header itself; the chain is checked with it.
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	previous, err := parseHash([]byte(h.Previous))
	if err != nil {
		return nil, fmt.Errorf("header: previous %w", err)
	}
	_, next, err := unseal(previous, raw)
	switch {
	case err != nil:
		return nil, err
	case h.Version != formatVersion:
		return nil, fmt.Errorf("header: version %d, must be %d", h.Version, formatVersion)
	case h.Segment != segment:
		return nil, fmt.Errorf("header: is of segment %d, the file of %d", h.Segment, segment)
	case s.at.begun && segment != s.at.segment+1:
		return nil, fmt.Errorf("segment %d follows segment %d", segment, s.at.segment)
	case s.at.begun && previous != s.at.head:
		return nil, fmt.Errorf("header: previous hash is %v, the last segment ends with %v", previous, s.at.head)
	case s.at.begun && h.Sequence != s.at.sequence:
		return nil, fmt.Errorf("header: last sequence is %d, the last segment ends with %d", h.Sequence, s.at.sequence)
	}
	s.at = position{segment, h.Sequence, next, true}
	s.good(raw)
	return h, nil
}

// entry reads the next line; io.EOF at a clean end.
func (s *scanner) entry() (*line, error) {
	raw, err := s.raw()
	if err != nil {
		return nil, err
	}
	text, next, err := unseal(s.at.head, raw)
	if err != nil {
		return nil, err
	}
	l, err := parseLine(text)
	if err != nil {
		return nil, err
	}
	if l.Sequence != s.at.sequence+1 {
		return nil, fmt.Errorf("sequence is %d, must be %d", l.Sequence, s.at.sequence+1)
	}
	s.at.sequence, s.at.head = l.Sequence, next
	s.good(raw)
	return l, nil
}

func (s *scanner) good(raw []byte) {
	s.lines++
	s.bytes += int64(len(raw))
}

// raw reads a line with its newline, of bounded length. It is good until the next call.
func (s *scanner) raw() ([]byte, error) {
	raw := s.buf[:0]
	defer func() { s.buf = raw }()
	for {
		part, err := s.r.ReadSlice('\n')
		raw = append(raw, part...)
		switch {
		case len(raw) > lineBytesMax:
			return nil, fmt.Errorf("line is longer than %d bytes", lineBytesMax)
		case err == nil:
			return raw, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(raw) > 0:
			return nil, fmt.Errorf("%w: it ends after %d bytes without a newline", errTorn, len(raw))
		default:
			return nil, err
		}
	}
}

func segmentPath(dir string, n uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%012d%s", n, segmentSuffix))
}

// list is the numbers of the segments in dir, rising.
func list(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list ledger: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(name, 10, 64)
		if err != nil || e.Name() != filepath.Base(segmentPath(dir, n)) {
			return nil, fmt.Errorf("list ledger: %s is not a segment's name", filepath.Join(dir, e.Name()))
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}
