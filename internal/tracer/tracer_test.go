package tracer

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
	"github.com/bulkhead-kv/bulkhead/internal/tokenizer"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
)

func TestCodesAreApart(t *testing.T) {
	least, leastBytes := codeDims, codeDims
	for a := range Vocab {
		for b := range a {
			if a == BOS || b == BOS {
				continue
			}
			gap := 2 * bits.OnesCount16(uint16(codeOf(a)^codeOf(b)))
			least = min(least, gap)
			if a < 256 {
				leastBytes = min(leastBytes, gap)
			}
		}
	}
	if least != codeGap || leastBytes != 6 {
		t.Errorf("codes differ by %d and those of bytes by %d, want %d and 6", least, leastBytes, codeGap)
	}
}

// The margins that the comments promise, in exact arithmetic.
func TestMargins(t *testing.T) {
	least, at := math.Inf(1), 0
	for d := -SuffixTokens; d < ContextMax; d++ {
		fall := 0.0
		for pair := range placePairs {
			fall += 1 - math.Cos(frequency(pair)*float64(d))
		}
		if d != 0 && fall < least {
			least, at = fall, d
		}
	}
	t.Logf("layer 1: the wanted place scores %.1f nats above any other of %d, the nearest at distance %d", least*placeNats, ContextMax, at)
	if least*placeNats < 25 {
		t.Errorf("layer 1's margin is %.1f nats, want 25", least*placeNats)
	}
	side := matchUnit*codeGap/2 - recentSwing/2
	t.Logf("layer 2: a full match scores %.0f nats above <|bos|>, and <|bos|> as much above any other place; the latest of equal places wins by %.4f nats a token",
		side, recentNats*math.Pi/2/ContextMax*math.Sqrt2/2)
	if side < 25 {
		t.Errorf("layer 2's margin is %.1f nats, want 25", side)
	}
}

// memory is pages in a slice; what nobody wrote is NaN.
type memory struct {
	layout kv.Layout
	bytes  []byte
}

func newMemory(l kv.Layout, pages int) *memory {
	m := &memory{l, tensor.AlignedBytes(pages * l.BodyBytes())}
	for i := range m.bytes {
		m.bytes[i] = 0xff
	}
	return m
}

func (m *memory) Leaf(slot kv.Slot, layer int) []byte {
	return m.body(slot)[layer*m.layout.LeafBytes():][:m.layout.LeafBytes()]
}

func (m *memory) body(slot kv.Slot) []byte {
	return m.bytes[int(slot)*m.layout.BodyBytes():][:m.layout.BodyBytes()]
}

