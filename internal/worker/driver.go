package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// Driver runs a worker by hand, for a simulator that keeps many of them in one
// goroutine under a clock of its own. What Run's goroutines, channels and timers do
// is the caller's part: it hands in jobs, transport events and ticks one by one, and
// asks for steps. A worker is either run or driven.
//
// An error of Submit, Cancel, Handle, Tick or Step ends the worker, as it ends Run:
// an invariant of its own is broken, and only Close may follow.
type Driver struct {
	base   *base
	part   part
	source *transfer.Source // of prefill, else nil
	target *transfer.Target // of decode, else nil

	poisoned []kv.Generation // by slot: of the page that was poisoned last, plus one
}

// Driver gives the means to drive this worker in place of Run.
func (p *Prefill) Driver() *Driver { return &Driver{base: p.base, part: p, source: p.source} }

// Driver gives the means to drive this worker in place of Run.
func (d *Decode) Driver() *Driver { return &Driver{base: d.base, part: d, target: d.target} }

// Submit hands a job in. emit gets its events during this and later calls and must
// not call the Driver.
func (d *Driver) Submit(j cluster.Job, emit func(cluster.Event) error) error {
	return d.turn(func() { d.base.accept(d.part, submission{&job{Job: j, emit: emit, done: make(chan struct{})}}) })
}

// Cancel lets a job go, if the worker has it; cause says why.
func (d *Driver) Cancel(id cluster.ID, cause error) error {
	return d.turn(func() { d.base.accept(d.part, cancellation{id, cause}) })
}

// Handle takes an event of a link.
func (d *Driver) Handle(e transport.Event) error {
	return d.turn(func() { d.part.onTransport(e) })
}

// NoLink tells a decode worker why there is no link to a node.
func (d *Driver) NoLink(node string, err error) error {
	return d.turn(func() {
		if dec, ok := d.part.(*Decode); ok {
			dec.noteFailure(dialFailure{node, err})
		}
	})
}

// Tick says that a tick interval has passed.
func (d *Driver) Tick(now time.Time) error {
	return d.turn(func() { d.base.tick(d.part, now) })
}

// TickInterval is the time between two ticks.
const TickInterval = tickInterval

// Drain makes the worker refuse new jobs. Done reports when the last one has ended.
func (d *Driver) Drain() { d.base.accept(d.part, drainRequest{}) }

// Done reports whether a drain is complete.
func (d *Driver) Done() bool { return d.base.draining && len(d.base.jobs) == 0 }

// Step computes one step, if there is something to compute, and renews the status.
func (d *Driver) Step() (computed bool, err error) {
	err = d.turn(func() {
		computed = d.part.step()
		d.base.publish(d.part.peers(), d.part.queued())
	})
	return computed, err
}

func (d *Driver) turn(f func()) (err error) {
	defer d.base.caught(&err)
	f()
	return nil
}

// Status is what the worker says of itself.
func (d *Driver) Status() cluster.Status { return d.base.board.Status() }

// Machines are the worker's books: its pool, and the source of prefill or the target
// of decode; the other is nil. They are for looking at; tests below kv take guards
// from them before the first event.
func (d *Driver) Machines() (*pool.Pool, *transfer.Source, *transfer.Target) {
	return d.base.pool, d.source, d.target
}

// Audit checks the whole pool and fills the free pages with poison, so that whatever
// reads one without writing it first computes nonsense.
func (d *Driver) Audit() error {
	p := d.base.pool
	if d.poisoned == nil {
		d.poisoned = make([]kv.Generation, p.Len())
	}
	for slot := range kv.Slot(p.Len()) {
		page := p.Page(slot)
		if mark := page.Ref.Generation + 1; page.State == pool.Free && d.poisoned[slot] != mark {
			d.poisoned[slot] = mark
			d.base.slab.Poison(slot)
		}
	}
	return p.Identity()
}

// Idle reports what is still held by a worker that has nothing to do any more.
func (d *Driver) Idle() error {
	b := d.base
	var errs []error
	held := func(n int, what string) {
		if n != 0 {
			errs = append(errs, fmt.Errorf("worker %s still holds %d %s", b.Node, n, what))
		}
	}
	held(b.pool.Len()-b.pool.Counts()[pool.Free], "pages")
	held(len(b.jobs), "jobs")
	held(b.sched.Len(), "scheduled sequences")
	switch p := d.part.(type) {
	case *Prefill:
		held(p.source.Len(), "transfers")
		held(len(p.byJob)+len(p.byX)+len(p.byID)+len(p.waiting), "entries of prompts")
	case *Decode:
		held(p.target.Len(), "transfers")
		held(len(p.byJob)+len(p.byX)+len(p.byID), "entries of sequences")
	}
	return errors.Join(errs...)
}

// Close gives the worker's memory back. Requires: none of its links places a page or
// reads one any more.
func (d *Driver) Close() error { return d.base.close() }

// ordered gives a map's values in the order of their keys: what is done to all of
// them is done in the same order whenever it is repeated.
func ordered[K comparable, V any](m map[K]V, compare func(a, b K) int) []V {
	if len(m) == 0 {
		return nil
	}
	values := make([]V, 0, len(m))
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		values = append(values, m[k])
	}
	return values
}

func compareJobs(a, b cluster.ID) int {
	return cmp.Or(cmp.Compare(a.GatewayBoot, b.GatewayBoot), cmp.Compare(a.Request, b.Request), cmp.Compare(a.Attempt, b.Attempt))
}

func compareTransfers(a, b kv.TransferID) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Rank, b.Rank))
}
