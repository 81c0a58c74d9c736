// Package sim runs many workers in one goroutine under a seed, a simulated clock and a faulty network.
//
// The workers are the ones that serve, driven turn by turn, with their pools, transfer
// machines and schedulers; so are admission, router and the gate of the transports.
// Simulated are the engine, whose every token depends on every stamp that it reads
// through the page table; the links, the streams between gateway and workers, the
// clock, the clients, and the gateway's own loop.
//
// A run has two parts. In the first, clients come and faults happen, as the seed's own
// mix has it. In the second no new fault comes and everything must come to rest: each
// request answered once, each page free, and a last request to each pair of workers
// answered in full. Equal configurations give equal runs.
package sim

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Config is one run.
type Config struct {
	Seed     uint64
	Steps    int // events before faults end; 0: as many as the requests take
	Requests int // clients that come; 0: the seed's own number
	Faults   int // faults at most; negative: as many as come

	Trace io.Writer // gets a line for each thing of note; may be nil

	// Machines is given the books of each worker that starts. Tests below kv take
	// guards away from them; nobody else can name one.
	Machines func(*pool.Pool, *transfer.Source, *transfer.Target)

	bugs bugs         // planted by tests
	mix  func(*swarm) // changes what the seed drew, for tests that need more of something
}

// machines gives a machine that re-executes a ledger to Machines.
func (c Config) machines(source *transfer.Source, target *transfer.Target) {
	if c.Machines != nil {
		c.Machines(pool.New(1, 0), source, target)
	}
}

// Report is how a run went.
type Report struct {
	Config   Config
	Failure  string           // what is wrong, empty if nothing is
	Requests int              // that came
	Outcomes map[string]int   // requests by how they ended: answered, or a fault's kind
	Tokens   int              // that clients got
	Attempts int              // of requests at a pair of workers
	Faults   map[string]int   // that happened
	Entries  int              // of ledgers, held against the machines
	Lockstep conform.Lockstep // of all workers with the proved machine, where ledgers are kept
	Steps    int              // events before healing
	Events   int              // in all
	Took     time.Duration    // simulated
	Hash     uint64           // over the times of all events: equal for equal runs
	Mix      string           // what the seed drew
}

// Simulator runs simulations, one at a time.
type Simulator struct{ model *model.Model }

// New makes a simulator.
func New() (*Simulator, error) {
	m, err := layoutModel()
	if err != nil {
		return nil, err
	}
	return &Simulator{m}, nil
}

// Close gives its memory back.
func (s *Simulator) Close() error { return s.model.Close() }

// world is the state of a run.
type world struct {
	config Config
	model  *model.Model
	swarm  swarm
	clock  clock
	report Report
	bugs   bugs

	work, net, faults, nodes dice

	workers []*node // prefill workers, then decode workers
	gateway *gateway
	tenants []*tenant
	parted  []time.Duration // by decode and prefill worker: until when

	requestsMax, faultsMax int
	injected               int // faults
	arrivals               int
	open                   int // requests not answered
	healing                bool
	quiet                  time.Duration // when the last fault is over
	failure                string
	odd                    string         // the last stamp that was not its sequence's
	entries                []ledger.Entry // of all ledgers, in the order in which they were written
}

var errDied = fault.New(fault.Unavailable, "the worker has died")

// bugs are mistakes that tests plant.
type bugs struct {
	fenceLies     bool // a fence is said to be proved while pages are on their way
	gateStaysOpen bool // a grant that is taken back goes on letting pages in
	noGate        bool // pages land wherever they say
	writtenEarly  bool // a page is said to have left before its bytes were read
	writtenNever  bool // a page that was not sent is never heard of
	placesNothing bool // a page is said to have landed, and its bytes have not
	tableOffByOne bool // decode reads another page in place of its first
	crossEvery    int  // events go to another request's stream, once in so many
}

