package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/node"
	"github.com/bulkhead-kv/bulkhead/internal/supervisor"
)

const clusterLong = `The cluster file names the model, the workers with their addresses, and the
certificates by which nodes know each other:

  model: smollm2:135m
  tls: {ca: certs/ca.pem, cert: "certs/{name}.pem", key: "certs/{name}-key.pem"}
  gateway: {listen: "127.0.0.1:8080"}
  workers:
  - {name: p0, role: prefill, control: "127.0.0.1:7001", transfer: "tcp://127.0.0.1:7101"}
  - {name: d0, role: decode, control: "127.0.0.1:7002"}

The first SIGTERM or Ctrl-C drains: running requests end, new ones are refused.
A second one, a second or more later, ends the process at once.`

// nodeFlags are the flags of every process of a cluster.
type nodeFlags struct {
	cluster, ledger, level *string
	drain                  *time.Duration
}

func addNodeFlags(cmd *cobra.Command) nodeFlags {
	f := nodeFlags{
		cluster: cmd.Flags().String("cluster", "", "cluster file (required)"),
		ledger:  cmd.Flags().String("ledger", "", "folder of this node's ledger (default: ledger/NAME in the data folder)"),
		level:   cmd.Flags().String("log-level", "info", "debug, info, warn or error"),
		drain:   cmd.Flags().Duration("drain", 30*time.Second, "how long running requests may go on when the process shall end"),
	}
	return f
}

func (f nodeFlags) file() (*cluster.File, error) {
	if *f.cluster == "" {
		return nil, usageError{errors.New("--cluster is missing: the file that names model, workers and gateway")}
	}
	file, err := cluster.ReadFile(*f.cluster)
	if err != nil {
		return nil, configError{err}
	}
	return file, nil
}

// mustName refuses a name that no worker of the role has, and lists those there are.
func (f nodeFlags) mustName(file *cluster.File, role cluster.Role, name string) error {
	var names []string
	for _, w := range file.Workers {
		if w.Role == role {
			names = append(names, w.Name)
		}
	}
	all := strings.Join(names, ", ")
	switch {
	case name == "":
		return usageError{fmt.Errorf("--name is missing; %s has %s", *f.cluster, all)}
	case !slices.Contains(names, name):
		return usageError{fmt.Errorf("--name is %q: no %v worker of that name is in %s, which has %s", name, role, *f.cluster, all)}
	}
	return nil
}

func (f nodeFlags) ledgerDir(home, name string) string {
	if *f.ledger != "" {
		return *f.ledger
	}
	return filepath.Join(home, "ledger", name)
}

func (f nodeFlags) logger() (*slog.Logger, error) { return logger(*f.level) }

// logger writes structured lines to standard error. Ids and numbers only: what
// logs it takes care of that.
func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("log level is %q, want debug, info, warn or error", level)}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// alive tells the supervisor that this process lives. That the supervisor is gone
// is not for this process to handle: the kernel ends it.
func alive(p *supervisor.Parent) func() { return func() { _ = p.Alive() } }

// drainable gives a channel that the first signal closes and a context that the
// second one ends. A supervised process leaves Ctrl-C, which its whole terminal
// group gets, to the supervisor: that ends its children in order.
func drainable(parent context.Context, supervised bool) (ctx context.Context, drain <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	if supervised {
		signal.Ignore(os.Interrupt)
	} else {
		signal.Notify(signals, os.Interrupt)
	}
	first := make(chan struct{})
	go followSignals(ctx, signals, func() { close(first) }, cancel)
	return ctx, first, func() { signal.Stop(signals); cancel() }
}

// secondAfter is how long after the first a signal counts as a second one: tools
// that end a process send it to the process and to its group, almost at once.
const secondAfter = time.Second

func followSignals(ctx context.Context, signals <-chan os.Signal, first, second func()) {
	var at time.Time
	for {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		switch {
		case at.IsZero():
			at = time.Now()
			first()
		case time.Since(at) >= secondAfter:
			second()
			return
		}
	}
}

