package ledger

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// wholeBytesMax is how much of the chain is read line by line when it is opened. Of
// segments before that the first and the last line are: a start takes seconds however
// long the ledger is. Verify reads all.
const wholeBytesMax = 1 << 30

// recoverTail finds the end of the chain and moves a half line behind it, which a
// crash in mid-write leaves, to a file of its own: nothing is thrown away. With
// anything else that breaks the chain the ledger does not open, and nothing is moved.
func recoverTail(dir string) (position, []Entry, error) {
	segments, err := list(dir)
	if err != nil {
		return position{}, nil, err
	}
	whole, err := wholeFrom(dir, segments)
	if err != nil {
		return position{}, nil, err
	}
	var at position
	var torn []tail
	for i, n := range segments {
		read := scan
		if i < whole {
			read = scanEnds
		}
		s, bad, err := read(segmentPath(dir, n), n, at)
		if entry := new(BadEntry); errors.As(err, &entry) {
			err = &brokenChain{entry, dir}
		}
		if err != nil {
			return position{}, nil, err
		}
		var t *tail
		if bad != nil {
			t = &tail{&BadEntry{segmentPath(dir, n), s.lines + 1, bad}, s.bytes}
		}
		if broken := breaks(torn, t); broken != nil {
			return position{}, nil, &brokenChain{broken, dir}
		}
		if t != nil {
			torn = append(torn, *t)
		}
		if s.lines > 0 {
			at = s.at
		}
	}
	var notes []Entry
	for _, t := range torn {
		note, err := cutTail(t.bad.Path, t.keep, t.bad.Err)
		if err != nil {
			return position{}, nil, err
		}
		notes = append(notes, note)
	}
	return at, notes, nil
}

// breaks gives the place where the chain is broken, if a crash can't leave the segments
// so: behind a torn line no other one is begun, and a torn header is behind whole
// segments only. next is nil for a whole segment.
func breaks(torn []tail, next *tail) *BadEntry {
	crash := next == nil || errors.Is(next.bad.Err, errTorn)
	switch {
	case len(torn) > 0 && (next == nil || !crash || next.keep > 0 || torn[0].keep > 0):
		return torn[0].bad
	case !crash:
		return next.bad
	}
	return nil
}

// tail is what stands behind the good lines of a segment.
type tail struct {
	bad  *BadEntry
	keep int64 // bytes of good lines; 0: the segment never began
}

// wholeFrom is the index of the first segment that is read line by line.
func wholeFrom(dir string, segments []uint64) (int, error) {
	sum := int64(0)
	for i := len(segments) - 1; i >= 0; i-- {
		info, err := os.Stat(segmentPath(dir, segments[i]))
		if err != nil {
			return 0, fmt.Errorf("open ledger: %w", err)
		}
		if sum += info.Size(); sum > wholeBytesMax && i < len(segments)-1 {
			return i + 1, nil
		}
	}
	return 0, nil
}

// brokenChain is a chain that no crash can have broken so.
type brokenChain struct {
	bad *BadEntry
	dir string
}

func (b *brokenChain) Error() string {
	return fmt.Sprintf("%v: a crash does not break the chain there, so it was tampered with or the disk has lost something; nothing is added to it: "+
		"look with \"bulkhead ledger verify %s\", and go on in another folder, or move this one away and keep it", b.bad, b.dir)
}

func (b *brokenChain) Unwrap() error { return b.bad }

// scan reads a segment that follows a position, up to the first bad line.
func scan(path string, number uint64, at position) (s *scanner, bad, err error) {
	f, err := openSegment(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	s = &scanner{r: bufio.NewReaderSize(f, 1<<16), at: at}
	_, bad = s.header(number)
	for bad == nil {
		_, bad = s.entry()
	}
	if errors.Is(bad, io.EOF) {
		return s, nil, nil
	}
	return s, bad, nil
}

// scanEnds is scan, but of a segment that is good it reads the first and the last line
// only, and takes the hash of the last at its word: the next segment must agree.
func scanEnds(path string, number uint64, at position) (s *scanner, bad, err error) {
	f, err := openSegment(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	s = &scanner{r: bufio.NewReaderSize(f, 1<<16), at: at}
	if _, bad = s.header(number); bad == nil {
		bad = s.skipToEnd(f)
	}
	if bad != nil {
		return scan(path, number, at) // which counts the lines up to it
	}
	return s, nil, nil
}

// skipToEnd goes to behind the segment's last line.
func (s *scanner) skipToEnd(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	from := max(info.Size()-lineBytesMax, s.bytes)
	last := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(last, from); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(last) == 0 {
		return nil // the header is all there is
	}
	last = last[bytes.LastIndexByte(last[:len(last)-1], '\n')+1:]
	body, said, err := parts(last)
	if err != nil {
		return err
	}
	l, err := parseLine(append(body, '}'))
	if err != nil {
		return err
	}
	s.at.sequence, s.at.head = l.Sequence, said
	return nil
}

// cutTail moves the bytes of a segment from keep on into a file beside it.
func cutTail(path string, keep int64, why error) (Entry, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return Entry{}, fmt.Errorf("cut ledger's tail: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(keep, io.SeekStart); err != nil {
		return Entry{}, fmt.Errorf("cut ledger's tail: %w", err)
	}
	torn, err := os.CreateTemp(filepath.Dir(path), strings.TrimSuffix(filepath.Base(path), segmentSuffix)+"-*"+tornSuffix)
	if err != nil {
		return Entry{}, fmt.Errorf("cut ledger's tail: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(torn, sum), f)
	err = errors.Join(err, torn.Sync(), torn.Close())
	if err != nil {
		return Entry{}, fmt.Errorf("keep ledger's tail of %d bytes: %w", n, err)
	}
	if keep == 0 {
		err = os.Remove(path)
	} else {
		err = errors.Join(f.Truncate(keep), f.Sync())
	}
	if err = errors.Join(err, syncFolder(filepath.Dir(path))); err != nil {
		return Entry{}, fmt.Errorf("cut ledger's tail of %d bytes: %w", n, err)
	}
	detail := fmt.Sprintf("%d bytes behind byte %d of %s moved to %s: %v", n, keep, filepath.Base(path), filepath.Base(torn.Name()), why)
	return Entry{Kind: Note, Event: "torn", Output: sum.Sum(nil), Detail: detail[:min(len(detail), WordBytesMax)]}, nil
}
