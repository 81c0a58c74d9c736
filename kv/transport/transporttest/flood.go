package transporttest

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Flood opens connections that say nothing, and each again as soon as it is closed. It
// returns when all have been open at one time or another.
func Flood(t testing.TB, addr string, count int) {
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
	for err == nil { // what a server in plaintext says is let pass
		_, err = conn.Read(make([]byte, 512))
	}
	_ = conn.Close()
}
