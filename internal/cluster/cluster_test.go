package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a worker that does with a job what the test says.
type scripted struct {
	*Board
	run func(ctx context.Context, job Job, emit func(Event) error) error
}

func (s *scripted) Run(ctx context.Context, job Job, emit func(Event) error) error {
	return s.run(ctx, job, emit)
}

// net of one prefill and one decode worker, each behind a relay.
type testCluster struct {
	t       testing.TB
	ca      *certs.Authority
	file    *File
	workers map[string]*scripted
	servers map[string]*Server
	relays  map[string]*relay
	stops   map[string]func()
}

// honest plays the worker's part to the end.
func honest(s *scripted) func(context.Context, Job, func(Event) error) error {
	return func(_ context.Context, job Job, emit func(Event) error) error {
		for _, e := range honestEvents(&job, s.Status()) {
			if err := emit(e); err != nil {
				return err
			}
		}
		return nil
	}
}

func honestEvents(job *Job, s Status) []Event {
	base := Event{Request: job.Request, Attempt: job.Attempt, Epoch: s.Epoch}
	with := func(k EventKind, set func(*Event)) Event {
		e := base
		e.Kind = k
		set(&e)
		return e
	}
	verdict := func(e *Event) {
		e.X = kv.TransferID{Epoch: job.DecodeEpoch, Sequence: 9, Rank: 1}
		e.PromptTokens = len(job.Tokens)
		e.TokenDigest, e.Root = kv.Sum{1, 2}, kv.Digest{3, 4}
	}
	if s.Role == Prefill {
		return []Event{
			with(Accepted, func(*Event) {}),
			with(Progress, func(e *Event) { e.PromptTokens = 2 }),
			with(Computed, verdict),
			with(Finished, func(e *Event) { e.Reason = ReasonDone }),
		}
	}
	return []Event{
		with(Accepted, func(*Event) {}),
		with(Committed, verdict),
		with(Token, func(e *Event) {
			e.Token = 7
			e.Logprob = &TokenLogprobs{Token: 7, Logprob: -0.5, Top: []Logprob{{7, -0.5}, {8, -1}}}
		}),
		with(Token, func(e *Event) { e.Index, e.Token = 1, 0 }),
		with(Finished, func(e *Event) { e.Reason = ReasonLength }),
	}
}

func newCluster(t testing.TB, config ServerConfig) *testCluster {
	t.Helper()
	dir := t.TempDir()
	ca, _, err := certs.OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, ca: ca, workers: map[string]*scripted{}, servers: map[string]*Server{}, relays: map[string]*relay{}, stops: map[string]func(){}}
	c.file = &File{Model: "tracer", Gateway: Gateway{Name: "gateway", Listen: "127.0.0.1:0"}, TLS: TLS{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "{name}.pem"), Key: filepath.Join(dir, "{name}-key.pem"),
	}}
	c.issue(certs.Identity{Role: certs.Gateway, Name: "gateway"})
	for _, s := range []Status{{Node: "p1", Role: Prefill, Epoch: 11}, {Node: "d1", Role: Decode, Epoch: 22}} {
		s.Fingerprint = kv.Fingerprint{5}
		s.Limits = Limits{ContextTokens: 4096, PoolPages: 100, UsablePages: 90, ReservedPages: 10, PageTokens: kv.PageTokens}
		w := &scripted{Board: NewBoard(s)}
		w.run = honest(w)
		c.workers[s.Node] = w
		c.issue(certs.Identity{Role: s.Role.certificate(), Name: s.Node})
		ln := listen(t)
		c.relays[s.Node] = newRelay(t, ln.Addr().String())
		c.file.Workers = append(c.file.Workers, Worker{Name: s.Node, Role: s.Role, Control: c.relays[s.Node].addr(), Transfer: "tcp://127.0.0.1:1"})
		c.serve(s.Node, ln, config)
	}
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func (c *testCluster) issue(id certs.Identity) {
	c.t.Helper()
	if _, err := c.ca.Issue(id, nil, time.Now()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) security(name string) Security {
	c.t.Helper()
	s, err := c.file.Security(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *testCluster) serve(node string, ln net.Listener, config ServerConfig) {
	id := certs.Identity{Role: c.workers[node].Status().Role.certificate(), Name: node}
	files := certs.NodeFiles(filepath.Dir(c.file.TLS.CA), id.Name)
	m, err := certs.Load(files)
	if err != nil {
		c.t.Fatal(err)
	}
	if config.Security == (Security{}) {
		config.Security = Mutual(m)
	}
	s := NewServer(config, c.workers[node])
	c.servers[node] = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	c.stops[node] = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("server of %s: %v", node, err)
		}
	})
	c.t.Cleanup(c.stops[node])
}