// crossed is the stream that an event goes to.
func (b *bugs) crossed(s *stream) *stream {
	g := s.gateway
	if g.world.net.chance(b.crossEvery) {
		for _, other := range g.streams {
			if other != s && other.role == s.role && other.node == s.node {
				return other
			}
		}
	}
	return s
}

// Run is one run.
func (s *Simulator) Run(c Config) (report Report) {
	w := &world{config: c, model: s.model, swarm: drawSwarm(newDice(c.Seed, diceSwarm)), bugs: c.bugs,
		work: newDice(c.Seed, diceWork), net: newDice(c.Seed, diceNet), faults: newDice(c.Seed, diceFaults), nodes: newDice(c.Seed, diceNodes)}
	if c.mix != nil {
		c.mix(&w.swarm)
	}
	w.report = Report{Config: c, Outcomes: map[string]int{}, Faults: map[string]int{}, Mix: w.swarm.String()}
	defer func() {
		if v := recover(); v != nil { // an assertion of the code under test
			w.fail("%v", v)
		}
		w.tearDown()
		w.follow()
		report = w.report
		report.Failure, report.Took = w.failure, w.clock.now
	}()
	w.build()
	w.suffer()
	w.heal()
	return w.report
}

func (w *world) build() {
	c, s := w.config, &w.swarm
	w.requestsMax, w.faultsMax = c.Requests, c.Faults
	if w.requestsMax == 0 {
		w.requestsMax = w.work.within(10, 400)
	}
	if w.faultsMax < 0 {
		w.faultsMax = int(^uint(0) >> 1)
	}
	for i := range s.prefills + s.decodes {
		n := &node{world: w, index: i, name: fmt.Sprintf("p%d", i), role: prefillRole, pages: reservedPages + w.nodes.within(s.poolMin, s.poolMax)}
		if i >= s.prefills {
			n.name, n.role = fmt.Sprintf("d%d", i-s.prefills), decodeRole
		}
		w.workers = append(w.workers, n)
	}
	for i := range s.tenants {
		t := &tenant{name: fmt.Sprintf("tenant-%d", i), tag: kv.TenantTag(w.work.Uint64() | 1)}
		if s.quotas {
			t.limits = admission.Limits{TokensPerMinute: w.work.within(500, 50_000), Concurrency: w.work.within(1, 20)}
		}
		w.tenants = append(w.tenants, t)
	}
	w.parted = make([]time.Duration, len(w.workers)*len(w.workers))
	w.gateway = w.newGateway()
	for _, n := range w.workers {
		n.start()
	}
}

// suffer is the part with faults.
func (w *world) suffer() {
	if !w.swarm.cold {
		w.until(restMax, w.unrest)
	}
	w.arrive()
	for kind := range faultKinds {
		w.plague(kind)
	}
	for w.failure == "" && (w.arrivals < w.requestsMax || w.open > 0) && (w.config.Steps == 0 || w.report.Steps < w.config.Steps) {
		w.step()
		w.report.Steps++
	}
}

const (
	// healMax is how long coming to rest may take: a slow page, then a fence that
	// waits for it, a dead link and a quarantine, and the longest deadline.
	healMax = deadlineUsual + time.Minute
	// restMax is how long it may take when no request is open any more.
	restMax = 40 * time.Second
)

// heal is the part without: everything must come to rest.
func (w *world) heal() {
	w.healing = true
	w.trace("no faults from here on")
	if w.failure == "" && w.gateway.dead {
		w.gateway = w.newGateway()
	}
	w.until(healMax, func() string {
		if w.open > 0 {
			return fmt.Sprintf("%d requests are not answered", w.open)
		}
		return ""
	})
	w.until(restMax, w.unrest)
	for range 2 {
		for _, d := range w.workers[w.swarm.prefills:] {
			w.finale(d)
		}
	}
	w.until(restMax, w.unrest)
	for _, n := range w.workers {
		if w.failure != "" {
			return
		}
		if err := n.driver.Audit(); err != nil {
			w.fail("%s at rest: %v", n.name, err)
		}
		n.conforms()
	}
}

