package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// Serve answers on the listener until ctx ends, over TLS when a configuration is
// given. Then it takes no new request, lets the running ones end for DrainTimeout
// at most, ends those that are left with an error, and returns nil. It runs Run.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	server := g.server(g.Handler())
	server.ConnState = g.newConnections().follow
	if secure != nil {
		server.TLSConfig = secure.Clone()
	}
	runContext, stopRun := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = g.Run(runContext) // it returns nil when its context ends
	}()
	served := make(chan error, 1)
	go func() {
		if secure != nil {
			served <- server.ServeTLS(listener, "", "")
		} else {
			served <- server.Serve(listener)
		}
	}()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		g.drain(ctx, server)
		err = <-served
	}
	stopRun()
	<-ran
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// ServeAdmin answers AdminHandler's routes on the listener until ctx ends, and returns
// nil then.
func (g *Gateway) ServeAdmin(ctx context.Context, listener net.Listener) error {
	server := g.server(g.AdminHandler())
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // nothing there is worth waiting for
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (g *Gateway) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: g.config.HeaderTimeout,
		IdleTimeout:       g.config.IdleTimeout,
		MaxHeaderBytes:    g.config.HeaderBytesMax,
		// OPTIONS * is the handler's too: net/http's own waits for its body.
		DisableGeneralOptionsHandler: true,

		ErrorLog: slog.NewLogLogger(g.parts.Log.Handler(), slog.LevelDebug),
	}
}

// Drain makes the gateway refuse new requests and say that it isn't ready.
func (g *Gateway) Drain() {
	g.draining.Store(true)
	g.working.close()
}

// drain waits for the running requests, then ends them. Until they have ended the
// gateway listens, so that whoever asks is told that it stops.
func (g *Gateway) drain(ctx context.Context, server *http.Server) {
	g.Drain()
	if running := g.working.running(); running > 0 {
		// Whoever stopped the process and sees it stay is told why.
		g.parts.Log.Warn("draining: running requests may end; a second Ctrl-C or SIGTERM ends them at once",
			"requests", running, "limit", g.config.DrainTimeout)
	}
	server.SetKeepAlivesEnabled(false)
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.config.DrainTimeout)
	defer cancel()
	select {
	case <-g.working.idle:
	case <-deadline.Done():
	}
	if server.Shutdown(deadline) == nil {
		return
	}
	g.stop(errStopped)
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), g.config.WriteTimeout)
	defer cancelLast()
	if server.Shutdown(last) != nil {
		_ = server.Close() // what is left are connections that take nothing
	}
}

// work counts the requests that a drain waits for.
type work struct {
	mu     sync.Mutex
	closed bool // protected by mu
	count  int  // protected by mu

	idle chan struct{} // closed when work is closed and none is left
}

// begin counts a request, unless the gateway drains.
func (w *work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.count++
	return true
}

// end takes back what begin counted.
func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count--; w.closed && w.count == 0 {
		close(w.idle)
	}
}

func (w *work) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// close refuses what comes from now on.
func (w *work) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && w.count == 0 {
		close(w.idle)
	}
	w.closed = true
}

// worked makes a drain wait for a route's requests and refuses those that come
// during one.
func (g *Gateway) worked(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !g.working.begin() {
			w.Header().Set("Connection", "close")
			g.refuse(w, errStopped)
			return
		}
		defer g.working.end()
		serve(w, r)
	}
}
