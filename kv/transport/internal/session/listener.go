package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
)

// rejectedMax bounds the rejections that wait to be taken.
const rejectedMax = 64

// Listener greets the connections that come in. Those that become links report
// themselves; for the others it reports Rejected. The newest connection is always
// greeted: of those that are, the oldest is closed for it when they are many.
type Listener struct {
	config   transport.Config
	listener net.Listener
	greet    func(context.Context, net.Conn) error
	greeting *lobby.Lobby
	rejected chan error
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// Listen greets what comes in on a listener, which it owns from then on. greet
// makes a link of a connection; when it can't, the connection is closed for it.
func Listen(listener net.Listener, config transport.Config, greet func(context.Context, net.Conn) error) *Listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{config: config, listener: listener, greet: greet, greeting: lobby.New(lobby.PlacesMax, lobby.StayMin),
		rejected: make(chan error, rejectedMax), cancel: cancel}
	l.running.Go(func() { l.accept(ctx) })
	l.running.Go(func() { l.report(ctx) })
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
	for {
		conn, err := l.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // came in while we were closing; nobody knows of it
			}
			return
		}
		if err != nil {
			l.reject(err)
			pause(ctx)
			continue
		}
		guest, err := l.greeting.Enter(ctx, conn)
		if err != nil {
			_ = conn.Close() // we are closing
			return
		}
		l.running.Go(func() { l.receive(ctx, conn, guest) })
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

func (l *Listener) receive(ctx context.Context, conn net.Conn, guest *lobby.Guest) {
	greeting, cancel := context.WithTimeout(ctx, l.config.HelloTimeout)
	defer cancel()
	err := l.greet(greeting, conn)
	switch away := guest.Leave(); {
	case err == nil:
	case away != nil:
		l.reject(fmt.Errorf("greet %v: %w", conn.RemoteAddr(), away))
	default:
		l.reject(errors.Join(err, conn.Close()))
	}
}

// reject notes that a connection didn't become a link. Of a flood of them only as
// many are reported as the taker of the events keeps up with.
func (l *Listener) reject(err error) {
	select {
	case l.rejected <- err:
	default:
	}
}

// report hands rejections over. When the listener is being closed nobody is
// interested any more.
func (l *Listener) report(ctx context.Context) {
	for {
		select {
		case err := <-l.rejected:
			select {
			case l.config.Events <- transport.Event{Kind: transport.Rejected, Err: err}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
