package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Bounds of a server's connections and timings of its watch.
const (
	connectionsMax   = 64 // of known peers
	handshakeMax     = 5 * time.Second
	pingEvery        = time.Second // the shortest that gRPC allows
	pingAnswerMax    = 2 * time.Second
	clientPingMin    = 5 * time.Second
	statusEveryLeast = 10 * time.Millisecond // changes in between are merged
)

// Handler is the worker behind a server. All methods are called concurrently.
type Handler interface {
	// Status and Changed are a Board's.
	Status() Status
	Changed() <-chan struct{}
	// Run does the worker's part of a job and reports through emit, which never
	// blocks. It returns soon after ctx ends; ctx ends when the job is cancelled,
	// its deadline passes or the gateway is lost, and context.Cause says which.
	// An error without a Failed event before it becomes one, of fault.Of's kind.
	// When emit returns an error, nobody listens any more.
	Run(ctx context.Context, job Job, emit func(Event) error) error
}

// ServerConfig configures a Server.
type ServerConfig struct {
	Security  Security
	JobsMax   int           // jobs at a time, default 1024; further ones are refused as busy
	EventsMax int           // events of a job that wait for the gateway, default 1024; one more cancels the job
	FlushMax  time.Duration // an ended job's events that the gateway leaves unread for so long are dropped, default 10 s
	Heartbeat time.Duration // a status goes out at least this often, default 1 s
	Log       *slog.Logger  // default: none
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.JobsMax == 0 {
		c.JobsMax = 1024
	}
	if c.EventsMax == 0 {
		c.EventsMax = 1024
	}
	if c.FlushMax == 0 {
		c.FlushMax = 10 * time.Second
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server carries jobs from gateways to one worker.
type Server struct {
	pb.UnimplementedWorkerServer
	config  ServerConfig
	handler Handler
	senders sync.WaitGroup

	mu       sync.Mutex
	jobs     map[ID]bool   // running; protected by mu
	draining bool          // protected by mu
	idle     chan struct{} // closed when draining and no job runs; protected by mu
}

// NewServer makes a server for the handler.
func NewServer(c ServerConfig, h Handler) *Server {
	return &Server{config: c.withDefaults(), handler: h, jobs: map[ID]bool{}, idle: make(chan struct{})}
}

// Serve answers on the listener until ctx ends; then all jobs are cancelled, and
// Serve returns nil when the last one has ended. It closes the listener.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	creds, err := s.config.Security.server(ln.Addr())
	if err != nil {
		return errors.Join(fmt.Errorf("serve control on %s: %w", ln.Addr(), err), ln.Close())
	}
	g := grpc.NewServer(
		grpc.Creds(welcoming{creds}),
		grpc.MaxRecvMsgSize(JobBytesMax),
		grpc.MaxSendMsgSize(EventBytesMax),
		grpc.MaxConcurrentStreams(uint32(s.config.JobsMax)+16), // and some watches
		grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(handshakeMax),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingAnswerMax}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPingMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterWorkerServer(g, s)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { g.Stop(); close(stopped) })
	err = g.Serve(newDoor(ln))
	if stop() { // the listener failed
		g.Stop()
	} else {
		<-stopped
		err = nil
	}
	s.senders.Wait()
	if err != nil {
		return fmt.Errorf("serve control on %s: %w", ln.Addr(), err)
	}
	return nil
}

// Drain refuses further jobs and waits until none runs or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		s.idleLocked()
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain: %d jobs still run: %w", s.Running(), context.Cause(ctx))
	}
}

// Running is the number of jobs.
func (s *Server) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

// Watch is for gRPC only.
func (s *Server) Watch(_ *pb.WatchRequest, out grpc.ServerStreamingServer[pb.Status]) error {
	ctx := out.Context()
	beat := time.NewTimer(s.config.Heartbeat)
	defer beat.Stop()
	for {
		changed := s.handler.Changed()
		st := s.handler.Status()
		if err := out.Send(statusToWire(&st, time.Now())); err != nil {
			return err
		}
		beat.Reset(s.config.Heartbeat)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-beat.C:
			continue
		case <-changed:
		}
		beat.Reset(min(statusEveryLeast, s.config.Heartbeat))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-beat.C:
		}
	}
}

