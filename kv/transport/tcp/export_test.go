package tcp

import (
	"context"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// DialDoor is Dial with another door than the gate's.
func DialDoor(ctx context.Context, addr string, config transport.Config, security Security, newDoor func(kick func()) session.Door) (transport.Link, error) {
	return dial(ctx, addr, config, security, newDoor)
}
