package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, c Config) *Ledger {
	t.Helper()
	if c.Node == "" {
		c.Node = "d1"
	}
	if c.Epoch == 0 {
		c.Epoch = 0xabc
	}
	l, err := Open(c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func appendAll(t testing.TB, l *Ledger, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		if err := l.Append(e); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
}

func closed(t testing.TB, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func readAll(t testing.TB, dir string) (out []Entry) {
	t.Helper()
	for e, err := range Read(dir) {
		if err != nil {
			t.Fatalf("read after %d entries: %v", len(out), err)
		}
		out = append(out, e)
	}
	return out
}

func sample(n int) Entry {
	return Entry{
		Kind: Transfer, Event: "landed", GatewayBoot: 1<<63 + 5, Request: uint64(n), Attempt: 1, Tenant: 0xfedcba9876543210,
		X:     kv.TransferID{Epoch: 1<<63 + 7, Sequence: uint64(n), Rank: 2},
		Pages: []kv.PageRef{{Slot: 1, Generation: 1<<62 + 1}, {Slot: 0, Generation: 3}},
		Input: []byte{0, 1, 2, 255}, Output: []byte{9, 8}, Detail: "block 3",
	}
}

func TestEntriesComeBack(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	want := []Entry{sample(1), {Kind: Pool, Event: "granted"}, {Kind: Request, Event: "accepted", Request: 2}}
	before := time.Now()
	appendAll(t, l, want...)
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := readAll(t, dir) // while it is open
	for i := range want {
		want[i].Node, want[i].Epoch, want[i].Sequence = "d1", 0xabc, uint64(i+1)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Entry{}, "Time")); diff != "" {
		t.Errorf("entries (-appended +read):\n%s", diff)
	}
	if at := got[0].Time; at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("entry is of %v, it was appended at %v", at, before)
	}
	sequence, head := l.Head()
	closed(t, l)
	r, err := Verify(dir)
	if diff := cmp.Diff(Report{Segments: 1, Entries: 3, First: 1, Last: 3, Head: head}, r); diff != "" || err != nil || sequence != 3 {
		t.Errorf("report (-want +got), error %v, sequence %d:\n%s", err, sequence, diff)
	}
}

func TestChainRunsThroughRestartsAndSegments(t *testing.T) {
	dir := t.TempDir()
	for epoch := range 3 {
		l := open(t, Config{Dir: dir, Epoch: kv.Epoch(epoch + 1), SegmentBytes: 1000})
		for i := range 10 {
			appendAll(t, l, sample(i))
		}
		closed(t, l)
	}
	r, err := Verify(dir)
	if err != nil || r.Entries != 30 || r.Last != 30 || r.Segments < 6 {
		t.Fatalf("the chain must be whole: %+v, %v", r, err)
	}
	for i, e := range readAll(t, dir) {
		if e.Sequence != uint64(i+1) || e.Epoch != kv.Epoch(i/10+1) {
			t.Fatalf("entry %d is number %d of epoch %d", i, e.Sequence, e.Epoch)
		}
	}
	if err := os.Remove(segmentPath(dir, 1)); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || r.First < 2 || r.Last != 30 {
		t.Errorf("old segments may be deleted: %+v, %v", r, err)
	}
	if err := os.Remove(segmentPath(dir, 4)); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir); err == nil || !strings.Contains(err.Error(), "segment 5 follows segment 3") {
		t.Errorf("a gap must be named: %v", err)
	}
}

