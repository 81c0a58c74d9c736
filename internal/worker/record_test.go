package worker

import (
	"context"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
)

// Every page that a pool gives out is in its worker's ledger: taken once, for one
// request, and its transfer's pages are freed once. So the ledgers say who had which
// page, prompt or output, at either end.
func TestEveryPageIsInTheLedger(t *testing.T) {
	m := smallModel(t)
	books := map[string]*notes{"p0": {}, "d0": {}}
	p := startPair(t, m, pairConfig{prefillPages: 20, decodePages: 30, context: testContext,
		ledger: func(node string, _ kv.Epoch) Recorder { return books[node] }})
	const jobs = 8
	for i := range jobs {
		p.run(t.Context(), p.job(promptOf(1+i*37), 20), nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.run(ctx, p.job(promptOf(200), 100), func(r cluster.Role, e cluster.Event) {
		if r == cluster.Prefill && e.Kind == cluster.Progress {
			cancel()
		}
	})
	cancel()
	probe := p.job(promptOf(17), 1)
	probe.Probe = true
	p.run(t.Context(), probe, nil)
	p.idle(t)
	for node, own := range map[string]*pool.Pool{"p0": p.prefill.pool, "d0": p.decode.pool} {
		given := 0
		for slot := range own.Len() {
			given += int(own.Page(kv.Slot(slot)).Ref.Generation)
		}
		entries, parts := 0, 0
		taken, freed := map[kv.PageRef]kv.TransferID{}, map[kv.TransferID]int{}
		for _, e := range books[node].entries {
			entries++
			if e.Event == "taken" {
				parts++
			}
			for _, ref := range e.Pages {
				if x, twice := taken[ref]; twice {
					t.Errorf("%s: page %v is of %v and of %v", node, ref, x, e.X)
				}
				taken[ref] = e.X
			}
			if len(e.Pages) > 0 && (e.Request == 0 || e.Attempt == 0 || e.Tenant == 0 || e.GatewayBoot == 0 || e.X.IsZero()) {
				t.Errorf("%s: nobody can tell whose %d pages of the entry %q are", node, len(e.Pages), e.Event)
			}
			if e.Kind == ledger.Pool && e.Event == "free" {
				freed[e.X]++
			}
		}
		if len(taken) != given {
			t.Errorf("%s: %d pages are in the ledger, the pool gave %d", node, len(taken), given)
		}
		for ref, x := range taken {
			if freed[x] != 1 {
				t.Errorf("%s: page %v of %v is freed %d times, want once", node, ref, x, freed[x])
			}
		}
		t.Logf("measured %s: %d entries for %d requests, %d of them of pages taken, %d pages", node, entries, jobs+2, parts, given)
	}
}
