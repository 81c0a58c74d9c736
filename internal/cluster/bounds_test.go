package cluster

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyTheGatewayGetsIn(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	otherDir := t.TempDir()
	other, _, err := certs.OpenAuthority(otherDir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files, err := other.Issue(certs.Identity{Role: certs.Gateway, Name: "gateway"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var both []byte // trusts the cluster, is not trusted by it
	for _, ca := range []string{files.CA, c.file.TLS.CA} {
		pem, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, pem...)
	}
	if err := os.WriteFile(files.CA, both, 0o600); err != nil {
		t.Fatal(err)
	}
	stranger, err := certs.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		as   Security
	}{
		{"a worker as gateway", c.security("d1")},
		{"a gateway of another authority", Mutual(stranger)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			job := testJob()
			call, err := pb.NewWorkerClient(c.raw("p1", tc.as)).Run(t.Context(), jobToWire(&job, time.Now()))
			if err == nil {
				_, err = call.Recv()
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the handshake must fail: %v", err)
			}
			if n := c.servers["p1"].Running(); n != 0 {
				t.Errorf("%d jobs run, must be 0", n)
			}
		})
	}
}

func TestImpostorWorkerIsNotUsed(t *testing.T) {
	t.Run("by certificate", func(t *testing.T) {
		c := newCluster(t, ServerConfig{})
		c.file.Workers[0].Control, c.file.Workers[1].Control = c.file.Workers[1].Control, c.file.Workers[0].Control
		cl := c.client(Options{})
		await(t, cl, "both are refused", func(m map[string]Member) bool {
			return strings.Contains(m["p1"].Err, "refuse bulkhead://decode/d1") && strings.Contains(m["d1"].Err, "refuse bulkhead://prefill/p1")
		})
	})
	t.Run("by status", func(t *testing.T) {
		c := newCluster(t, ServerConfig{})
		s := c.workers["p1"].Status()
		s.Node = "p2"
		c.workers["p1"].Set(s)
		cl := c.client(Options{})
		await(t, cl, "it is refused", func(m map[string]Member) bool {
			return strings.Contains(m["p1"].Err, `answers as prefill worker "p2"`) && !m["p1"].Up
		})
	})
}

func TestOversizedJobIsRefused(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	job := testJob()
	job.Tokens = make([]int32, TokensMax) // within bounds as a job, but not with this file
	for i := range job.Tokens {
		job.Tokens[i] = 1 << 30 // five bytes each
	}
	cl := c.client(Options{})
	awaitUp(t, cl)
	s, err := cl.Run(t.Context(), job, "p1")
	if err == nil {
		_, err = s.Recv()
	}
	if fault.Of(err) != fault.TooLarge {
		t.Errorf("the client must refuse it as too large: %v", err)
	}
	call, err := pb.NewWorkerClient(c.raw("p1", c.security("gateway"))).Run(t.Context(), jobToWire(&job, time.Now()))
	if err == nil {
		_, err = call.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the server must refuse it: %v", err)
	}
}

