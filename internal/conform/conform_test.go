package conform

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

const (
	decodeEpoch  kv.Epoch = 0xd
	prefillEpoch kv.Epoch = 0xa
)

// scene is a decode machine and a prefill machine that hand over prompts, with
// their journals.
type scene struct {
	target  *transfer.Target
	source  *transfer.Source
	journal [2]*Journal
	entries [2][]ledger.Entry // of decode, of prefill
	pages   int
}

func newScene() *scene {
	s := &scene{}
	put := func(i int) func(ledger.Entry) {
		return func(e ledger.Entry) { s.entries[i] = append(s.entries[i], e) }
	}
	target := transfer.TargetConfig{Epoch: decodeEpoch, RepeatTicks: 2, FenceTicks: 3, QuarantineTicks: 5}
	source := transfer.SourceConfig{Epoch: prefillEpoch, PagesMax: 1 << 14, TokensMax: 1 << 18}
	s.target, s.source = transfer.NewTarget(target), transfer.NewSource(source)
	s.journal[0] = NewTargetJournal(target, "test", transfer.NewVeil(kv.Key{1}), put(0))
	s.journal[1] = NewSourceJournal(source, "test", transfer.NewVeil(kv.Key{2}), put(1))
	s.decode(transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "p0", Epoch: prefillEpoch}, Places: true, Fences: true})
	s.prefill(transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "d0", Epoch: decodeEpoch}, Places: true, Fences: true})
	return s
}

func (s *scene) decode(e transfer.TargetEvent) []transfer.Effect {
	effects := s.target.Step(e)
	s.journal[0].Target(e, effects)
	for _, f := range effects {
		switch f.Kind {
		case transfer.DoStart:
			s.pool("adopted", f.X)
		case transfer.DoRelease:
			s.pool("free", f.X)
		case transfer.DoQuarantine:
			s.pool("quarantined", f.X)
		default:
		}
	}
	return effects
}

func (s *scene) pool(event string, x kv.TransferID) {
	s.entries[0] = append(s.entries[0], ledger.Entry{Kind: ledger.Pool, Event: event, X: x})
}

func (s *scene) prefill(e transfer.SourceEvent) []transfer.Effect {
	effects := s.source.Step(e)
	s.journal[1].Source(e, effects)
	return effects
}

func sent(effects []transfer.Effect) transfer.Message {
	for _, f := range effects {
		if f.Kind == transfer.DoSend {
			return f.Message
		}
	}
	return nil
}

// open grants pages to a new transfer. An id before it is given and dropped, as
// when the pool is full.
func (s *scene) open(pages int) (transfer.Grant, kv.TransferID) {
	s.target.Next()
	x := s.target.Next()
	refs := make([]kv.PageRef, pages)
	for i := range refs {
		refs[i] = kv.PageRef{Slot: kv.Slot(s.pages), Generation: 1}
		s.pages++
	}
	effects := s.decode(transfer.Open{X: x, Peer: 1, Request: x.Sequence, Attempt: 1, GatewayBoot: 7, Tenant: 3, Tokens: uint32(16 * pages),
		TokenDigest: kv.Sum{1, byte(x.Sequence)}, Key: kv.Key{1, byte(x.Sequence)}, Pages: refs})
	return sent(effects).(transfer.Grant), x
}

func (s *scene) tick(n int) {
	for range n {
		s.decode(transfer.Tick{})
		s.prefill(transfer.Tick{})
	}
}

// handOver runs a transfer to its end.
func (s *scene) handOver(pages int) {
	grant, x := s.open(pages)
	s.prefill(transfer.Received{Peer: 1, Message: grant})
	s.prefill(transfer.Admitted{X: x, Tokens: grant.Tokens, TokenDigest: grant.TokenDigest})
	s.tick(1)
	var closed transfer.Message
	for b := range uint32(pages) {
		s.prefill(transfer.Computed{X: x, Block: b, Root: kv.Digest{1, byte(b)}})
		s.decode(transfer.Landed{X: x, Block: b})
		closed = sent(s.prefill(transfer.Written{X: x, Block: b, OK: true}))
	}
	s.decode(transfer.Received{Peer: 1, Message: closed})
	s.decode(transfer.Fenced{X: x})
	s.decode(transfer.Verified{X: x, OK: true})
	s.decode(transfer.Finished{X: x})
}

