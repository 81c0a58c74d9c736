package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
	"github.com/bulkhead-kv/bulkhead/internal/worker"
)

// GatewayOptions is what a gateway process is started with.
type GatewayOptions struct {
	File    *cluster.File
	Home    string // where models are
	Ledger  string // folder of the gateway's ledger
	Tenants string // file of tenants and their hashed keys
	Owner   string // owned_by in /v1/models
	// Reserve is the output granted to requests that name no maximum, in tokens; 0: the default.
	Reserve int
	Timeout time.Duration              // of a request; 0: the default
	Ready   func(address string) error // called once, when the gateway listens and a pair of workers can serve
	// QueueTimeout bounds the wait for room at the workers; 0: the default.
	QueueTimeout time.Duration
	// TenantShare is how much of all pages one tenant may hold, in percent; 0: the default.
	TenantShare int
	// Admin is where the operator reads metrics and why the gateway isn't ready, plain
	// HTTP without a key. Empty: with the API, where that is on loopback, else nowhere.
	Admin    string
	Alive    func()          // called about once a second
	Drain    <-chan struct{} // closed when the gateway shall end
	DrainMax time.Duration
	Log      *slog.Logger
}

// tenantsInterval is how often the tenants file is looked at.
const tenantsInterval = 500 * time.Millisecond

// RunGateway is the life of a gateway process.
func RunGateway(ctx context.Context, o GatewayOptions) (err error) {
	var opened closers
	defer func() { err = errors.Join(err, opened.close()) }()
	loaded, err := OpenFile(o.Home, o.File.Model)
	if err != nil {
		return permanent{err}
	}
	opened.add(loaded.Close)
	text, err := newText(loaded.File)
	if err != nil {
		return permanent{fmt.Errorf("model %s: %w", loaded.Name, err)}
	}
	fingerprint, err := model.FingerprintOf(loaded.File)
	if err != nil {
		return permanent{fmt.Errorf("model %s: %w", loaded.Name, err)}
	}
	tenants, err := tenant.Open(o.Tenants, o.Log)
	if err != nil {
		return permanent{err}
	}
	record, err := openLedger(ctx, o.Drain, ledger.Config{Dir: o.Ledger, Node: o.File.Gateway.Name, Epoch: worker.RandomEpoch(), Log: o.Log})
	if err != nil {
		return err
	}
	opened.add(record.Close)
	security, err := o.File.Security(o.File.Gateway.Name)
	if err != nil {
		return permanent{err}
	}
	client, err := cluster.NewClient(o.File, cluster.Options{Security: security, Log: o.Log})
	if err != nil {
		return err
	}
	opened.add(func() error { client.Close(); return nil })
	set := metrics.New()
	opened.add(followNode(ctx, security, o.Log, func() { set.Add(metrics.CertificateFailures, 1, "node") }))
	public, follow, err := publicTLS(o.File.Gateway.TLS)
	if err != nil {
		return permanent{err}
	}
	opened.add(inBackground(ctx, func(ctx context.Context) {
		follow(ctx, o.Log, func() { set.Add(metrics.CertificateFailures, 1, "public") })
	}))
	memory, err := memoryBytes()
	if err != nil {
		return err
	}
	files, err := openFilesMax()
	if err != nil {
		return err
	}
	g, err := gateway.New(gatewayConfig(o, loaded.Name, memory, files), gateway.Parts{Cluster: gateway.Workers(client), Fingerprint: fingerprint, Text: text, Tenants: tenants,
		Ledger: requests{record, o.Log}, Metrics: set, Log: o.Log})
	if err != nil {
		return err
	}
	return serveGateway(ctx, o, g, tenants, public)
}

// gatewayConfig is the default but for the options, and for what requests may make the
// gateway hold, which is the part of the memory that capacity counts for it. Connections
// get half of the files that the process may have open, the rest are the workers' links,
// ledger and metrics.
func gatewayConfig(o GatewayOptions, model string, memoryBytes int64, filesMax uint64) gateway.Config {
	c := gateway.Default().Within(capacity.RequestBytes(memoryBytes))
	c.ConnectionsMax = int(min(uint64(c.ConnectionsMax), filesMax/2))
	c.Model, c.ContextTokens = model, int(o.File.Context)
	if o.Owner != "" {
		c.Owner = o.Owner
	}
	if o.Reserve > 0 {
		c.ReserveTokens = o.Reserve
	}
	if o.Timeout > 0 {
		c.RequestTimeout = o.Timeout
	}
	if o.QueueTimeout > 0 {
		c.QueueTimeout = o.QueueTimeout
	}
	if o.TenantShare > 0 {
		c.TenantSharePercent = o.TenantShare
	}
	c.OpenMetrics = o.Admin == "" && cluster.Loopback(o.File.Gateway.Listen)
	if o.DrainMax > 0 {
		c.DrainTimeout = o.DrainMax
	}
	return c
}

