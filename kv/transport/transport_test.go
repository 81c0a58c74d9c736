package transport

import (
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

func TestConfigIsValidated(t *testing.T) {
	other := testLayout
	other.Layers++
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"as it should be", func(*Config) {}, ""},
		{"no node", func(c *Config) { c.Hello.Node = "" }, "node name has 0 bytes"},
		{"nobody to take events", func(c *Config) { c.Events = nil }, "nobody takes the events"},
		{"no time to greet", func(c *Config) { c.HelloTimeout = 0 }, "hello timeout is 0s, must be 100ms to 5m0s"},
		{"endless silence", func(c *Config) { c.SilenceTimeout = time.Hour }, "silence timeout is 1h0m0s, must be 50ms to 10m0s"},
		{"no queue", func(c *Config) { c.QueueMax = 0 }, "queue is bounded by 0, must be 1 to 16777216"},
		{"unbounded events", func(c *Config) { c.PendingMax = 1 << 25 }, "pending events is bounded by 33554432"},
		{"a gate of other pages", func(c *Config) { c.Gate = NewGate(other, 1, nil) }, "Layers:3"},
		{"a target without a gate", func(c *Config) { c.Gate = nil }, "role decode with a gate: false"},
		{"a source with a gate", func(c *Config) { c.Hello.Role = transfer.RolePrefill }, "role prefill with a gate: true"},
	} {
		config := Default()
		config.Hello = transfer.Hello{Version: kv.WireVersion, Role: transfer.RoleDecode, Epoch: 1, Node: "d", Fingerprint: kv.Fingerprint{1},
			Layout: testLayout, PoolPages: 1, ContextTokens: 16}
		config.Events = make(chan Event)
		config.Gate = newSlab(1).gate
		c.change(&config)
		err := config.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := Up; k <= Rejected; k++ {
		if seen[k.String()] || k.String() == "unknown" {
			t.Errorf("kind %d has no name of its own: %q", k, k)
		}
		seen[k.String()] = true
	}
	if got := Kind(99).String(); got != "unknown" {
		t.Errorf("an undefined kind is called %q", got)
	}
}
