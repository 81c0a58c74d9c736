package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
)

func randomTokens(r *rand.Rand, vocab, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = r.Int32N(int32(vocab))
	}
	return out
}

// result is what a sequence's run gave: the logits after each token, and K and V
// of all of them.
type result struct {
	logits [][]float32
	kv     []byte
}

func (r result) equal(other result) bool {
	for i := range r.logits {
		for j, v := range r.logits[i] {
			if math.Float32bits(v) != math.Float32bits(other.logits[i][j]) {
				return false
			}
		}
	}
	return bytes.Equal(r.kv, other.kv)
}

// inChunks runs tokens in chunks of the given size on an engine of its own.
func inChunks(t *testing.T, m *model.Model, tokens []int32, chunk, threads int) result {
	t.Helper()
	pages := newPages(m.Layout(), 2*kv.PagesFor(len(tokens)))
	tab := table(rand.New(rand.NewPCG(uint64(chunk), uint64(threads))), 0, len(tokens))
	e := newEngine(t, m, pages, func(c *Config) { c.Threads, c.TokensMax = threads, max(chunk, c.TokensMax) })
	logits := logitsRoom(m, len(tokens))
	for lo := 0; lo < len(tokens); lo += chunk {
		hi := min(lo+chunk, len(tokens))
		step(t, e, Row{Tokens: tokens[lo:hi], Start: lo, Pages: tab, Logits: into(logits[lo:hi])})
	}
	return result{logits, pages.written(tab, len(tokens))}
}

// mixed runs several sequences at once: in every step each takes a random number
// of its tokens, one as often as many.
func mixed(t *testing.T, m *model.Model, sequences [][]int32, threads int) []result {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(threads), 5))
	var tabs [][]kv.Slot
	var logits [][][]float32
	slots := 0
	for _, s := range sequences {
		tabs = append(tabs, table(r, slots, len(s)))
		logits = append(logits, logitsRoom(m, len(s)))
		slots += kv.PagesFor(len(s))
	}
	pages := newPages(m.Layout(), slots)
	e := newEngine(t, m, pages, func(c *Config) { c.Threads, c.LogitsMax = threads, 5 })
	at := make([]int, len(sequences))
	for {
		var rows []Row
		for i, s := range sequences {
			n := 1
			if r.IntN(2) == 0 {
				n = 1 + r.IntN(40)
			}
			hi := min(at[i]+n, len(s))
			if hi > at[i] {
				rows = append(rows, Row{Tokens: s[at[i]:hi], Start: at[i], Pages: tabs[i], Logits: into(logits[i][at[i]:hi])})
			}
			at[i] = hi
		}
		if len(rows) == 0 {
			break
		}
		step(t, e, rows...)
	}
	var out []result
	for i, s := range sequences {
		out = append(out, result{logits[i], pages.written(tabs[i], len(s))})
	}
	return out
}

// portableLength bounds the sequences of tests on kernels without assembly, which
// are some fifty times slower.
const portableLength = 40

func checkInvariance(t *testing.T, m *model.Model, length int, chunks []int) {
	t.Helper()
	threadCounts := []int{1, 2, 3}
	if !tensor.Accelerated() {
		length, chunks, threadCounts = min(length, portableLength), chunks[:min(len(chunks), 2)], threadCounts[1:2]
	}
	r := rand.New(rand.NewPCG(3, 4))
	var sequences [][]int32
	for _, n := range []int{length, length / 3, 1, 17} {
		sequences = append(sequences, randomTokens(r, m.Config.Vocab, n))
	}
	want := inChunks(t, m, sequences[0], length, 1)
	for _, threads := range threadCounts {
		for _, chunk := range chunks {
			if !want.equal(inChunks(t, m, sequences[0], chunk, threads)) {
				t.Errorf("chunks of %d on %d threads give other bits than one chunk on one thread", chunk, threads)
			}
		}
		got := mixed(t, m, sequences, threads)
		if !want.equal(got[0]) {
			t.Errorf("beside three other sequences on %d threads the first gives other bits than alone", threads)
		}
		if alone := inChunks(t, m, sequences[1], 9, 2); !alone.equal(got[1]) {
			t.Errorf("beside three other sequences on %d threads the second gives other bits than alone", threads)
		}
	}
}

func TestResultsAreBitwiseTheSameHoweverComputed(t *testing.T) {
	for _, f := range []tensor.Format{tensor.F32, tensor.F16, tensor.BF16, tensor.Q8_0, tensor.Q4_0, tensor.Q4_1, tensor.Q4_K, tensor.Q6_K} {
		t.Run(f.String(), func(t *testing.T) {
			checkInvariance(t, randomModel(t, smallShape(f)), 120, []int{1, 7, 16, 100})
		})
	}
}

