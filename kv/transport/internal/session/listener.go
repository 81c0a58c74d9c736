package session

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// greetingsMax bounds the connections that are being greeted at one time; more
// wait in the listener's backlog.
const greetingsMax = 64

// Listener greets the connections that come in. Those that become links report
// themselves; for the others it reports Rejected.
type Listener struct {
	config   transport.Config
	listener net.Listener
	greet    func(context.Context, net.Conn) error
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// Listen greets what comes in on a listener, which it owns from then on. greet
// makes a link of a connection; when it can't, the connection is closed for it.
func Listen(listener net.Listener, config transport.Config, greet func(context.Context, net.Conn) error) *Listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{config: config, listener: listener, greet: greet, cancel: cancel}
	l.running.Go(func() { l.accept(ctx) })
	return l
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Close stops taking links and returns when no connection is being greeted any
// more. Links that exist stay.
func (l *Listener) Close() error {
	l.cancel()
	err := l.listener.Close()
	l.running.Wait()
	return err
}

func (l *Listener) accept(ctx context.Context) {
	places := make(chan struct{}, greetingsMax)
	for {
		conn, err := l.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // came in while we were closing; nobody knows of it
			}
			return
		}
		if err != nil {
			l.reject(ctx, err)
			pause(ctx)
			continue
		}
		places <- struct{}{}
		l.running.Go(func() {
			l.receive(ctx, conn)
			<-places
		})
	}
}

// pause keeps a listener that can't accept, for want of descriptors say, from
// spinning.
func pause(ctx context.Context) {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (l *Listener) receive(ctx context.Context, conn net.Conn) {
	greeting, cancel := context.WithTimeout(ctx, l.config.HelloTimeout)
	defer cancel()
	if err := l.greet(greeting, conn); err != nil {
		l.reject(ctx, errors.Join(err, conn.Close()))
	}
}

// reject reports a connection that didn't become a link. When the listener is
// being closed nobody is interested any more.
func (l *Listener) reject(ctx context.Context, err error) {
	select {
	case l.config.Events <- transport.Event{Kind: transport.Rejected, Err: err}:
	case <-ctx.Done():
	}
}
