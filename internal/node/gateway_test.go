package node

import (
	"math"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
)

// What tenants can make the gateway hold is what capacity has counted for it, whatever
// the machine's memory, and where there is enough of it the documented bounds stand.
func TestRequestsStayWithinTheSum(t *testing.T) {
	if got := gateway.Default().RequestBytes(); got != capacity.RequestBytesMax {
		t.Errorf("the gateway's budgets cost %d bytes at most, capacity counts %d", got, int64(capacity.RequestBytesMax))
	}
	o := GatewayOptions{File: &cluster.File{}}
	for _, memory := range []int64{256 << 20, 1 << 30, 2 << 30, 8 << 30, 47 << 30, 48 << 30, 1 << 40} {
		c := gatewayConfig(o, "m", memory, 1<<20)
		if err := c.Validate(); err != nil {
			t.Errorf("with %d bytes of memory: %v", memory, err)
		}
		if got, most := c.RequestBytes(), capacity.RequestBytes(memory); got > most || got < most*9/10 {
			t.Errorf("with %d bytes of memory requests may take %d, capacity counts %d", memory, got, most)
		}
		if c.TenantAnswersBytesMax > c.AnswersBytesMax || c.BodyBytesMax > c.BodiesBytesMax || c.TenantBodiesBytesMax > c.BodiesBytesMax {
			t.Errorf("with %d bytes of memory a part is larger than the whole: %+v", memory, c)
		}
		if part := c.BodiesBytesMax / 4; c.TenantBodiesBytesMax > part || c.BodyBytesMax > part {
			t.Errorf("with %d bytes of memory a tenant's bodies have %d bytes and one %d of %d for all, want no more than a quarter", memory, c.TenantBodiesBytesMax, c.BodyBytesMax, c.BodiesBytesMax)
		}
	}
	if c, want := gatewayConfig(o, "m", 64<<30, 1<<20), gateway.Default(); c.AnswersBytesMax != want.AnswersBytesMax || c.BodyBytesMax != want.BodyBytesMax || c.TenantBodiesBytesMax != want.TenantBodiesBytesMax {
		t.Errorf("a large machine's bounds are %+v, want the defaults", c)
	}
}

// Connections leave half of the files that may be open to everything else.
func TestConnectionsStayWithinTheOpenFiles(t *testing.T) {
	for files, want := range map[uint64]int{256: 128, 1024: 512, 1 << 20: 4096, math.MaxUint64: 4096} {
		if got := gatewayConfig(GatewayOptions{File: &cluster.File{}}, "m", 64<<30, files).ConnectionsMax; got != want {
			t.Errorf("of %d files %d are for connections, want %d", files, got, want)
		}
	}
	if files, err := openFilesMax(); err != nil || files == 0 {
		t.Errorf("the limit of open files is %d, %v", files, err)
	}
}