// written makes a small ledger and gives its only segment's bytes.
func written(t testing.TB, dir string, entries int) []byte {
	t.Helper()
	l := open(t, Config{Dir: dir})
	for i := range entries {
		appendAll(t, l, sample(i))
	}
	closed(t, l)
	b, err := os.ReadFile(segmentPath(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rewrite(t testing.TB, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(segmentPath(dir, 1), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnyChangedByteIsFound(t *testing.T) {
	dir := t.TempDir()
	whole := written(t, dir, 3)
	for i := range whole {
		for _, flip := range []byte{1, 0x20, 0x80} {
			b := bytes.Clone(whole)
			b[i] ^= flip
			rewrite(t, dir, b)
			_, err := Verify(dir)
			var bad *BadEntry
			wantLine := bytes.Count(whole[:i], []byte("\n")) + 1
			if !errors.As(err, &bad) || bad.Line != wantLine {
				t.Fatalf("byte %d changed by %#x: must be found in line %d: %v", i, flip, wantLine, err)
			}
		}
	}
}

func TestMovedLinesAreFound(t *testing.T) {
	dir := t.TempDir()
	whole := written(t, dir, 4)
	lines := bytes.SplitAfter(whole, []byte("\n")) // header, 4 entries, nothing
	pick := func(order ...int) (b []byte) {
		for _, i := range order {
			b = append(b, lines[i]...)
		}
		return b
	}
	for _, tc := range []struct {
		name  string
		bytes []byte
		line  int
	}{
		{"left out", pick(0, 1, 3, 4), 3},
		{"swapped", pick(0, 2, 1, 3, 4), 2},
		{"twice", pick(0, 1, 1, 2, 3, 4), 3},
		{"no header", pick(1, 2, 3, 4), 1},
		{"header alone, twice", pick(0, 0), 2},
		{"empty line", append(pick(0, 1), '\n'), 3},
		{"nothing", nil, 1},
		{"endless line", append(pick(0), bytes.Repeat([]byte("x"), 2*lineBytesMax)...), 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rewrite(t, dir, tc.bytes)
			_, err := Verify(dir)
			var bad *BadEntry
			if !errors.As(err, &bad) || bad.Line != tc.line {
				t.Errorf("must be found in line %d: %v", tc.line, err)
			}
		})
	}
	rewrite(t, dir, pick(0, 1, 2))
	if r, err := Verify(dir); err != nil || r.Last != 2 {
		t.Errorf("what was cut off at a line's end shows in the report only: %+v, %v", r, err)
	}
}

func TestTornTailIsCutAndKept(t *testing.T) {
	first := t.TempDir()
	whole := written(t, first, 1)
	for cut := range len(whole) {
		if edge := cut < 2 || cut > len(whole)-3 || bytes.IndexByte(whole[cut-2:cut+2], '\n') >= 0; !edge && cut%13 != 0 {
			continue // each cut costs several fsyncs
		}
		dir := t.TempDir()
		rewrite(t, dir, whole[:cut])
		kept := max(0, bytes.Count(whole[:cut], []byte("\n"))-1)
		torn := whole[bytes.LastIndexByte(whole[:cut], '\n')+1 : cut]
		l := open(t, Config{Dir: dir, Epoch: 2})
		appendAll(t, l, Entry{Kind: Request, Event: "after"})
		closed(t, l)
		if _, err := Verify(dir); err != nil {
			t.Fatalf("cut at %d: the chain must be whole after Open: %v", cut, err)
		}
		var events []string
		for _, e := range readAll(t, dir) {
			events = append(events, e.Event)
		}
		want := append(slicesRepeat("landed", kept), "after")
		if len(torn) > 0 || cut == 0 {
			want = append(slicesRepeat("landed", kept), "torn", "after")
		}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Fatalf("cut at %d (-want +got):\n%s", cut, diff)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"+tornSuffix))
		if err != nil || len(files) != len(want)-kept-1 {
			t.Fatalf("cut at %d: torn files %v, %v", cut, files, err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err != nil || !bytes.Equal(b, torn) {
				t.Fatalf("cut at %d: the torn bytes must be kept: %q, %v", cut, b, err)
			}
		}
	}
}

// Only half a line at the very end is what a crash leaves. A whole line that breaks
// the chain is tampering: the ledger doesn't open, and nothing of it is moved.
func TestTamperedEndRefusesToOpen(t *testing.T) {
	whole := written(t, t.TempDir(), 3)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	flipped := func(i int) []byte {
		b := bytes.Clone(whole)
		b[i] ^= 1
		return b
	}
	for _, tc := range []struct {
		name  string
		bytes []byte
	}{
		{"last line's hash", flipped(len(whole) - 10)},
		{"last line's content", flipped(last + 5)},
		{"a line in the middle", flipped(len(lines[0]) + len(lines[1]) + 5)},
		{"the header", flipped(3)},
		{"a line twice", bytes.Join([][]byte{lines[0], lines[1], lines[1]}, nil)},
		{"an empty line", append(bytes.Clone(whole), '\n')},
		{"a changed line, then half a one", append(flipped(len(whole)-10), "{"...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			rewrite(t, dir, tc.bytes)
			l, err := Open(Config{Dir: dir, Node: "d1", Epoch: 2})
			var bad *BadEntry
			if err == nil {
				closed(t, l)
			}
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), "tampered") {
				t.Fatalf("open: %v, want a refusal that names tampering and the line", err)
			}
			if left, err := os.ReadFile(segmentPath(dir, 1)); err != nil || !bytes.Equal(left, tc.bytes) {
				t.Errorf("the segment was changed (%v)", err)
			}
			if torn, _ := filepath.Glob(filepath.Join(dir, "*"+tornSuffix)); len(torn) > 0 {
				t.Errorf("%v was moved", torn)
			}
		})
	}
}

func slicesRepeat(s string, n int) (out []string) {
	for range n {
		out = append(out, s)
	}
	return out
}

func TestOneWriterAtATime(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	if _, err := Open(Config{Dir: dir, Node: "d1", Epoch: 2}); err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("a second writer must be refused: %v", err)
	}
	closed(t, l)
	closed(t, open(t, Config{Dir: dir}))
	if err := l.Append(sample(1)); fault.Of(err) != fault.Unavailable {
		t.Errorf("append after close must be refused: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second close must be harmless: %v", err)
	}
}

func TestImpossibleEntriesAreRefused(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir()})
	defer closed(t, l)
	for _, e := range []Entry{
		{}, {Kind: "prompt"},
		{Kind: Pool, Event: strings.Repeat("x", WordBytesMax+1)},
		{Kind: Pool, Detail: strings.Repeat("x", WordBytesMax+1)},
		{Kind: Transfer, Input: make([]byte, InputBytesMax+1)},
		{Kind: Transfer, Output: make([]byte, WordBytesMax+1)},
		{Kind: Pool, Pages: make([]kv.PageRef, PagesMax+1)},
	} {
		if err := l.Append(e); fault.Of(err) != fault.Internal || err == nil {
			t.Errorf("%v must be refused: %v", e.Kind, err)
		}
	}
	largest := Entry{Kind: Transfer, Event: strings.Repeat("\x00", WordBytesMax), Detail: strings.Repeat("\x00", WordBytesMax), Input: make([]byte, InputBytesMax), Output: make([]byte, WordBytesMax)}
	for range PagesMax {
		largest.Pages = append(largest.Pages, kv.PageRef{Slot: 1<<32 - 1, Generation: 1<<64 - 1})
	}
	appendAll(t, l, largest)
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, l.config.Dir); len(got) != 1 || len(got[0].Pages) != PagesMax {
		t.Error("the largest entry must come back")
	}
}

