package shm

import (
	"context"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// DialDoor is Dial with another door than the gate's.
func DialDoor(ctx context.Context, path string, config transport.Config, newDoor func(kick func()) session.Door) (transport.Link, error) {
	return dial(ctx, path, config, newDoor)
}