// aborted gives a transfer up in the middle; its pages wait for the proof until
// they are quarantined.
func (s *scene) aborted() {
	grant, x := s.open(2)
	s.prefill(transfer.Received{Peer: 1, Message: grant})
	s.prefill(transfer.Admitted{X: x, Tokens: grant.Tokens, TokenDigest: grant.TokenDigest})
	s.prefill(transfer.Computed{X: x, Block: 0, Root: kv.Digest{1}})
	abort := sent(s.decode(transfer.Cancel{X: x}))
	s.tick(2)
	s.prefill(transfer.Received{Peer: 1, Message: abort})
	s.prefill(transfer.KernelStopped{X: x})
	s.tick(4)
	closed := sent(s.prefill(transfer.Written{X: x, Block: 0, OK: true}))
	s.decode(transfer.Received{Peer: 1, Message: closed})
	s.decode(transfer.PeerLost{Peer: 1})
	s.prefill(transfer.PeerLost{Peer: 1})
}

// play is a short life of two workers.
func play() *scene {
	s := newScene()
	s.handOver(3)
	s.tick(3)
	s.handOver(1)
	s.aborted()
	return s
}

func recheck(entries []ledger.Entry, epoch kv.Epoch) Epoch { return Entries("n", epoch, entries) }

var epochs = [2]kv.Epoch{decodeEpoch, prefillEpoch}

func TestWhatTheMachinesDidConforms(t *testing.T) {
	s := play()
	for i, entries := range s.entries {
		got := recheck(entries, epochs[i])
		if got.Verdict != Conforms {
			t.Errorf("%v: %s %v", got.Role, got.Why, got.Finding)
		}
		if got.Steps < 15 || got.Ticks < 5 || got.Entries != len(entries) {
			t.Errorf("%v: %d steps and %d ticks of %d entries were re-executed", got.Role, got.Steps, got.Ticks, got.Entries)
		}
		for _, e := range entries {
			if e.Event == "tick" && i == 1 {
				t.Error("a silent tick has an entry of its own")
			}
		}
	}
}

// Every single entry that is dropped, doubled, moved or changed is found, there or
// at the entry after it, even if somebody made the chain of hashes anew.
func TestEveryChangedEntryIsFound(t *testing.T) {
	s := play()
	for i, entries := range s.entries {
		for at := range entries {
			for name, change := range changes(entries, at) {
				changed := change()
				got := recheck(changed, epochs[i])
				if got.Verdict != Differs || got.Finding.Sequence > uint64(at+3) {
					t.Errorf("%v: entry %d (%s) %s: %v, %v", got.Role, at+1, entries[at].Event, name, got.Verdict, got.Finding)
				}
			}
		}
	}
}

func changes(entries []ledger.Entry, at int) map[string]func() []ledger.Entry {
	edit := func(f func(e *ledger.Entry)) func() []ledger.Entry {
		return func() []ledger.Entry {
			all := slices.Clone(entries)
			e := &all[at]
			e.Input, e.Output, e.Pages = slices.Clone(e.Input), slices.Clone(e.Output), slices.Clone(e.Pages)
			f(e)
			return all
		}
	}
	isStep := entries[at].Kind == ledger.Transfer
	all := map[string]func() []ledger.Entry{
		"doubled": func() []ledger.Entry { return slices.Insert(slices.Clone(entries), at, entries[at]) },
	}
	if at+1 < len(entries) {
		// What stands at the very end can be cut off unnoticed: only a copy of the
		// chain's head shows that. What became of pages may be missing after a crash.
		if isStep && slices.ContainsFunc(entries[at+1:], func(e ledger.Entry) bool { return e.Kind == ledger.Transfer }) {
			all["dropped"] = func() []ledger.Entry { return slices.Delete(slices.Clone(entries), at, at+1) }
		}
		if isStep && entries[at+1].Kind == ledger.Transfer {
			all["moved"] = func() []ledger.Entry {
				moved := slices.Clone(entries)
				moved[at], moved[at+1] = moved[at+1], moved[at]
				return moved
			}
		}
	}
	if !isStep {
		all["of another transfer"] = edit(func(e *ledger.Entry) { e.X.Sequence += 100 })
		return all
	}
	all["with another event"] = edit(func(e *ledger.Entry) { e.Event = "landing" })
	all["of another request"] = edit(func(e *ledger.Entry) { e.Request++ })
	all["with another output"] = edit(func(e *ledger.Entry) { e.Output[3] ^= 4 })
	all["with a page more"] = edit(func(e *ledger.Entry) { e.Pages = append(e.Pages, kv.PageRef{Slot: 1, Generation: 1}) })
	for b := range entries[at].Input {
		if entries[at].Event == bootEvent && b == 0 {
			continue // another version: nothing can be said
		}
		all[fmt.Sprintf("with another byte %d of input", b)] = edit(func(e *ledger.Entry) { e.Input[b] ^= 1 })
	}
	return all
}

