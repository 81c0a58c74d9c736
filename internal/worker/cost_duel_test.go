package worker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
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
	layers  *pausing
}

// pausing is a prefill worker's engine that can be made to pause between two layers.
type pausing struct {
	Engine
	pause func() // nil: none; changed only while the worker is idle
}

// around makes a worker's engine this one.
func (p *pausing) around(c Config) func(engine.Pages) (Engine, error) {
	return func(pages engine.Pages) (Engine, error) {
		inner, err := c.newEngine(pages)
		p.Engine = inner
		return p, err
	}
}

func (p *pausing) Step(rows []engine.Row) error {
	if pause := p.pause; pause != nil {
		rows[0].Cancelled = func() bool { pause(); return false } // polled between layers
	}
	return p.Engine.Step(rows)
}

func (p plan) enter(b testing.TB, m *model.Model, s side) *contender {
	b.Helper()
	c := &contender{layers: &pausing{}}
	context := max(p.prompt+p.output, p.promptEach+p.outputEach)
	pages := p.batch * kv.PagesFor(context)
	c.pair = startPair(b, m, pairConfig{prefillPages: pages, decodePages: pages, context: context, omit: s.omit, wire: s.wire, pause: c.layers,
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

// duel lets both sides do the same in turns, a stretch of milliseconds each, so that what
// is compared happened side by side. A worker's loop stands still while it waits for
// its side's turn.
type duel struct {
	ctx    context.Context
	cancel context.CancelFunc
	turn   [2]chan struct{}
	parked chan struct{} // a side has its first tokens

	mu    sync.Mutex
	begun [2]time.Time // of the stretch that runs
	used  [2]float64
	there [2]bool // has its first tokens
}

func newDuel(ctx context.Context) *duel {
	d := &duel{turn: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}, parked: make(chan struct{}, 2)}
	d.ctx, d.cancel = context.WithCancel(ctx)
	return d
}

// begin waits for side i's turn and starts its clocks.
func (d *duel) begin(i int) {
	select {
	case <-d.turn[i]:
	case <-d.ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun[i], d.used[i] = time.Now(), processCPU()
}

// stretch is what side i has taken since it began, in seconds of wall clock and of CPU.
func (d *duel) stretch(i int) (wall, cpu float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.begun[i]).Seconds(), processCPU() - d.used[i]
}

func (d *duel) pass(i int) { d.turn[1-i] <- struct{}{} }

// start runs both sides, the first of them first, until each is parked with its first
// tokens; then the first has the turn. ended is told of a side that is parked and
// whose ledgers are written.
func (d *duel) start(b testing.TB, sides [2]*contender, run func(i int), ended func(i int)) (wait func()) {
	b.Helper()
	var both sync.WaitGroup
	for i := range sides {
		both.Go(func() { d.begin(i); run(i) })
	}
	d.turn[0] <- struct{}{}
	for i, c := range sides {
		select {
		case <-d.parked:
		case <-d.ctx.Done():
			b.Fatal("a request failed")
		}
		c.synced(b)
		ended(i)
		d.pass(i)
	}
	return func() {
		both.Wait()
		idle(b, sides[0].pair, sides[1].pair)
		for _, c := range sides {
			c.synced(b)
		}
	}
}

// park is where a side stands when it has its first tokens.
func (d *duel) park(i int) {
	d.mu.Lock()
	d.there[i] = true
	d.mu.Unlock()
	d.parked <- struct{}{}
	d.begin(i)
}

// stretchMin is how long a side computes before it gives up its turn between two layers.
const stretchMin = 5 * time.Millisecond

// between is called between two layers of a prompt.
func (d *duel) between(i int, took *times) {
	wall, cpu := d.stretch(i)
	d.mu.Lock()
	alone := d.there[1-i]
	d.mu.Unlock()
	if alone || wall < stretchMin.Seconds() {
		return
	}
	took.ttft, took.ttftCPU = took.ttft+wall, took.ttftCPU+cpu
	d.pass(i)
	d.begin(i)
}

// fight gives both sides the same request. They take turns between layers of the prompt, and
// then a token each.
func fight(b testing.TB, sides [2]*contender, tokens []int32, maxTokens int) [2]times {
	b.Helper()
	d := newDuel(b.Context())
	defer d.cancel()
	var took [2]times
	for i, c := range sides {
		c.layers.pause = func() { d.between(i, &took[i]) }
		defer func() { c.layers.pause = nil }()
	}
	wait := d.start(b, sides, func(i int) {
		o := sides[i].run(d.ctx, sides[i].job(tokens, maxTokens), d.watch(i, &took[i], maxTokens))
		took[i].tokens = o.tokens()
	}, func(i int) {
		_, cpu := d.stretch(i)
		took[i].ttftCPU += cpu
	})
	wait()
	if len(took[0].tokens) != maxTokens || !slices.Equal(took[0].tokens, took[1].tokens) {
		b.Fatalf("the two sides gave %d and %d tokens, want the same %d", len(took[0].tokens), len(took[1].tokens), maxTokens)
	}
	return took
}

// watch is called in the decode worker's loop, which stands still while it waits.
func (d *duel) watch(i int, took *times, maxTokens int) func(cluster.Role, cluster.Event) {
	return func(role cluster.Role, e cluster.Event) {
		if e.Kind == cluster.Failed {
			d.cancel()
		}
		if role != cluster.Decode || e.Kind != cluster.Token {
			return
		}
		wall, cpu := d.stretch(i)
		switch {
		case e.Index == 0:
			took.ttft += wall
			d.park(i)
		case e.Index < maxTokens-1:
			took.itl, took.itlCPU = append(took.itl, wall), append(took.itlCPU, cpu)
			d.pass(i)
			d.begin(i)
		default: // what ends a request runs beside the other's last token: neither counts
			d.pass(i)
		}
	}
}

// crowd is a duel of several requests at once: when all of a side's have their first
// tokens, the sides take turns, a step each, until the first request nears its end.
type crowd struct {
	*duel
	size, maxTokens int
	first, later    [2]int // tokens of each side until it is parked, and since
	steps, stepsCPU [2][]float64
	over            bool
}

// fightMany gives both sides the same requests. It returns the time of a step of each side,
// by wall clock and by CPU.
func fightMany(b testing.TB, sides [2]*contender, prompts [][]int32, maxTokens int) (wall, cpu [2]float64) {
	b.Helper()
	d := &crowd{duel: newDuel(b.Context()), size: len(prompts), maxTokens: maxTokens}
	defer d.cancel()
	var tokens [2]atomic.Int64
	wait := d.start(b, sides, func(i int) {
		var all sync.WaitGroup
		for _, prompt := range prompts {
			j := sides[i].job(prompt, maxTokens)
			all.Go(func() { tokens[i].Add(int64(len(sides[i].run(d.ctx, j, d.watch(i)).tokens()))) })
		}
		all.Wait()
	}, func(int) {})
	wait()
	n := min(len(d.steps[0]), len(d.steps[1]))
	for i := range sides {
		if got := tokens[i].Load(); got != int64(len(prompts)*maxTokens) || n < kv.PageTokens {
			b.Fatalf("%d requests gave %d tokens, want %d each, and %d steps were taken in turns, want at least %d", len(prompts), got, maxTokens, n, kv.PageTokens)
		}
		for k := range n {
			wall[i] += d.steps[i][k] / float64(n)
			cpu[i] += d.stepsCPU[i][k] / float64(n)
		}
	}
	return wall, cpu
}

func (d *crowd) watch(i int) func(cluster.Role, cluster.Event) {
	return func(role cluster.Role, e cluster.Event) {
		if e.Kind == cluster.Failed {
			d.cancel()
		}
		if role != cluster.Decode || e.Kind != cluster.Token {
			return
		}
		if e.Index == 0 {
			d.first[i]++
			if d.first[i] == d.size {
				d.park(i)
			}
			return
		}
		if d.first[i] < d.size || d.ended() {
			return
		}
		if e.Index >= d.maxTokens-2 { // in the middle of a step if the requests began apart
			d.end()
			d.pass(i)
			return
		}
		if d.later[i]++; d.later[i]%d.size != 0 {
			return
		}
		wall, cpu := d.stretch(i)
		d.steps[i], d.stepsCPU[i] = append(d.steps[i], wall), append(d.stepsCPU[i], cpu)
		d.pass(i)
		d.begin(i)
	}
}

func (d *crowd) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
}

func (d *crowd) ended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
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
	a.batches(b, &samples{})
	for range p.firstBlocks {
		a.duels(b, firstOnly, s)
	}
	for range p.duelBlocks {
		a.duels(b, p.output, s)
	}
	for range p.batchBlocks {
		a.batches(b, s)
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

func (a *arena) batches(b testing.TB, s *samples) {
	prompts := make([][]int32, a.batch)
	for i := range prompts {
		prompts[i] = a.random(a.r)[:a.promptEach]
	}
	k := a.block(b)
	var wall, cpu [4]float64
	for half, contenders := range k.halves {
		w, c := fightMany(b, contenders(), prompts, a.outputEach)
		copy(wall[2*half:], w[:])
		copy(cpu[2*half:], c[:])
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

// Both sides take every stretch that is compared, and nothing but a side's own turns
// counts as its time.
func TestSidesTakeTurns(t *testing.T) {
	m := smallModel(t)
	p := plan{prompt: 200, output: 20, batch: 3, promptEach: 50, outputEach: 460, threads: 1, vocab: m.Config.Vocab}
	sides := [2]*contender{p.enter(t, m, side{"tcp", plainTCP, omitted{}}), p.enter(t, m, side{"tcp", plainTCP, everything})}
	r := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	took := fight(t, sides, p.random(r), p.output)
	all := time.Since(begun).Seconds()
	sum := 0.0
	for i := range took {
		if took[i].ttft <= 0 || took[i].ttftCPU <= 0 || len(took[i].itl) != p.output-2 || len(took[i].itlCPU) != p.output-2 {
			t.Errorf("side %d: %+v, want a first token and %d others", i, took[i], p.output-2)
		}
		sum += took[i].ttft
		for _, v := range took[i].itl {
			sum += v
		}
	}
	if sum > all {
		t.Errorf("the turns took %.4f s, both sides together %.4f s", sum, all)
	}
	prompts := [][]int32{p.random(r)[:p.promptEach], p.random(r)[:p.promptEach], p.random(r)[:p.promptEach]}
	if wall, cpu := fightMany(t, sides, prompts, p.outputEach); min(wall[0], wall[1], cpu[0], cpu[1]) <= 0 {
		t.Errorf("steps took %v s, %v s of CPU", wall, cpu)
	}
}
