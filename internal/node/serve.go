package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/supervisor"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

// ServeOptions is what one machine serves.
type ServeOptions struct {
	Model     string // name in the store, path, or the built-in one
	Home      string
	Listen    string // host:port of the API
	Admin     string // host:port of metrics and readiness; empty: see GatewayOptions
	Context   int    // served context in tokens; 0: as much as model and pools allow
	Prefills  int    // prefill workers
	Decodes   int    // decode workers
	PoolP     int    // tokens of a prefill worker's pool; 0: chosen
	PoolD     int    // tokens of a decode worker's pool; 0: chosen
	Threads   int    // engine threads of a worker; 0: all cores
	TCP       bool   // pages over TCP with TLS instead of shared memory
	Tenants   string // tenants file; empty: two tenants with new keys, for this run
	TLS       *cluster.PublicTLS
	PlainHTTP bool   // without TLS also at an address that is not loopback
	Ledger    string // folder of the ledgers
	ReadyFile string // where to say, in JSON, that the server is ready; empty: nowhere
	Timeout   time.Duration
	DrainMax  time.Duration
	// QueueTimeout bounds a request's wait for room at the workers.
	QueueTimeout time.Duration
	// TenantShare is how much of all pages one tenant may hold, in percent.
	TenantShare int
	LogLevel    string
	Drain       <-chan struct{}
	Out         io.Writer // for the person who started it
	Log         *slog.Logger
}

// prefillNice puts running answers before new prompts on shared cores.
const prefillNice = 10

// A Unix socket's path is bounded by the system; see unix(7).
const (
	socketPathMax = 107
	longestSocket = "p99.transfer"
)

// demoTenants are made for a run that names no tenants file.
var demoTenants = [...]string{"tenant-a", "tenant-b"}

// Serve runs gateway and workers as child processes until a drain is complete or
// ctx ends. Certificates, sockets and the demo tenants live in a private folder
// that is gone afterwards.
func Serve(ctx context.Context, o ServeOptions) (err error) {
	var opened closers
	defer func() { err = errors.Join(err, opened.close()) }()
	if o.Tenants != "" {
		if _, err := tenant.List(o.Tenants); err != nil {
			return permanent{err}
		}
	}
	if _, _, err := publicTLS(o.TLS); err != nil {
		return permanent{err}
	}
	ledgers, err := lockLedgers(o.Ledger)
	if err != nil {
		return err
	}
	opened.add(ledgers.Close)
	dir, remove, err := makePrivate(o.Log)
	if err != nil {
		return err
	}
	opened.add(remove)
	if n := len(dir) + len("/") + len(longestSocket); n > socketPathMax {
		return fmt.Errorf("private folder %s: a socket's path in it would have %d bytes, the system allows %d: set TMPDIR to a shorter one", dir, n, socketPathMax)
	}
	loaded, err := OpenFile(o.Home, o.Model)
	if err != nil {
		return err
	}
	weights, err := model.Share(loaded.File)
	if err != nil {
		return errors.Join(fmt.Errorf("model %s: %w", loaded.Name, err), loaded.Close())
	}
	opened.add(weights.Close)
	if err := loaded.Close(); err != nil {
		return err
	}
	s := &serving{ServeOptions: o, dir: dir, weights: weights, model: loaded.Name}
	return s.run(ctx)
}

// serving is one run of Serve.
type serving struct {
	ServeOptions
	dir     string
	weights *os.File
	model   string
	file    string            // cluster file
	keys    map[string]string // tenant: key, of demo tenants
}

func (s *serving) run(ctx context.Context) error {
	if err := s.fixListen(); err != nil {
		return err
	}
	f := s.clusterFile()
	if err := s.issue(f); err != nil {
		return err
	}
	text, err := f.Marshal()
	if err != nil {
		return err
	}
	s.file = filepath.Join(s.dir, "cluster.yaml")
	if err := os.WriteFile(s.file, text, 0o600); err != nil {
		return err
	}
	if err := s.makeTenants(); err != nil {
		return err
	}
	return s.supervise(ctx, f)
}