func TestAFindingSaysWhereAndWhy(t *testing.T) {
	s := newScene()
	_, x := s.open(1)
	entries := s.entries[0]
	last := &entries[len(entries)-1]
	expected := fmt.Sprintf("%x (open gate, send)", last.Output)
	last.Output = make([]byte, hashBytes)
	got := recheck(entries, decodeEpoch)
	want := &Finding{Place: ledger.Place{Path: "memory", Line: 3}, Sequence: 3, Event: "open", X: x, Why: "the answer is not the machine's",
		Expected: expected, Found: strings.Repeat("00", hashBytes)}
	if diff := cmp.Diff(want, got.Finding); diff != "" {
		t.Fatalf("finding differs (-want +got):\n%s", diff)
	}
	if s := got.Finding.String(); !strings.HasPrefix(s, "memory:3: entry 3, open of 000000000000000d/2/0: ") {
		t.Errorf("the finding reads %q", s)
	}
}

// A page that a worker frees or adopts without its machine's word.
func TestPagesNeedTheMachinesWord(t *testing.T) {
	for _, event := range []string{"free", "adopted", "quarantined"} {
		s := newScene()
		_, x := s.open(1)
		s.pool(event, x)
		if got := recheck(s.entries[0], decodeEpoch); got.Verdict != Differs || got.Finding.Event != event {
			t.Errorf("%s while pages are granted: %v %v", event, got.Verdict, got.Finding)
		}
	}
}

// A prefill worker's source pages are freed behind its machine's release, no earlier.
func TestSourcePagesNeedTheMachinesWord(t *testing.T) {
	s := newScene()
	s.handOver(40)
	x := kv.TransferID{Epoch: decodeEpoch, Sequence: 2}
	taken, free := ledger.Entry{Kind: ledger.Pool, Event: "taken", X: x}, ledger.Entry{Kind: ledger.Pool, Event: "free", X: x}
	entries := slices.Insert(slices.Clone(s.entries[1]), 2, taken)
	if got := recheck(append(slices.Clone(entries), free), prefillEpoch); got.Verdict != Conforms {
		t.Fatalf("pages freed at the end: %v %s %v", got.Verdict, got.Why, got.Finding)
	}
	for at := 3; at < len(entries); at++ {
		if got := recheck(slices.Insert(slices.Clone(entries), at, free), prefillEpoch); got.Verdict != Differs || got.Finding.Event != "free" {
			t.Errorf("freed before entry %d of %d, %s: %v %v", at, len(entries), entries[at].Event, got.Verdict, got.Finding)
		}
	}
}

