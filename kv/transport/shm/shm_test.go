package shm_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/shm"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

func TestMain(m *testing.M) { os.Exit(transporttest.Main(m, staged())) }

func TestStaged(t *testing.T) { transporttest.Run(t, staged()) }

// staged is the transport; its listeners have abstract names, which need no
// folder and are gone with their process.
func staged() transporttest.Transport {
	var listeners atomic.Int64
	return transporttest.Transport{
		Listen: func(config transport.Config) (transporttest.Listener, error) {
			l, err := shm.Listen(fmt.Sprintf("@bulkhead-test-%d-%d", os.Getpid(), listeners.Add(1)), config)
			if err != nil {
				return nil, err
			}
			return listener{l}, nil
		},
		Dial:     shm.Dial,
		DialDoor: shm.DialDoor,
	}
}

type listener struct{ *shm.Listener }

func (l listener) Addr() string { return l.Listener.Addr().String() }

func BenchmarkGuards(b *testing.B) { transporttest.Benchmark(b, staged()) }

func BenchmarkIdle(b *testing.B) { transporttest.BenchmarkIdle(b, staged()) }
