package tcp_test

import (
	"context"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

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
			transporttest.Flood(t, l.Addr().String(), lobby.PlacesMax+lobby.PlacesMax/4)
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
