package shm

import (
	"context"
	"os"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

// DialDoor is Dial with another door than the gate's.
func DialDoor(ctx context.Context, path string, config transport.Config, newDoor func(kick func()) session.Door) (transport.Link, error) {
	return dial(ctx, path, config, newDoor)
}

// DialDirectDoor is DialDirect without the guards that the door lacks.
func DialDirectDoor(ctx context.Context, path string, config transport.Config, slab *os.File, newDoor func(kick func()) session.Door) (transport.Link, error) {
	var missing guards
	switch newDoor(func() {}).(type) {
	case transporttest.Unfenced:
		missing.noWait = true
	case *transporttest.Unchecked:
		missing = guards{noWait: true, noRevoke: true}
	}
	return dialDirect(ctx, path, config, slab, newDoor, missing)
}

// DialDirectPlain is DialDirect without guards, and without copies past the cache.
func DialDirectPlain(ctx context.Context, path string, config transport.Config, slab *os.File, newDoor func(kick func()) session.Door) (transport.Link, error) {
	return dialDirect(ctx, path, config, slab, newDoor, guards{noStream: true, noWait: true, noRevoke: true})
}
