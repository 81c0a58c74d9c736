package gateway

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// health knows when each pair last carried a real transfer: one whose verdicts
// agreed with the gateway's count.
type health struct {
	now func() time.Time

	mu    sync.Mutex
	pairs map[pairKey]time.Time // protected by mu; bounded by the cluster file and pruned
	last  time.Time             // protected by mu
}

// pairKey is a pair in the epochs of its workers.
type pairKey struct {
	prefill, decode           string
	prefillEpoch, decodeEpoch kv.Epoch
}

func keyOf(p router.Pair) pairKey {
	return pairKey{p.Prefill.Node, p.Decode.Node, p.Prefill.Epoch, p.Decode.Epoch}
}

func newHealth(now func() time.Time) *health {
	return &health{now: now, pairs: map[pairKey]time.Time{}}
}

// transferred notes a transfer through a pair.
func (h *health) transferred(p router.Pair) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
	h.pairs[keyOf(p)] = h.last
}

// age is how long ago the last transfer was; false when there was none.
func (h *health) age() (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Sub(h.last), !h.last.IsZero()
}

// ready says whether one of the pairs that may serve carried a transfer lately.
func (h *health) ready(pairs []router.Pair, within time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(pairs, func(p router.Pair) bool {
		at, ok := h.pairs[keyOf(p)]
		return ok && h.now().Sub(at) <= within
	})
}

// stalest is the pair that has waited longest for a transfer, if any has waited
// for every. Pairs that may not serve any more are forgotten.
func (h *health) stalest(pairs []router.Pair, every time.Duration) (router.Pair, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := map[pairKey]time.Time{}
	var oldest router.Pair
	found, at := false, time.Time{}
	for _, p := range pairs {
		seen, ok := h.pairs[keyOf(p)]
		if ok {
			kept[keyOf(p)] = seen
		}
		if h.now().Sub(seen) >= every && (!found || seen.Before(at)) {
			oldest, found, at = p, true, seen
		}
	}
	h.pairs = kept
	return oldest, found
}

// probeLook is how often idle pairs are looked for.
const probeLook = 200 * time.Millisecond

// probePrompt is what a probe's pages hold; it says nothing.
//
// probeTokens of it are sent, one more than a page holds, so that a probe takes
// two pages at each worker: one that is full and one that isn't. Where less fits,
// less is sent.
const probePrompt = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"

const probeTokens = kv.PageTokens + 1

// probe sends a probe through the pair that was idle longest, one at a time.
func (g *Gateway) probe(ctx context.Context) {
	prompt, err := g.parts.Text.Prompt(ctx, probePrompt, math.MaxInt)
	if err != nil || len(prompt) == 0 {
		g.parts.Log.Error("no probe can be made, the gateway will be ready through requests only", "error", err)
		return
	}
	ticker := time.NewTicker(probeLook)
	defer ticker.Stop()
	for {
		if pair, ok := g.health.stalest(g.dispatch.pairs(), g.config.ProbeEvery); ok {
			g.probePair(ctx, pair, prompt[:min(len(prompt), probeTokens, g.probeLimit())])
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// probeLimit is the longest probe that fits: a context or a pool may be one page.
func (g *Gateway) probeLimit() int {
	limit, _ := g.dispatch.limit() // without one there are no pairs to probe
	return max(limit.Tokens, 1)
}

// prober is the receiver of a probe: what was generated is thrown away.
type prober struct {
	health *health
	pair   router.Pair
}

func (p *prober) agreed(cluster.Event)     { p.health.transferred(p.pair) }
func (p *prober) token(cluster.Event) bool { return false }

func (g *Gateway) probePair(ctx context.Context, pair router.Pair, prompt []int32) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.config.ProbeTimeout, fault.New(fault.Deadline, "the probe took longer than %s", g.config.ProbeTimeout))
	defer cancel()
	job := cluster.Job{GatewayBoot: g.boot, Request: g.request(), Attempt: 1, Tenant: g.probeTag,
		Prefill: pair.Prefill.Node, Decode: pair.Decode.Node, PrefillEpoch: pair.Prefill.Epoch, DecodeEpoch: pair.Decode.Epoch,
		Tokens: prompt, MaxTokens: 1, Stop: g.parts.Text.Stops(), Deadline: g.parts.Now().Add(g.config.ProbeTimeout), Probe: true,
		Sampling: cluster.Sampling{TopP: 1, Repetition: 1, Logprobs: cluster.NoLogprobs}}
	out := g.attempt(ctx, job, &prober{g.health, pair})
	if out.err == nil {
		g.parts.Metrics.Add(metrics.Probes, 1, "ok")
		return
	}
	if ctx.Err() != nil && fault.Of(context.Cause(ctx)) != fault.Deadline {
		return // the gateway stops
	}
	g.avoid(pair, out)
	g.parts.Metrics.Add(metrics.Probes, 1, kindOf(out.err))
	g.parts.Log.Log(ctx, g.probeLevel(), "probe failed", "prefill", pair.Prefill.Node, "decode", pair.Decode.Node, "error", out.err)
	// A pair that fails at once is not asked again at once.
	sleep(ctx, probePause)
}

// probeLevel is debug while the workers are still finding each other.
func (g *Gateway) probeLevel() slog.Level {
	if _, ever := g.health.age(); !ever && g.parts.Now().Sub(g.started) < startingMax {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// startingMax is how long after the start failed probes are nothing to warn of.
const startingMax = 15 * time.Second

// probePause follows a failed probe.
const probePause = 500 * time.Millisecond

// serveHealthz answers GET /healthz: the process serves.
func (g *Gateway) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// Ready says whether a pair carried a real transfer lately, and if not, why.
func (g *Gateway) Ready() (ok bool, why string) {
	pairs := g.dispatch.pairs()
	switch {
	case g.draining.Load():
		return false, "the server is stopping"
	case g.parts.Ledger.Err() != nil:
		return false, "the ledger can't be written"
	case len(pairs) == 0:
		return false, g.dispatch.whyNone()
	case !g.health.ready(pairs, g.config.ReadyFor):
		return false, "no pair carried a real transfer within " + g.config.ReadyFor.String()
	}
	return true, ""
}

// serveReadyzDetails answers GET /readyz where the operator asks: 200 when requests
// will be served, else why not.
func (g *Gateway) serveReadyzDetails(w http.ResponseWriter, _ *http.Request) {
	ok, why := g.Ready()
	if !ok {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": why})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// serveReadyz is serveReadyzDetails without the reason, which names nodes.
func (g *Gateway) serveReadyz(w http.ResponseWriter, _ *http.Request) {
	if ok, _ := g.Ready(); !ok {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready"})
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}
