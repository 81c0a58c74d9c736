package ledger

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// recoverTail finds the end of the chain and moves a half line behind it, which a
// crash in mid-write leaves, to a file of its own: nothing is thrown away. A whole
// line that breaks the chain is no crash's work: with it the ledger does not open.
// Only the last segments are read; Verify reads all.
func recoverTail(dir string) (position, []Entry, error) {
	segments, err := list(dir)
	if err != nil {
		return position{}, nil, err
	}
	var notes []Entry
	for i := len(segments) - 1; i >= 0; i-- {
		path := segmentPath(dir, segments[i])
		s, bad, err := scan(path, segments[i])
		if err != nil {
			return position{}, nil, err
		}
		if bad != nil && (!errors.Is(bad, errTorn) || len(notes) > 0 && s.lines > 0) {
			// Behind a segment with a torn end no other one is begun.
			return position{}, nil, &tampered{&BadEntry{path, s.lines + 1, bad}}
		}
		if bad != nil {
			note, err := cutTail(path, s.bytes, bad)
			if err != nil {
				return position{}, nil, err
			}
			notes = append(notes, note)
		}
		if s.lines > 0 { // otherwise the segment never began
			return s.at, notes, nil
		}
	}
	return position{}, notes, nil
}

// tampered is a chain that no crash can have broken.
type tampered struct{ bad *BadEntry }

func (t *tampered) Error() string {
	return fmt.Sprintf("%v: the chain is broken by a line that is whole, which a crash does not do: it was tampered with; keep the folder, and give another one to go on", t.bad)
}

func (t *tampered) Unwrap() error { return t.bad }

// scan reads a segment up to the first bad line.
func scan(path string, number uint64) (s *scanner, bad, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open ledger: %w", err)
	}
	defer func() { _ = f.Close() }()
	s = &scanner{r: bufio.NewReaderSize(f, 1<<16)}
	_, bad = s.header(number)
	for bad == nil {
		_, bad = s.entry()
	}
	if errors.Is(bad, io.EOF) {
		return s, nil, nil
	}
	return s, bad, nil
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
