package cluster

import (
	"errors"
	"net"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

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
			transporttest.Flood(t, c.relays["d1"].target, lobby.PlacesMax+lobby.PlacesMax/4)
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

// visit comes to a door and gives its side of the connection.
func visit(t *testing.T, d *door) *visitor {
	t.Helper()
	out, err := net.Dial("tcp", d.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	in, err := d.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	return in.(*visitor)
}

// Those whose peer is known are bounded too, and one more is told so by its end.
func TestKnownPeersAreBounded(t *testing.T) {
	d := newDoor(listen(t))
	defer func() { _ = d.Close() }()
	var inside []*visitor
	for range connectionsMax + 1 {
		inside = append(inside, visit(t, d))
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
	in := visit(t, d)
	_ = in.Close()
	if err := in.welcome(); !errors.Is(err, net.ErrClosed) || d.known != 0 {
		t.Errorf("a closed connection is let in with %v, %d are counted", err, d.known)
	}
}