func TestSlowGatewayCancelsTheJob(t *testing.T) {
	c := newCluster(t, ServerConfig{EventsMax: 8})
	ended := make(chan error, 1)
	w := c.workers["d1"]
	w.run = func(ctx context.Context, job Job, emit func(Event) error) error {
		events := honestEvents(&job, w.Status())
		for _, e := range events[:2] {
			if err := emit(e); err != nil {
				return err
			}
		}
		e := events[3]
		for e.Index = 0; ; e.Index++ {
			if err := emit(e); err != nil {
				ended <- context.Cause(ctx)
				return err
			}
		}
	}
	job := testJob()
	job.MaxTokens = TokensMax
	call, err := pb.NewWorkerClient(c.raw("d1", c.security("gateway"))).Run(t.Context(), jobToWire(&job, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if got := fault.Of(<-ended); got != fault.Cancelled {
		t.Errorf("the worker's cause must be of kind cancelled, is %v", got)
	}
	for err == nil { // the gateway wakes up
		_, err = call.Recv()
	}
	if status.Code(err) != codes.Aborted {
		t.Errorf("the late gateway must learn that the job was cancelled: %v", err)
	}
}

func TestUnreadEndFreesThePlace(t *testing.T) {
	const many = 100_000 // more than fits between a writer and a reader that sleeps
	c := newCluster(t, ServerConfig{EventsMax: 2 * many, FlushMax: 10 * time.Millisecond})
	w := c.workers["p1"]
	ended := make(chan struct{})
	w.run = func(_ context.Context, job Job, emit func(Event) error) error {
		defer close(ended)
		progress := honestEvents(&job, w.Status())[1]
		for range many {
			if err := emit(progress); err != nil {
				return err
			}
		}
		return fault.New(fault.Busy, "ended")
	}
	job := testJob()
	call, err := pb.NewWorkerClient(c.raw("p1", c.security("gateway"))).Run(t.Context(), jobToWire(&job, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := c.servers["p1"].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for err == nil { // the gateway wakes up
		_, err = call.Recv()
	}
	if status.Code(err) != codes.Aborted {
		t.Errorf("the late gateway must learn that it missed the end: %v", err)
	}
}

func TestDeadlineTravels(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	_, cause := hanging(c.workers["p1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	job := testJob()
	job.Deadline = time.Now().Add(10 * time.Millisecond)
	events, err := all(start(t, cl, job, "p1"))
	if got := fault.Of(<-cause); got != fault.Deadline {
		t.Errorf("the worker's cause must be of kind deadline, is %v", got)
	}
	if err != nil || events[len(events)-1].Kind != Failed || events[len(events)-1].Fault != fault.Deadline {
		t.Errorf("the job must fail by its deadline: %+v, %v", events, err)
	}
}

func TestPlacesAreBounded(t *testing.T) {
	c := newCluster(t, ServerConfig{JobsMax: 1})
	begun, _ := hanging(c.workers["p1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	start(t, cl, testJob(), "p1")
	<-begun
	again := c.ask(testJob(), "p1")
	if len(again) != 1 || again[0].Fault != fault.Invalid || !strings.Contains(again[0].Reason, "already running") {
		t.Errorf("the same attempt must be refused: %+v", again)
	}
	next := testJob()
	next.Request++
	more := c.ask(next, "p1")
	if len(more) != 1 || more[0].Fault != fault.Busy || !strings.Contains(more[0].Reason, "1 jobs run, must be at most 1") {
		t.Errorf("one more job must be refused as busy: %+v", more)
	}
}

func TestDrainWaitsForJobs(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	begun, _ := hanging(c.workers["p1"])
	cl := c.client(Options{})
	awaitUp(t, cl)
	s := start(t, cl, testJob(), "p1")
	<-begun
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.servers["p1"].Drain(over); err == nil || !strings.Contains(err.Error(), "1 jobs still run") {
		t.Errorf("drain must say that a job is left: %v", err)
	}
	next := testJob()
	next.Request++
	refused := c.ask(next, "p1")
	if len(refused) != 1 || refused[0].Fault != fault.Unavailable || !strings.Contains(refused[0].Reason, "draining") {
		t.Errorf("a further job must be refused as unavailable: %+v", refused)
	}
	s.Close()
	if err := c.servers["p1"].Drain(t.Context()); err != nil {
		t.Errorf("drain must end when the job has: %v", err)
	}
}

func TestWorkersMistakesDoNotReachTheGateway(t *testing.T) {
	for _, tc := range []struct {
		name string
		node string
		bend func(e []Event) []Event
	}{
		{"wrong request", "d1", func(e []Event) []Event { e[2].Request++; return e }},
		{"wrong attempt", "d1", func(e []Event) []Event { e[2].Attempt++; return e }},
		{"wrong epoch", "d1", func(e []Event) []Event { e[2].Epoch++; return e }},
		{"index repeated", "d1", func(e []Event) []Event { e[3].Index = 0; return e }},
		{"index skipped", "d1", func(e []Event) []Event { e[3].Index = 2; return e }},
		{"token before the verdict", "d1", func(e []Event) []Event { return append(e[:1], e[2:]...) }},
		{"token over the grant", "d1", func(e []Event) []Event { x := e[3]; x.Index = 2; return append(e[:4], x) }},
		{"token from prefill", "p1", func(e []Event) []Event { x := e[1]; x.Kind = Token; return append(e[:3], x) }},
		{"verdict twice", "d1", func(e []Event) []Event { return append(e[:2], e[1]) }},
		{"verdict without transfer", "d1", func(e []Event) []Event { e[1].X = kv.TransferID{}; return e }},
		{"verdict without count", "d1", func(e []Event) []Event { e[1].PromptTokens = 0; return e }},
		{"verdict without token digest", "p1", func(e []Event) []Event { e[2].TokenDigest = kv.Sum{}; return e }},
		{"verdict without root", "p1", func(e []Event) []Event { e[2].Root = kv.Digest{}; return e }},
		{"end without verdict", "p1", func(e []Event) []Event { return append(e[:2], e[3]) }},
		{"end of another role", "p1", func(e []Event) []Event { e[3].Reason = ReasonStop; return e }},
		{"unknown kind", "p1", func(e []Event) []Event { e[1].Kind = Failed + 1; return e }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, ServerConfig{})
			w := c.workers[tc.node]
			job := testJob()
			sent := tc.bend(honestEvents(&job, w.Status()))
			w.run = func(_ context.Context, job Job, emit func(Event) error) error {
				for _, e := range sent {
					if err := emit(e); err != nil {
						return err
					}
				}
				return nil
			}
			got := c.ask(job, tc.node)
			last := got[len(got)-1]
			if last.Kind != Failed || last.Fault != fault.Corrupt || len(got) > len(sent) {
				t.Errorf("the job must fail as corrupt in place of the bad event: %+v", got)
			}
			// The client holds the same events to the same rules.
			role, epoch, _ := job.Part(tc.node)
			seq, caught := newSequence(&job, role, epoch), false
			for _, e := range sent {
				caught = caught || seq.step(&e) != nil
			}
			if !caught {
				t.Error("the receiver's check must catch it too")
			}
		})
	}
}

func TestResultlessEndIsAFailure(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		kind fault.Kind
		want string
	}{
		{"no error", nil, fault.Internal, "without a result"},
		{"an error of a kind", fault.New(fault.Busy, "2 pages free, 3 needed"), fault.Busy, "2 pages free, 3 needed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, ServerConfig{})
			c.workers["p1"].run = func(context.Context, Job, func(Event) error) error { return tc.err }
			cl := c.client(Options{})
			awaitUp(t, cl)
			events, err := all(start(t, cl, testJob(), "p1"))
			if err != nil || len(events) != 1 || events[0].Fault != tc.kind || !strings.Contains(events[0].Reason, tc.want) {
				t.Errorf("must fail as %v with %q: %+v, %v", tc.kind, tc.want, events, err)
			}
		})
	}
}

func TestPlaintextByNameOnLoopbackOnly(t *testing.T) {
	for _, tc := range []struct {
		name     string
		security Security
		listen   string
		want     string
	}{
		{"no security", Security{}, "127.0.0.1:0", "no security is configured"},
		{"plaintext on loopback", Plaintext(), "127.0.0.1:0", ""},
		{"plaintext anywhere by name", PlaintextRemote(), "127.0.0.1:0", ""},
		{"plaintext on a socket", Plaintext(), "unix", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &scripted{Board: NewBoard(Status{Node: "p1", Role: Prefill, Epoch: 11})}
			w.run = honest(w)
			worker := Worker{Name: "p1", Role: Prefill, Control: tc.listen}
			if tc.listen == "unix" {
				worker.Control = "unix://" + filepath.Join(t.TempDir(), "p1")
			}
			ln, err := Listen(worker)
			if err != nil {
				t.Fatal(err)
			}
			if tc.listen != "unix" {
				worker.Control = ln.Addr().String()
			}
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- NewServer(ServerConfig{Security: tc.security}, w).Serve(ctx, ln) }()
			defer cancel()
			if tc.want != "" {
				if err := <-served; err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("serve must be refused with %q: %v", tc.want, err)
				}
				if _, err := NewClient(&File{Workers: []Worker{worker}}, Options{Security: tc.security}); err == nil {
					t.Error("the client must be refused too")
				}
				return
			}
			cl, err := NewClient(&File{Workers: []Worker{worker}}, Options{Security: tc.security})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			await(t, cl, "the worker is up", func(m map[string]Member) bool { return m["p1"].Up })
			if events, err := all(start(t, cl, testJob(), "p1")); err != nil || len(events) != 4 {
				t.Errorf("a job must run: %+v, %v", events, err)
			}
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPlaintextOffLoopbackNeedsItsName(t *testing.T) {
	for _, host := range []string{"0.0.0.0", "192.0.2.1", "::"} {
		at := &net.TCPAddr{IP: net.ParseIP(host), Port: 7000}
		w := Worker{Name: "p1", Role: Prefill, Control: at.String()}
		for name, check := range map[string]func(Security) error{
			"server": func(s Security) error { _, err := s.server(at); return err },
			"client": func(s Security) error { _, err := s.client(w); return err },
		} {
			if err := check(Plaintext()); err == nil || !strings.Contains(err.Error(), "only loopback addresses") {
				t.Errorf("%s at %s must be refused in plaintext: %v", name, host, err)
			}
			if err := check(PlaintextRemote()); err != nil {
				t.Errorf("%s at %s must be accepted by name: %v", name, host, err)
			}
		}
	}
}

// Every certificate is replaced, by another authority's: connections that stand stay,
// and the next ones are made with what the nodes hold by then, on both sides.
func TestConnectionsAreMadeWithTodaysCertificates(t *testing.T) {
	c := newCluster(t, ServerConfig{})
	own := c.security("gateway")
	cl := c.client(Options{Security: own})
	awaitUp(t, cl)
	dir := filepath.Dir(c.file.TLS.CA)
	for _, name := range []string{"ca.pem", "ca-key.pem"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if c.ca, _, err = certs.OpenAuthority(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	nodes := map[certs.Identity]Security{{Role: certs.Gateway, Name: "gateway"}: own}
	for name, s := range c.servers {
		nodes[certs.Identity{Role: c.workers[name].Status().Role.certificate(), Name: name}] = s.config.Security
	}
	for id, s := range nodes {
		c.issue(id)
		if err := s.Material().Reload(); err != nil {
			t.Fatal(err)
		}
	}
	for node, r := range c.relays {
		view, before := cl.byName[node].snapshot()
		if !view.Up {
			t.Errorf("%s is not up any more once its certificate has changed: %s", node, view.Err)
		}
		r.kill()
		await(t, cl, node+" is up again", func(map[string]Member) bool {
			_, now := cl.byName[node].snapshot()
			return now != nil && now != before
		})
	}
}
