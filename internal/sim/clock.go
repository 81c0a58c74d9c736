package sim

import (
	"math/rand/v2"
	"time"
)

// clock is the simulated time, and what is to happen at which time. Equal times come
// in the order in which they were asked for.
type clock struct {
	now    time.Duration // since the start
	events []event       // a heap
	count  uint64
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// start is an arbitrary day.
var start = time.Unix(1_800_000_000, 0)

func (c *clock) time() time.Time { return start.Add(c.now) }

// after has something happen when d has passed.
func (c *clock) after(d time.Duration, do func()) { c.at(c.now+d, do) }

func (c *clock) at(t time.Duration, do func()) {
	c.count++
	c.events = append(c.events, event{max(t, c.now), c.count, do})
	h := c.events
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

// step lets the next thing happen; false when there is none.
func (c *clock) step() bool {
	h := c.events
	if len(h) == 0 {
		return false
	}
	first := h[0]
	last := len(h) - 1
	h[0], h[last] = h[last], event{}
	c.events = h[:last]
	c.sink(0)
	c.now = first.at
	first.do()
	return true
}

func (c *clock) sink(i int) {
	h := c.events
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].before(&h[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// dice are one stream of the seed's random numbers. Each purpose has its own, so that
// one that is asked less often leaves the others as they were.
type dice struct{ *rand.Rand }

// The purposes.
const (
	diceSwarm = iota + 1
	diceWork
	diceNet
	diceFaults
	diceNodes
)

func newDice(seed uint64, purpose uint64) dice { return dice{rand.New(rand.NewPCG(seed, purpose))} }

// chance is true once in n times; never when n is 0.
func (d dice) chance(n int) bool { return n > 0 && d.IntN(n) == 0 }

// between is a span from lo to hi, short ones more often.
func (d dice) between(lo, hi time.Duration) time.Duration {
	f := d.Float64()
	return lo + time.Duration(f*f*float64(hi-lo))
}

// within is a whole number from lo to hi.
func (d dice) within(lo, hi int) int { return lo + d.IntN(hi-lo+1) }
