package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

// A worker that is started by hand says that its pool is tight, with both numbers.
func TestATightPoolIsToldOf(t *testing.T) {
	loaded, err := OpenModel(t.TempDir(), tracer.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	for _, c := range []struct {
		tokens int
		told   bool
	}{{2032, true}, {2048, false}} {
		var log bytes.Buffer
		o := WorkerOptions{File: &cluster.File{Context: 1024}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		spec := cluster.Worker{Name: "p7", Role: cluster.Prefill, Pool: cluster.Pool{Tokens: c.tokens}, Threads: 1}
		if _, err := workerConfig(o, spec, loaded, nil, 1); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "node=p7 tokens=2032 advised=2048 context=1024"); told != c.told {
			t.Errorf("with a pool of %d tokens for a context of 1024 the log says: %q", c.tokens, log.String())
		}
	}
}
