package cluster

import (
	"context"
	"errors"
	"io"

	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"google.golang.org/grpc"
)

// Stream is a job's events from one worker, for one goroutine.
type Stream struct {
	ctx      context.Context // of the call, which is what a Stream is
	cancel   context.CancelFunc
	call     grpc.ServerStreamingClient[pb.Event]
	job      ID
	node     string
	sequence *sequence
	err      error // the answer of all further calls of Recv
}

// Recv waits for the next event. Order, provenance and completeness have been
// checked. After the terminal event it returns io.EOF. Any other error ends the
// stream: Cancelled or Deadline if ctx ended, Corrupt if the worker said what it
// can't have meant, Unavailable if it was lost.
func (s *Stream) Recv() (Event, error) {
	if s.err != nil {
		return Event{}, s.err
	}
	e, err := s.recv()
	switch {
	case err != nil:
		s.err = err
		s.cancel()
		return Event{}, err
	case e.Kind.Terminal():
		s.err = io.EOF
		s.cancel()
	}
	return e, nil
}

// Close cancels the job's part unless it has ended.
func (s *Stream) Close() { s.cancel() }

func (s *Stream) recv() (Event, error) {
	w, err := s.call.Recv()
	if errors.Is(err, io.EOF) {
		return Event{}, fault.New(fault.Unavailable, "request %d attempt %d at %s: the stream ended before the job", s.job.Request, s.job.Attempt, s.node)
	}
	if err != nil {
		return Event{}, callError(s.ctx, s.job, s.node, err)
	}
	e, err := eventFromWire(w)
	if err == nil {
		err = s.sequence.step(&e)
	}
	if err != nil {
		return Event{}, fault.New(fault.Corrupt, "at %s: %w", s.node, err)
	}
	return e, nil
}
