package cluster

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
	"google.golang.org/grpc/credentials"
)

// door is a listener that bounds its connections, those with a known peer apart from
// those without: of the latter the newest gets in and the oldest is closed for it, so
// that strangers keep no gateway out. A peer is known once it has shown its
// certificate, in plaintext once it has said anything.
type door struct {
	net.Listener
	strangers *lobby.Lobby
	ctx       context.Context // ends when the listener is closed
	close     context.CancelFunc

	mu    sync.Mutex
	known int // connections; protected by mu
}

func newDoor(ln net.Listener) *door {
	ctx, cancel := context.WithCancel(context.Background())
	return &door{Listener: ln, strangers: lobby.New(lobby.PlacesMax, lobby.StayMin), ctx: ctx, close: cancel}
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	guest, err := d.strangers.Enter(d.ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("accept: %w", net.ErrClosed)
	}
	return &visitor{Conn: conn, door: d, guest: guest}, nil
}

// Close implements net.Listener.
func (d *door) Close() error {
	d.close()
	return d.Listener.Close()
}

// enter counts a connection whose peer is known.
func (d *door) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known >= connectionsMax {
		return fmt.Errorf("%d connections, must be at most %d", d.known+1, connectionsMax)
	}
	d.known++
	return nil
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known--
}

// visitor is a connection that came through a door.
type visitor struct {
	net.Conn
	door  *door
	guest *lobby.Guest
	plain bool // there is no certificate to wait for; immutable after the handshake

	mu     sync.Mutex
	inside bool // its peer is known; protected by mu
	closed bool // it gets no place any more; protected by mu
}

// Read implements net.Conn.
func (v *visitor) Read(b []byte) (int, error) {
	n, err := v.Conn.Read(b)
	if n > 0 && err == nil && v.plain {
		err = v.welcome()
	}
	return n, err
}

// welcome gives the connection a place among those whose peer is known, once.
func (v *visitor) welcome() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		return fmt.Errorf("take in a connection: %w", net.ErrClosed)
	case v.inside:
		return nil
	}
	if err := v.guest.Leave(); err != nil {
		return err
	}
	if err := v.door.enter(); err != nil {
		return err
	}
	v.inside = true
	return nil
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	_ = v.guest.Leave() // if it was sent away it was closed
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.inside {
		v.inside = false
		v.door.leave()
	}
	return v.Conn.Close()
}

// welcoming tells a door which of its connections have a known peer.
type welcoming struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (w welcoming) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := w.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	v, ok := conn.(*visitor)
	switch {
	case !ok:
	case secured == conn:
		v.plain = true
	default:
		err = v.welcome()
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (w welcoming) Clone() credentials.TransportCredentials {
	return welcoming{w.TransportCredentials.Clone()}
}