// supervise runs the children until a drain has ended them. When ctx ends, they
// are killed.
func (s *serving) supervise(ctx context.Context, f *cluster.File) error {
	sup, err := supervisor.New(supervisor.Config{Children: s.children(f), Grace: s.DrainMax + drainSlack, Log: s.Log,
		Stable: stableAfter, FailuresMax: failuresMax, BackoffMax: backoffMax})
	if err != nil {
		return err
	}
	running, drain := context.WithCancel(ctx)
	defer drain()
	stopKill := context.AfterFunc(ctx, sup.Kill)
	defer stopKill()
	announced := make(chan error, 1)
	go func() {
		err := s.announceWhenReady(running, sup)
		if err != nil {
			drain() // who waits for the announcement would wait for ever
		}
		announced <- err
	}()
	go func() {
		select {
		case <-s.Drain:
			drain()
		case <-running.Done():
		}
	}()
	err = sup.Run(running)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("second signal: %w", err)
	}
	drain()
	return errors.Join(err, <-announced)
}

// A child that was ready is restarted when it dies, however often; one that never
// gets ready is given up after failuresMax times in a row.
const (
	stableAfter = time.Millisecond
	failuresMax = 10
	backoffMax  = 2 * time.Second
)

// drainSlack is what a child has beyond its own drain before it is killed.
const drainSlack = 5 * time.Second

func (s *serving) announceWhenReady(ctx context.Context, sup *supervisor.Supervisor) error {
	states, err := sup.AwaitReady(ctx)
	if err != nil {
		return nil // the end of the run says why
	}
	return s.announce(states[len(states)-1].Ready)
}

// fixListen finds out before anything is started that an address is taken, and
// turns port 0 into a port, which restarts of the gateway keep.
func (s *serving) fixListen() (err error) {
	if s.Listen, err = fixed(s.Listen, "--listen"); err == nil && s.Admin != "" {
		s.Admin, err = fixed(s.Admin, "--admin")
	}
	return err
}

func fixed(address, flag string) (string, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return "", fmt.Errorf("%w: choose another address with %s", err, flag)
	}
	return bound(address, ln), ln.Close()
}

// bound is the address that a listener was given, with the port that it has: who
// asked for a host by name or for all of them reads that and not what it became.
func bound(given string, ln net.Listener) string {
	host, _, err := net.SplitHostPort(given)
	_, port, errPort := net.SplitHostPort(ln.Addr().String())
	if err != nil || errPort != nil {
		return ln.Addr().String()
	}
	return net.JoinHostPort(host, port)
}

func (s *serving) clusterFile() *cluster.File {
	at := func(name string) string { return filepath.Join(s.dir, name) }
	f := &cluster.File{Model: s.Model, Context: cluster.Context(s.Context),
		TLS:     cluster.TLS{CA: at("ca.pem"), Cert: at("{name}.pem"), Key: at("{name}-key.pem")},
		Gateway: cluster.Gateway{Name: "gateway", Listen: s.Listen, TLS: s.ServeOptions.TLS, PlaintextRemote: s.PlainHTTP}}
	for i := range s.Prefills {
		name := "p" + strconv.Itoa(i)
		f.Workers = append(f.Workers, cluster.Worker{Name: name, Role: cluster.Prefill, Control: "unix://" + at(name+".control"),
			Transfer: s.transfer(name), Pool: cluster.Pool{Tokens: s.PoolP}, Threads: s.Threads})
	}
	for i := range s.Decodes {
		name := "d" + strconv.Itoa(i)
		f.Workers = append(f.Workers, cluster.Worker{Name: name, Role: cluster.Decode, Control: "unix://" + at(name+".control"),
			Pool: cluster.Pool{Tokens: s.PoolD}, Threads: s.Threads})
	}
	return f
}

// transfer is where decode workers reach a prefill worker: a socket in the private
// folder, or a port that was free a moment ago.
func (s *serving) transfer(name string) string {
	if !s.TCP {
		return "shm://" + filepath.Join(s.dir, name+".transfer")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "tcp://127.0.0.1:0"
	}
	defer ln.Close()
	return "tcp://" + ln.Addr().String()
}

