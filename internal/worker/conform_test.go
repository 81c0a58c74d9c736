package worker

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// What a pair has done in good and in bad times is what the machines do: answers,
// refusals, cancels in every phase, a link torn down in mid-transfer, and a restart
// on the same ledgers.
func TestLedgersOfAPairConform(t *testing.T) {
	m := smallModel(t)
	dir := t.TempDir()
	for range 2 {
		t.Run("incarnation", func(t *testing.T) {
			p := startPair(t, m, pairConfig{prefillPages: 12, decodePages: 16, context: testContext, ledger: func(node string, of kv.Epoch) Recorder {
				l, err := ledger.Open(ledger.Config{Dir: filepath.Join(dir, node), Node: node, Epoch: of})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := l.Close(); err != nil {
						t.Error(err)
					}
				})
				return l
			}})
			live(t, p)
		})
	}
	for _, node := range []string{"p0", "d0"} {
		r, err := conform.Check(filepath.Join(dir, node), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict() != conform.Conforms || len(r.Epochs) != 2 {
			t.Errorf("ledger of %s: %v, %v, %d incarnations", node, r.Verdict(), r.Broken, len(r.Epochs))
		}
		for _, e := range r.Epochs {
			t.Logf("measured %s: %d entries, %d steps and %d ticks re-executed", node, e.Entries, e.Steps, e.Ticks)
			if e.Steps < 50 || e.Finding != nil || e.Why != "" {
				t.Errorf("incarnation %016x of %s: %d steps, %s, %v", uint64(e.Epoch), node, e.Steps, e.Why, e.Finding)
			}
		}
	}
	together, err := conform.Together([]string{filepath.Join(dir, "p0"), filepath.Join(dir, "d0")})
	if err != nil || together.Verdict != conform.Conforms || together.Tally.Sum() < 100 {
		t.Errorf("beside the proved machine: %v, error %v", together, err)
	}
	t.Logf("measured %v", together)
}

// live gives a pair what can happen to it.
func live(t *testing.T, p *pair) {
	t.Helper()
	for _, n := range []int{1, 16, 17, 100} {
		p.run(t.Context(), p.job(promptOf(n), 5), nil)
	}
	var all sync.WaitGroup
	for i := range 20 { // more than the pools hold
		j := p.job(promptOf(1+7*i), 4)
		all.Go(func() { p.run(t.Context(), j, nil) })
	}
	all.Wait()
	for _, role := range []cluster.Role{cluster.Prefill, cluster.Decode} {
		for at := 1; at <= 8; at++ {
			ctx, cancel := context.WithCancel(t.Context())
			seen := 0
			p.run(ctx, p.job(promptOf(150), 20), func(r cluster.Role, _ cluster.Event) {
				if r == role {
					if seen++; seen == at {
						cancel()
					}
				}
			})
			cancel()
		}
	}
	cut := false
	o := p.run(t.Context(), p.job(promptOf(150), 20), func(r cluster.Role, e cluster.Event) {
		if r == cluster.Prefill && e.Kind == cluster.Progress && !cut {
			cut = true // in the prefill worker's loop, which owns its links
			for link := range p.prefill.links.peers {
				_ = link.Close()
			}
		}
	})
	if e := last(o.decode); e.Kind != cluster.Failed {
		t.Errorf("a job whose link was torn down ended with %v", fmt.Sprint(e))
	}
	p.idle(t)
}
