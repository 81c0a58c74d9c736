package gateway

import (
	"net/http"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// serveMetrics answers GET /metrics. It takes no key: it is the operator's, where only
// the operator reaches it, and nothing in it names a tenant or holds anything that a
// client sent.
func (g *Gateway) serveMetrics(w http.ResponseWriter, r *http.Request) {
	g.parts.Metrics.Handler(g.refreshGauges).ServeHTTP(w, r)
}

// refreshGauges sets the gauges that are read rather than counted.
func (g *Gateway) refreshGauges() {
	g.refreshing.Lock()
	defer g.refreshing.Unlock()
	set := g.parts.Metrics
	limit, _ := g.dispatch.limit() // an unknown limit is shown as 0
	set.Set(metrics.ContextLimit, float64(limit.Tokens))
	ready, _ := g.Ready()
	set.Set(metrics.Ready, number(ready))
	set.Set(metrics.LedgerFailed, number(g.parts.Ledger.Err() != nil))
	set.Set(metrics.TenantsKnown, float64(g.parts.Tenants.Count()))
	set.Set(metrics.TenantsFailed, number(g.parts.Tenants.Err() != nil))
	age, ok := g.health.age()
	if !ok {
		age = -1e9 // one second before: "never"
	}
	set.Set(metrics.LastTransfer, age.Seconds())
	g.refreshWorkers()
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// refreshWorkers sets what the gateway knows of each worker anew.
func (g *Gateway) refreshWorkers() {
	set := g.parts.Metrics
	for _, name := range []metrics.Name{metrics.WorkerUp, metrics.WorkerRoutable, metrics.WorkerSeenAge, metrics.WorkerRunning,
		metrics.WorkerWaiting, metrics.WorkerQueued, metrics.WorkerPages, metrics.WorkerLimitTokens, metrics.WorkerPeerUp,
		metrics.WorkerHeldPages, metrics.WorkerLedger} {
		set.Clear(name)
	}
	members := g.parts.Cluster.Status()
	candidates, rules := g.dispatch.view(members)
	running, waiting, used, usable := 0, 0, 0, 0
	for i, m := range members {
		g.refreshWorker(m, candidates[i], rules)
		if m.Role == cluster.Decode && m.Up {
			running += m.Running
			waiting += m.Waiting
			usable += m.Limits.UsablePages
			used += max(m.Limits.UsablePages-m.FreePages, 0)
		}
	}
	set.Set(metrics.ModelRunning, float64(running), g.config.Model)
	set.Set(metrics.ModelWaiting, float64(waiting+g.dispatch.queued()), g.config.Model)
	set.Set(metrics.ModelKVUsage, float64(used)/float64(max(usable, 1)), g.config.Model)
}

// refreshWorker sets what is known of one worker. What it said last of itself is shown
// while it speaks only: a worker that has gone runs no jobs and holds no pages.
func (g *Gateway) refreshWorker(m cluster.Member, w router.Worker, rules router.Rules) {
	set, now := g.parts.Metrics, g.parts.Now()
	labels := []string{m.Node, m.Role.String()}
	set.Set(metrics.WorkerUp, number(m.Up), labels...)
	set.Set(metrics.WorkerRoutable, number(w.Excluded(now, rules) == ""), labels...)
	age := -1.0
	if !m.Seen.IsZero() {
		age = now.Sub(m.Seen).Seconds()
	}
	set.Set(metrics.WorkerSeenAge, age, labels...)
	set.Set(metrics.WorkerHeldPages, float64(w.HeldPages), labels...)
	g.mirror(m, metrics.WorkerCertificateFailures, m.CertificateFailures, labels...)
	for reason, n := range m.Refused {
		g.mirror(m, metrics.WorkerRefusedPages, n, m.Node, m.Role.String(), reason)
	}
	if !m.Up {
		return
	}
	set.Set(metrics.WorkerRunning, float64(m.Running), labels...)
	set.Set(metrics.WorkerWaiting, float64(m.Waiting), labels...)
	set.Set(metrics.WorkerQueued, float64(m.QueuedTokens), labels...)
	set.Set(metrics.WorkerLimitTokens, float64(w.UsableTokens), labels...)
	set.Set(metrics.WorkerLedger, number(m.LedgerFailed), labels...)
	for _, pages := range []struct {
		state string
		count int
	}{{"pool", m.Limits.PoolPages}, {"usable", m.Limits.UsablePages}, {"reserved", m.Limits.ReservedPages},
		{"free", m.FreePages}, {"quarantined", m.QuarantinedPages}} {
		set.Set(metrics.WorkerPages, float64(pages.count), m.Node, m.Role.String(), pages.state)
	}
	for _, p := range m.Peers {
		set.Set(metrics.WorkerPeerUp, number(p.Up), m.Node, m.Role.String(), p.Node)
	}
}

// mirrored is what was last seen of a count that a worker keeps since its start.
type mirrored struct {
	epoch kv.Epoch
	count int
}

// mirror raises a counter by as much as the worker's own has risen since the last look.
// Requires: refreshing is held.
func (g *Gateway) mirror(m cluster.Member, name metrics.Name, count int, labels ...string) {
	key := string(name) + " " + strings.Join(labels, " ")
	last := g.mirrors[key]
	if last.epoch != m.Epoch {
		last = mirrored{epoch: m.Epoch}
	}
	g.parts.Metrics.Add(name, float64(max(0, count-last.count)), labels...)
	g.mirrors[key] = mirrored{m.Epoch, count}
}