// finale is a request that has no excuse.
func (w *world) finale(d *node) {
	if w.failure != "" {
		return
	}
	r := &request{world: w, number: w.arrivals + 1, tenant: &tenant{name: "finale-" + d.name, tag: 1}, promptTokens: w.swarm.promptMax,
		asked: w.swarm.outputMax, deadline: w.clock.time().Add(deadlineUsual), must: true}
	w.submit(r)
	w.until(healMax, func() string {
		if w.open > 0 {
			return fmt.Sprintf("request %d, the last, is not answered", r.number)
		}
		return ""
	})
}

// unrest says why the world is not at rest.
func (w *world) unrest() string {
	if w.clock.now < w.quiet {
		return "a fault is not over"
	}
	for _, n := range w.workers {
		if n.driver == nil {
			return n.name + " does not run"
		}
		if n.stalled > 0 || n.draining || len(n.inbox) > 0 {
			return n.name + " is on hold"
		}
		if err := n.driver.Idle(); err != nil {
			return err.Error()
		}
		if m := w.gateway.members[n.index]; !m.Up || m.Epoch != n.epoch || w.clock.time().Sub(w.gateway.losses[n.index].at) < avoidFor {
			return "the gateway does not trust " + n.name
		}
	}
	for _, d := range w.workers[w.swarm.prefills:] {
		peers := d.driver.Status().Peers
		if len(peers) < w.swarm.prefills || slices.ContainsFunc(peers, func(p cluster.PeerStatus) bool { return !p.Up }) {
			return d.name + " lacks a link"
		}
		if len(d.ends) != w.swarm.prefills || slices.ContainsFunc(d.ends, func(e *end) bool { return e.other.closed }) {
			return "a link of " + d.name + " has ended or ends"
		}
	}
	return w.gateway.idle()
}

// until lets things happen until nothing is amiss, for a bounded time.
func (w *world) until(most time.Duration, amiss func() string) {
	for end := w.clock.now + most; w.failure == ""; {
		what := amiss()
		if what == "" {
			return
		}
		if w.clock.now > end {
			w.fail("%v after the faults: %s", most, what)
		}
		for range looksEvery {
			w.step()
		}
	}
}

// looksEvery is after how many events the world is looked at again.
const looksEvery = 16

func (w *world) step() {
	w.clock.step() // there is always a tick to come
	w.report.Events++
	w.report.Hash = mix(w.report.Hash, uint64(w.clock.now))
}

// follow runs the proved machine beside all workers' machines, whatever else was wrong.
func (w *world) follow() {
	if !w.swarm.ledgers {
		return
	}
	w.report.Lockstep = conform.InOrder(w.entries, w.config.machines)
	if w.report.Lockstep.Verdict != conform.Conforms {
		w.fail("%v", w.report.Lockstep)
	}
}

// tearDown gives the workers' memory back.
func (w *world) tearDown() {
	for _, n := range w.workers {
		if n.driver == nil {
			continue
		}
		for _, e := range n.ends {
			e.mute = true
		}
		if err := n.driver.Close(); err != nil && w.failure == "" {
			w.failure = err.Error()
		}
		n.driver = nil
	}
}

func (w *world) named(name string) *node {
	for _, n := range w.workers {
		if n.name == name {
			return n
		}
	}
	return nil
}

// fail notes the first thing that is wrong and ends the run.
func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.trace("FAILURE: %s", w.failure)
	}
}

func (w *world) trace(format string, args ...any) {
	if w.config.Trace == nil {
		return
	}
	_, _ = fmt.Fprintf(w.config.Trace, "%12.6f %s\n", w.clock.now.Seconds(), fmt.Sprintf(format, args...)) // a trace that can't be written changes nothing
}
