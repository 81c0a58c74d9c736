package tensor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Team is a leader and its helper threads, which run phases together: the goroutine that calls Run is the leader.
//
// A phase is open from the leader's start until the leader has found no more work. A helper joins an open phase by counting
// itself in, and the leader waits for those that joined, never for one that is parked or not scheduled: with fewer free cores
// than threads a phase loses speed and nothing else. Between phases helpers spin, from a moment on by turns with others, and then
// park, so that an idle team uses no processor.
//
// Owner: one goroutine at a time calls Run, and Close after the last Run.
type Team struct {
	threads []*Thread
	state   atomic.Uint64 // phase number << 16 | closedBit | helpers inside
	_       [56]byte      // keeps what all threads write apart from what they read
	parked  atomic.Int32  // helpers that wait for wake
	closing atomic.Bool
	wake    chan struct{}
	fn      func(t *Thread) // written by the leader while the phase is closed and empty
	loops   [loopsMax]counter
	helpers sync.WaitGroup
}

type counter struct {
	next atomic.Int64
	_    [56]byte
}

const (
	closedBit  = 1 << 15
	insideMask = closedBit - 1

	// loopsMax is how many times Each may be called in one phase.
	loopsMax = 16
	// threadsMax bounds the threads of a team.
	threadsMax = 256

	// yieldAfter is how long a waiting thread keeps its processor. A range of work takes less, so a longer wait is for a thread
	// that lost its own; from then on the system may run others between looks.
	yieldAfter = 20 * time.Microsecond
	// parkAfter is how long a helper looks for the next phase before it parks.
	parkAfter = 500 * time.Microsecond
	// pausesPerLook is how many pauses lie between two looks at the clock.
	pausesPerLook = 64
)

// Thread is one of a team's threads: its number, its share of loops, and scratch memory of its own. A Thread is valid inside
// the phase function it was given to.
type Thread struct {
	// ID is 0 for the leader and below the team's Threads for the others.
	ID int

	team *Team
	loop int // loops of this phase so far
	scratch
}

// NewTeam starts a team of the given number of threads, the leader included.
func NewTeam(threads int) *Team {
	if threads < 1 || threads > threadsMax {
		panic(fmt.Sprintf("tensor: a team of %d threads, want 1..%d", threads, threadsMax))
	}
	t := &Team{wake: make(chan struct{}, threads)}
	t.state.Store(closedBit)
	for id := range threads {
		t.threads = append(t.threads, &Thread{ID: id, team: t})
	}
	for _, th := range t.threads[1:] {
		t.helpers.Go(th.help)
	}
	return t
}

// Threads returns the number of threads, the leader included.
func (t *Team) Threads() int { return len(t.threads) }

// Close stops the helpers and returns when they have ended.
func (t *Team) Close() {
	t.closing.Store(true)
	t.wakeParked()
	t.helpers.Wait()
}

// Run runs fn on the leader and on the helpers that come in time, and returns when all of them are done with it. fn must do its
// work through Each: which threads take part is not known beforehand.
func (t *Team) Run(fn func(t *Thread)) {
	lead := t.threads[0]
	t.resetLoops()
	lead.loop = 0
	if len(t.threads) == 1 {
		fn(lead)
		return
	}
	t.fn = fn
	t.state.Store((t.state.Load()>>16 + 1) << 16)
	t.wakeParked()
	fn(lead)
	t.state.Or(closedBit)
	var w waiter
	for t.state.Load()&insideMask != 0 {
		w.pause()
	}
}

// resetLoops gives each loop of the next phase its first range. Requires: no helper is inside.
func (t *Team) resetLoops() {
	for i := range t.loops {
		t.loops[i].next.Store(0)
	}
}

// wakeParked wakes the helpers that are parked now. The channel has room for all of them.
func (t *Team) wakeParked() {
	for t.claimParked() {
		t.wake <- struct{}{}
	}
}

// claimParked takes one from the count of parked helpers. Whoever takes it owes that helper's end of waiting: the leader a
// wake, the helper itself its return.
func (t *Team) claimParked() bool {
	for {
		n := t.parked.Load()
		if n == 0 {
			return false
		}
		if t.parked.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// help is a helper's life: join each open phase once, spin between, park when idle.
func (t *Thread) help() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	team := t.team
	var joined uint64
	var w waiter
	for !team.closing.Load() {
		v := team.state.Load()
		if v>>16 != joined && v&closedBit == 0 {
			if team.state.CompareAndSwap(v, v+1) {
				joined = v >> 16
				t.loop = 0
				team.fn(t)
				team.state.Add(^uint64(0))
				w = waiter{}
			}
			continue
		}
		if w.pause() > parkAfter {
			t.park(joined)
			w = waiter{}
		}
	}
}

// park waits for a wake, unless a phase opened or the team closed before the leader could see that this helper is parked.
func (t *Thread) park(joined uint64) {
	team := t.team
	team.parked.Add(1)
	v := team.state.Load()
	missed := v>>16 != joined && v&closedBit == 0
	if (missed || team.closing.Load()) && team.claimParked() {
		return
	}
	<-team.wake
}

// waiter paces a thread that waits.
type waiter struct {
	pauses int
	since  time.Time     // of the first look
	waited time.Duration // at the last look
}

// pause waits a moment and returns how long the waiting has lasted, as of the last look at the clock.
func (w *waiter) pause() time.Duration {
	pause()
	w.pauses++
	if w.pauses%pausesPerLook != 0 {
		return w.waited
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	w.waited = time.Since(w.since)
	if w.waited > yieldAfter {
		osYield()
	}
	return w.waited
}

// Each calls fn for ranges of at most chunk that together are 0..n-1, shared among the threads of the phase. All threads of a
// phase must make the same calls of Each in the same order. It does not wait for the other threads' ranges.
func (t *Thread) Each(n, chunk int, fn func(lo, hi int)) {
	if t.loop == loopsMax {
		panic(fmt.Sprintf("tensor: more than %d loops in a phase", loopsMax))
	}
	next := &t.team.loops[t.loop].next
	t.loop++
	for {
		lo := int(next.Add(int64(chunk))) - chunk
		if lo >= n {
			return
		}
		fn(lo, min(lo+chunk, n))
	}
}

// scratch is a thread's memory for products, grown to the largest it was asked for. The lines at its end keep two threads'
// fields apart.
type scratch struct {
	panelWords, tokenWords []uint32
	panelD, panelM         []float32
	padding, out           []float32
	_                      [64]byte
}

func grow[E number](p *[]E, n int) []E {
	if cap(*p) < n {
		*p = aligned[E](n)
	}
	return (*p)[:n]
}

// bytesOf views a slice's memory as bytes.
func bytesOf[E number](s []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(e)))
}
