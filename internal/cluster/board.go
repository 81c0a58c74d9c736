package cluster

import "sync"

// Board holds a worker's latest status for whoever watches. It is safe for
// concurrent use; a worker's loop sets it, its server reads it.
type Board struct {
	mu      sync.Mutex
	status  Status
	changed chan struct{} // closed at the next change
}

// NewBoard makes a board with a first status.
func NewBoard(s Status) *Board { return &Board{status: s, changed: make(chan struct{})} }

// Set replaces the status. The board keeps s.Peers and s.Refused: the caller must not
// write them again.
func (b *Board) Set(s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = s
	close(b.changed)
	b.changed = make(chan struct{})
}

// Status is the latest status. Its Peers and Refused are shared and must not be written.
func (b *Board) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// Changed is closed when the status is set again. Take it before Status to miss
// nothing.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}
