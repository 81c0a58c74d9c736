package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/worker"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	prefillRole = cluster.Prefill
	decodeRole  = cluster.Decode
)

// node is a place where a worker runs, is killed and started anew.
type node struct {
	world     *world
	index     int
	name      string
	role      cluster.Role
	pages     int // of the pool, the reserved ones included
	boot      int // counts the starts
	epoch     kv.Epoch
	driver    *worker.Driver // nil while there is none
	book      *book
	transport transport.Config
	ends      []*end
	bytes     func(kv.Slot) []byte // of a page, for a link without a gate

	inbox    []func(*worker.Driver) error
	turning  bool // a turn is due
	ticking  bool // a tick waits in the inbox
	stalled  int  // the loop stands still for so many reasons
	stopped  bool // the whole process stands still
	draining bool
}

// book is a worker's ledger, in memory.
type book struct {
	node    *node
	kept    bool // else what is written is forgotten
	entries []ledger.Entry
}

// Append implements worker.Recorder.
func (b *book) Append(e ledger.Entry) error {
	if b.kept {
		b.entries = append(b.entries, e)
		e.Node, e.Epoch = b.node.name, b.node.epoch
		b.node.world.entries = append(b.node.world.entries, e)
	}
	return nil
}

// Err implements worker.Recorder.
func (b *book) Err() error { return nil }

// conforms holds what the worker has recorded against the machines.
func (n *node) conforms() {
	if !n.book.kept {
		return
	}
	switch e := conform.Entries(n.name, n.epoch, n.book.entries); {
	case e.Finding != nil:
		n.world.fail("the ledger of %s: %v", n.name, e.Finding)
	case e.Verdict != conform.Conforms:
		n.world.fail("the ledger of %s: %s, %s", n.name, e.Verdict, e.Why)
	}
	n.world.report.Entries += len(n.book.entries)
}

const reservedPages = 2

// start starts a worker with an empty pool and a new epoch.
func (n *node) start() {
	w := n.world
	n.boot++
	n.epoch = kv.Epoch(w.nodes.Uint64() | 1)
	n.book = &book{node: n, kept: w.swarm.ledgers}
	c := worker.Config{Node: n.name, Epoch: n.epoch, ModelName: "simulated", Model: w.model, Threads: 1, PoolPages: n.pages,
		ReservedPages: reservedPages, ContextTokens: contextMax, Record: n.book, Log: slog.New(slog.DiscardHandler), DrainMax: drainMax,
		Now: w.clock.time, NewEngine: n.engine}
	if n.role == prefillRole {
		p, err := worker.NewPrefill(c)
		if err != nil {
			w.fail("%s does not start: %v", n.name, err)
			return
		}
		n.driver, n.transport = p.Driver(), p.Transport()
	} else {
		d, err := worker.NewDecode(c, nil)
		if err != nil {
			w.fail("%s does not start: %v", n.name, err)
			return
		}
		n.driver, n.transport = d.Driver(), d.Transport()
	}
	if w.config.Machines != nil {
		w.config.Machines(n.driver.Machines())
	}
	w.trace("%s starts in epoch %016x with %d pages", n.name, uint64(n.epoch), n.pages)
	n.tick(n.boot)
	n.beat(n.boot)
	if n.role == decodeRole {
		for _, p := range w.workers {
			if p.role == prefillRole {
				w.redial(n, p, redialFirst)
			}
		}
	}
}

func (n *node) engine(pages engine.Pages) (worker.Engine, error) {
	if whole, ok := pages.(interface{ Page(kv.Slot) []byte }); ok {
		n.bytes = whole.Page
	}
	return &kernel{pages: pages, meanwhile: n.meanwhile, table: n.table, odd: func(what string) { n.world.odd = n.name + ": " + what }}, nil
}

// table is the page table as the kernel reads it.
func (n *node) table(pages []kv.Slot) []kv.Slot {
	if n.world.bugs.tableOffByOne && n.role == decodeRole && len(pages) > 1 {
		shifted := slices.Clone(pages)
		shifted[0] = pages[1]
		return shifted
	}
	return pages
}

// meanwhile lets the node's links go on while its worker computes.
func (n *node) meanwhile() {
	if len(n.ends) > 0 && n.world.net.chance(8) {
		n.ends[n.world.net.IntN(len(n.ends))].advance()
	}
}

