package transporttest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// Benchmark measures what the guards cost in the raw transfer: the same pages
// from the same process, over a link without gate, fence and verification, over
// one with gate and fence, and over one with all three, in turns; and, where large
// grants are copied past the cache, over an unguarded one that doesn't do so. Every
// page is read once when it is there, as a kernel would, guarded or not. It
// reports the medians in GB/s and of the paired ratios to both unguarded ones.
func Benchmark(b *testing.B, tr Transport) {
	for _, pages := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) { benchmark(b, tr, pages) })
	}
}

type contender struct {
	name   string
	target *node
	verify bool
	took   []float64 // seconds a round
	read   uint64    // of all that was consumed, so that it is
}

func benchmark(b *testing.B, tr Transport, pages int) {
	shape := shapes["storm"]
	p := startPeer(b, tr, "storm")
	raw, gated, whole := newTargetOn(b, tr, shape, pages, mapped(b)), newTargetOn(b, tr, shape, pages, mapped(b)), newTargetOn(b, tr, shape, pages, mapped(b))
	raw.dial(tr, p.addr, func(func()) Door { return &Unchecked{pages: raw.pages} })
	gated.dial(tr, p.addr, nil)
	whole.dial(tr, p.addr, nil)
	contenders := []*contender{{name: "unguarded", target: raw}, {name: "gated", target: gated}, {name: "verified", target: whole, verify: true}}
	if tr.DialPlain != nil {
		plain := newTargetOn(b, tr, shape, pages, mapped(b))
		plainly := tr
		plainly.DialDoor = tr.DialPlain
		plain.dial(plainly, p.addr, func(func()) Door { return &Unchecked{pages: plain.pages} })
		contenders = append(contenders, &contender{name: "plain", target: plain})
	}
	g := grant{transport.Grant{X: kv.TransferID{Epoch: 0xd0}, Tenant: 7, Tokens: uint32(pages * kv.PageTokens)}, shape}
	for i := range pages {
		g.Pages = append(g.Pages, kv.PageRef{Slot: kv.Slot(i), Generation: 1})
	}
	for range 2 { // touches all memory
		for _, c := range contenders {
			c.round(b, &g)
			c.took = nil
		}
	}
	b.SetBytes(int64(pages * shape.FrameBytes()))
	turn := 0
	for b.Loop() {
		for i := range contenders {
			contenders[(turn+i)%len(contenders)].round(b, &g)
		}
		turn++
	}
	for _, c := range contenders {
		b.ReportMetric(float64(pages*shape.FrameBytes())/median(c.took)/1e9, c.name+"-GB/s")
		for _, base := range contenders {
			if c != base && (base.name == "unguarded" || base.name == "plain") {
				b.ReportMetric(median(ratios(base.took, c.took)), c.name+"/"+base.name)
			}
		}
		c.target.down()
	}
	b.ReportMetric(0, "MB/s")
	b.ReportMetric(0, "ns/op")
	if err := p.end(); err != nil {
		b.Error(err)
	}
}

// round moves one grant's pages.
func (c *contender) round(b *testing.B, g *grant) {
	g.X.Sequence++
	begun := time.Now()
	c.target.open(*g)
	c.target.send(g.message())
	c.target.untilClosed()
	c.target.link.Fence(g.X)
	c.target.expect(transport.Fenced)
	for i, ref := range g.Pages {
		page := c.target.pages[ref.Slot]
		body := page[kv.HeaderBytes : kv.HeaderBytes+g.layout.BodyBytes()]
		if c.verify && kv.HeaderSum(page) != kv.Bind(g.message().Key, g.tag(i), rootOf(g.layout, body)) {
			b.Fatalf("block %d arrived with a wrong sum", i)
		}
		c.read ^= consume(body)
	}
	c.took = append(c.took, time.Since(begun).Seconds())
}

// consume reads all of b.
func consume(b []byte) uint64 {
	var sums [4]uint64
	for ; len(b) >= 32; b = b[32:] {
		for i := range sums {
			sums[i] += binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	return sums[0] ^ sums[1] ^ sums[2] ^ sums[3]
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

func ratios(over, under []float64) []float64 {
	r := make([]float64, len(over))
	for i := range r {
		r[i] = over[i] / under[i]
	}
	return r
}

// BenchmarkIdle measures the processor time of an idle link, of both its ends.
func BenchmarkIdle(b *testing.B, tr Transport) {
	target, source := newTarget(b, tr), newSource(b)
	target.config.SilenceTimeout = transport.Default().SilenceTimeout
	source.config.SilenceTimeout = transport.Default().SilenceTimeout
	join(b, tr, target, source)
	var before, after unix.Rusage
	for b.Loop() {
		if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		time.Sleep(time.Second)
		elapsed := time.Since(begun)
		if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
			b.Fatal(err)
		}
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(100*float64(used)/float64(elapsed), "%cpu")
	}
	part(target, source)
}
