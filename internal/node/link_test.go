package node

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// secured gives nodes certificates of one authority.
func secured(t *testing.T, ids ...certs.Identity) map[string]cluster.Security {
	t.Helper()
	authority, _, err := certs.OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]cluster.Security{}
	for _, id := range ids {
		files, err := authority.Issue(id, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		m, err := certs.Load(files)
		if err != nil {
			t.Fatal(err)
		}
		all[id.Name] = cluster.Mutual(m)
	}
	return all
}

func linkConfig(role transfer.Role, node string, epoch kv.Epoch) transport.Config {
	layout := kv.Layout{Layers: 1, KVHeads: 1, KeyDim: 64, ValueDim: 64}
	c := transport.Default()
	c.Hello = transfer.Hello{Version: kv.WireVersion, Role: role, Epoch: epoch, Node: node, Fingerprint: kv.Fingerprint{1}, Layout: layout, PoolPages: 1, ContextTokens: 16}
	c.Events = make(chan transport.Event, 8)
	if role == transfer.RoleDecode {
		c.Gate = transport.NewGate(layout, 1, func(kv.Slot) []byte { return make([]byte, layout.FrameBytes()) })
	}
	return c
}

// freeAddress is an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// A decode worker with a certificate of its own says that it is another one: prefill
// doesn't link to it, nor decode to such a prefill worker.
func TestAPageLinkIsWithTheNodeOfTheCertificate(t *testing.T) {
	security := secured(t, certs.Identity{Role: certs.Prefill, Name: "p0"}, certs.Identity{Role: certs.Decode, Name: "d0"})
	for _, c := range []struct{ prefill, decode string }{{"p0", "d0"}, {"p0", "d1"}, {"p1", "d0"}} {
		spec := cluster.Worker{Name: "p0", Role: cluster.Prefill, Transfer: "tcp://" + freeAddress(t)}
		listening, dialling := linkConfig(transfer.RolePrefill, c.prefill, 1), linkConfig(transfer.RoleDecode, c.decode, 2)
		events := make(chan transport.Event, 8)
		listening.Events = events
		stop, err := listenTransfer(spec, security["p0"], listening)
		if err != nil {
			t.Fatal(err)
		}
		link, err := dialer(spec, security["d0"])(t.Context(), dialling)
		if c.prefill != "p0" {
			if err == nil || !strings.Contains(err.Error(), `"p1"`) || !strings.Contains(err.Error(), "bulkhead://prefill/p0") {
				t.Errorf("dialling p0 that says it is p1 gives %v, want an error with both names", err)
			}
		} else if e := <-events; c.decode != "d0" {
			if e.Kind != transport.Rejected || !strings.Contains(e.Err.Error(), `"d1"`) || !strings.Contains(e.Err.Error(), "bulkhead://decode/d0") {
				t.Errorf("d0 that says it is d1 gives %v (%v), want rejected with both names", e.Kind, e.Err)
			}
		} else if e.Kind != transport.Up || err != nil {
			t.Errorf("an honest pair gives %v and %v, want a link", e.Kind, err)
		}
		if link != nil {
			if err := link.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