func TestFullQueueIsCountedAndNoted(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, QueueMax: 4, Window: time.Hour}) // nothing is written by itself
	appendAll(t, l, sample(1), sample(2), sample(3), sample(4))
	for range 3 {
		if err := l.Append(sample(5)); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "4 entries wait, must be at most 4") {
			t.Fatalf("a full queue must refuse: %v", err)
		}
	}
	if err := l.Err(); fault.Of(err) != fault.Unavailable {
		t.Errorf("admission must see the loss: %v", err)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Err(); err != nil || l.Lost() != 3 {
		t.Errorf("once noted, the ledger works again: %v, %d lost", err, l.Lost())
	}
	appendAll(t, l, sample(6))
	closed(t, l)
	got := readAll(t, dir)
	if len(got) != 6 || got[4].Kind != Note || got[4].Detail != "3 entries found the queue full" || got[5].Request != 6 {
		t.Errorf("a note must stand where entries are missing: %+v", got)
	}
}

// A full disk loses many entries; the log has a line when it begins and one at its end.
func TestLostEntriesDoNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	l := open(t, Config{Dir: t.TempDir(), QueueMax: 4, Window: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for run := range 2 {
		for n := range 1000 {
			_ = l.Append(sample(n)) // most find the queue full
		}
		if err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		text := log.String()
		if begun, noted := strings.Count(text, "ledger entries are lost"), strings.Count(text, "entries=996"); begun != run+1 || noted != run+1 {
			t.Errorf("after %d runs of losses the log has %d lines of their begin and %d of their number: %s", run+1, begun, noted, text)
		}
	}
	closed(t, l)
}

// A pipe can be written but not synced, like a disk that fails late.
func TestFailedSyncIsFinal(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), Retry: time.Nanosecond})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := l.out.file.Close(); err != nil {
		t.Fatal(err)
	}
	l.out.file = w // before the writer has anything to do
	appendAll(t, l, sample(1))
	if err := l.Sync(t.Context()); !errors.Is(err, errSync) || fault.Of(err) != fault.Unavailable {
		t.Errorf("sync must give the disk's error: %v", err)
	}
	if err := l.Append(sample(2)); !errors.Is(err, errSync) {
		t.Errorf("further entries must be refused: %v", err)
	}
	if err := l.Err(); !errors.Is(err, errSync) {
		t.Errorf("admission must see it: %v", err)
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "1 entries are not on disk") {
		t.Errorf("close must say what is missing: %v", err)
	}
}