// Run is for gRPC only.
func (s *Server) Run(w *pb.Job, out grpc.ServerStreamingServer[pb.Event]) error {
	job, err := jobFromWire(w, time.Now())
	if err != nil {
		return s.refuse(out, &job, err)
	}
	r, err := s.begin(out.Context(), job)
	if err != nil {
		return s.refuse(out, &job, err)
	}
	defer s.end(job.ID())
	defer r.stop()

	sent := make(chan struct{})
	s.senders.Go(func() {
		defer close(sent)
		r.send(out)
	})
	r.finish(s.handler.Run(r.ctx, job, r.emit))
	return s.flush(r, sent)
}

// flush gives the gateway some time to read the last events. The sender ends
// with the call, at the latest.
func (s *Server) flush(r *run, sent <-chan struct{}) error {
	late := time.NewTimer(s.config.FlushMax)
	defer late.Stop()
	select {
	case <-r.slow:
	case <-late.C:
	case <-sent:
		select {
		case <-r.slow:
		default:
			return nil
		}
	}
	s.config.Log.Warn("job cancelled: the gateway does not read its events", "request", r.job.Request, "attempt", r.job.Attempt,
		"events_max", s.config.EventsMax)
	return status.Errorf(codes.Aborted, "request %d attempt %d: the gateway left more than %d events unread, or any for %v",
		r.job.Request, r.job.Attempt, s.config.EventsMax, s.config.FlushMax)
}

// begin gives the job a place, or the reason why it gets none.
func (s *Server) begin(stream context.Context, job Job) (*run, error) {
	self := s.handler.Status()
	role, epoch, ok := job.Part(self.Node)
	if !ok || role != self.Role {
		return nil, fault.New(fault.Unavailable, "request %d: this is %v worker %s, the job's pair is %s and %s",
			job.Request, self.Role, self.Node, job.Prefill, job.Decode)
	}
	if epoch != self.Epoch {
		return nil, fault.New(fault.Unavailable, "request %d: worker %s is of epoch %016x, the job of %016x",
			job.Request, self.Node, uint64(self.Epoch), uint64(epoch))
	}
	if err := s.take(job.ID()); err != nil {
		return nil, err
	}
	r := &run{
		queue:    make(chan *pb.Event, s.config.EventsMax+1), // the last place is a terminal event's
		slow:     make(chan struct{}),
		job:      job,
		sequence: newSequence(&job, role, epoch),
	}
	r.start(stream)
	return r, nil
}

func (s *Server) take(id ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return fault.New(fault.Unavailable, "request %d: the worker is draining", id.Request)
	case s.jobs[id]:
		return fault.New(fault.Invalid, "request %d attempt %d is already running", id.Request, id.Attempt)
	case len(s.jobs) >= s.config.JobsMax:
		return fault.New(fault.Busy, "request %d: %d jobs run, must be at most %d", id.Request, len(s.jobs), s.config.JobsMax)
	}
	s.jobs[id] = true
	return nil
}

func (s *Server) end(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, id)
	s.idleLocked()
}

