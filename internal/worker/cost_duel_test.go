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
	over string // the transport
	wire wire
	omit omitted
}

// String names the side in a report.
func (s side) String() string {
	switch s.omit {
	case omitted{}:
		return "guarded over " + s.over
	case everything:
		return "without guards over " + s.over
	}
	return "without one guard over " + s.over
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

// play changes what a pair of idle workers omits. A worker's loop owns the field: it
// is set where the loop hands out the refusal of a job that lacks everything.
func (c *contender) play(b testing.TB, omit omitted) {
	b.Helper()
	for h, w := range map[cluster.Handler]*base{c.prefill.Handler(): c.prefill.base, c.decode.Handler(): c.decode.base} {
		if err := h.Run(b.Context(), cluster.Job{}, func(cluster.Event) error { w.omit = omit; return nil }); err != nil {
			b.Fatal(err)
		}
	}
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
	idle(b, sides[0].pair, sides[1].pair)
	for _, c := range sides {
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

// samples are log ratios, other side to base. A block is measured in the order base,
// other, other, base, and every second one the other way round; each gives one.
type samples struct {
	ttft, ttftCPU, rate, rateCPU []float64
	itl, itlCPU                  [][]float64
	base                         struct{ ttft, ttftCPU, itl, itlCPU, rate, rateCPU []float64 } // seconds of the base side
}

func (s *samples) add(o *samples) {
	s.ttft, s.ttftCPU = append(s.ttft, o.ttft...), append(s.ttftCPU, o.ttftCPU...)
	s.rate, s.rateCPU = append(s.rate, o.rate...), append(s.rateCPU, o.rateCPU...)
	s.itl, s.itlCPU = append(s.itl, o.itl...), append(s.itlCPU, o.itlCPU...)
	s.base.ttft, s.base.itl = append(s.base.ttft, o.base.ttft...), append(s.base.itl, o.base.itl...)
	s.base.ttftCPU, s.base.itlCPU = append(s.base.ttftCPU, o.base.ttftCPU...), append(s.base.itlCPU, o.base.itlCPU...)
	s.base.rate, s.base.rateCPU = append(s.base.rate, o.base.rate...), append(s.base.rateCPU, o.base.rateCPU...)
}

// arena is two pairs of workers that measure two sides against each other. Where the
// sides differ in what they omit only, the pairs change roles within each block: then
// where each one's memory happens to lie cancels as well.
type arena struct {
	plan
	base, other side
	x, y        *contender
	r           *rand.Rand
	blocks      int // begun
}

// session measures in an arena of its own.
func (p plan) session(b testing.TB, m *model.Model, base, other side, number int) *samples {
	b.Helper()
	a := &arena{plan: p, base: base, other: other, r: rand.New(rand.NewPCG(p.seed, uint64(number)))}
	if number%2 == 0 {
		a.x, a.y = p.enter(b, m, base), p.enter(b, m, other)
	} else {
		a.y, a.x = p.enter(b, m, other), p.enter(b, m, base)
	}
	s := &samples{}
	a.duels(b, p.output, &samples{}) // warms up
	a.rounds(b, &samples{})
	for range p.firstBlocks {
		a.duels(b, firstOnly, s)
	}
	for range p.duelBlocks {
		a.duels(b, p.output, s)
	}
	for range p.roundBlocks {
		a.rounds(b, s)
	}
	return s
}

// block is two halves of two runs each: one side, then the other; then the other, then
// the one.
type block struct {
	halves [2]func() [2]*contender
	sign   float64 // -1 where the one is not the base side
}

func (a *arena) block(b testing.TB) block {
	x, y, one, other, sign := a.x, a.y, a.base, a.other, 1.0
	if a.blocks++; a.blocks%2 == 0 {
		one, other, sign = other, one, -sign
		if a.base.over != a.other.over {
			x, y = y, x
		}
	}
	if a.base.over != a.other.over {
		return block{[2]func() [2]*contender{
			func() [2]*contender { return [2]*contender{x, y} },
			func() [2]*contender { return [2]*contender{y, x} },
		}, sign}
	}
	play := func(first, second side) func() [2]*contender {
		return func() [2]*contender {
			x.play(b, first.omit)
			y.play(b, second.omit)
			return [2]*contender{x, y}
		}
	}
	return block{[2]func() [2]*contender{play(one, other), play(other, one)}, sign}
}

// ratio is the mean log ratio of a block's two pairs, other side to base: a drift
// over the block cancels. runs are in the block's order.
func (k block) ratio(runs [4]float64) float64 {
	return k.sign * (math.Log(runs[1]/runs[0]) + math.Log(runs[2]/runs[3])) / 2
}

// bases are the base side's two runs.
func (k block) bases(runs [4]float64) []float64 {
	if k.sign > 0 {
		return []float64{runs[0], runs[3]}
	}
	return runs[1:3]
}

// firstOnly is the output of a request of which only the first token is measured.
const firstOnly = 2

func (a *arena) duels(b testing.TB, output int, s *samples) {
	prompt := a.random(a.r)
	k := a.block(b)
	t1 := fight(b, k.halves[0](), prompt, output)
	t2 := fight(b, k.halves[1](), prompt, output)
	runs := func(of func(*times) float64) [4]float64 {
		return [4]float64{of(&t1[0]), of(&t1[1]), of(&t2[0]), of(&t2[1])}
	}
	put := func(ratios, bases *[]float64, of func(*times) float64) {
		*ratios = append(*ratios, k.ratio(runs(of)))
		*bases = append(*bases, k.bases(runs(of))...)
	}
	put(&s.ttft, &s.base.ttft, func(t *times) float64 { return t.ttft })
	put(&s.ttftCPU, &s.base.ttftCPU, func(t *times) float64 { return t.ttftCPU })
	if output == firstOnly {
		return
	}
	var itl, itlCPU []float64
	for i := range t1[0].itl {
		put(&itl, &s.base.itl, func(t *times) float64 { return t.itl[i] })
		put(&itlCPU, &s.base.itlCPU, func(t *times) float64 { return t.itlCPU[i] })
	}
	s.itl, s.itlCPU = append(s.itl, itl), append(s.itlCPU, itlCPU)
}

func (a *arena) rounds(b testing.TB, s *samples) {
	prompts := make([][]int32, a.batch)
	for i := range prompts {
		prompts[i] = a.random(a.r)
	}
	k := a.block(b)
	var wall, cpu [4]float64
	for half, contenders := range k.halves {
		for i, c := range contenders() {
			wall[2*half+i], cpu[2*half+i] = c.round(b, prompts, a.output)
		}
	}
	s.rate, s.rateCPU = append(s.rate, k.ratio(wall)), append(s.rateCPU, k.ratio(cpu))
	s.base.rate, s.base.rateCPU = append(s.base.rate, k.bases(wall)...), append(s.base.rateCPU, k.bases(cpu)...)
}

func (p plan) random(r *rand.Rand) []int32 {
	tokens := make([]int32, p.prompt)
	for i := range tokens {
		tokens[i] = int32(r.IntN(p.vocab))
	}
	return tokens
}
