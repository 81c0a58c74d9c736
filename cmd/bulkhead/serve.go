package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/machine"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/node"
	"github.com/bulkhead-kv/bulkhead/internal/store"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

const serveLong = `Serve a model on this machine: a gateway, prefill workers and decode workers as
child processes that share one copy of the weights. Prefill writes KV pages into
decode's pool over shared memory, or over TCP with TLS.

Without MODEL it serves the built-in tracer, which continues text by what it
finds in its context. Its tenants are those of --tenants, or of tenants.json in
the data folder, which "bulkhead tenant add" makes. Where neither is given it
makes two tenants for this run and prints their keys; --tenants= asks for those.

Ctrl-C or SIGTERM drains: running answers end, new requests are refused. A second
one, a second or more later, ends everything at once. A child that dies is
restarted.`

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "serve a model to several tenants from this machine",
		Long:  serveLong,
		Example: `  bulkhead serve
  bulkhead serve smollm2:135m --listen 127.0.0.1:8000 --tenants tenants.json
  bulkhead serve smollm2:135m --context 4096 --prefills 2 --decodes 2 --transfer tcp`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: modelNames,
	}
	var o node.ServeOptions
	flags := cmd.Flags()
	flags.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "address of the API; anything but loopback needs --tls-cert and --tls-key")
	flags.BoolVar(&o.PlainHTTP, "insecure-http", false, "serve plain HTTP at an address that is not loopback: others can read keys and texts")
	flags.StringVar(&o.Admin, "admin", "", adminUsage)
	context := flags.String("context", "auto", `served context in tokens, or "auto": as much as model and pools allow`)
	flags.IntVar(&o.Prefills, "prefills", 1, "prefill workers")
	flags.IntVar(&o.Decodes, "decodes", 1, "decode workers")
	flags.IntVar(&o.PoolP, "prefill-pool", 0, "tokens of a prefill worker's pool (default: chosen)")
	flags.IntVar(&o.PoolD, "decode-pool", 0, "tokens of a decode worker's pool (default: chosen)")
	flags.IntVar(&o.Threads, "threads", runtime.NumCPU(), "engine threads of each worker")
	transfer := flags.String("transfer", "shm", "how pages travel: shm or tcp")
	flags.String("tenants", "", "tenants file (default: tenants.json in the data folder, or two tenants for this run)")
	cert := flags.String("tls-cert", "", "certificate of the API in PEM")
	key := flags.String("tls-key", "", "private key of the API in PEM")
	flags.StringVar(&o.Ledger, "ledger", "", "folder of the ledgers (default: ledger in the data folder)")
	flags.StringVar(&o.ReadyFile, "ready-file", "", "file to write, in JSON, once the server is ready")
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "longest time from admission to the end of an answer")
	flags.DurationVar(&o.QueueTimeout, "queue-timeout", 30*time.Second, "longest wait for room at the workers")
	flags.IntVar(&o.TenantShare, "tenant-share", gateway.Default().TenantSharePercent, tenantShareUsage)
	flags.DurationVar(&o.DrainMax, "drain", 30*time.Second, "how long running answers may go on at the end")
	flags.StringVar(&o.LogLevel, "log-level", "warn", "debug, info, warn or error")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Model = tracer.Name
		if len(args) > 0 {
			o.Model = args[0]
		}
		if err := completeServe(cmd, &o, *context, *transfer, *cert, *key); err != nil {
			return err
		}
		if err := fits(cmd, &o); err != nil {
			return err
		}
		ctx, drain, stop := drainable(cmd.Context(), false)
		defer stop()
		o.Drain = drain
		return node.Serve(ctx, o)
	}
	return cmd
}

