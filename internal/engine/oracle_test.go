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
// float64. On all of them the reference is our engine on the same weights as F32,
// whose error must be nothing beside what is measured with it.
const (
	exactPositions = 96
	nearDriftMax   = 5e-4 // relative RMS, mostly of keys and values as f16, which both have
)

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

// comparison is what two engines say about one text, measured from the reference.
type comparison struct {
	near                           drift   // the reference's own, from float64
	ours, theirs                   drift   // from the reference
	nearLoss, oursLoss, theirsLoss float64 // in nats, of the next tokens
	losses                         int
	margins                        []float64 // between the peer's first and second choice
	agree                          []bool    // whether our first choice is the peer's
}

// compare reads a text with m, with the same weights as F32 and, from the peer's
// output, with llama.cpp.
func compare(t *testing.T, m, asF32 *model.Model, p *peer) comparison {
	t.Helper()
	const block = 64
	var c comparison
	reference := exact{m: m, tokens: p.tokens[:exactPositions]}
	reference.run()
	var engines [2]*Engine
	for i, m := range []*model.Model{m, asF32} {
		engines[i] = newEngine(t, m, newPages(m.Layout(), kv.PagesFor(len(p.tokens))), func(c *Config) { c.Threads = 2 })
	}
	tab := make([]kv.Slot, kv.PagesFor(len(p.tokens)))
	for i := range tab {
		tab[i] = kv.Slot(i)
	}
	rooms, theirs := [2][][]float32{logitsRoom(m, block), logitsRoom(m, block)}, make([]float32, p.vocab)
	for lo := 0; lo < len(p.tokens); lo += block {
		hi := min(lo+block, len(p.tokens))
		for i, e := range engines {
			step(t, e, Row{Tokens: p.tokens[lo:hi], Start: lo, Pages: tab, Logits: into(rooms[i][:hi-lo])})
		}
		var want [][]float64
		if lo < exactPositions {
			want = reference.logits(lo, min(hi, exactPositions))
		}
		for i := range hi - lo {
			p.read(t, theirs)
			c.position(rooms[0][i], rooms[1][i], theirs, p.tokens, lo+i)
			if i < len(want) {
				c.near.add(rooms[1][i], want[i])
			}
		}
	}
	return c
}

func (c *comparison) position(ours, near, theirs []float32, tokens []int32, pos int) {
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
	want := make([]float64, len(near))
	for i, v := range near {
		want[i] = float64(v)
	}
	c.ours.add(ours, want)
	c.theirs.add(theirs, want)
	if pos+1 < len(tokens) {
		next := tokens[pos+1]
		c.nearLoss += loss(want, next)
		c.oursLoss += loss(ours, next)
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
	near, ours, theirs := c.perplexity(c.nearLoss), c.perplexity(c.oursLoss), c.perplexity(c.theirsLoss)
	t.Logf("measured %s: relative RMS error on %d positions: ours %.5f, llama.cpp %.5f; of the reference itself from float64 %.2g",
		t.Name(), len(c.margins), c.ours.relative(), c.theirs.relative(), c.near.relative())
	t.Logf("measured %s: first choice of llama.cpp: other than ours at %d of %d positions; %d excluded, whose margin is below four times llama.cpp's error of %.4f",
		t.Name(), wrong, len(c.margins), excluded, c.theirs.absolute())
	t.Logf("measured %s: perplexity: exact %.4f, ours %.4f (%+.4f %%), llama.cpp %.4f (%+.4f %%)", t.Name(),
		near, ours, 100*(ours/near-1), theirs, 100*(theirs/near-1))
	if !(c.near.relative() <= nearDriftMax) {
		t.Errorf("the reference's relative RMS error is %.2g, want at most %.2g", c.near.relative(), nearDriftMax)
	}
	if worst := c.ours.relative() + c.near.relative(); !(worst <= driftMax) {
		t.Errorf("relative RMS error is up to %.5f, want at most %.5f", worst, driftMax)
	}
	if wrong > 0 {
		t.Errorf("%d positions have another first choice than llama.cpp", wrong)
	}
	if math.Abs(ours/near-1) > 0.001 {
		t.Errorf("perplexity is %.4f, exact arithmetic has %.4f; a change of 0.1 %% is allowed", ours, near)
	}
}

func TestAgainstLlamaCpp(t *testing.T) {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 does not name SmolLM2's GGUF file")
	}
	o := needOracle(t)
	text := o.text(t)
	const ftypeF32, ftypeQ8, driftMax = 0, 7, 0.005
	q8 := o.quantized(t, path, "q8", ftypeQ8)
	for _, c := range []struct{ name, path string }{{"Q8_0", q8}, {"the wheel's file", path}} {
		t.Run(c.name, func(t *testing.T) {
			m, asF32 := loadFile(t, c.path), loadFile(t, o.quantized(t, c.path, "f32", ftypeF32))
			p := o.logits(t, c.path, text, oraclePositions)
			if p.vocab != m.Config.Vocab {
				t.Fatalf("llama.cpp reads %d tokens, we %d", p.vocab, m.Config.Vocab)
			}
			got := compare(t, m, asF32, p)
			p.close(t)
			got.check(t, driftMax)
		})
	}
}

// quantized is the file in another quantization, by llama.cpp.
func (o *oracle) quantized(t *testing.T, path, name string, ftype int) string {
	t.Helper()
	out := filepath.Join(o.folder, name+".gguf")
	o.run(t, o.program, "quantize", o.library, path, out, strconv.Itoa(ftype))
	return out
}

func loadFile(t *testing.T, path string) *model.Model {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	m, err := model.Load(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
