package worker

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/shm"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
)

// slowdownMax is what all guards together may cost.
const slowdownMax = 0.01

// plan is the size of a measurement, chosen before it begins.
type plan struct {
	sessions                int // pairs of workers are made anew in each
	firstBlocks             int // of a session: solo requests up to their first token
	duelBlocks, batchBlocks int // of a session: whole solo requests, and several at once
	prompt, output          int // tokens of a solo request
	batch                   int // requests at once
	promptEach, outputEach  int // tokens of each of them
	threads                 int // of each engine
	vocab                   int
	seed                    uint64
}

var costFlags = struct {
	only              *string
	sessions, threads *int
	prompt, output    *int
	first             *int
	duels, batches    *int
	beside            *int
	each              *bool
	seed              *uint64
}{
	flag.String("cost.only", "", "measure only what has this in its name"),
	flag.Int("cost.sessions", 4, "sessions, each with workers of its own"),
	flag.Int("cost.threads", 1, "engine threads of a worker"),
	flag.Int("cost.prompt", 0, "prompt tokens, 0: the model's own number"),
	flag.Int("cost.output", 0, "output tokens, 0: the model's own number"),
	flag.Int("cost.first", 0, "blocks of four requests up to the first token in a session, 0: the model's own number"),
	flag.Int("cost.duels", 0, "blocks of four whole solo requests in a session, 0: the model's own number"),
	flag.Int("cost.batches", 0, "blocks of four batches of concurrent requests in a session, 0: the model's own number"),
	flag.Int("cost.beside", 4, "what is measured beside the guards, as TLS, has fewer blocks by this factor"),
	flag.Bool("cost.each", false, "measure each guard alone as well"),
	flag.Uint64("cost.seed", 1, "of prompts and resampling"),
}

// subject is a model to measure on, with the sizes that suit its speed.
type subject struct {
	name string
	plan plan
	load func(b *testing.B) *model.Model
}

func subjects() []subject {
	return []subject{
		{"smollm2", plan{prompt: 192, output: 98, batch: 4, promptEach: 48, outputEach: 112, firstBlocks: 12, duelBlocks: 8, batchBlocks: 8}, loadSmolLM2},
		{"tracer", plan{prompt: 480, output: 130, batch: 4, promptEach: 480, outputEach: 400, firstBlocks: 24, duelBlocks: 12, batchBlocks: 12}, loadTracer},
	}
}