func (c *testCluster) client(o Options) *Client {
	c.t.Helper()
	if o.Security == (Security{}) {
		o.Security = c.security("gateway")
	}
	cl, err := NewClient(c.file, o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	return cl
}

// await waits until the members are as wanted; the bound is there to name what
// never came instead of hanging.
func await(t testing.TB, c *Client, what string, ok func(m map[string]Member) bool) map[string]Member {
	t.Helper()
	never := time.After(time.Minute)
	for {
		changed := c.Changed()
		members := map[string]Member{}
		for _, m := range c.Status() {
			members[m.Node] = m
		}
		if ok(members) {
			return members
		}
		select {
		case <-changed:
		case <-never:
			t.Fatalf("never: %s: p1 %q, d1 %q", what, members["p1"].Err, members["d1"].Err)
		}
	}
}

func awaitUp(t testing.TB, c *Client) map[string]Member {
	t.Helper()
	return await(t, c, "both workers are up", func(m map[string]Member) bool { return m["p1"].Up && m["d1"].Up })
}

func testJob() Job {
	return Job{
		GatewayBoot: 1, Request: 2, Attempt: 3, Tenant: 4, Prefill: "p1", Decode: "d1", PrefillEpoch: 11, DecodeEpoch: 22,
		Tokens: []int32{5, 6, 0}, MaxTokens: 2, Stop: []int32{0}, Sampling: Sampling{Temperature: 1, TopP: 1, Logprobs: 2},
	}
}

// all reads a stream to its end.
func all(s *Stream) (events []Event, err error) {
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
}

func start(t testing.TB, c *Client, job Job, node string) *Stream {
	t.Helper()
	s, err := c.Run(t.Context(), job, node)
	if err != nil {
		t.Fatalf("run at %s: %v", node, err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestJobRunsOnBothWorkers(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	var mu sync.Mutex
	got := map[string]Job{}
	for node, w := range c.workers {
		play := honest(w)
		w.run = func(ctx context.Context, job Job, emit func(Event) error) error {
			mu.Lock()
			got[node] = job
			mu.Unlock()
			return play(ctx, job, emit)
		}
	}
	cl := c.client(Options{})
	awaitUp(t, cl)
	job := testJob()
	for _, node := range []string{"p1", "d1"} {
		events, err := all(start(t, cl, job, node))
		if err != nil {
			t.Fatalf("events of %s: %v", node, err)
		}
		if diff := cmp.Diff(honestEvents(&job, c.workers[node].Status()), events); diff != "" {
			t.Errorf("events of %s (-sent +received):\n%s", node, diff)
		}
		if diff := cmp.Diff(job, got[node]); diff != "" {
			t.Errorf("job at %s (-sent +received):\n%s", node, diff)
		}
	}
}

func TestStatusArrivesAndChanges(t *testing.T) {
	c := newCluster(t, ServerConfig{Heartbeat: time.Hour})
	cl := c.client(Options{Silence: time.Hour})
	before := awaitUp(t, cl)["d1"].Status
	if diff := cmp.Diff(c.workers["d1"].Status(), before); diff != "" {
		t.Errorf("first status (-worker +gateway):\n%s", diff)
	}
	next := before
	next.Running, next.FreePages, next.Draining, next.LedgerFailed = 3, 17, true, true
	next.CertificateFailures = 2
	next.Refused = map[string]int{"torn": 3, "cut": 0}
	next.Peers = []PeerStatus{{Node: "p1", Err: "refused"}}
	next.LastTransfer = time.Now()
	c.workers["d1"].Set(next)
	after := await(t, cl, "the new status arrives", func(m map[string]Member) bool { return m["d1"].Running == 3 })["d1"]
	if age := after.Seen.Sub(after.LastTransfer); age < 0 || age > time.Minute {
		t.Errorf("the transfer's age arrived as %v", age)
	}
	after.LastTransfer = next.LastTransfer
	if diff := cmp.Diff(next, after.Status); diff != "" {
		t.Errorf("next status (-worker +gateway):\n%s", diff)
	}
}

// hanging runs a job until it is cancelled and tells why.
func hanging(w *scripted) (begun chan struct{}, cause chan error) {
	begun, cause = make(chan struct{}), make(chan error, 1)
	w.run = func(ctx context.Context, job Job, emit func(Event) error) error {
		if err := emit(honestEvents(&job, w.Status())[0]); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}
	return begun, cause
}

func TestCancelReachesTheWorker(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, cause := hanging(c.workers["d1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := cl.Run(ctx, testJob(), "d1")
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	cancel()
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	if _, err := all(s); fault.Of(err) != fault.Cancelled {
		t.Errorf("the stream's error must be of kind cancelled: %v", err)
	}
}

func TestKilledConnectionCancelsJobsAndComesBack(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, cause := hanging(c.workers["d1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	s := start(t, cl, testJob(), "d1")
	<-begun
	c.relays["d1"].kill()
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	if _, err := all(s); fault.Of(err) != fault.Unavailable {
		t.Errorf("the stream's error must be of kind unavailable: %v", err)
	}
	c.workers["d1"].run = honest(c.workers["d1"])
	await(t, cl, "the worker is up again and serves", func(m map[string]Member) bool {
		if !m["d1"].Up {
			return false
		}
		s, err := cl.Run(t.Context(), testJob(), "d1")
		if err != nil {
			return false
		}
		events, err := all(s)
		return err == nil && events[len(events)-1].Kind == Finished
	})
}

// A frozen network is what a stopped process or a lost host looks like: nothing
// is closed, nothing moves.
func TestFrozenNetworkIsNoticedByBothSides(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, cause := hanging(c.workers["d1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	s := start(t, cl, testJob(), "d1")
	<-begun
	c.relays["d1"].freeze()
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	if _, err := all(s); fault.Of(err) != fault.Unavailable {
		t.Errorf("the stream's error must be of kind unavailable: %v", err)
	}
	await(t, cl, "the worker is down", func(m map[string]Member) bool { return !m["d1"].Up && m["p1"].Up })
}

func TestSilentWorkerIsGivenUp(t *testing.T) {
	c := newCluster(t, ServerConfig{Heartbeat: time.Hour})
	hangingBegun, cause := hanging(c.workers["p1"])
	cl := c.client(Options{Silence: time.Second})
	await(t, cl, "prefill is up", func(m map[string]Member) bool { return m["p1"].Up })
	s := start(t, cl, testJob(), "p1")
	<-hangingBegun
	if _, err := all(s); fault.Of(err) != fault.Unavailable {
		t.Errorf("the stream's error must be of kind unavailable: %v", err)
	}
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	await(t, cl, "silence is named", func(m map[string]Member) bool { return strings.Contains(m["p1"].Err, errSilent.Error()) })
}

func TestStoppedServerCancelsJobs(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, cause := hanging(c.workers["p1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	s := start(t, cl, testJob(), "p1")
	<-begun
	c.stops["p1"]()
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	if _, err := all(s); fault.Of(err) != fault.Unavailable {
		t.Errorf("the stream's error must be of kind unavailable: %v", err)
	}
}

func TestClosedClientCancelsJobs(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, cause := hanging(c.workers["p1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	s := start(t, cl, testJob(), "p1")
	<-begun
	cl.Close()
	if got := fault.Of(<-cause); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	if _, err := all(s); fault.Of(err) != fault.Unavailable {
		t.Errorf("the stream's error must be of kind unavailable: %v", err)
	}
	if _, err := cl.Run(t.Context(), testJob(), "p1"); fault.Of(err) != fault.Unavailable {
		t.Errorf("a job after Close must be refused as unavailable: %v", err)
	}
}

func TestWorkersRefuse(t *testing.T) {
	never := func(context.Context, Job, func(Event) error) error {
		return errors.New("the job must not reach the worker")
	}
	for _, tc := range []struct {
		name string
		job  func(*Job)
		node string // that is asked
		kind fault.Kind
		want string
	}{
		{"another prefill epoch", func(j *Job) { j.PrefillEpoch = 12 }, "p1", fault.Unavailable, "is of epoch 000000000000000b, the job of 000000000000000c"},
		{"another decode epoch", func(j *Job) { j.DecodeEpoch = 23 }, "d1", fault.Unavailable, "is of epoch 0000000000000016, the job of 0000000000000017"},
		{"no part in the pair", func(j *Job) { j.Decode = "d2" }, "d1", fault.Unavailable, "the job's pair is p1 and d2"},
		{"roles swapped", func(j *Job) { j.Prefill, j.Decode = "d1", "p1"; j.PrefillEpoch, j.DecodeEpoch = 22, 11 }, "d1", fault.Unavailable, "this is decode worker d1"},
		{"no tokens", func(j *Job) { j.Tokens = nil }, "p1", fault.Invalid, "0 prompt tokens, must be 1 to"},
		{"no output", func(j *Job) { j.MaxTokens = 0 }, "p1", fault.Invalid, "0 output tokens granted"},
		{"negative token", func(j *Job) { j.Tokens[1] = -1 }, "p1", fault.Invalid, "prompt token 1 has a negative id"},
		{"no tenant", func(j *Job) { j.Tenant = 0 }, "p1", fault.Invalid, "tenant must not be zero"},
		{"no boot", func(j *Job) { j.GatewayBoot = 0 }, "p1", fault.Invalid, "gateway boot and request must not be zero"},
		{"too many logprobs", func(j *Job) { j.Sampling.Logprobs = 21 }, "p1", fault.Invalid, "21 logprobs"},
		{"one node", func(j *Job) { j.Decode = "p1" }, "p1", fault.Invalid, "are the same node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, ServerConfig{})
			for _, w := range c.workers {
				w.run = never
			}
			job := testJob()
			tc.job(&job)
			events := c.ask(job, tc.node)
			if len(events) != 1 || events[0].Kind != Failed || events[0].Fault != tc.kind || !strings.Contains(events[0].Reason, tc.want) {
				t.Errorf("must be refused as %v with %q: %+v", tc.kind, tc.want, events)
			}
			cl := c.client(Options{})
			awaitUp(t, cl)
			if _, err := cl.Run(t.Context(), job, tc.node); err == nil {
				t.Error("the client must refuse it too")
			}
		})
	}
}

// raw is a gateway without our client's checks.
func (c *testCluster) raw(node string, cert Security) *grpc.ClientConn {
	c.t.Helper()
	w, _ := c.file.Find(node)
	creds := credentials.NewTLS(cert.Material().Client(w.Identity(), "127.0.0.1"))
	conn, err := grpc.NewClient("passthrough:///"+w.Control, grpc.WithTransportCredentials(creds))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a job past the client's checks and reads all events.
func (c *testCluster) ask(job Job, node string) (events []Event) {
	c.t.Helper()
	call, err := pb.NewWorkerClient(c.raw(node, c.security("gateway"))).Run(c.t.Context(), jobToWire(&job, time.Now()))
	if err != nil {
		c.t.Fatal(err)
	}
	for {
		w, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil {
			c.t.Fatalf("after %d events: %v", len(events), err)
		}
		e, err := eventFromWire(w)
		if err != nil {
			c.t.Fatal(err)
		}
		events = append(events, e)
	}
}

func BenchmarkTokens(b *testing.B) {
	c := newCluster(b, ServerConfig{EventsMax: 1 << 20})
	w := c.workers["d1"]
	w.run = func(_ context.Context, job Job, emit func(Event) error) error {
		events := honestEvents(&job, w.Status())
		token, end := events[3], events[4]
		for _, e := range events[:2] {
			if err := emit(e); err != nil {
				return err
			}
		}
		for token.Index = range job.MaxTokens {
			if err := emit(token); err != nil {
				return err
			}
		}
		return emit(end)
	}
	cl := c.client(Options{})
	awaitUp(b, cl)
	job := testJob()
	job.MaxTokens = 10_000
	tokens := 0
	for b.Loop() {
		events, err := all(start(b, cl, job, "d1"))
		if err != nil {
			b.Fatal(err)
		}
		tokens += len(events) - 3
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}
