package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
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
	for err == nil { // what a plaintext server says is let pass
		_, err = conn.Read(make([]byte, 512))
	}
	_ = conn.Close()
}

// Strangers who connect, say nothing and come back at once when they are sent away
// keep no gateway out, and don't end the connection of one that is in.
func TestSilentStrangersKeepNoGatewayOut(t *testing.T) {
	for name, plain := range map[string]bool{"mutual TLS": false, "plaintext": true} {
		t.Run(name, func(t *testing.T) {
			config, options := ServerConfig{}, Options{}
			if plain {
				config.Security, options.Security = Plaintext(), Plaintext()
			}
			c := newCluster(t, config)
			early := c.client(options)
			awaitUp(t, early)
			_, before := early.byName["d1"].snapshot()
			flood(t, c.relays["d1"].target, lobby.PlacesMax+lobby.PlacesMax/4)
			late := c.client(options)
			awaitUp(t, late)
			if _, err := all(start(t, late, testJob(), "d1")); err != nil {
				t.Errorf("a job in the flood: %v", err)
			}
			if _, now := early.byName["d1"].snapshot(); now != before {
				t.Error("the connection that was there before the flood was ended by it")
			}
		})
	}
}

// Those whose peer is known are bounded too, and one more is told so by its end.
func TestKnownPeersAreBounded(t *testing.T) {
	d := newDoor(listen(t))
	defer func() { _ = d.Close() }()
	var inside []*visitor
	for range connectionsMax + 1 {
		out, err := net.Dial("tcp", d.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = out.Close() }()
		in, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		inside = append(inside, in.(*visitor))
	}
	last := inside[connectionsMax]
	for _, v := range inside[:connectionsMax] {
		if err := v.welcome(); err != nil {
			t.Fatal(err)
		}
	}
	if err := last.welcome(); err == nil || err.Error() != "65 connections, must be at most 64" {
		t.Errorf("one connection too many is let in with %v", err)
	}
	for range 2 { // a place is given back once
		_ = inside[0].Close()
	}
	if d.known != connectionsMax-1 {
		t.Errorf("%d connections are counted after one of %d was closed", d.known, connectionsMax)
	}
}

// A connection that is closed before its peer is known has no place that nobody would
// give back.
func TestAClosedConnectionIsNotLetIn(t *testing.T) {
	d := newDoor(listen(t))
	defer func() { _ = d.Close() }()
	out, err := net.Dial("tcp", d.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	in, err := d.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	if err := in.(*visitor).welcome(); !errors.Is(err, net.ErrClosed) || d.known != 0 {
		t.Errorf("a closed connection is let in with %v, %d are counted", err, d.known)
	}
}
