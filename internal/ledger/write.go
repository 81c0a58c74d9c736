package ledger

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// batchBytesMax bounds one write.
const batchBytesMax = 1 << 20

// write is the writer goroutine: it gathers entries for a window, then writes
// and syncs them as one batch.
func (l *Ledger) write() {
	defer close(l.done)
	var batch []Entry
	for {
		quitting := l.gather()
		batch = l.take(batch[:0])
		for len(batch) > 0 {
			n, err := l.out.append(&l.config, batch)
			l.written(n, err)
			batch = batch[:copy(batch, batch[n:])]
			if err != nil && (quitting || l.isFinal() || !l.pause()) {
				return
			}
		}
		if quitting {
			return
		}
	}
}

// gather waits for the first entry and then for the window, or until somebody
// waits for the disk; true: the ledger is closing.
func (l *Ledger) gather() (quitting bool) {
	select {
	case <-l.quit:
		return true
	case <-l.hurry:
		return false
	case <-l.wake:
	}
	window := time.NewTimer(l.config.Window)
	defer window.Stop()
	select {
	case <-l.quit:
		return true
	case <-l.hurry:
	case <-window.C:
	}
	return false
}

// pause waits before another try; false: the ledger is closing.
func (l *Ledger) pause() bool {
	again := time.NewTimer(l.config.Retry)
	defer again.Stop()
	select {
	case <-l.quit:
		return false
	case <-again.C:
		return true
	}
}

// take empties the queue. Where entries found it full stands a note.
func (l *Ledger) take(into []Entry) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	into = append(into, l.queue...)
	clear(l.queue)
	l.queue = l.queue[:0]
	if l.lost > 0 {
		l.config.Log.Warn("ledger notes how many entries were lost", "dir", l.config.Dir, "entries", l.lost)
		into = append(into, lostNote(l.lost, time.Now()))
		l.appended++
		l.lost = 0
	}
	return into
}

// written records what reached the disk.
func (l *Ledger) written(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.err == nil {
		l.config.Log.Error("ledger can't write: admission stops", "dir", l.config.Dir, "err", err)
	}
	if err == nil && l.err != nil {
		l.config.Log.Info("ledger writes again", "dir", l.config.Dir)
	}
	l.synced += uint64(n)
	l.head, l.sequence = l.out.at.head, l.out.at.sequence
	l.err, l.final = err, errors.Is(err, errSync)
	close(l.moved)
	l.moved = make(chan struct{})
}

func (l *Ledger) isFinal() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.final
}

var errSync = errors.New("fsync failed")

// segment is the file that is being written.
type segment struct {
	file  *os.File
	at    position // behind the last line on disk
	bytes int64    // on disk
	buf   []byte
}

// newSegment begins the segment behind a position.
func newSegment(c *Config, at position) (*segment, error) {
	number := at.segment + 1
	h := header{Version: formatVersion, Segment: number, Node: c.Node, Epoch: hex64(c.Epoch), Sequence: at.sequence, Previous: at.head.String()}
	text, head, err := seal(nil, at.head, h)
	if err != nil {
		return nil, err
	}
	path := segmentPath(c.Dir, number)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin segment: %w", err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncFolder(c.Dir)
	}
	if err != nil {
		return nil, errors.Join(fault.New(fault.Unavailable, "begin segment %s: %w", path, err), f.Close(), os.Remove(path))
	}
	return &segment{file: f, at: position{number, at.sequence, head, true}, bytes: int64(len(text))}, nil
}

// append writes entries and syncs; n of them are on disk. A failed write leaves
// the file as it was.
func (s *segment) append(c *Config, entries []Entry) (n int, err error) {
	for n < len(entries) {
		if s.bytes >= c.SegmentBytes {
			if err := s.rotate(c); err != nil {
				return n, err
			}
		}
		m, err := s.batch(c, entries[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *segment) batch(c *Config, entries []Entry) (n int, err error) {
	next := s.at
	s.buf = s.buf[:0]
	for n < len(entries) && len(s.buf) < batchBytesMax && s.bytes+int64(len(s.buf)) < c.SegmentBytes {
		e := &entries[n]
		next.sequence++
		e.Sequence = next.sequence
		if s.buf, next.head, err = seal(s.buf, next.head, e.toLine()); err != nil {
			return 0, fault.New(fault.Internal, "encode %s entry: %w", e.Kind, err)
		}
		n++
	}
	if _, err := s.file.Write(s.buf); err != nil {
		return 0, fault.New(fault.Unavailable, "write ledger: %w", errors.Join(err, s.file.Truncate(s.bytes)))
	}
	if err := s.file.Sync(); err != nil {
		return 0, fault.New(fault.Unavailable, "write ledger %s: %w: %w", s.file.Name(), errSync, err)
	}
	s.at = next
	s.bytes += int64(len(s.buf))
	return n, nil
}

func (s *segment) rotate(c *Config) error {
	next, err := newSegment(c, s.at)
	if err != nil {
		return err
	}
	err = s.file.Close()
	next.buf = s.buf
	*s = *next
	return err
}

func (s *segment) close() error { return s.file.Close() }

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
