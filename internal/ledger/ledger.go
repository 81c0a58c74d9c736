// Package ledger keeps the tamper-evident record of what happened to each page and request.
//
// A ledger is a folder of segments; a segment is JSON lines, each of which ends
// with a SHA-256 over the previous hash and itself. A segment's first line names
// the node and its epoch and joins on to the segment before, so that the chain
// runs through restarts. Old segments are the operator's to keep or to delete,
// oldest first.
//
// Loss window: an entry is on disk, fsynced, at most Config.Window and one write
// and fsync after Append. Only a crash of the machine loses what is in the
// window; a killed process loses what it had not yet written, and Sync waits for
// everything.
//
// A write that fails, for example on a full disk, makes Err non-nil until a later
// try succeeds; entries wait in the bounded queue meanwhile. What finds the queue
// full is counted, and a note with the count stands in its place. A failed fsync
// is final: what it has not written can't be known. Admission reads Err.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

const formatVersion = 1

// Config configures a Ledger.
type Config struct {
	Dir          string
	Node         string
	Epoch        kv.Epoch
	SegmentBytes int64         // a segment of this size is the last's end, default 16 MiB
	QueueMax     int           // entries that wait to be written, default 65,536
	Window       time.Duration // how long entries are gathered for one fsync, default 20 ms
	Retry        time.Duration // wait after a failed write, default 1 s
	Log          *slog.Logger  // default: none
}

func (c Config) withDefaults() Config {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 16 << 20
	}
	if c.QueueMax == 0 {
		c.QueueMax = 1 << 16
	}
	if c.Window == 0 {
		c.Window = 20 * time.Millisecond
	}
	if c.Retry == 0 {
		c.Retry = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Ledger is open for appending. It is safe for concurrent use.
type Ledger struct {
	config Config
	lock   *os.File
	out    *segment      // owned by the writer goroutine
	wake   chan struct{} // an entry waits
	hurry  chan struct{} // somebody waits for the disk
	quit   chan struct{}
	done   chan struct{}

	mu       sync.Mutex
	queue    []Entry       // protected by mu
	appended uint64        // entries taken so far, notes included; protected by mu
	lost     uint64        // found the queue full, not yet noted; protected by mu
	lostAll  uint64        // protected by mu
	synced   uint64        // of appended; protected by mu
	moved    chan struct{} // closed when synced, err or final changes; protected by mu
	err      error         // protected by mu
	final    bool          // err stays; protected by mu
	closed   bool          // protected by mu
	head     Hash          // protected by mu
	sequence uint64        // protected by mu
}

// Open continues the ledger in the folder, which it makes if needed. Only one
// process at a time can. Half a line at the end, which a crash leaves, is moved to a
// file of its own beside the segment, and a note says so. Anything else that breaks
// the chain, there or in an older segment, is no crash's work: Open refuses with an
// error that wraps a *BadEntry and says what to do.
func Open(c Config) (*Ledger, error) {
	c = c.withDefaults()
	if c.Epoch == 0 || c.Node == "" {
		return nil, fault.New(fault.Internal, "open ledger %s: node and epoch must be given", c.Dir)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	lock, err := lockFolder(c.Dir)
	if err != nil {
		return nil, err
	}
	at, notes, err := recoverTail(c.Dir)
	var out *segment
	if err == nil {
		out, err = newSegment(&c, at)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l := &Ledger{
		config: c, lock: lock, out: out, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), quit: make(chan struct{}),
		done: make(chan struct{}), moved: make(chan struct{}), head: out.at.head, sequence: out.at.sequence,
	}
	for _, n := range notes {
		c.Log.Warn("ledger recovered", "dir", c.Dir, "event", n.Event, "detail", n.Detail)
		n.Time = time.Now()
		l.queue = append(l.queue, n)
		l.appended++
	}
	go l.write()
	poke(l.wake)
	return l, nil
}

// Append takes an entry; the caller must not write its slices again. It does no I/O
// but for a log line. An error means that the entry is not and will not be recorded;
// while Err is nil only a full queue, a closed ledger or an impossible entry gives one.
// Only the last is of kind fault.Internal and the caller's to log: a full disk loses
// many entries, and the log has one line for all that are lost in a row.
func (l *Ledger) Append(e Entry) error {
	if err := e.validate(); err != nil {
		return err
	}
	e.Time = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return fault.New(fault.Unavailable, "ledger %s is closed", l.config.Dir)
	case l.final:
		return l.err
	}
	if len(l.queue) >= l.config.QueueMax {
		if l.lost == 0 {
			l.config.Log.Error("ledger entries are lost: the queue is full", "dir", l.config.Dir, "queue_max", l.config.QueueMax)
		}
		l.lost++
		l.lostAll++
		return fault.New(fault.Unavailable, "ledger %s: %d entries wait, must be at most %d", l.config.Dir, len(l.queue), l.config.QueueMax)
	}
	l.appended++
	l.queue = append(l.queue, e)
	if len(l.queue) == 1 {
		poke(l.wake)
	}
	return nil
}

func lostNote(n uint64, now time.Time) Entry {
	return Entry{Kind: Note, Event: "lost", Detail: strconv.FormatUint(n, 10) + " entries found the queue full", Time: now}
}

// poke leaves a token for the writer.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Sync waits until all entries appended before are on disk. It returns at the
// first error of the disk, even if the ledger goes on trying.
func (l *Ledger) Sync(ctx context.Context) error {
	l.mu.Lock()
	want := l.appended
	l.mu.Unlock()
	for {
		l.mu.Lock()
		synced, err, moved := l.synced, l.err, l.moved
		l.mu.Unlock()
		if synced >= want {
			return nil
		}
		if err != nil {
			return err
		}
		poke(l.hurry)
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("sync ledger: %d of %d entries: %w", synced, want, context.Cause(ctx))
		}
	}
}

// Err is why the ledger can't write now; nil while it can. While it is not nil
// no request may be admitted.
func (l *Ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.lost > 0 {
		return fault.New(fault.Unavailable, "ledger %s: %d entries were lost, the queue of %d is full", l.config.Dir, l.lost, l.config.QueueMax)
	}
	return l.err
}

// Head is the last entry on disk: its sequence and the chain's hash.
func (l *Ledger) Head() (sequence uint64, head Hash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sequence, l.head
}

// Lost is the number of entries that were never recorded because the queue was full.
func (l *Ledger) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lostAll
}

// Close writes what waits, and ends. The error says what could not be written.
func (l *Ledger) Close() error {
	l.mu.Lock()
	already := l.closed
	l.closed = true
	l.mu.Unlock()
	if already {
		return nil
	}
	close(l.quit)
	<-l.done
	l.mu.Lock()
	left, err := l.appended-l.synced, l.err
	l.mu.Unlock()
	if left > 0 {
		err = fmt.Errorf("close ledger %s: %d entries are not on disk: %w", l.config.Dir, left, err)
	}
	return errors.Join(err, l.out.close(), l.lock.Close())
}

// lockName is the file that a writer locks.
const lockName = "LOCK"

func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock ledger: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock ledger %s: another process has it open: %w", dir, err), f.Close())
	}
	return f, nil
}
