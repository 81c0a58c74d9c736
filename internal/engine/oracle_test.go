package engine

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// oraclePositions is the length of the text that logits are compared on.
const oraclePositions = 2000

// exactPositions is how many of them, from the first on, are also computed in
// exact arithmetic. BULKHEAD_EXACT_POSITIONS=2000 takes all, and minutes.
func exactPositions(t *testing.T) int {
	text := os.Getenv("BULKHEAD_EXACT_POSITIONS")
	if text == "" {
		return 96
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > oraclePositions {
		t.Fatalf("BULKHEAD_EXACT_POSITIONS is %q, want 2 to %d", text, oraclePositions)
	}
	return n
}

// oracle is llama.cpp as a program.
type oracle struct{ program, library, folder string }

func needOracle(t *testing.T) *oracle {
	t.Helper()
	modules := os.Getenv("BULKHEAD_ORACLE")
	if modules == "" {
		t.Skip("BULKHEAD_ORACLE names no node_modules folder with node-llama-cpp")
	}
	folder := t.TempDir()
	source := filepath.Join(folder, "source")
	o := &oracle{filepath.Join(folder, "oracle"), filepath.Join(modules, "@node-llama-cpp", "linux-x64", "bins", "linux-x64"), folder}
	o.run(t, "git", "clone", "-q", "--no-checkout", filepath.Join(modules, "node-llama-cpp", "llama", "gitRelease.bundle"), source)
	o.run(t, "git", "-C", source, "checkout", "-q", "HEAD", "--", "include", "ggml/include")
	o.run(t, "gcc", "-O1", "-o", o.program, "testdata/oracle.c",
		"-I", filepath.Join(source, "include"), "-I", filepath.Join(source, "ggml", "include"),
		filepath.Join(o.library, "libllama.v0.4.0.so"), filepath.Join(o.library, "libggml.v0.4.0.so"),
		"-Wl,-rpath,"+o.library, "-Wl,--allow-shlib-undefined")
	return o
}

func (o *oracle) run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// text is English that every machine with Go has: the standard library's
// comments about templates, regular expressions and formats.
func (o *oracle) text(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, name := range []string{"text/template/doc.go", "fmt/doc.go", "encoding/gob/doc.go"} {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(source)) {
			if !strings.HasPrefix(line, "//") && !strings.HasPrefix(line, "package") {
				text.WriteString(line)
			}
		}
	}
	path := filepath.Join(o.folder, "text")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// peer is llama.cpp's logits of a text, in order of position.
type peer struct {
	command *exec.Cmd
	out     *bufio.Reader
	tokens  []int32
	vocab   int
}

func (o *oracle) logits(t *testing.T, modelPath, textPath string, n int) *peer {
	t.Helper()
	p := &peer{command: exec.Command(o.program, "logits", o.library, modelPath, textPath, strconv.Itoa(n))}
	p.command.Stderr = os.Stderr
	pipe, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReaderSize(pipe, 1<<20)
	head := make([]int32, 2)
	p.read(t, head)
	p.tokens, p.vocab = make([]int32, head[0]), int(head[1])
	p.read(t, p.tokens)
	return p
}

func (p *peer) read(t *testing.T, into any) {
	t.Helper()
	if err := binary.Read(p.out, binary.LittleEndian, into); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) close(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, p.out); err != nil {
		t.Fatal(err)
	}
	if err := p.command.Wait(); err != nil {
		t.Fatal(err)
	}
}

// comparison is what two engines and exact arithmetic say about one text.
type comparison struct {
	ours, theirs         drift   // from exact arithmetic, on its positions
	exactLoss            float64 // in nats, of the next tokens
	oursLoss, theirsLoss float64 // of the same, and on the same positions
	losses               int
	lossSquares          float64   // of the differences between our loss and the exact one
	margins              []float64 // between the peer's first and second choice
	agree                []bool    // whether our first choice is the peer's
}

func compare(t *testing.T, m *model.Model, p *peer, exactCount int) comparison {
	t.Helper()
	const block = 64
	var c comparison
	reference := exact{m: m, tokens: p.tokens[:exactCount]}
	reference.run()
	pages := newPages(m.Layout(), kv.PagesFor(len(p.tokens)))
	e := newEngine(t, m, pages, func(c *Config) { c.Threads = 2 })
	tab := make([]kv.Slot, kv.PagesFor(len(p.tokens)))
	for i := range tab {
		tab[i] = kv.Slot(i)
	}
	room, theirs := logitsRoom(m, block), make([]float32, p.vocab)
	for lo := 0; lo < len(p.tokens); lo += block {
		hi := min(lo+block, len(p.tokens))
		ours := room[:hi-lo]
		step(t, e, Row{Tokens: p.tokens[lo:hi], Start: lo, Pages: tab, Logits: ours})
		var want [][]float64
		if lo < exactCount {
			want = reference.logits(lo, min(hi, exactCount))
		}
		for i := range ours {
			p.read(t, theirs)
			c.position(ours[i], theirs)
			if i < len(want) {
				c.exactPosition(ours[i], theirs, want[i], p.tokens, lo+i)
			}
		}
	}
	return c
}