// Requires: mu is held.
func (s *Server) idleLocked() {
	if !s.draining || len(s.jobs) > 0 {
		return
	}
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

// refuse answers with a Failed event, so that the kind of the fault arrives.
func (s *Server) refuse(out grpc.ServerStreamingServer[pb.Event], job *Job, err error) error {
	s.config.Log.Info("job refused", "request", job.Request, "attempt", job.Attempt, "fault", fault.Of(err).String(), "err", err)
	return out.Send(eventToWire(&Event{
		Kind: Failed, Request: job.Request, Attempt: job.Attempt, Epoch: s.handler.Status().Epoch,
		Fault: fault.Of(err), Reason: err.Error(),
	}))
}

// run is one job that is running.
type run struct {
	ctx    context.Context // ends with the call, the job's deadline or cancel; its cause has a fault.Kind
	cancel context.CancelCauseFunc
	stop   func()         // releases what ctx holds
	queue  chan *pb.Event // emit to send; closed by finish
	slow   chan struct{}  // closed when queue overflows
	job    Job

	mu       sync.Mutex
	sequence *sequence // protected by mu
	closed   bool      // protected by mu
}

// start makes the job's context from its call's.
func (r *run) start(stream context.Context) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(stream))
	release := context.AfterFunc(stream, func() {
		cancel(fault.New(fault.Cancelled, "request %d attempt %d: the gateway cancelled it or is gone", r.job.Request, r.job.Attempt))
	})
	timer := func() {}
	if !r.job.Deadline.IsZero() {
		ctx, timer = context.WithDeadlineCause(ctx, r.job.Deadline,
			fault.New(fault.Deadline, "request %d attempt %d: its time is over", r.job.Request, r.job.Attempt))
	}
	r.ctx, r.cancel = ctx, cancel
	r.stop = func() { release(); timer(); cancel(nil) }
}

// emit takes the next event. It never blocks.
func (r *run) emit(e Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emitLocked(e)
}

// Requires: mu is held.
func (r *run) emitLocked(e Event) error {
	if r.closed {
		return fault.New(fault.Cancelled, "request %d attempt %d: nobody listens any more", r.job.Request, r.job.Attempt)
	}
	if err := r.sequence.step(&e); err != nil {
		return r.abortLocked(err)
	}
	if len(r.queue) >= cap(r.queue)-1 && !e.Kind.Terminal() {
		r.closed = true
		close(r.slow)
		err := fault.New(fault.Cancelled, "request %d attempt %d: the gateway does not read its events", r.job.Request, r.job.Attempt)
		r.cancel(err)
		return err
	}
	r.queue <- eventToWire(&e)
	return nil
}

// abortLocked ends a job whose worker said something impossible: the gateway gets
// a Failed event, and the worker the error.
// Requires: mu is held.
func (r *run) abortLocked(err error) error {
	r.cancel(err)
	if !r.sequence.ended {
		r.sequence.ended = true
		r.queue <- r.failed(err)
	}
	return err
}

func (r *run) failed(err error) *pb.Event {
	return eventToWire(&Event{
		Kind: Failed, Request: r.job.Request, Attempt: r.job.Attempt, Epoch: r.sequence.epoch,
		Fault: fault.Of(err), Reason: err.Error(),
	})
}

// finish ends the events after the handler returned, with a Failed one if the
// handler gave no end.
func (r *run) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		close(r.queue)
		return
	}
	if !r.sequence.ended {
		r.queue <- r.failed(r.ending(err))
	}
	r.closed = true
	close(r.queue)
}

// ending is why a job without a terminal event ended: the deadline before what
// the handler made of it.
func (r *run) ending(err error) error {
	if cause := context.Cause(r.ctx); fault.Of(cause) == fault.Deadline {
		return cause
	}
	if err == nil {
		return fault.New(fault.Internal, "request %d attempt %d: the worker ended it without a result", r.job.Request, r.job.Attempt)
	}
	return err
}

// send passes events on until the last one. After an error it only empties the
// queue: the call is over, and with it the job.
func (r *run) send(out grpc.ServerStreamingServer[pb.Event]) {
	broken := false
	for e := range r.queue {
		if broken {
			continue
		}
		if err := out.Send(e); err != nil {
			broken = true
			r.cancel(fault.New(fault.Cancelled, "request %d attempt %d: the gateway is gone: %w", r.job.Request, r.job.Attempt, err))
		}
	}
}

// Listen opens a worker's control address. A socket that an ended process left
// behind is replaced; the folder it is in must belong to the operator alone.
func Listen(w Worker) (net.Listener, error) {
	network, address := w.ControlAddress()
	if network == "unix" {
		if info, err := os.Lstat(address); err == nil && info.Mode().Type() == fs.ModeSocket {
			if err := os.Remove(address); err != nil {
				return nil, fmt.Errorf("replace the control socket of %s: %w", w.Name, err)
			}
		}
	}
	ln, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen for control of %s: %w", w.Name, err)
	}
	return ln, nil
}
