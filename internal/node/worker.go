package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/worker"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/shm"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
)

// WorkerOptions is what a worker process is started with.
type WorkerOptions struct {
	File     *cluster.File
	Name     string          // the worker's name in the file
	Home     string          // where models are
	Ledger   string          // folder of this node's ledger
	Weights  *os.File        // shared weights of the supervisor, or nil: load them
	Epoch    kv.Epoch        // of this start; 0: a random one
	Ready    func() error    // called once, when the worker takes jobs
	Alive    func()          // called at least once a second while the loop turns
	Drain    <-chan struct{} // closed when the worker shall take no more jobs and end
	DrainMax time.Duration   // how long running jobs may go on then
	Log      *slog.Logger
	Build    string
}

// runner is a prefill or a decode worker.
type runner interface {
	Run(context.Context) error
	Handler() cluster.Handler
	Drain(context.Context) error
}

// RunWorker is the life of a worker process: it opens model, ledger and listeners,
// runs the worker until ctx ends or a drain is complete, and closes them again.
func RunWorker(ctx context.Context, o WorkerOptions) (err error) {
	var opened closers
	defer func() { err = errors.Join(err, opened.close()) }()
	spec, known := o.File.Find(o.Name)
	if !known {
		return permanent{fmt.Errorf("worker %s is not in the cluster file", o.Name)}
	}
	security, err := o.File.Security(o.Name)
	if err != nil {
		return permanent{err}
	}
	loaded, err := OpenModel(o.Home, o.File.Model, o.Weights)
	if err != nil {
		return permanent{err}
	}
	opened.add(loaded.Close)
	epoch := o.Epoch
	if epoch == 0 {
		epoch = worker.RandomEpoch()
	}
	record, err := openLedger(ctx, o.Drain, ledger.Config{Dir: o.Ledger, Node: o.Name, Epoch: epoch, Log: o.Log})
	if err != nil {
		return err
	}
	opened.add(record.Close)
	var failures atomic.Int64
	opened.add(followNode(ctx, security, o.Log, func() { failures.Add(1) }))
	config, err := workerConfig(o, spec, loaded, record, epoch)
	config.CertificateFailures = func() int { return int(failures.Load()) }
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		return permanent{err}
	}
	run, closeTransfer, err := startRole(spec, o, security, config)
	if err != nil {
		return err
	}
	return serveWorker(ctx, o, spec, security, run, closeTransfer)
}

func workerConfig(o WorkerOptions, spec cluster.Worker, m *Loaded, record *ledger.Ledger, epoch kv.Epoch) (worker.Config, error) {
	threads := spec.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	// The engine's threads spin while they compute; sessions and links need some too.
	runtime.GOMAXPROCS(threads + 2)
	context := m.Model.Config.Context
	if o.File.Context > 0 {
		if int(o.File.Context) > context {
			return worker.Config{}, fmt.Errorf("context of %d tokens is demanded, model %s was made for %d", o.File.Context, m.Name, context)
		}
		context = int(o.File.Context)
	}
	pages, err := poolPages(spec, m, context)
	if err != nil {
		return worker.Config{}, err
	}
	if o.Weights == nil { // else the supervisor has told
		warnTight(o.Log, spec.Name, pages, context)
	}
	return worker.Config{
		Node: spec.Name, Epoch: epoch, ModelName: m.Name, Model: m.Model, Threads: threads, PoolPages: pages + capacity.ReservedPages,
		ReservedPages: capacity.ReservedPages, ContextTokens: context, Explicit: o.File.Context > 0, Record: record, Log: o.Log, DrainMax: o.DrainMax, Build: o.Build, Alive: o.Alive,
	}, nil
}

// warnTight says that one long prompt would leave no room for a second one.
func warnTight(log *slog.Logger, name string, pages, context int) {
	if need := capacity.HeadroomAdvised * kv.PagesFor(context); pages < need {
		log.Warn("pool holds less than is advised", "node", name, "tokens", pages*kv.PageTokens, "advised", need*kv.PageTokens, "context", context)
	}
}

// poolPages is the size of the pool without its reserve: what the file says, else
// what capacity thinks fits.
func poolPages(spec cluster.Worker, m *Loaded, context int) (int, error) {
	layout := m.Model.Layout()
	switch {
	case spec.Pool.Tokens > 0:
		return kv.PagesFor(spec.Pool.Tokens), nil
	case spec.Pool.Bytes > 0:
		pages := spec.Pool.Bytes / int64(layout.StrideBytes())
		if pages < 1 {
			return 0, fmt.Errorf("worker %s: pool of %d bytes is smaller than a page of %d bytes", spec.Name, spec.Pool.Bytes, layout.StrideBytes())
		}
		return int(pages), nil
	}
	memory, err := memoryBytes()
	if err != nil {
		return 0, err
	}
	return capacity.AutoPages(layout, context, memory), nil
}

