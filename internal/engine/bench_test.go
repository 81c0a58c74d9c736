package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

// benchThreads are the thread counts that speeds are stated for.
var benchThreads = []int{1, 2}

// BenchmarkPrefill reads prompts of 512 tokens, without logits, in one chunk.
func BenchmarkPrefill(b *testing.B) {
	_, m := smollm2(b)
	const n = 512
	for _, threads := range benchThreads {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			e := newEngine(b, m, newPages(m.Layout(), kv.PagesFor(n)), func(c *Config) { c.Threads = threads })
			tokens, tab := randomTokens(r, m.Config.Vocab, n), table(r, 0, n)
			cpu := processorTime(b)
			for b.Loop() {
				step(b, e, Row{Tokens: tokens, Pages: tab})
			}
			report(b, cpu, n)
		})
	}
}

// BenchmarkDecode takes 128 steps of one token with its logits, for batches of one
// and four sequences and behind contexts of several lengths.
func BenchmarkDecode(b *testing.B) {
	_, m := smollm2(b)
	for _, threads := range benchThreads {
		for _, c := range []struct{ batch, depth int }{{1, 0}, {4, 0}, {6, 0}, {1, 2048}} {
			b.Run(fmt.Sprintf("threads=%d/batch=%d/depth=%d", threads, c.batch, c.depth), func(b *testing.B) {
				const n = 128
				r := rand.New(rand.NewPCG(1, 1))
				pages := kv.PagesFor(c.depth + n)
				memory := newPages(m.Layout(), c.batch*pages)
				memory.poison(0)
				e := newEngine(b, m, memory, func(c *Config) { c.Threads = threads })
				rows := make([]Row, c.batch)
				for i := range rows {
					rows[i] = Row{Tokens: randomTokens(r, m.Config.Vocab, 1), Pages: table(r, i*pages, c.depth+n), Logits: into(logitsRoom(m, 1))}
				}
				cpu := processorTime(b)
				for b.Loop() {
					for pos := range n {
						for i := range rows {
							rows[i].Start = c.depth + pos
						}
						step(b, e, rows...)
					}
				}
				report(b, cpu, n*c.batch)
			})
		}
	}
}

// report states the speed in tokens a second, and in tokens a second of processor
// time and thread, which other load on the machine disturbs less.
func report(b *testing.B, since time.Duration, tokens int) {
	n := float64(tokens) * float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(n/(processorTime(b)-since).Seconds(), "tokens/cpu-s")
}

func processorTime(b *testing.B) time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
