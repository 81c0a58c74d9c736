package tcp_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

// flood opens connections that say nothing, and each again as soon as it is closed. It
// returns when all have been open at one time or another.
func flood(t *testing.T, addr string, count int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running, open sync.WaitGroup
	open.Add(count)
	for range count {
		running.Go(func() {
			first := sync.OnceFunc(open.Done)
			for ctx.Err() == nil {
				mute(ctx, addr, first)
			}
			first()
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	open.Wait()
}

// mute holds one connection until it is closed or ctx ends.
func mute(ctx context.Context, addr string, opened func()) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	opened()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for err == nil { // what a plaintext listener says is let pass
		_, err = conn.Read(make([]byte, 512))
	}
	_ = conn.Close()
}

// Strangers who connect, say nothing and come back at once when they are sent away
// keep nobody out who says who it is.
func TestSilentStrangersKeepNobodyOut(t *testing.T) {
	secured, err := mutual(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, security := range map[string]tcp.Security{"mutual TLS": secured, "plaintext": tcp.Plaintext()} {
		t.Run(name, func(t *testing.T) {
			listening, dialling := make(chan transport.Event), make(chan transport.Event, 8)
			up := make(chan transport.Link, 1)
			go func() {
				for e := range listening {
					switch e.Kind {
					case transport.Up:
						up <- e.Link
					case transport.Down:
						return
					default:
					}
				}
			}()
			from, to := source(listening), target(dialling)
			from.HelloTimeout = 5 * time.Minute // far longer than the honest peer waits
			l, err := tcp.Listen("127.0.0.1:0", from, security)
			if err != nil {
				t.Fatal(err)
			}
			flood(t, l.Addr().String(), lobby.PlacesMax+lobby.PlacesMax/4)
			link, err := tcp.Dial(context.Background(), l.Addr().String(), to, security)
			if err != nil {
				t.Fatalf("a flood of %d silent connections keeps a peer out: %v", lobby.PlacesMax+lobby.PlacesMax/4, err)
			}
			for _, end := range []func() error{link.Close, (<-up).Close, l.Close} {
				if err := end(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