// startRole makes the worker and what its transfers need: a listener at prefill,
// the addresses to dial at decode.
func startRole(spec cluster.Worker, o WorkerOptions, s cluster.Security, c worker.Config) (runner, func() error, error) {
	if spec.Role == cluster.Prefill {
		p, err := worker.NewPrefill(c)
		if err != nil {
			return nil, nil, err
		}
		closer, err := listenTransfer(spec, s, p.Transport())
		if err != nil {
			return nil, nil, fmt.Errorf("worker %s: transfers: %w", spec.Name, err)
		}
		return p, closer, nil
	}
	var sources []worker.Source
	for _, peer := range o.File.Workers {
		if peer.Role == cluster.Prefill {
			sources = append(sources, worker.Source{Node: peer.Name, Dial: dialer(peer, s)})
		}
	}
	d, err := worker.NewDecode(c, sources)
	return d, func() error { return nil }, err
}

func listenTransfer(spec cluster.Worker, s cluster.Security, c transport.Config) (func() error, error) {
	kind, address := spec.TransferAddress()
	if kind == "shm" {
		l, err := shm.Listen(address, c)
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	}
	var server *tls.Config
	if s.Material() != nil {
		server = s.Material().Server(certs.Decode)
	}
	security, err := tcpSecurity(server)
	if err != nil {
		return nil, err
	}
	l, err := tcp.Listen(address, c, security)
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

// tcpSecurity is TLS, or plaintext where the cluster file has asked for it by name.
func tcpSecurity(c *tls.Config) (tcp.Security, error) {
	if c == nil {
		return tcp.Plaintext(), nil
	}
	return tcp.MutualTLS(c, certs.IsNode)
}

func dialer(peer cluster.Worker, s cluster.Security) worker.Dial {
	return func(ctx context.Context, c transport.Config) (transport.Link, error) {
		kind, address := peer.TransferAddress()
		if kind == "shm" {
			return shm.Dial(ctx, address, c)
		}
		var client *tls.Config
		if s.Material() != nil {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			client = s.Material().Client(peer.Identity(), host)
		}
		security, err := tcpSecurity(client)
		if err != nil {
			return nil, err
		}
		return tcp.Dial(ctx, address, c, security)
	}
}

// serveWorker runs the control server and the worker's loop; the end of either
// ends the other.
func serveWorker(ctx context.Context, o WorkerOptions, spec cluster.Worker, s cluster.Security, run runner, closeTransfer func() error) error {
	network, address := spec.ControlAddress()
	if network == "unix" {
		if err := clearSocket(address); err != nil {
			return errors.Join(err, closeTransfer())
		}
	}
	ln, err := net.Listen(network, address)
	if err != nil {
		return errors.Join(fmt.Errorf("worker %s: control: %w", spec.Name, err), closeTransfer())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served, loopEnded := make(chan error, 1), make(chan error, 1)
	server := cluster.NewServer(cluster.ServerConfig{Security: s, JobsMax: worker.JobsMax, Log: o.Log}, run.Handler())
	go func() { served <- server.Serve(ctx, ln) }()
	go func() { loopEnded <- run.Run(ctx) }()
	if err := o.Ready(); err != nil {
		stop()
		return errors.Join(err, <-served, <-loopEnded, closeTransfer())
	}
	about := []any{"node", spec.Name, "role", spec.Role, "control", spec.Control}
	if spec.Transfer != "" {
		about = append(about, "transfer", spec.Transfer)
	}
	o.Log.Info("worker is ready", about...)
	drain := o.Drain
	for {
		select {
		case <-drain:
			drain = nil
			o.Log.Info("worker drains", "node", spec.Name)
			if err := run.Drain(ctx); err != nil {
				o.Log.Warn("drain", "error", err)
			}
		case err := <-loopEnded:
			flush(ctx, server)
			stop()
			return errors.Join(err, <-served, closeTransfer())
		case err := <-served:
			stop()
			return errors.Join(err, <-loopEnded, closeTransfer())
		}
	}
}

// flush lets the last events of ended jobs reach the gateway.
func flush(ctx context.Context, server *cluster.Server) {
	ctx, cancel := context.WithTimeout(ctx, flushMax)
	defer cancel()
	_ = server.Drain(ctx) // what has not left by then is lost with the process, and the gateway sees that
}

const flushMax = time.Second

// clearSocket makes room for a socket: a killed predecessor leaves its file behind.
func clearSocket(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket of a predecessor: %w", err)
	}
	return nil
}