func serveGateway(ctx context.Context, o GatewayOptions, g *gateway.Gateway, tenants *tenant.Directory, public *tls.Config) error {
	ln, err := net.Listen("tcp", o.File.Gateway.Listen)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// The operator's routes outlast the drain, which is what there is to see then.
	adminContext, stopAdmin := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAdmin()
	administered, err := serveAdmin(adminContext, o, g)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	followed, served := make(chan error, 1), make(chan error, 1)
	go func() { followed <- tenants.Run(ctx, tenantsInterval) }()
	go func() { served <- g.Serve(ctx, ln, public) }()
	go announce(ctx, o, g, bound(o.File.Gateway.Listen, ln))
	select {
	case <-o.Drain:
		stop() // Serve drains before it returns
		err = <-served
	case err = <-served:
		stop()
	}
	stopAdmin()
	return errors.Join(err, <-followed, <-administered)
}

// serveAdmin begins to serve the operator's routes, if they have an address of their
// own; the channel gives the error with which that ended.
func serveAdmin(ctx context.Context, o GatewayOptions, g *gateway.Gateway) (<-chan error, error) {
	ended := make(chan error, 1)
	if o.Admin == "" {
		ended <- nil
		return ended, nil
	}
	ln, err := net.Listen("tcp", o.Admin)
	if err != nil {
		return nil, fmt.Errorf("gateway: metrics: %w", err)
	}
	o.Log.Info("gateway serves metrics", "address", bound(o.Admin, ln))
	go func() { ended <- g.ServeAdmin(ctx, ln) }()
	return ended, nil
}

// announce says that the gateway is ready as soon as a pair of workers is, and
// then that it lives.
func announce(ctx context.Context, o GatewayOptions, g *gateway.Gateway, address string) {
	o.Log.Info("gateway listens", "address", address)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for said := false; ; {
		if ok, _ := g.Ready(); ok && !said {
			said = true
			ticker.Reset(time.Second)
			if err := o.Ready(address); err != nil {
				o.Log.Error("nobody was told that the gateway is ready", "error", err)
			}
		}
		o.Alive()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// publicTLS is the configuration of the public listener, nil for plain HTTP, and what
// keeps it in step with its files.
func publicTLS(t *cluster.PublicTLS) (config *tls.Config, follow func(context.Context, *slog.Logger, func()), err error) {
	if t == nil {
		return nil, func(context.Context, *slog.Logger, func()) {}, nil
	}
	var pair atomic.Pointer[tls.Certificate]
	load := func() error {
		fresh, err := certs.LoadPublic(t.Cert, t.Key, time.Now())
		if err != nil {
			return fmt.Errorf("gateway: public: %w", err)
		}
		pair.Store(fresh)
		return nil
	}
	follower := certs.NewFollower([]string{t.Cert, t.Key}, load)
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Load(), nil }
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get}, follower.Run, load()
}

// followNode keeps a node's certificate in step with its files, if it has one.
func followNode(ctx context.Context, s cluster.Security, log *slog.Logger, failed func()) (stop func() error) {
	return inBackground(ctx, func(ctx context.Context) {
		if m := s.Material(); m != nil {
			m.Follow(ctx, log, failed)
		}
	})
}

// inBackground runs f until it is stopped; stop waits for its end.
func inBackground(ctx context.Context, f func(context.Context)) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() error {
		cancel()
		<-done
		return nil
	}
}

// requests writes the gateway's entries into the ledger.
type requests struct {
	*ledger.Ledger
	log *slog.Logger
}

// Record takes an entry.
func (r requests) Record(e gateway.Entry) {
	detail := fmt.Sprintf("%d prompt tokens, %d output tokens", e.Prompt, e.Output)
	if e.Kind == gateway.EntryFailed {
		detail += ", " + e.Fault.String()
	}
	if e.Answer != "" {
		detail += ", answer " + e.Answer
	}
	err := r.Append(ledger.Entry{Kind: ledger.Request, Event: string(e.Kind), GatewayBoot: e.Boot, Request: e.Request, Attempt: e.Attempt,
		Tenant: e.Tenant, X: e.X, Detail: detail})
	if err != nil && fault.Of(err) == fault.Internal { // what is lost the ledger logs
		r.log.Error("ledger entry is impossible", "error", err)
	}
}