func TestConcurrentAppend(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, SegmentBytes: 20_000})
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range 50 {
				if err := l.Append(sample(g*50 + i)); err != nil {
					t.Error(err)
				}
			}
			if err := l.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	closed(t, l)
	seen := map[uint64]bool{}
	for _, e := range readAll(t, dir) {
		seen[e.Request] = true
	}
	if len(seen) != 400 {
		t.Errorf("%d different entries, must be 400", len(seen))
	}
}

func FuzzSegment(f *testing.F) {
	whole := written(f, f.TempDir(), 2)
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add([]byte("{}\n"))
	scanAll := func(b []byte) (*scanner, error) {
		s := &scanner{r: bufio.NewReader(bytes.NewReader(b))}
		_, err := s.header(1)
		for err == nil {
			_, err = s.entry()
		}
		return s, err
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, _ := scanAll(b)
		if s.bytes > int64(len(b)) || (s.bytes > 0) != (s.lines > 0) {
			t.Fatalf("%d lines of %d bytes are good, out of %d bytes", s.lines, s.bytes, len(b))
		}
		if s.lines == 0 {
			return
		}
		again, err := scanAll(b[:s.bytes])
		if !errors.Is(err, io.EOF) || again.at != s.at || again.lines != s.lines {
			t.Fatalf("the good part must be whole in itself: %v, %d lines, then %d", err, s.lines, again.lines)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	l := open(b, Config{Dir: b.TempDir()})
	e := sample(1)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for l.Append(e) != nil { // the queue is full: the disk sets the pace
			if err := l.Sync(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		n++
	}
	closed(b, l)
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "entries/s")
}

func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	l := open(b, Config{Dir: dir})
	const n = 20_000
	for i := range n {
		appendAll(b, l, sample(i))
	}
	closed(b, l)
	for b.Loop() {
		if _, err := Verify(dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}
