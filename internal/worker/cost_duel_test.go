package worker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// side is one of the two things that are compared.
type side struct {
	name string
	wire wire
	omit omitted
}

// contender is a side that runs: a pair of workers with ledgers on disk.
type contender struct {
	*pair
	ledgers []*ledger.Ledger
}

func (p plan) enter(b testing.TB, m *model.Model, s side) *contender {
	b.Helper()
	c := &contender{}
	pages := p.batch * kv.PagesFor(p.prompt+p.output)
	c.pair = startPair(b, m, pairConfig{prefillPages: pages, decodePages: pages, context: p.prompt + p.output, omit: s.omit, wire: s.wire,
		threads: p.threads, ledger: func(node string, of kv.Epoch) Recorder {
			l, err := ledger.Open(ledger.Config{Dir: b.TempDir(), Node: node, Epoch: of})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := l.Close(); err != nil {
					b.Error(err)
				}
			})
			c.ledgers = append(c.ledgers, l)
			return l
		}})
	return c
}

// synced waits for the ledgers' writers, whose work would otherwise be counted as
// somebody else's.
func (c *contender) synced(b testing.TB) {
	b.Helper()
	for _, l := range c.ledgers {
		if err := l.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// processCPU is the CPU time of all threads of this process, in seconds.
func processCPU() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return float64(t.Nano()) / 1e9
}

// times is what one request took, in seconds of wall clock and of CPU.
type times struct {
	ttft, ttftCPU float64
	itl, itlCPU   []float64 // by token, from the second to the last but one
	tokens        []int32
}

// duel gives both sides the same request, the first of them first. Each runs alone to
// its first token and is parked there; then they take turns, a token each, so that
// what is compared happened within milliseconds.
type duel struct {
	ctx    context.Context
	cancel context.CancelFunc
	turn   [2]chan struct{}
	first  chan struct{} // a first token is there
	took   [2]times
}

func newDuel(ctx context.Context) *duel {
	d := &duel{turn: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}, first: make(chan struct{}, 2)}
	d.ctx, d.cancel = context.WithCancel(ctx)
	return d
}

func fight(b testing.TB, sides [2]*contender, tokens []int32, maxTokens int) [2]times {
	b.Helper()
	d := newDuel(b.Context())
	defer d.cancel()
	var both sync.WaitGroup
	for i, c := range sides {
		begun, used := time.Now(), processCPU()
		both.Go(func() {
			o := c.run(d.ctx, c.job(tokens, maxTokens), d.watch(i, begun, maxTokens))
			d.took[i].tokens = o.tokens()
		})
		select {
		case <-d.first:
		case <-d.ctx.Done():
			b.Fatal("a request failed")
		}
		c.synced(b)
		d.took[i].ttftCPU = processCPU() - used
	}
	d.turn[0] <- struct{}{}
	both.Wait()
	if len(d.took[0].tokens) != maxTokens || !slices.Equal(d.took[0].tokens, d.took[1].tokens) {
		b.Fatalf("the two sides gave %d and %d tokens, want the same %d", len(d.took[0].tokens), len(d.took[1].tokens), maxTokens)
	}
	for _, c := range sides {
		c.idle(b)
		c.synced(b)
	}
	return d.took
}

// watch is called in the decode worker's loop, which stands still while it waits.
func (d *duel) watch(i int, begun time.Time, maxTokens int) func(cluster.Role, cluster.Event) {
	var used float64
	return func(role cluster.Role, e cluster.Event) {
		if e.Kind == cluster.Failed {
			d.cancel()
		}
		if role != cluster.Decode || e.Kind != cluster.Token {
			return
		}
		took, cpu := time.Since(begun).Seconds(), processCPU()-used
		mine := &d.took[i]
		switch {
		case e.Index == 0:
			mine.ttft = took
			d.first <- struct{}{}
		case e.Index < maxTokens-1:
			mine.itl, mine.itlCPU = append(mine.itl, took), append(mine.itlCPU, cpu)
			d.turn[1-i] <- struct{}{}
		default: // what ends a request runs beside the other's last token: neither counts
			d.turn[1-i] <- struct{}{}
			return
		}
		select {
		case <-d.turn[i]:
		case <-d.ctx.Done():
		}
		begun, used = time.Now(), processCPU()
	}
}

// round runs requests at once and gives the time until the last has ended and the
// CPU time until nothing is left to do.
func (c *contender) round(b testing.TB, prompts [][]int32, maxTokens int) (wall, cpu float64) {
	b.Helper()
	begun, used := time.Now(), processCPU()
	var all sync.WaitGroup
	var mu sync.Mutex
	tokens := 0
	for _, prompt := range prompts {
		j := c.job(prompt, maxTokens)
		all.Go(func() {
			o := c.run(b.Context(), j, nil)
			mu.Lock()
			tokens += len(o.tokens())
			mu.Unlock()
		})
	}
	all.Wait()
	wall = time.Since(begun).Seconds()
	if tokens != len(prompts)*maxTokens {
		b.Fatalf("%d tokens came from %d requests for %d each", tokens, len(prompts), maxTokens)
	}
	c.idle(b)
	c.synced(b)
	return wall, processCPU() - used
}