// oddShape has mixed formats, an untied head, three heads a KV head, values of
// another size than keys, and keys that are rotated in part.
func oddShape() shape {
	formats := map[string]tensor.Format{"attn_q": tensor.Q4_0, "attn_v": tensor.Q6_K, "ffn_up": tensor.Q8_0, "ffn_down": tensor.BF16}
	return shape{layers: 2, width: 256, ffn: 264, heads: 6, kvHeads: 2, keyDim: 48, valueDim: 80, rotary: 32, vocab: 333, context: 2048,
		format: func(name string) tensor.Format {
			for part, f := range formats {
				if strings.Contains(name, part) {
					return f
				}
			}
			if strings.Contains(name, "attn_output") {
				return tensor.Q8_0
			}
			return tensor.F16
		}}
}

func TestMixedFormatsAndOddShapes(t *testing.T) {
	checkInvariance(t, randomModel(t, oddShape()), 150, []int{1, 13, 149})
}

func TestLongChunksAreTheSame(t *testing.T) {
	s := smallShape(tensor.Q8_0)
	s.layers = 1
	checkInvariance(t, randomModel(t, s), 1200, []int{512, 100})
}

// Few parts over a long context are shared in three phases; the bits are those of one.
func TestSpreadAttentionIsTheSame(t *testing.T) {
	m := randomModel(t, oddShape())
	checkInvariance(t, m, spreadTokens+80, []int{1, 3})
	n := spreadTokens + 1
	tab := table(rand.New(rand.NewPCG(1, 2)), 0, n)
	for _, c := range []struct{ threads, start, want int }{{1, n - 1, 0}, {2, n - 3, 0}, {2, n - 1, 2}} {
		pages := newPages(m.Layout(), len(tab))
		pages.poison(0)
		e := newEngine(t, m, pages, func(conf *Config) { conf.Threads = c.threads })
		step(t, e, Row{Tokens: []int32{1}, Start: c.start, Pages: tab, Logits: into(logitsRoom(m, 1))})
		if len(e.spread) != c.want {
			t.Errorf("token %d on %d threads is spread in %d parts, want %d", c.start, c.threads, len(e.spread), c.want)
		}
	}
}

// A model's written lanes decide; what stands behind them doesn't.
func TestLanesBeyondTheExtentChangeNothing(t *testing.T) {
	m := randomModel(t, oddShape())
	r := rand.New(rand.NewPCG(8, 9))
	tokens := randomTokens(r, m.Config.Vocab, 40)
	want := inChunks(t, m, tokens, 40, 1)
	extents := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	if !tensor.Accelerated() {
		extents = []int{1, 7, 15}
	}
	for _, extent := range extents {
		for _, with := range []byte{0x00, 0x3c, 0x7c, 0xff} { // 0, 1.06, a large number, NaN
			n := kv.PageTokens + extent
			pages := newPages(m.Layout(), 3)
			pages.poison(with)
			tab := table(r, 0, 40)
			e := newEngine(t, m, pages, nil)
			logits := logitsRoom(m, 1)
			step(t, e, Row{Tokens: tokens[:n-1], Pages: tab}, Row{})
			step(t, e, Row{Tokens: tokens[n-1 : n], Start: n - 1, Pages: tab, Logits: into(logits)})
			got := result{logits, pages.written(tab, n)}
			if !got.equal(result{want.logits[n-1 : n], want.kv[:len(got.kv)]}) {
				t.Errorf("bytes %#x behind %d tokens of a page change the result", with, extent)
			}
		}
	}
}

// What lies in the pages that a sequence has written does decide: this keeps
// the test above honest.
func TestWrittenLanesMatter(t *testing.T) {
	m := randomModel(t, smallShape(tensor.Q8_0))
	tokens := randomTokens(rand.New(rand.NewPCG(8, 9)), m.Config.Vocab, 40)
	pages := newPages(m.Layout(), 3)
	tab := []kv.Slot{0, 1, 2}
	e := newEngine(t, m, pages, nil)
	before, after := logitsRoom(m, 1), logitsRoom(m, 1)
	step(t, e, Row{Tokens: tokens, Pages: tab, Logits: into(before)})
	clear(pages.Leaf(1, 1))
	step(t, e, Row{Tokens: tokens[39:], Start: 39, Pages: tab, Logits: into(after)})
	if (result{logits: before}).equal(result{logits: after}) {
		t.Fatal("a cleared page changes nothing")
	}
}

