package session

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// helloBytesMax bounds what an unknown peer can make us read.
const helloBytesMax = 512

// Greeted is a connection whose two ends know and suit each other.
type Greeted struct {
	cfg  transport.Config
	peer transfer.Hello
	conn net.Conn
	in   *Input
}

// Peer is what the other side said of itself.
func (g *Greeted) Peer() transfer.Hello { return g.peer }

// Greet exchanges HELLO. Both sides speak before they listen, so that each of two
// that don't pair learns what the other said. On an error the connection is the
// caller's to close.
func Greet(ctx context.Context, conn net.Conn, cfg transport.Config) (*Greeted, error) {
	deadline, _ := ctx.Deadline()
	if limit := time.Now().Add(cfg.HelloTimeout); deadline.IsZero() || deadline.After(limit) {
		deadline = limit
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("greet %v: %w", conn.RemoteAddr(), err)
	}
	// A context that is cancelled ends the greeting at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	peer, in, err := exchange(conn, cfg.Hello)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("greet %v: %w", conn.RemoteAddr(), err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("greet %v: %w", conn.RemoteAddr(), err)
	}
	return &Greeted{cfg: cfg, peer: peer, conn: conn, in: in}, nil
}

func exchange(conn net.Conn, mine transfer.Hello) (transfer.Hello, *Input, error) {
	out, in := newOutput(conn), newInput(conn)
	out.Message(mine.Append(nil))
	if err := out.Flush(); err != nil {
		return transfer.Hello{}, nil, err
	}
	magic, length, err := in.peek()
	if err != nil {
		return transfer.Hello{}, nil, err
	}
	if magic != messageMagic || length == 0 {
		return transfer.Hello{}, nil, fmt.Errorf("%w: no HELLO but a frame of kind %08x and %d bytes", transport.ErrProtocol, magic, length)
	}
	m, err := in.message(length, helloBytesMax)
	if err != nil {
		return transfer.Hello{}, nil, err
	}
	peer, ok := m.(transfer.Hello)
	if !ok {
		return transfer.Hello{}, nil, fmt.Errorf("%w: %T before HELLO", transport.ErrProtocol, m)
	}
	return peer, in, mine.Pair(peer)
}