// post hands something to the worker's loop.
func (n *node) post(f func(*worker.Driver) error) {
	if n.driver == nil {
		return
	}
	n.inbox = append(n.inbox, f)
	n.wake()
}

func (n *node) wake() {
	if n.turning || n.driver == nil || n.stalled > 0 {
		return
	}
	n.turning = true
	boot := n.boot
	n.world.clock.after(n.world.nodes.between(n.world.swarm.turnMin, n.world.swarm.turnMax), func() {
		if n.boot == boot && n.driver != nil {
			n.turning = false
			n.turn()
		}
	})
}

// turnInputsMax bounds what one turn takes.
const turnInputsMax = 64

// turn is one turn of the loop.
func (n *node) turn() {
	if n.stalled > 0 {
		return
	}
	w := n.world
	for range min(len(n.inbox), 1+w.nodes.IntN(turnInputsMax)) {
		in := n.inbox[0]
		n.inbox = n.inbox[1:]
		if err := in(n.driver); err != nil {
			w.fail("%s ended: %v", n.name, err)
			return
		}
	}
	computed, err := n.driver.Step()
	if err == nil && w.nodes.chance(w.swarm.auditEvery) {
		err = n.driver.Audit()
	}
	switch {
	case err != nil:
		w.fail("%s ended: %v", n.name, err)
	case n.draining && n.driver.Done():
		w.trace("%s has drained", n.name)
		n.die()
		w.clock.after(w.nodes.between(0, restartMax), n.revive)
	case computed || len(n.inbox) > 0:
		n.wake()
	}
}

// tick is the worker's ticker.
func (n *node) tick(boot int) {
	n.world.clock.after(n.world.nodes.between(worker.TickInterval*9/10, worker.TickInterval*11/10), func() {
		if n.boot != boot || n.driver == nil {
			return
		}
		if !n.ticking {
			n.ticking = true
			n.post(func(d *worker.Driver) error { n.ticking = false; return d.Tick(n.world.clock.time()) })
		}
		n.tick(boot)
	})
}

// die is a killed process: its memory is gone.
func (n *node) die() {
	if n.driver == nil {
		return
	}
	for _, e := range slices.Clone(n.ends) {
		e.vanish()
	}
	n.conforms()
	n.world.nodeDied(n)
	if err := n.driver.Close(); err != nil {
		n.world.fail("%s does not end: %v", n.name, err)
	}
	n.driver, n.inbox = nil, nil
	n.turning, n.ticking, n.stalled, n.stopped, n.draining = false, false, 0, false, false
}

// revive starts a worker where none runs.
func (n *node) revive() {
	if n.driver == nil && n.world.failure == "" {
		n.start()
	}
}

// stall keeps the loop from turning for a while; links go on.
func (n *node) stall(d time.Duration) {
	boot := n.boot
	n.stalled++
	n.world.clock.after(d, func() {
		if n.boot == boot && n.driver != nil {
			n.stalled--
			n.wake()
		}
	})
}

// stop keeps the whole process still for a while: its peers hear nothing of it.
func (n *node) stop(d time.Duration) {
	if n.stopped {
		return
	}
	boot := n.boot
	n.stopped = true
	n.stalled++
	if d > silence {
		n.world.clock.after(silence, func() {
			if n.boot != boot || !n.stopped {
				return
			}
			for _, e := range slices.Clone(n.ends) {
				e.other.close(transport.ErrSilent)
			}
			n.world.nodeSilent(n)
		})
	}
	n.world.clock.after(d, func() {
		if n.boot != boot || n.driver == nil {
			return
		}
		n.stopped = false
		n.stalled--
		for _, e := range slices.Clone(n.ends) {
			e.resume()
		}
		n.wake()
	})
}

// beat sends the worker's status to the gateway, again and again.
func (n *node) beat(boot int) {
	w := n.world
	w.clock.after(w.nodes.between(beatInterval/2, beatInterval), func() {
		if n.boot != boot || n.driver == nil {
			return
		}
		if !n.stopped {
			s := n.driver.Status()
			w.clock.after(w.net.between(w.swarm.controlMin, w.swarm.controlMax), func() { w.gateway.hear(n, s) })
		}
		n.beat(boot)
	})
}

func (n *node) String() string { return fmt.Sprintf("%s boot %d", n.name, n.boot) }
