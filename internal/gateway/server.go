package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
)

// Serve answers on the listener until ctx ends, over TLS when a configuration is
// given. Then it takes no new request, lets the running ones end for DrainTimeout
// at most, ends those that are left with an error, and returns nil. It runs Run.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	server := g.server()
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

func (g *Gateway) server() *http.Server {
	return &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: g.config.HeaderTimeout,
		IdleTimeout:       g.config.IdleTimeout,
		MaxHeaderBytes:    g.config.HeaderBytesMax,
		ErrorLog:          slog.NewLogLogger(g.parts.Log.Handler(), slog.LevelDebug),
	}
}

// Drain makes the gateway refuse new requests and say that it isn't ready.
func (g *Gateway) Drain() { g.draining.Store(true) }

// drain waits for the running requests, then ends them.
func (g *Gateway) drain(ctx context.Context, server *http.Server) {
	g.Drain()
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.config.DrainTimeout)
	defer cancel()
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