// issue makes certificates for this run's nodes.
func (s *serving) issue(f *cluster.File) error {
	authority, _, err := certs.OpenAuthority(s.dir, time.Now())
	if err != nil {
		return err
	}
	names := []string{f.Gateway.Name}
	for _, w := range f.Workers {
		names = append(names, w.Name)
	}
	for _, name := range names {
		id, err := f.Identity(name)
		if err != nil {
			return err
		}
		if _, err := authority.Issue(id, nil, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func (s *serving) makeTenants() error {
	if s.Tenants != "" {
		return nil
	}
	s.Tenants, s.keys = filepath.Join(s.dir, "tenants.json"), map[string]string{}
	for _, name := range demoTenants {
		key, err := tenant.Add(s.Tenants, name, tenant.Limits{}, time.Now())
		if err != nil {
			return err
		}
		s.keys[name] = key
	}
	return nil
}

func (s *serving) children(f *cluster.File) []supervisor.Child {
	common := []string{"--cluster", s.file, "--home", s.Home, "--log-level", s.LogLevel, "--drain", s.DrainMax.String()}
	own := func(role, name string, more ...string) []string {
		return slices.Concat([]string{role}, common, []string{"--ledger", filepath.Join(s.Ledger, name)}, more)
	}
	var all []supervisor.Child
	for _, w := range f.Workers {
		c := supervisor.Child{Name: w.Name, Args: own(w.Role.String(), w.Name, "--name", w.Name, "--shared-weights"),
			Files: []*os.File{s.weights}, Silence: childSilence, Wave: 1}
		if w.Role == cluster.Prefill {
			c.Nice = prefillNice
		}
		all = append(all, c)
	}
	gatewayArgs := []string{"--tenants", s.Tenants, "--timeout", s.Timeout.String(), "--queue-timeout", s.QueueTimeout.String(), "--tenant-share", strconv.Itoa(s.TenantShare), "--admin", s.Admin}
	return append(all, supervisor.Child{Name: f.Gateway.Name, Args: own("gateway", f.Gateway.Name, gatewayArgs...), Silence: childSilence})
}

// childSilence is how long a child may show no sign of life before it is taken for
// stopped and killed.
const childSilence = 15 * time.Second

// ready is what the ready file holds.
type ready struct {
	URL   string            `json:"url"`
	Keys  map[string]string `json:"keys"`
	Model string            `json:"model"`
}

// announce tells whoever started the server where it is and how to use it, once.
func (s *serving) announce(address string) error {
	scheme := "http"
	if s.ServeOptions.TLS != nil {
		scheme = "https"
	}
	r := ready{URL: scheme + "://" + address, Keys: s.keys, Model: s.model}
	fmt.Fprintf(s.Out, "serving %s at %s\n", r.Model, r.URL)
	if s.Admin != "" {
		fmt.Fprintf(s.Out, "metrics at http://%s/metrics\n", s.Admin)
	}
	if s.keys == nil {
		fmt.Fprintf(s.Out, "tenants are those of %s; with a key in BULKHEAD_API_KEY:\n", s.Tenants)
	}
	for _, name := range demoTenants {
		if key, made := s.keys[name]; made {
			fmt.Fprintf(s.Out, "%s  %s\n", name, key)
		}
	}
	fmt.Fprintf(s.Out, "\n%s\n\n", s.example(r.URL, s.keys[demoTenants[0]]))
	if s.model == tracer.Name {
		fmt.Fprintf(s.Out, "tracer goes on with what its context repeats: to a text that repeats nothing its answer is empty\n")
	}
	if s.ReadyFile == "" {
		return nil
	}
	return writeReady(s.ReadyFile, r)
}

// example is a request to paste, with the key or else with its variable. The
// built-in model goes on with what its context holds; others get a question.
func (s *serving) example(url, key string) string {
	authorization := "'Authorization: Bearer " + key + "'"
	if key == "" {
		authorization = `"Authorization: Bearer $BULKHEAD_API_KEY"`
	}
	body := `{"model":"` + s.model + `","messages":[{"role":"user","content":"Name three colours."}]}`
	if s.model == tracer.Name {
		body = `{"model":"tracer","messages":[{"role":"user","content":"Pump 7 turns at 4711 rpm. Valve 3 is shut. Pump 7 turns at"}],"stop":["."]}`
	}
	return fmt.Sprintf("curl %s/v1/chat/completions -H %s -H 'Content-Type: application/json' -d '%s'", url, authorization, body)
}

func writeReady(path string, r ready) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	return os.Rename(part, path)
}