func load(t testing.TB) *model.Model {
	t.Helper()
	m, err := model.Load(File())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// speaker runs sequences on the tracer.
type speaker struct {
	t      testing.TB
	pages  *memory
	engine *engine.Engine
	logits []float32
	least  float64 // smallest probability of a chosen token
}

func newSpeaker(t testing.TB, m *model.Model, pages, threads int) *speaker {
	t.Helper()
	s := &speaker{t: t, pages: newMemory(m.Layout(), pages), logits: make([]float32, Vocab), least: 1}
	c := engine.Default(m)
	c.Threads = threads
	e, err := engine.New(m, s.pages, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	s.engine = e
	return s
}

func encode(text string) []int32 {
	tokens := []int32{BOS}
	for _, b := range []byte(text) {
		tokens = append(tokens, int32(b))
	}
	return tokens
}

// read computes K and V of tokens from position start on.
func (s *speaker) read(tokens []int32, start int, table []kv.Slot) {
	s.t.Helper()
	s.readChunks(tokens, start, table, 512)
}

func (s *speaker) readChunks(tokens []int32, start int, table []kv.Slot, chunk int) {
	s.t.Helper()
	for lo := start; lo < len(tokens); lo += chunk {
		s.step(engine.Row{Tokens: tokens[lo:min(lo+chunk, len(tokens))], Start: lo, Pages: table})
	}
}

func (s *speaker) step(row engine.Row) {
	s.t.Helper()
	rows := []engine.Row{row}
	if err := s.engine.Step(rows); err != nil {
		s.t.Fatal(err)
	}
	if rows[0].Err != nil {
		s.t.Fatal(rows[0].Err)
	}
}

// say goes on for n tokens or until the answer ends, from pages that hold all of
// tokens.
func (s *speaker) say(tokens []int32, n int, table []kv.Slot) string {
	s.t.Helper()
	var out strings.Builder
	at, next := len(tokens)-1, tokens[len(tokens)-1]
	for range n {
		s.step(engine.Row{Tokens: []int32{next}, Start: at, Pages: table, Logits: []engine.Logits{{Values: s.logits}}})
		next = s.choose()
		if next >= 256 {
			fmt.Fprintf(&out, "<%d>", next)
			break
		}
		out.WriteByte(byte(next))
		at++
	}
	return out.String()
}

func (s *speaker) choose() int32 {
	best, sum := 0, 0.0
	for i, v := range s.logits {
		if v > s.logits[best] {
			best = i
		}
	}
	for _, v := range s.logits {
		sum += math.Exp(float64(v - s.logits[best]))
	}
	s.least = min(s.least, 1/sum)
	return int32(best)
}

func slots(first, tokens int) []kv.Slot {
	out := make([]kv.Slot, kv.PagesFor(tokens))
	for i := range out {
		out[i] = kv.Slot(first + i)
	}
	return out
}

// ledger is a text of the given length, with n facts at even depths, the first
// at its start and the last at its end.
func ledger(seed uint64, length, n int) (text string, keys, values []string) {
	r := rand.New(rand.NewPCG(seed, 2))
	words := strings.Fields("the ledger of station amber river stone cloud harbor needle paper winter copper lantern orchard violet basin")
	var b strings.Builder
	for i, key := range r.Perm(1000)[:n] {
		for b.Len() < (length-40)*i/(n-1) {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		keys = append(keys, fmt.Sprintf("station %03d = ", key))
		values = append(values, fmt.Sprintf("%08d", r.IntN(100000000)))
		b.WriteString(keys[i] + values[i] + "; ")
	}
	for b.Len() < length {
		b.WriteString(words[r.IntN(len(words))] + " ")
	}
	return b.String()[:length], keys, values
}

// plantedSize is the length of the prompt that values are planted in and their
// number; the portable kernels are too slow for the whole of it.
func plantedSize() (tokens, facts int) {
	if tensor.Accelerated() {
		return 16384, 100
	}
	return 512, 8
}

func TestPlantedValuesAreRepeatedExactly(t *testing.T) {
	m := load(t)
	length, facts := plantedSize()
	s := newSpeaker(t, m, length/kv.PageTokens+2, 2)
	text, keys, values := ledger(1, length-len("+tell me of station 000 = "), facts)
	shared := encode(text)
	table := slots(0, length+16)
	s.read(shared, 0, table)
	exact := 0
	for i, key := range keys {
		prompt := append(shared[:len(shared):len(shared)], encode("tell me of " + key)[1:]...)
		s.read(prompt, len(shared), table)
		got := s.say(prompt, len(values[i])+1, table)
		if want := values[i] + ";"; got != want {
			t.Errorf("fact %d of %d: the answer is %q, want %q", i, facts, got, want)
			continue
		}
		exact++
	}
	t.Logf("%d of %d values exact at even depths of a prompt of %d tokens, least probability of a token %.15f", exact, facts, len(shared)+len("tell me of station 000 = "), s.least)
	if s.least < 0.999999 {
		t.Errorf("the least probability of a right token is %g, want 0.999999", s.least)
	}
}

func TestAnswerEndsWhereNothingMatches(t *testing.T) {
	m := load(t)
	s := newSpeaker(t, m, 16, 2)
	for name, c := range map[string]struct {
		prompt, want string
		n            int
	}{
		"nothing before":      {"hello", "<259>", 9},
		"no such words":       {"station 123 = 42; and then what is the weather", "<259>", 9},
		"seven tokens match":  {"station 5: blue. station 5: green. stasion 5: ", "<259>", 9},
		"goes on from match":  {"station 123 = 42; the river. What is station 123 = ", "42; the r", 9},
		"latest match counts": {"station 123 = 41; " + strings.Repeat("The river rose by two. ", 4) + "station 123 = 42; What is station 123 = ", "42; What", 8},
		"a period repeats":    {"abcdefgh. abcdefgh. ", "abcdefgh. abc", 13},
	} {
		tokens := encode(c.prompt)
		table := slots(0, 200)
		s.read(tokens, 0, table)
		if got := s.say(tokens, c.n, table); got != c.want {
			t.Errorf("%s: the answer is %q, want %q", name, got, c.want)
		}
	}
}

// A message that is repeated to its end ends the answer as it ended itself.
func TestAnswerEndsWithTheMessageItRepeats(t *testing.T) {
	m := load(t)
	s := newSpeaker(t, m, 16, 2)
	tokens := append(encode("")[:1:1], IMStart)
	tokens = append(tokens, encode("user\nmy number is 4711")[1:]...)
	tokens = append(tokens, IMEnd)
	tokens = append(tokens, encode("\nthen: my number is ")[1:]...)
	table := slots(0, 100)
	s.read(tokens, 0, table)
	if got := s.say(tokens, 9, table); got != "4711<259>" {
		t.Errorf("the answer is %q, want 4711 and <|im_end|>", got)
	}
}

func TestPagesAreTheSameHoweverComputed(t *testing.T) {
	m := load(t)
	text, keys, values := ledger(4, 560, 4)
	prompt := encode(text + keys[1])
	table := slots(0, 640)
	var want []byte
	for _, threads := range []int{1, 2, 3} {
		for _, chunk := range []int{512, 1, 7, 16, 100} {
			s := newSpeaker(t, m, len(table), threads)
			s.readChunks(prompt, 0, table, chunk)
			if got := s.say(prompt, len(values[1]), table); got != values[1] {
				t.Errorf("chunks of %d on %d threads: the answer is %q, want %q", chunk, threads, got, values[1])
			}
			if want == nil {
				want = s.pages.bytes
			}
			if !bytes.Equal(want, s.pages.bytes) {
				t.Errorf("chunks of %d on %d threads give other pages than one chunk on one thread", chunk, threads)
			}
		}
	}
}

// Each page of the prompt that the answer draws on matters: with another
// prompt's bytes in its place the answer is another one.
func TestForeignPagesChangeTheAnswer(t *testing.T) {
	m := load(t)
	const tokensMax = 2048
	pages := tokensMax / kv.PageTokens
	s := newSpeaker(t, m, 2*pages, 2)
	mine, foreign := slots(0, tokensMax), slots(pages, tokensMax)
	length, facts := 1800, 8
	if !tensor.Accelerated() {
		length, facts = 450, 3
	}
	text, keys, values := ledger(1, length, facts)
	theirs, _, _ := ledger(9, length+100, facts)
	s.read(encode(theirs), 0, foreign)
	for i, key := range keys {
		prompt := encode(text + "tell me of " + key)
		s.read(prompt, 0, mine)
		n := len(values[i])
		if got := s.say(prompt, n, mine); got != values[i] {
			t.Fatalf("fact %d: the answer is %q, want %q", i, got, values[i])
		}
		// Positions that the answer draws on: the value's own, which layer 2 attends to, and the last eight of the prompt.
		first := 1 + strings.Index(text, key) + len(key)
		for _, span := range [][2]int{{first, first + n - 1}, {len(prompt) - SuffixTokens, len(prompt) - 2}} {
			for page := span[0] / kv.PageTokens; page <= span[1]/kv.PageTokens; page++ {
				body := s.pages.body(mine[page])
				saved := bytes.Clone(body)
				copy(body, s.pages.body(foreign[page]))
				if got := s.say(prompt, n, mine); got == values[i] {
					t.Errorf("fact %d: page %d holds another prompt's bytes and the answer is still right", i, page)
				}
				copy(body, saved)
			}
		}
	}
}

func TestTokenizerReadsTheVocabulary(t *testing.T) {
	tok, err := tokenizer.New(File().Metadata)
	if err != nil {
		t.Fatal(err)
	}
	text := "station 007 = \x00\x7f \u00e9\u4e16 <|bos|>\n\t"
	var want []int32
	for _, b := range []byte(text) {
		want = append(want, int32(b))
	}
	var got []int32
	for _, id := range tok.Encode(text) {
		got = append(got, int32(id))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a text's tokens are not its bytes (-want +got):\n%s", diff)
	}
}

func TestFileIsSmall(t *testing.T) {
	if n := len(Bytes()); n > 8<<20 {
		t.Errorf("the file has %d bytes, want at most %d", n, 8<<20)
	}
}

// BenchmarkLoad is from nothing to a model that can answer.
func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		m, err := model.Load(File())
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