// completeServe checks the flags and fills in what depends on the data folder.
func completeServe(cmd *cobra.Command, o *node.ServeOptions, context, transfer, cert, key string) (err error) {
	if o.Context, err = contextTokens(context); err != nil {
		return err
	}
	if err := atLeast(1, number{"prefills", o.Prefills}, number{"decodes", o.Decodes}, number{"threads", o.Threads}); err != nil {
		return err
	}
	if err := atLeast(0, number{"prefill-pool", o.PoolP}, number{"decode-pool", o.PoolD}); err != nil {
		return err
	}
	if err := notNegative(cmd, "timeout", "queue-timeout", "drain"); err != nil {
		return err
	}
	if err := errors.Join(hostPort("listen", o.Listen), adminHostPort(o.Admin), percent("tenant-share", o.TenantShare)); err != nil {
		return err
	}
	switch {
	case transfer != "shm" && transfer != "tcp":
		return usageError{fmt.Errorf("transfer is %q, want shm or tcp", transfer)}
	case (cert == "") != (key == ""):
		return usageError{errors.New("--tls-cert and --tls-key go together")}
	case cert != "" && o.PlainHTTP:
		return usageError{errors.New("--insecure-http and --tls-cert exclude each other")}
	case cert == "" && !o.PlainHTTP && !cluster.Loopback(o.Listen):
		return usageError{fmt.Errorf("--listen is %q: plain HTTP is for loopback addresses only, give --tls-cert and --tls-key, or --insecure-http", o.Listen)}
	}
	o.TCP = transfer == "tcp"
	if cert != "" {
		if o.TLS, err = publicTLS(cert, key); err != nil {
			return err
		}
	}
	if o.Log, err = logger(o.LogLevel); err != nil {
		return err
	}
	if o.Home, err = homeOf(cmd); err != nil {
		return err
	}
	if o.Ledger == "" {
		o.Ledger = filepath.Join(o.Home, "ledger")
	}
	if o.Tenants, err = servedTenants(cmd, o.Home); err != nil {
		return err
	}
	o.Out = cmd.OutOrStdout()
	return nil
}

// hostPort refuses an address that no server can listen at.
func hostPort(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usageError{fmt.Errorf("--%s is %q, want HOST:PORT with a port from 0 to 65535", flag, address)}
	}
	return nil
}

// adminHostPort is hostPort of --admin, which may be empty.
func adminHostPort(address string) error {
	if address == "" {
		return nil
	}
	return hostPort("admin", address)
}

// publicTLS names the files by absolute paths: the processes that read them get the names
// through a file of another folder.
func publicTLS(cert, key string) (*cluster.PublicTLS, error) {
	cert, errCert := filepath.Abs(cert)
	key, errKey := filepath.Abs(key)
	return &cluster.PublicTLS{Cert: cert, Key: key}, errors.Join(errCert, errKey)
}

// percent refuses a part of a whole that is none.
func percent(flag string, value int) error {
	if value < 1 || value > 100 {
		return usageError{fmt.Errorf("--%s is %d, want 1 to 100 percent", flag, value)}
	}
	return nil
}

// servedTenants is --tenants, or tenants.json in the data folder if it is there.
// Given but empty it means two tenants for this run.
func servedTenants(cmd *cobra.Command, home string) (string, error) {
	if flag := cmd.Flag("tenants"); flag.Changed {
		return flag.Value.String(), nil
	}
	path := filepath.Join(home, "tenants.json")
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return path, err
}

// fits does the sum that `bulkhead capacity` prints: what cannot fit is not started.
// What was chosen for the pools is what the workers get.
func fits(cmd *cobra.Command, o *node.ServeOptions) error {
	loaded, err := node.OpenFile(o.Home, o.Model)
	if err != nil {
		return err
	}
	defer func() { _ = loaded.Close() }() // it was only read
	m := named{name: loaded.Name, file: loaded.File}
	if m.Description, err = store.Describe(loaded.File); err != nil {
		return configError{err}
	}
	layout, err := m.layout()
	if err != nil {
		return configError{fmt.Errorf("model %s: %w", m.name, err)}
	}
	memory, err := machine.ReadMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	weights, err := model.PackedBytes(m.file)
	if err != nil {
		return configError{fmt.Errorf("model %s: %w", m.name, err)}
	}
	sum := capacity.Compute(
		capacity.Model{Name: m.name, WeightBytes: int64(weights), ScratchBytes: scratchBytes(m), ContextTokens: m.ContextTokens, Layout: layout},
		capacity.Machine{MemoryBytes: memory.Bytes, Source: memory.Source},
		capacity.Demand{ContextTokens: o.Context, Prefill: capacity.Workers{Count: o.Prefills, PoolTokens: o.PoolP},
			Decode: capacity.Workers{Count: o.Decodes, PoolTokens: o.PoolD}})
	if !sum.Fits() {
		return configError{fmt.Errorf("model %s can't be served so: %s (see \"bulkhead capacity %s\")", m.name, sum.Problems[0], o.Model)}
	}
	for _, w := range sum.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
	}
	o.PoolP, o.PoolD = sum.Prefill.Tokens(), sum.Decode.Tokens()
	return nil
}
