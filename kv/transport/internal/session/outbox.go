package session

import (
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// outbox hands events over in order. Putting one never waits, so that it may be
// done under the gate's lock and by the goroutine that takes the events; the
// reader, which makes most of them, asks for room before each frame.
type outbox struct {
	events chan<- transport.Event
	max    int

	mu      sync.Mutex
	changed *sync.Cond
	waiting []transport.Event // protected by mu
	pending int               // put and not yet taken by events; protected by mu
	held    bool              // the reader waits for room; protected by mu
	flooded bool              // the link is ending: nobody waits for room; protected by mu
	done    bool              // no more events will come; protected by mu
}

func newOutbox(events chan<- transport.Event, max int) *outbox {
	o := &outbox{events: events, max: max}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// put adds an event; after the last one it drops it.
func (o *outbox) put(e transport.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return
	}
	o.waiting = append(o.waiting, e)
	o.pending++
	o.changed.Broadcast()
}

// last adds the final event.
func (o *outbox) last(e transport.Event) {
	o.put(e)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	o.changed.Broadcast()
}

// room waits until fewer than max events are pending; false when the link ends.
func (o *outbox) room() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = true
	for o.pending >= o.max && !o.flooded {
		o.changed.Wait()
	}
	o.held = false
	return !o.flooded
}

// holding reports whether the reader stands still for our own side's sake.
func (o *outbox) holding() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

// flood lets nobody wait for room any more.
func (o *outbox) flood() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flooded = true
	o.changed.Broadcast()
}

// run is the poster. It returns when the last event has been taken.
func (o *outbox) run() {
	for {
		o.mu.Lock()
		for len(o.waiting) == 0 && !o.done {
			o.changed.Wait()
		}
		batch := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, e := range batch {
			o.events <- e
			o.taken()
		}
	}
}

func (o *outbox) taken() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending--; o.pending == o.max-1 {
		o.changed.Broadcast()
	}
}
