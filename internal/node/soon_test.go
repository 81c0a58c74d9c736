package node

import (
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/worker"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// clientWaitMax is what a client may wait for an error, or for the next attempt at an
// answer, when a worker has died, and a survivor for its pages.
const clientWaitMax = 5 * time.Second

// A process that is killed is missed at once, as its connections end with it; one
// whose machine is gone is missed for its silence. Either way what follows has bounds,
// and none that serves may be above what clients were promised.
func TestAfterADeathNobodyWaitsLong(t *testing.T) {
	for what, span := range map[string]time.Duration{
		"a worker that is silent is given up, and its requests with it":      cluster.SilenceDefault,
		"requests that no worker is left for are refused":                    gateway.Default().OutageTimeout,
		"a link whose peer is silent ends, and its pages are free":           transport.Default().SilenceTimeout,
		"pages whose writer may still be there are fenced by the link's end": worker.FenceAfter,
	} {
		if span <= 0 || span > clientWaitMax {
			t.Errorf("%s after %v, must be within %v", what, span, clientWaitMax)
		}
	}
}
