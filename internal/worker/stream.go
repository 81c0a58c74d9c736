package worker

import (
	"context"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// job is what both roles keep of a request's attempt. Owner: the loop, from the
// moment that it takes the submission.
type job struct {
	cluster.Job
	emit  func(cluster.Event) error // never blocks
	done  chan struct{}             // closed behind the terminal event
	ended bool
}

// origin is where the job's token with that index comes from.
func (j *job) origin(index int) kv.Origin {
	return kv.Origin{GatewayBoot: j.GatewayBoot, Request: j.Request, Attempt: j.Attempt, Epoch: j.DecodeEpoch, Index: index}
}

// send passes an event to the gateway's session; false when nobody listens any
// more. After a terminal event, events are dropped: an attempt ends once.
func (j *job) send(e cluster.Event) bool {
	if j.ended {
		return true
	}
	err := j.emit(e)
	if e.Kind.Terminal() {
		j.ended = true
		close(j.done)
	}
	return err == nil
}

// submission asks the loop to take a job; cancellation to let it go.
type (
	submission   struct{ job *job }
	cancellation struct {
		id    cluster.ID
		cause error
	}
)

// errStopped is what a call gets from a worker whose loop has ended.
var errStopped = fault.New(fault.Unavailable, "worker has stopped")

// errUnheard ends a job whose events the gateway no longer takes.
var errUnheard = fault.New(fault.Cancelled, "nobody listens to the job's events any more")

// inbox carries what other goroutines want of the loop.
type inbox struct {
	c       chan any
	stopped chan struct{} // closed when the loop has ended
}

// inboxMax bounds calls that wait for the loop; senders block on it.
const inboxMax = 1024

func newInbox() inbox {
	return inbox{c: make(chan any, inboxMax), stopped: make(chan struct{})}
}

func (in inbox) post(ctx context.Context, v any) error {
	select {
	case in.c <- v:
		return nil
	case <-in.stopped:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run does this worker's part of a job for a gateway's session: it hands the job
// to the loop and waits until the loop has no more to say of it. When ctx ends
// first, the loop lets the job go.
func (b *base) runJob(ctx context.Context, j cluster.Job, emit func(cluster.Event) error) error {
	job := &job{Job: j, emit: emit, done: make(chan struct{})}
	if err := b.inbox.post(ctx, submission{job}); err != nil {
		return err
	}
	select {
	case <-job.done:
		return nil
	case <-b.inbox.stopped:
		return errStopped
	case <-ctx.Done():
	}
	if err := b.inbox.post(context.WithoutCancel(ctx), cancellation{j.ID(), context.Cause(ctx)}); err != nil {
		return err
	}
	select {
	case <-job.done:
		return nil
	case <-b.inbox.stopped:
		return errStopped
	}
}

// handler is a worker as its control server sees it. Safe for concurrent use.
type handler struct {
	*cluster.Board
	base *base
}

func (h handler) Run(ctx context.Context, j cluster.Job, emit func(cluster.Event) error) error {
	return h.base.runJob(ctx, j, emit)
}

// Handler is what the worker's control server serves.
func (b *base) Handler() cluster.Handler { return handler{b.board, b} }

// Drain makes the worker refuse new jobs and end when the running ones have, or
// when DrainMax is over.
func (b *base) Drain(ctx context.Context) error { return b.inbox.post(ctx, drainRequest{}) }