// Logits say whose token they were computed from, whatever stands beside it in the
// batch; those that were not computed say nothing.
func TestLogitsSayWhoseTheyAre(t *testing.T) {
	m := randomModel(t, smallShape(tensor.Q8_0))
	pages := newPages(m.Layout(), 12)
	e := newEngine(t, m, pages, func(c *Config) { c.LogitsMax = 2 })
	stale := kv.Origin{Request: 99}
	rows := []Row{
		{Tokens: make([]int32, 9), Pages: []kv.Slot{0}, From: kv.Origin{Request: 1, Attempt: 1, Epoch: 5}, Logits: into(logitsRoom(m, 3))},
		{Tokens: make([]int32, 4), Pages: []kv.Slot{1}, From: kv.Origin{Request: 2, Attempt: 1, Epoch: 5}, Logits: into(logitsRoom(m, 1)), Cancelled: func() bool { return true }},
		{Tokens: make([]int32, 5), Pages: []kv.Slot{2}, From: kv.Origin{Request: 3, Attempt: 2, Epoch: 5}},
		{Tokens: make([]int32, 1), Pages: []kv.Slot{3}, From: kv.Origin{Request: 4, Attempt: 1, Epoch: 5, Index: 7}, Logits: into(logitsRoom(m, 1))},
	}
	for i := range rows {
		for k := range rows[i].Logits {
			rows[i].Logits[k].From = stale
		}
	}
	if err := e.Step(rows); err != nil {
		t.Fatal(err)
	}
	var got []kv.Origin
	for _, r := range rows {
		for _, l := range r.Logits {
			got = append(got, l.From)
		}
	}
	one := rows[0].From
	if diff := cmp.Diff([]kv.Origin{one, one.At(1), one.At(2), {}, rows[3].From}, got); diff != "" {
		t.Errorf("origins differ (-want +got):\n%s", diff)
	}
}

func TestLogitsThatAreNotFiniteAreAnError(t *testing.T) {
	m := randomModel(t, smallShape(tensor.F32))
	tokens := randomTokens(rand.New(rand.NewPCG(1, 9)), m.Config.Vocab, 20)
	want := inChunks(t, m, tokens, 20, 1)
	for _, bad := range []uint16{0x7e00, 0x7c00, 0xfc00} {
		pages := newPages(m.Layout(), 4)
		e := newEngine(t, m, pages, nil)
		rows := []Row{
			{Tokens: tokens[:19], Pages: []kv.Slot{0, 1}}, {Tokens: tokens[:19], Pages: []kv.Slot{2, 3}},
		}
		step(t, e, rows...)
		e.leaf(0, 1)[m.Layout().KeyBytes()/2] = bad // a value of the first row's first token
		for i := range rows {
			rows[i].Tokens, rows[i].Start, rows[i].Logits = tokens[19:], 19, into(logitsRoom(m, 1))
		}
		if err := e.Step(rows); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(rows[0].Err, ErrNotFinite) {
			t.Errorf("value %#x in a row's page: its error is %v, want %v", bad, rows[0].Err, ErrNotFinite)
		}
		if rows[1].Err != nil || !(result{logits: values(rows[1].Logits)}).equal(result{logits: want.logits[19:]}) {
			t.Errorf("value %#x in a row's page reaches another row: error %v", bad, rows[1].Err)
		}
	}
}

func TestCancelledRowsLeaveTheOthersAlone(t *testing.T) {
	m := randomModel(t, smallShape(tensor.Q4_0))
	tokens := randomTokens(rand.New(rand.NewPCG(1, 9)), m.Config.Vocab, 50)
	want := inChunks(t, m, tokens, 50, 1)
	for cancelAt := range 3 {
		pages := newPages(m.Layout(), 12)
		e := newEngine(t, m, pages, func(c *Config) { c.Threads = 2 })
		polls := 0
		rows := []Row{
			{Tokens: tokens[:21], Pages: []kv.Slot{0, 1}, Logits: into(logitsRoom(m, 1)), Cancelled: func() bool { polls++; return polls > cancelAt }},
			{Tokens: tokens, Pages: []kv.Slot{5, 4, 3, 2}, Logits: into(logitsRoom(m, 50)), Cancelled: func() bool { return false }},
		}
		if err := e.Step(rows); err != nil {
			t.Fatal(err)
		}
		wantErr := ErrCancelled
		if cancelAt >= m.Config.Layers {
			wantErr = nil // the last poll is before the last layer
		}
		if !errors.Is(rows[0].Err, wantErr) {
			t.Errorf("cancelled at poll %d: error is %v, want %v", cancelAt, rows[0].Err, wantErr)
		}
		if rows[1].Err != nil || !(result{values(rows[1].Logits), pages.written(rows[1].Pages, 50)}).equal(want) {
			t.Errorf("cancelled at poll %d: the other row's result changed, error %v", cancelAt, rows[1].Err)
		}
	}
}

