package shm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/shm"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

func TestMain(m *testing.M) { os.Exit(transporttest.Main(m, staged())) }

func TestStaged(t *testing.T) { transporttest.Run(t, staged()) }

func TestDirect(t *testing.T) { transporttest.Run(t, direct()) }

// direct is the form without a ring. Its sources are those of the staged form: what
// a target offers them decides.
func direct() transporttest.Transport {
	form := staged()
	form.Dial = func(ctx context.Context, addr string, config transport.Config, slab *os.File) (transport.Link, error) {
		return shm.DialDirect(ctx, addr, config, slab)
	}
	form.DialDoor = shm.DialDirectDoor
	form.DialPlain = shm.DialDirectPlain
	form.Memory = memoryFile
	form.FenceNeedsPeer = true
	return form
}

// memoryFile makes a slab's memory and the sealed file that it lies in.
func memoryFile(t testing.TB, n int) ([]byte, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("slab", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "slab")
	if err := file.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Munmap(memory), file.Close()); err != nil {
			t.Error(err)
		}
	})
	return memory, file
}

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
		Dial: func(ctx context.Context, addr string, config transport.Config, _ *os.File) (transport.Link, error) {
			return shm.Dial(ctx, addr, config)
		},
		DialDoor: func(ctx context.Context, addr string, config transport.Config, _ *os.File, newDoor func(func()) transporttest.Door) (transport.Link, error) {
			return shm.DialDoor(ctx, addr, config, newDoor)
		},
	}
}

type listener struct{ *shm.Listener }

func (l listener) Addr() string { return l.Listener.Addr().String() }

func BenchmarkGuards(b *testing.B) { transporttest.Benchmark(b, staged()) }

func BenchmarkGuardsDirect(b *testing.B) { transporttest.Benchmark(b, direct()) }

func BenchmarkIdle(b *testing.B) { transporttest.BenchmarkIdle(b, staged()) }
