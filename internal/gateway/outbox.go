package gateway

import "sync"

// delta is what a choice adds to its answer.
type delta struct {
	choice int
	piece  piece
	finish string // not empty in a choice's last one
	tokens int    // of the whole choice, in its last one
}

// What a delta costs in the outbox beside its text, and each token's logprobs in it,
// beside their alternatives.
const (
	deltaBytes       = 128
	logprobBytes     = 96
	alternativeBytes = 8
)

func (d *delta) bytes() int {
	n := deltaBytes + len(d.piece.text)
	for _, t := range d.piece.tokens {
		n += logprobBytes + len(t.logprob.Top)*alternativeBytes
	}
	return n
}

// outbox holds what choices have made until the call's own goroutine takes it.
// Choices never wait for a client: an outbox that is full ends the call.
type outbox struct {
	bytesMax int
	wake     chan struct{} // holds 1

	mu    sync.Mutex
	items []delta // protected by mu
	bytes int     // protected by mu
}

func newOutbox(bytesMax int) *outbox {
	return &outbox{bytesMax: bytesMax, wake: make(chan struct{}, 1)}
}

// put adds a delta; false says that the outbox is over its bound.
func (o *outbox) put(d delta) bool {
	o.mu.Lock()
	o.items = append(o.items, d)
	o.bytes += d.bytes()
	fits := o.bytes <= o.bytesMax
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return fits
}

// take empties the outbox.
func (o *outbox) take() []delta {
	o.mu.Lock()
	defer o.mu.Unlock()
	items := o.items
	o.items, o.bytes = nil, 0
	return items
}