// A grant and a manifest that are longer than an entry are written in parts.
func TestLongInputsAreWrittenInParts(t *testing.T) {
	s := newScene()
	s.handOver(4000)
	for i, entries := range s.entries {
		parts := 0
		for _, e := range entries {
			if e.Kind == ledger.Transfer && len(e.Output) == 0 {
				parts++
			}
			if len(e.Input) > ledger.InputBytesMax || len(e.Pages) > ledger.PagesMax {
				t.Errorf("an entry has %d bytes and %d pages", len(e.Input), len(e.Pages))
			}
		}
		if got := recheck(entries, epochs[i]); got.Verdict != Conforms || parts == 0 {
			t.Errorf("%v: %d parts, %v, %s, %v", got.Role, parts, got.Verdict, got.Why, got.Finding)
		}
		at := slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Kind == ledger.Transfer && len(e.Output) == 0 })
		for name, changed := range map[string][]ledger.Entry{
			"without a part": slices.Delete(slices.Clone(entries), at, at+1), "with a part twice": slices.Insert(slices.Clone(entries), at, entries[at]),
			"with a foreign entry in it": slices.Insert(slices.Clone(entries), at+1, entries[1]),
		} {
			if got := recheck(changed, epochs[i]); got.Verdict != Differs {
				t.Errorf("%v: %s: %v", got.Role, name, got.Verdict)
			}
		}
	}
}

// Where entries were lost and a note says so, what follows is not held against the
// worker, and is not called good either.
func TestLostEntriesAreInconclusive(t *testing.T) {
	entries := play().entries[0]
	lost := ledger.Entry{Kind: ledger.Note, Event: "lost"}
	if got := recheck(slices.Insert(slices.Clone(entries), 8, lost), decodeEpoch); got.Verdict != Conforms {
		t.Errorf("a note without a lost step: %v, %v", got.Verdict, got.Finding)
	}
	gap := slices.Replace(slices.Clone(entries), 8, 9, lost)
	if got := recheck(gap, decodeEpoch); got.Verdict != Inconclusive || !strings.Contains(got.Why, "lost") {
		t.Errorf("a lost step: %v, %q, %v", got.Verdict, got.Why, got.Finding)
	}
	if got := recheck(append(slices.Clone(entries), lost), decodeEpoch); got.Verdict != Inconclusive {
		t.Errorf("steps lost at the end: %v", got.Verdict)
	}
}

func TestBeginnings(t *testing.T) {
	entries := play().entries[0]
	twice := slices.Insert(slices.Clone(entries), 3, entries[0])
	version := slices.Clone(entries)
	version[0].Input = append([]byte{transfer.RecordVersion + 1}, version[0].Input[1:]...)
	for name, c := range map[string]struct {
		entries []ledger.Entry
		epoch   kv.Epoch
		want    Verdict
	}{
		"without its configuration":      {entries[1:], decodeEpoch, Differs},
		"begins twice":                   {twice, decodeEpoch, Differs},
		"with another epoch's machine":   {entries, decodeEpoch + 1, Differs},
		"of another version":             {version, decodeEpoch, Inconclusive},
		"of a gateway, without machines": {[]ledger.Entry{{Kind: ledger.Request, Event: "accepted"}}, decodeEpoch, NoMachine},
		"with a page's fate only":        {[]ledger.Entry{{Kind: ledger.Pool, Event: "free"}}, decodeEpoch, Differs},
	} {
		if got := recheck(c.entries, c.epoch); got.Verdict != c.want {
			t.Errorf("a ledger %s: %v, %v, want %v", name, got.Verdict, got.Finding, c.want)
		}
	}
}