func loadSmolLM2(b *testing.B) *model.Model {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		b.Skip("BULKHEAD_SMOLLM2 names no model file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	return loaded(b, f)
}

func loadTracer(b *testing.B) *model.Model { return loaded(b, tracer.File()) }

func loaded(b *testing.B, f *gguf.File) *model.Model {
	m, err := model.Load(f)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

// BenchmarkGuardCost measures what all guards together cost, in turns with the same
// workers without them, and ends with a line "verdict MODEL: ..." for each
// model. It runs once, with
// -benchtime 1x; scripts/guardcost calls it and docs/guard-cost.md says how it
// measures. Beside it stand what TLS and shared memory change, and the guarded side
// against itself, which shows what the method sees where nothing is.
func BenchmarkGuardCost(b *testing.B) {
	fmt.Printf("machine: %s\n", machine())
	guarded := side{over: "tcp", wire: plainTCP}
	verdicts := []string{}
	for _, s := range subjects() {
		b.Run(s.name, func(b *testing.B) {
			m := s.load(b)
			p := s.plan.with(m)
			fmt.Printf("\n%s: %d layers, a page is %d bytes\n", s.name, len(m.Layers), m.Layout().FrameBytes())
			if e := p.contest(b, m, "all guards", side{"tcp", plainTCP, everything}, guarded); len(e) > 0 {
				verdicts = append(verdicts, fmt.Sprintf("verdict %s: %s", s.name, judge(slowdownMax, e...)))
			}
			if *costFlags.each {
				p.eachGuard(b, m, guarded)
			}
			for _, blocks := range []*int{&p.firstBlocks, &p.duelBlocks, &p.batchBlocks} {
				*blocks = max(1, *blocks / *costFlags.beside)
			}
			p.contest(b, m, "the guarded side against itself", guarded, guarded)
			p.contest(b, m, "TLS beside it", guarded, side{over: "tcp with TLS", wire: mutualTLS})
			p.contest(b, m, "shared memory beside it", guarded, side{over: "shm", wire: sharedMemory})
		})
	}
	fmt.Printf("\nlimit: each upper bound of the slowdown by all guards, in TTFT, ITL and tokens/s, at most %.1f %%\n%s\n", 100*slowdownMax, strings.Join(verdicts, "\n"))
}

// eachGuard measures what is lost or gained by one guard alone.
func (p plan) eachGuard(b *testing.B, m *model.Model, guarded side) {
	for _, g := range []struct {
		name string
		omit omitted
	}{{"digests", omitted{digests: true}}, {"tags", omitted{tags: true}}, {"zeroing", omitted{zeroing: true}},
		{"holds", omitted{holds: true}}, {"ledger", omitted{ledger: true}}} {
		p.contest(b, m, g.name+" alone", side{"tcp", plainTCP, g.omit}, guarded)
	}
}

func (p plan) with(m *model.Model) plan {
	p.sessions, p.threads, p.seed, p.vocab = *costFlags.sessions, *costFlags.threads, *costFlags.seed, m.Config.Vocab
	for _, f := range []struct{ flag, into *int }{{costFlags.prompt, &p.prompt}, {costFlags.output, &p.output},
		{costFlags.first, &p.firstBlocks}, {costFlags.duels, &p.duelBlocks}, {costFlags.batches, &p.batchBlocks}} {
		if *f.flag > 0 {
			*f.into = *f.flag
		}
	}
	return p
}

// contest compares two sides and prints the comparison. It returns the estimates that
// a verdict is made of.
func (p plan) contest(b *testing.B, m *model.Model, name string, base, other side) (wall []estimate) {
	if !strings.Contains(b.Name()+"/"+name, *costFlags.only) {
		return nil
	}
	begun := time.Now()
	s := &samples{}
	for number := range p.sessions {
		b.Run("session", func(b *testing.B) { s.add(p.session(b, m, base, other, number)) })
		fmt.Fprintf(os.Stderr, "%s: session %d of %d ended after %.0f s\n", name, number+1, p.sessions, time.Since(begun).Seconds())
	}
	fmt.Printf("\n%s: %s -> %s\n", name, base, other)
	fmt.Printf("  chosen beforehand: %d sessions x (%d blocks of 4 first tokens and %d of 4 solo requests, prompt %d, output %d; %d blocks of 4 times %d requests at once, prompt %d, output %d), %d engine threads, seed %d; took %.0f s\n",
		p.sessions, p.firstBlocks, p.duelBlocks, p.prompt, p.output, p.batchBlocks, p.batch, p.promptEach, p.outputEach, p.threads, p.seed, time.Since(begun).Seconds())
	fmt.Printf("  %-28s %9s %20s %6s %24s  %s\n", "slowdown", "estimate", "95 % interval", "n", "middle half of samples", "without")
	r := rand.New(rand.NewPCG(p.seed, 99))
	batch := float64(p.batch)
	ttft, rate := hodgesLehmann(s.ttft), hodgesLehmann(s.rate)
	itl := byPosition(s.itl, kv.PageTokens, r)
	ttft.print("TTFT", fmt.Sprintf("%.2f ms", 1e3*median(s.base.ttft)))
	itl.print("ITL", fmt.Sprintf("%.3f ms", 1e3*median(s.base.itl)))
	rate.print("time a token, batch (1/rate)", fmt.Sprintf("%.1f tokens/s", batch/median(s.base.rate)))
	hodgesLehmann(s.ttftCPU).print("CPU to the first token", fmt.Sprintf("%.2f ms", 1e3*median(s.base.ttftCPU)))
	byPosition(s.itlCPU, kv.PageTokens, r).print("CPU a token, solo", fmt.Sprintf("%.3f ms", 1e3*median(s.base.itlCPU)))
	hodgesLehmann(s.rateCPU).print("CPU a token, batch", fmt.Sprintf("%.3f ms", 1e3*median(s.base.rateCPU)/batch))
	return []estimate{ttft.slower(), itl.slower(), rate.slower()}
}

func (e estimate) print(name, base string) {
	e = e.slower()
	fmt.Printf("  %-28s %+8.2f %% %+9.2f ..%+7.2f %% %6d %+12.2f ..%+7.2f %%  %s\n",
		name, 100*e.at, 100*e.lower, 100*e.upper, e.n, 100*e.quartile[0], 100*e.quartile[1], base)
}

// machine describes where this runs, and how busy it is.
func machine() string {
	cpu := "unknown processor"
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if name, value, ok := strings.Cut(scan.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
		_ = f.Close()
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%s, %d CPUs, %s/%s, %s, load %s", cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), strings.TrimSpace(string(load)))
}

func sharedMemory(t testing.TB, c transport.Config) (listener, Dial) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cost") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := shm.Listen(path, c)
	if err != nil {
		t.Fatal(err)
	}
	return l, func(ctx context.Context, c transport.Config) (transport.Link, error) { return shm.Dial(ctx, path, c) }
}

func mutualTLS(t testing.TB, c transport.Config) (listener, Dial) {
	t.Helper()
	authority, _, err := certs.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	material := func(id certs.Identity) *certs.Material {
		files, err := authority.Issue(id, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		m, err := certs.Load(files)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	source, target := certs.Identity{Role: certs.Prefill, Name: "p0"}, certs.Identity{Role: certs.Decode, Name: "d0"}
	server, err := tcp.MutualTLS(material(source).Server(certs.Decode), certs.IsNode)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tcp.Listen("127.0.0.1:0", c, server)
	if err != nil {
		t.Fatal(err)
	}
	own := material(target)
	return l, func(ctx context.Context, c transport.Config) (transport.Link, error) {
		host, _, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		client, err := tcp.MutualTLS(own.Client(source, host), certs.IsNode)
		if err != nil {
			return nil, err
		}
		return tcp.Dial(ctx, l.Addr().String(), c, client)
	}
}
