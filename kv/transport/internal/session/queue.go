package session

import (
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// item is a message, a note or a page on its way out; none of them is a
// heartbeat.
type item struct {
	message []byte // wire form
	note    []byte
	page    transport.Page
}

func (i item) isPage() bool { return i.page.Body != nil }

// queue holds what is to be sent, in order, at most max entries.
type queue struct {
	max int

	mu     sync.Mutex
	filled *sync.Cond
	items  []item // protected by mu
	closed bool   // protected by mu
}

func newQueue(max int) *queue {
	q := &queue{max: max}
	q.filled = sync.NewCond(&q.mu)
	return q
}

func (q *queue) put(i item) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return transport.ErrDown
	}
	if len(q.items) >= q.max {
		return transport.ErrQueueFull
	}
	q.items = append(q.items, i)
	q.filled.Signal()
	return nil
}

// beat puts a heartbeat, unless something else will tell the peer that we live.
func (q *queue) beat() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed && len(q.items) == 0 {
		q.items = append(q.items, item{})
		q.filled.Signal()
	}
}

// take moves up to max entries to batch. It waits for the first one and returns
// none when the queue is closed.
func (q *queue) take(batch []item, max int) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return batch
	}
	n := min(max, len(q.items))
	batch = append(batch, q.items[:n]...)
	clear(q.items[:n])
	if q.items = q.items[n:]; len(q.items) == 0 {
		q.items = nil
	}
	return batch
}

// drop removes the pages of x and returns them.
func (q *queue) drop(x kv.TransferID) (dropped []item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.items[:0]
	for _, i := range q.items {
		if i.isPage() && i.page.Tag.Transfer == x {
			dropped = append(dropped, i)
			continue
		}
		kept = append(kept, i)
	}
	clear(q.items[len(kept):])
	q.items = kept
	return dropped
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}

// rest takes what was never sent. Requires: the queue is closed.
func (q *queue) rest() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := q.items
	q.items = nil
	return rest
}
