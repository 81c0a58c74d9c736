package tcp_test

import (
	"context"
	"os"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

func TestMain(m *testing.M) { os.Exit(transporttest.Main(m, over(tcp.Plaintext()))) }

func TestPlaintext(t *testing.T) { transporttest.Run(t, over(tcp.Plaintext())) }

func over(security tcp.Security) transporttest.Transport {
	return transporttest.Transport{
		Listen: func(config transport.Config) (transporttest.Listener, error) {
			l, err := tcp.Listen("127.0.0.1:0", config, security)
			if err != nil {
				return nil, err
			}
			return listener{l}, nil
		},
		Dial: func(ctx context.Context, addr string, config transport.Config) (transport.Link, error) {
			return tcp.Dial(ctx, addr, config, security)
		},
		DialDoor: func(ctx context.Context, addr string, config transport.Config, newDoor func(func()) transporttest.Door) (transport.Link, error) {
			return tcp.DialDoor(ctx, addr, config, security, newDoor)
		},
	}
}

type listener struct{ *tcp.Listener }

func (l listener) Addr() string { return l.Listener.Addr().String() }
