package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// SilenceDefault is how long a worker may say nothing before a gateway gives it up.
const SilenceDefault = 3 * time.Second

const (
	retryFirst = 50 * time.Millisecond
	retryMax   = time.Second
	clientPing = 10 * time.Second // the shortest that gRPC allows; the watch is faster
)

var (
	errSilent = errors.New("no status came in time")
	errNever  = errors.New("not reached yet")
	errClosed = errors.New("the client is closed")
)

// Options configure a Client.
type Options struct {
	Security Security
	Silence  time.Duration // without a status for so long a worker is given up, default SilenceDefault
	Log      *slog.Logger  // default: none
}

// Client is a gateway's view of its workers. It is safe for concurrent use.
type Client struct {
	options Options
	members []*member
	byName  map[string]*member
	stop    context.CancelCauseFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; protected by mu
}

// NewClient begins to connect to all workers of the file. Workers that are not
// there yet are tried again until Close.
func NewClient(f *File, o Options) (*Client, error) {
	if o.Silence == 0 {
		o.Silence = SilenceDefault
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	c := &Client{options: o, byName: map[string]*member{}, stop: stop, changed: make(chan struct{})}
	for _, w := range f.Workers {
		if _, err := o.Security.client(w); err != nil {
			stop(nil)
			return nil, fmt.Errorf("worker %s: %w", w.Name, err)
		}
		m := &member{client: c, worker: w}
		m.view = Member{Status: Status{Node: w.Name, Role: w.Role}, Err: errNever.Error()}
		c.members = append(c.members, m)
		c.byName[w.Name] = m
	}
	for _, m := range c.members {
		c.done.Go(func() { m.keep(ctx) })
	}
	return c, nil
}

// Status is all workers in the file's order, as they were last seen.
func (c *Client) Status() []Member {
	out := make([]Member, len(c.members))
	for i, m := range c.members {
		out[i], _ = m.snapshot()
	}
	return out
}

// Changed is closed when any worker's view changes. Take it before Status to
// miss nothing.
func (c *Client) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run starts a job's part at the named node. The job goes to both nodes of its
// pair, in two calls. Ending ctx cancels the part. Failures have a kind:
// Invalid for the job itself, Unavailable for a worker that is down or was
// restarted since.
func (c *Client) Run(ctx context.Context, job Job, node string) (*Stream, error) {
	if err := job.Validate(); err != nil {
		return nil, err
	}
	role, epoch, ok := job.Part(node)
	m := c.byName[node]
	if !ok || m == nil || m.worker.Role != role {
		return nil, fault.New(fault.Internal, "request %d: node %.80q has no part in it as %v", job.Request, node, role)
	}
	view, conn := m.snapshot()
	if conn == nil {
		return nil, fault.New(fault.Unavailable, "request %d: worker %s is down: %s", job.Request, node, view.Err)
	}
	if view.Epoch != epoch {
		return nil, fault.New(fault.Unavailable, "request %d: worker %s is of epoch %016x, the job of %016x",
			job.Request, node, uint64(view.Epoch), uint64(epoch))
	}
	ctx, cancel := context.WithCancel(ctx)
	call, err := pb.NewWorkerClient(conn).Run(ctx, jobToWire(&job, time.Now()))
	if err != nil {
		defer cancel()
		return nil, callError(ctx, job.ID(), node, err)
	}
	return &Stream{ctx: ctx, cancel: cancel, call: call, job: job.ID(), node: node, sequence: newSequence(&job, role, epoch)}, nil
}

// Close ends all streams and connections and waits for them.
func (c *Client) Close() {
	c.stop(errClosed)
	c.done.Wait()
}

func (c *Client) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

func dialOptions(w Worker, creds credentials.TransportCredentials, silence time.Duration) []grpc.DialOption {
	network, address := w.ControlAddress()
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// A dialer of our own also keeps HTTP proxies out of the cluster.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryFirst, Multiplier: 2, MaxDelay: retryMax},
			MinConnectTimeout: silence,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: pingAnswerMax}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(EventBytesMax), grpc.MaxCallSendMsgSize(JobBytesMax)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
	}
}

// member is one worker.
type member struct {
	client *Client
	worker Worker

	mu   sync.Mutex
	view Member
	conn *grpc.ClientConn // nil unless view.Up
}

func (m *member) snapshot() (Member, *grpc.ClientConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view, m.conn
}

// keep connects and watches until ctx ends, again after each loss.
func (m *member) keep(ctx context.Context) {
	wait := retryFirst
	for {
		seen, err := m.session(ctx)
		if ctx.Err() == nil && seen {
			wait = retryFirst
			m.client.options.Log.Warn("worker lost", "node", m.worker.Name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, retryMax)
	}
}

// session is one connection: it ends at the first error or silence, and with it
// all streams over it. seen tells whether the worker spoke.
func (m *member) session(ctx context.Context) (seen bool, err error) {
	conn, err := m.connect()
	if err != nil {
		m.lost(err)
		return false, err
	}
	defer func() {
		m.lost(err) // before the connection closes, so that nobody starts a call on it
		err = errors.Join(err, conn.Close())
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(m.client.options.Silence, func() { cancel(errSilent) })
	defer silence.Stop()
	watch, err := pb.NewWorkerClient(conn).Watch(ctx, &pb.WatchRequest{})
	if err != nil {
		return false, err
	}
	for {
		w, err := watch.Recv()
		if err != nil {
			if errors.Is(context.Cause(ctx), errSilent) {
				err = fmt.Errorf("%w (%v)", errSilent, m.client.options.Silence)
			}
			return seen, err
		}
		silence.Reset(m.client.options.Silence)
		s, err := statusFromWire(w, time.Now())
		if err != nil {
			return seen, err
		}
		if s.Node != m.worker.Name || s.Role != m.worker.Role {
			return seen, fmt.Errorf("answers as %v worker %.80q, the cluster file has %v worker %s there",
				s.Role, s.Node, m.worker.Role, m.worker.Name)
		}
		m.speaks(s, conn)
		seen = true
	}
}

// connect makes a connection with the certificates of today.
func (m *member) connect() (*grpc.ClientConn, error) {
	creds, err := m.client.options.Security.client(m.worker)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+m.worker.Name, dialOptions(m.worker, creds, m.client.options.Silence)...)
}

func (m *member) speaks(s Status, conn *grpc.ClientConn) {
	m.mu.Lock()
	first := m.conn == nil
	m.view, m.conn = Member{Status: s, Up: true, Seen: time.Now()}, conn
	m.mu.Unlock()
	if first {
		m.client.options.Log.Info("worker is up", "node", s.Node, "role", s.Role.String(), "epoch", fmt.Sprintf("%016x", uint64(s.Epoch)))
	}
	m.client.notify()
}

func (m *member) lost(err error) {
	m.mu.Lock()
	m.conn = nil
	m.view.Up = false
	m.view.Err = err.Error()
	m.mu.Unlock()
	m.client.notify()
}

// callError gives a failed call its kind.
func callError(ctx context.Context, j ID, node string, err error) error {
	kind := fault.Unavailable
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		kind = fault.Deadline
	case ctx.Err() != nil:
		kind = fault.Cancelled
	case status.Code(err) == codes.ResourceExhausted:
		kind = fault.TooLarge
	}
	answer := status.Convert(err)
	return fault.New(kind, "request %d attempt %d at %s: %s (%s)", j.Request, j.Attempt, node, answer.Message(), answer.Code())
}