func newWorker(role cluster.Role) *cobra.Command {
	cmd := &cobra.Command{
		Use:     role.String() + " --cluster FILE --name NODE",
		Short:   "run a " + role.String() + " worker of a cluster",
		Long:    "Run one " + role.String() + " worker as a process of its own.\n\n" + clusterLong,
		Example: fmt.Sprintf("  bulkhead %v --cluster cluster.yaml --name %c0", role, role.String()[0]),
		Args:    args(cobra.NoArgs),
	}
	f := addNodeFlags(cmd)
	name := cmd.Flags().String("name", "", "this worker's name in the cluster file (required)")
	shared := cmd.Flags().Bool("shared-weights", false, "use the weights that the supervisor passes on")
	_ = cmd.Flags().MarkHidden("shared-weights") // for the supervisor; the flag exists
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := notNegative(cmd, "drain"); err != nil {
			return err
		}
		file, err := f.file()
		if err != nil {
			return err
		}
		if err := f.mustName(file, role, *name); err != nil {
			return err
		}
		log, err := f.logger()
		if err != nil {
			return err
		}
		home, err := homeOf(cmd)
		if err != nil {
			return err
		}
		parent, err := supervisor.FindParent()
		if err != nil {
			return err
		}
		o := node.WorkerOptions{File: file, Name: *name, Home: home, Ledger: f.ledgerDir(home, *name), Epoch: parent.Epoch(),
			Ready: func() error { return parent.Ready(*name) }, Alive: alive(parent), DrainMax: *f.drain, Log: log, Build: version()}
		if *shared {
			o.Weights = supervisor.File(0, "weights")
		}
		ctx, drain, stop := drainable(cmd.Context(), parent.Supervised())
		defer stop()
		o.Drain = drain
		return node.RunWorker(ctx, o)
	}
	return cmd
}

const tenantShareUsage = "percent of all workers' pages that one tenant's running requests may hold, unless it has one only; a single tenant may hold all"

const adminUsage = "address of metrics and readiness details, plain HTTP without a key (default: with the API if that is on loopback, else nowhere)"

func newGateway() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "gateway --cluster FILE --tenants FILE",
		Short:   "run the gateway of a cluster",
		Long:    "Serve the OpenAI API in front of a cluster's workers.\n\n" + clusterLong,
		Example: "  bulkhead tenant add --tenants tenants.json acme\n  bulkhead gateway --cluster cluster.yaml --tenants tenants.json",
		Args:    args(cobra.NoArgs),
	}
	f := addNodeFlags(cmd)
	cmd.Flags().String("tenants", "", "tenants file (default: tenants.json in the data folder)")
	timeout := cmd.Flags().Duration("timeout", 10*time.Minute, "longest time from admission to the end of an answer")
	queue := cmd.Flags().Duration("queue-timeout", 30*time.Second, "longest wait for room at the workers")
	share := cmd.Flags().Int("tenant-share", gateway.Default().TenantSharePercent, tenantShareUsage)
	admin := cmd.Flags().String("admin", "", adminUsage)
	reserve := cmd.Flags().Int("reserve", 1024, "tokens of output granted to a request that names no maximum")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(adminHostPort(*admin), percent("tenant-share", *share), notNegative(cmd, "timeout", "queue-timeout", "drain"),
			atLeast(0, number{"reserve", *reserve})); err != nil {
			return err
		}
		file, err := f.file()
		if err != nil {
			return err
		}
		log, err := f.logger()
		if err != nil {
			return err
		}
		home, err := homeOf(cmd)
		if err != nil {
			return err
		}
		tenants, err := tenantsFile(cmd)
		if err != nil {
			return err
		}
		parent, err := supervisor.FindParent()
		if err != nil {
			return err
		}
		ctx, drain, stop := drainable(cmd.Context(), parent.Supervised())
		defer stop()
		return node.RunGateway(ctx, node.GatewayOptions{File: file, Home: home, Ledger: f.ledgerDir(home, file.Gateway.Name), Tenants: tenants,
			Reserve: *reserve, Timeout: *timeout, QueueTimeout: *queue, TenantShare: *share, Admin: *admin, Ready: parent.Ready, Alive: alive(parent), Drain: drain, DrainMax: *f.drain, Log: log})
	}
	return cmd
}