// samples are log ratios, other side to base; a block is measured in the order base,
// other, other, base, and gives one.
type samples struct {
	ttft, ttftCPU, rate, rateCPU []float64
	itl, itlCPU                  [][]float64
	base                         struct{ ttft, itl, itlCPU, rate, rateCPU []float64 } // seconds of the base side
}

func (s *samples) add(o *samples) {
	s.ttft, s.ttftCPU = append(s.ttft, o.ttft...), append(s.ttftCPU, o.ttftCPU...)
	s.rate, s.rateCPU = append(s.rate, o.rate...), append(s.rateCPU, o.rateCPU...)
	s.itl, s.itlCPU = append(s.itl, o.itl...), append(s.itlCPU, o.itlCPU...)
	s.base.ttft, s.base.itl = append(s.base.ttft, o.base.ttft...), append(s.base.itl, o.base.itl...)
	s.base.itlCPU = append(s.base.itlCPU, o.base.itlCPU...)
	s.base.rate, s.base.rateCPU = append(s.base.rate, o.base.rate...), append(s.base.rateCPU, o.base.rateCPU...)
}

// session measures on two pairs of workers of its own: where their memory lies is
// another chance in each session.
func (p plan) session(b testing.TB, m *model.Model, base, other side, number int) *samples {
	b.Helper()
	r := rand.New(rand.NewPCG(p.seed, uint64(number)))
	var a, z *contender
	if number%2 == 0 {
		a, z = p.enter(b, m, base), p.enter(b, m, other)
	} else {
		z, a = p.enter(b, m, other), p.enter(b, m, base)
	}
	s := &samples{}
	p.duels(b, r, a, z, p.output, &samples{}) // warms up
	p.rounds(b, r, a, z, &samples{})
	for range p.firstBlocks {
		p.duels(b, r, a, z, firstOnly, s)
	}
	for range p.duelBlocks {
		p.duels(b, r, a, z, p.output, s)
	}
	for range p.roundBlocks {
		p.rounds(b, r, a, z, s)
	}
	return s
}

// firstOnly is the output of a request of which only the first token is measured.
const firstOnly = 2

func (p plan) duels(b testing.TB, r *rand.Rand, base, other *contender, output int, s *samples) {
	prompt := p.random(r)
	t1 := fight(b, [2]*contender{base, other}, prompt, output)
	t2 := fight(b, [2]*contender{other, base}, prompt, output)
	b1, o1, o2, b2 := t1[0], t1[1], t2[0], t2[1]
	s.ttft = append(s.ttft, ratio(b1.ttft, o1.ttft, o2.ttft, b2.ttft))
	s.ttftCPU = append(s.ttftCPU, ratio(b1.ttftCPU, o1.ttftCPU, o2.ttftCPU, b2.ttftCPU))
	s.base.ttft = append(s.base.ttft, b1.ttft, b2.ttft)
	if output == firstOnly {
		return
	}
	var itl, itlCPU []float64
	for k := range b1.itl {
		itl = append(itl, ratio(b1.itl[k], o1.itl[k], o2.itl[k], b2.itl[k]))
		itlCPU = append(itlCPU, ratio(b1.itlCPU[k], o1.itlCPU[k], o2.itlCPU[k], b2.itlCPU[k]))
	}
	s.itl, s.itlCPU = append(s.itl, itl), append(s.itlCPU, itlCPU)
	s.base.itl = append(s.base.itl, slices.Concat(b1.itl, b2.itl)...)
	s.base.itlCPU = append(s.base.itlCPU, slices.Concat(b1.itlCPU, b2.itlCPU)...)
}

func (p plan) rounds(b testing.TB, r *rand.Rand, base, other *contender, s *samples) {
	prompts := make([][]int32, p.batch)
	for i := range prompts {
		prompts[i] = p.random(r)
	}
	var wall, cpu [4]float64
	for i, c := range []*contender{base, other, other, base} {
		wall[i], cpu[i] = c.round(b, prompts, p.output)
	}
	s.rate = append(s.rate, ratio(wall[0], wall[1], wall[2], wall[3]))
	s.rateCPU = append(s.rateCPU, ratio(cpu[0], cpu[1], cpu[2], cpu[3]))
	s.base.rate = append(s.base.rate, wall[0], wall[3])
	s.base.rateCPU = append(s.base.rateCPU, cpu[0], cpu[3])
}

// ratio is the mean log ratio of a block's two pairs: a drift over the block cancels.
func ratio(base1, other1, other2, base2 float64) float64 {
	return (math.Log(other1/base1) + math.Log(other2/base2)) / 2
}

func (p plan) random(r *rand.Rand) []int32 {
	tokens := make([]int32, p.prompt)
	for i := range tokens {
		tokens[i] = int32(r.IntN(p.vocab))
	}
	return tokens
}