// write makes a ledger folder of entries, an incarnation each.
func write(t testing.TB, dir string, epoch kv.Epoch, segmentBytes int64, entries []ledger.Entry) {
	t.Helper()
	l, err := ledger.Open(ledger.Config{Dir: dir, Node: "n", Epoch: epoch, SegmentBytes: segmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func check(t testing.TB, dir string) Report {
	t.Helper()
	r, err := Check(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCheckOfFolders(t *testing.T) {
	dir := t.TempDir()
	if r := check(t, dir); r.Verdict() != Inconclusive {
		t.Errorf("an empty folder: %v", r.Verdict())
	}
	s := play()
	write(t, dir, decodeEpoch, 4000, s.entries[0])
	write(t, dir, prefillEpoch, 4000, s.entries[1])
	seen := int64(0)
	r, err := Check(dir, func(n int64) { seen = n })
	if err != nil || r.Verdict() != Conforms || len(r.Epochs) != 2 || r.Chain.Entries != len(s.entries[0])+len(s.entries[1]) || seen == 0 {
		t.Fatalf("two incarnations: error %v, %v, %+v, progress %d", err, r.Verdict(), r.Epochs, seen)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.ledger"))
	if err != nil || len(segments) < 4 {
		t.Fatalf("%d segments, error %v", len(segments), err)
	}
	last := segments[len(segments)-1]
	b, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(last, b[:len(b)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if r := check(t, dir); r.Verdict() != Conforms || !r.Chain.Torn {
		t.Errorf("a torn end: %v, torn is %v", r.Verdict(), r.Chain.Torn)
	}
	for name, rest := range map[string][]byte{"half a header": b[:9], "nothing": nil} {
		if err := os.WriteFile(last, rest, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := check(t, dir); r.Verdict() != Inconclusive || !r.Chain.Headless {
			t.Errorf("a newest segment with %s: %v, headless is %v", name, r.Verdict(), r.Chain.Headless)
		}
	}
	b[len(b)-80] ^= 1
	if err := os.WriteFile(last, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := check(t, dir); r.Verdict() != Differs || r.Broken == nil || r.Broken.Path != last {
		t.Errorf("a changed byte: %v, %v", r.Verdict(), r.Broken)
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(segments[0]); err != nil {
		t.Fatal(err)
	}
	if r := check(t, dir); r.Verdict() != Inconclusive || r.Epochs[0].Verdict != Inconclusive || r.Epochs[1].Verdict != Conforms {
		t.Errorf("without the oldest segment: %v, %+v", r.Verdict(), r.Epochs)
	}
	if _, err := Check(filepath.Join(dir, "missing"), nil); err == nil {
		t.Error("a folder that is not there is checked")
	}
}

// Anything in the Input and the Output is an answer, never a panic.
func FuzzEntries(f *testing.F) {
	s := play()
	for i, entries := range s.entries {
		for _, e := range entries {
			f.Add(uint8(i), e.Event, e.Input, e.Output)
		}
	}
	f.Fuzz(func(t *testing.T, who uint8, event string, input, output []byte) {
		i := int(who % 2)
		e := ledger.Entry{Kind: ledger.Transfer, Event: event, Input: input, Output: output}
		recheck(append(slices.Clone(s.entries[i][:2]), e, e), epochs[i])
		recheck([]ledger.Entry{e, e}, epochs[i])
	})
}

// cpu is the processor time of this process so far: what a core does in a second
// shows on a busy machine too.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkReplay(b *testing.B) {
	s := newScene()
	for range 200 {
		s.handOver(8)
	}
	for i, entries := range s.entries {
		b.Run([]string{"decode", "prefill"}[i], func(b *testing.B) {
			b.ReportAllocs()
			n, begun := 0, cpu(b)
			for b.Loop() {
				if got := recheck(entries, epochs[i]); got.Verdict != Conforms {
					b.Fatal(got.Finding)
				}
				n += len(entries)
			}
			b.ReportMetric(float64(n)/(cpu(b)-begun).Seconds(), "entries/cpu-s")
		})
	}
}

// BenchmarkCheck reads from disk: parsing and the chain's hashes are most of it.
func BenchmarkCheck(b *testing.B) {
	s := newScene()
	for range 500 {
		s.handOver(8)
	}
	dir := b.TempDir()
	write(b, dir, decodeEpoch, 0, s.entries[0])
	n, begun := 0, cpu(b)
	for b.Loop() {
		r := check(b, dir)
		if r.Verdict() != Conforms {
			b.Fatal(r.Epochs[0].Finding)
		}
		n += r.Chain.Entries
	}
	b.ReportMetric(float64(n)/(cpu(b)-begun).Seconds(), "entries/cpu-s")
}

func BenchmarkJournal(b *testing.B) {
	s := newScene()
	j := NewTargetJournal(transfer.TargetConfig{Epoch: decodeEpoch}, "test", transfer.NewVeil(kv.Key{1}), func(ledger.Entry) {})
	_, x := s.open(8)
	b.ReportAllocs()
	for b.Loop() {
		j.Target(transfer.Landed{X: x, Block: 3}, nil)
	}
}