func (c *comparison) position(ours, theirs []float32) {
	best, second := 0, 1
	for i, v := range theirs {
		if v > theirs[best] {
			best, second = i, best
		} else if i != best && v > theirs[second] {
			second = i
		}
	}
	c.margins = append(c.margins, float64(theirs[best]-theirs[second]))
	c.agree = append(c.agree, ours[best] == slices.Max(ours))
}

func (c *comparison) exactPosition(ours, theirs []float32, want []float64, tokens []int32, pos int) {
	c.ours.add(ours, want)
	c.theirs.add(theirs, want)
	if pos+1 < len(tokens) {
		next := tokens[pos+1]
		exactLoss, oursLoss := loss(want, next), loss(ours, next)
		c.exactLoss += exactLoss
		c.oursLoss += oursLoss
		c.lossSquares += (oursLoss - exactLoss) * (oursLoss - exactLoss)
		c.theirsLoss += loss(theirs, next)
		c.losses++
	}
}

// perplexity is exp of the mean loss.
func (c *comparison) perplexity(sum float64) float64 { return math.Exp(sum / float64(c.losses)) }

func (c *comparison) check(t *testing.T, driftMax float64) {
	t.Helper()
	wrong, excluded := 0, 0
	for i, margin := range c.margins {
		switch {
		case margin <= 4*c.theirs.absolute():
			excluded++
		case !c.agree[i]:
			wrong++
		}
	}
	exactPpl, oursPpl, theirsPpl := c.perplexity(c.exactLoss), c.perplexity(c.oursLoss), c.perplexity(c.theirsLoss)
	t.Logf("relative RMS error against float64 on %d positions: ours %.5f, llama.cpp %.5f", c.losses, c.ours.relative(), c.theirs.relative())
	t.Logf("first choice of llama.cpp: other than ours at %d of %d positions; %d excluded, whose margin is below four times llama.cpp's error of %.4f",
		wrong, len(c.margins), excluded, c.theirs.absolute())
	t.Logf("perplexity: exact %.4f, ours %.4f (%+.4f %%), llama.cpp %.4f (%+.4f %%); standard error of ours %.4f %%", exactPpl,
		oursPpl, 100*(oursPpl/exactPpl-1), theirsPpl, 100*(theirsPpl/exactPpl-1), 100*math.Sqrt(c.lossSquares)/float64(c.losses))
	if !(c.ours.relative() <= driftMax) {
		t.Errorf("relative RMS error is %.5f, want at most %.5f", c.ours.relative(), driftMax)
	}
	if wrong > 0 {
		t.Errorf("%d positions have another first choice than llama.cpp", wrong)
	}
	// A part of the text tells the perplexity's change up to two standard errors; the whole of it is taken as it is.
	allowed := 0.001
	if c.losses < oraclePositions-1 {
		allowed += 2 * math.Sqrt(c.lossSquares) / float64(c.losses)
	}
	if math.Abs(oursPpl/exactPpl-1) > allowed {
		t.Errorf("perplexity is %.4f, exact arithmetic has %.4f; %.4f %% are allowed", oursPpl, exactPpl, 100*allowed)
	}
}

func TestAgainstLlamaCpp(t *testing.T) {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 does not name SmolLM2's GGUF file")
	}
	o := needOracle(t)
	text := o.text(t)
	const ftypeQ8 = 7
	q8 := filepath.Join(o.folder, "q8.gguf")
	o.run(t, o.program, "quantize", o.library, path, q8, strconv.Itoa(ftypeQ8))
	for _, c := range []struct {
		name, path string
		driftMax   float64 // 0: llama.cpp's own
	}{{"Q8_0", q8, 0.005}, {"the wheel's file", path, 0}} {
		t.Run(c.name, func(t *testing.T) {
			f, err := gguf.Open(c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			m, err := model.Load(f)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			p := o.logits(t, c.path, text, oraclePositions)
			if p.vocab != m.Config.Vocab {
				t.Fatalf("llama.cpp reads %d tokens, we %d", p.vocab, m.Config.Vocab)
			}
			got := compare(t, m, p, exactPositions(t))
			p.close(t)
			limit := c.driftMax
			if limit == 0 {
				limit = got.theirs.relative()
			}
			got.check(t, limit)
		})
	}
}