func TestHashSeesFinalLeaves(t *testing.T) {
	m := randomModel(t, smallShape(tensor.F16))
	tokens := randomTokens(rand.New(rand.NewPCG(1, 9)), m.Config.Vocab, 70)
	pages := newPages(m.Layout(), 5)
	tab := []kv.Slot{3, 1, 0, 4, 2}
	e := newEngine(t, m, pages, func(c *Config) { c.Threads = 3 })
	var mu sync.Mutex
	seen := map[string]kv.Digest{}
	hash := func(page, layer int) {
		mu.Lock()
		defer mu.Unlock()
		seen[fmt.Sprintf("page %d layer %d", page, layer)] = kv.LeafDigest(pages.Leaf(tab[page], layer))
	}
	steps := []struct {
		lo, hi int
		want   []string
	}{
		{0, 20, []string{"page 0 layer 0", "page 0 layer 1", "page 1 layer 0", "page 1 layer 1"}},
		{20, 21, []string{"page 1 layer 0", "page 1 layer 1"}},
		{21, 64, []string{"page 1 layer 0", "page 1 layer 1", "page 2 layer 0", "page 2 layer 1", "page 3 layer 0", "page 3 layer 1"}},
		{64, 70, []string{"page 4 layer 0", "page 4 layer 1"}},
	}
	for _, s := range steps {
		clear(seen)
		step(t, e, Row{Tokens: tokens[s.lo:s.hi], Start: s.lo, Pages: tab, Hash: hash})
		var got []string
		for name := range seen {
			got = append(got, name)
		}
		sort.Strings(got)
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Errorf("positions %d to %d hash other pages (-want +got):\n%s", s.lo, s.hi, diff)
		}
		for layer := range m.Config.Layers {
			for page := range tab {
				name := fmt.Sprintf("page %d layer %d", page, layer)
				if d, ok := seen[name]; ok && d != kv.LeafDigest(pages.Leaf(tab[page], layer)) {
					t.Errorf("positions %d to %d: %s was hashed before it was final", s.lo, s.hi, name)
				}
			}
		}
	}
}

func TestStepRefusesWhatItCannotDo(t *testing.T) {
	m := randomModel(t, smallShape(tensor.F32))
	pages := newPages(m.Layout(), 8)
	e := newEngine(t, m, pages, func(c *Config) { c.TokensMax, c.ContextMax = 20, 64 })
	tab := []kv.Slot{0, 1, 2, 3, 4}
	for name, c := range map[string]struct {
		rows []Row
		want string
	}{
		"page table":    {[]Row{{Tokens: make([]int32, 17), Pages: tab[:1]}}, "1 pages of 16 tokens for 17 positions"},
		"context":       {[]Row{{Tokens: make([]int32, 5), Start: 60, Pages: tab}}, "positions 60 to 65, the context is 64"},
		"start":         {[]Row{{Tokens: make([]int32, 5), Start: -1, Pages: tab}}, "positions -1 to 4"},
		"too many":      {[]Row{{Tokens: make([]int32, 15), Pages: tab}, {Tokens: make([]int32, 6), Pages: tab[2:]}}, "21 tokens in 2 rows, the limit is 20"},
		"vocabulary":    {[]Row{{Tokens: []int32{0, 320}, Pages: tab}}, "position 1 is outside the vocabulary of 320"},
		"negative":      {[]Row{{}, {Tokens: []int32{-1}, Pages: tab}}, "row 1 of 2"},
		"logits beyond": {[]Row{{Tokens: []int32{1}, Pages: tab, Logits: into(logitsRoom(m, 2))}}, "logits of 2 tokens wanted, the step has 1"},
		"logits room":   {[]Row{{Tokens: []int32{1}, Pages: tab, Logits: into([][]float32{nil})}}, "has 0 values, the vocabulary 320"},
	} {
		if err := e.Step(c.rows); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
	if err := e.Step(nil); err != nil {
		t.Errorf("a step without rows: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	m := randomModel(t, smallShape(tensor.F32))
	if _, err := New(m, nil, Config{}); err == nil || strings.Count(err.Error(), "want 1 to") != 4 {
		t.Errorf("an empty configuration: error is %v, want four mistakes", err)
	}
	c := Default(m)
	c.ContextMax = m.Config.Context + 1
	if _, err := New(m, nil, c); err == nil || !strings.Contains(err.Error(), "2049, the model was made for 2048") {
		t.Errorf("a context beyond the model's: error is %v", err)
	}
}

func TestSmolLM2IsBitwiseTheSameHoweverComputed(t *testing.T) {
	_, m := smollm2(t)
	checkInvariance(t, m, 130, []int{7, 16, 100})
}
