// Package router chooses the prefill and the decode worker of a request.
//
// A pair must have the served model, by its fingerprint, see each other, be fresh,
// not drain, hold the served limit and have room now. Among the pairs left the
// one with the least work in tokens is taken. No tenant holds more than its share of
// all pages, unless it has nothing else running. Pure: time and states are passed in.
package router

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Worker is what is known of one worker.
type Worker struct {
	Node         string
	Epoch        kv.Epoch
	Fingerprint  kv.Fingerprint
	Up           bool
	Draining     bool
	LedgerFailed bool      // it refuses everything until its ledger can be written
	Seen         time.Time // when its state was last heard
	UsableTokens int       // longest sequence it can hold now
	UsablePages  int
	PageTokens   int
	QueuedTokens int       // prompt tokens it said it has not computed yet
	HeldPages    int       // pages that requests of this gateway hold there
	HeldTokens   int       // tokens of work that this gateway has given it and not seen done
	LastLoss     time.Time // when it was lost, in this epoch
	LastFailure  time.Time // when it was lost or failed a request, in this epoch
	UnseenPeers  []string  // nodes that it says it has no link to
}

// Need is what a request takes.
type Need struct {
	PromptTokens int
	StoredTokens int // prompt and granted output as far as it is stored
}

// Rules bounds the choice.
type Rules struct {
	FreshFor    time.Duration  // a state older than this is stale
	LostFor     time.Duration  // a worker that was lost this recently is not taken: its state may be older than its death
	AvoidFor    time.Duration  // a worker that was lost or failed a request this recently is taken last
	LimitTokens int            // the served limit
	Fingerprint kv.Fingerprint // of the served model; a worker with another one is not taken
	// TenantSharePercent is how much of all pages of a role one tenant may hold, so that
	// room is left for the next one who comes; 100: as much as there is.
	TenantSharePercent int
}

// Pair is a choice.
type Pair struct{ Prefill, Decode Worker }

// usable splits the workers into those that may serve and the reasons of the rest.
func usable(now time.Time, workers []Worker, rules Rules) (in []Worker, out []string) {
	for _, w := range workers {
		if why := w.Excluded(now, rules); why != "" {
			out = append(out, w.Node+": "+why)
		} else {
			in = append(in, w)
		}
	}
	return in, out
}

// Excluded says why a worker may not serve at all; empty when it may.
func (w Worker) Excluded(now time.Time, rules Rules) string {
	switch {
	case !w.Up:
		return "not connected"
	case w.Epoch == 0:
		return "no epoch known"
	case w.Fingerprint != rules.Fingerprint:
		return fmt.Sprintf("has fingerprint %x, the gateway's model has %x", w.Fingerprint[:fingerprintShown], rules.Fingerprint[:fingerprintShown])
	case now.Sub(w.Seen) > rules.FreshFor:
		return "its state is stale"
	case !w.LastLoss.IsZero() && now.Sub(w.LastLoss) < rules.LostFor:
		return "lost a moment ago"
	case w.Draining:
		return "draining"
	case w.LedgerFailed:
		return "its ledger can't be written"
	case w.UsableTokens < rules.LimitTokens:
		return fmt.Sprintf("holds %d tokens, %d are served", w.UsableTokens, rules.LimitTokens)
	}
	return ""
}

// fingerprintShown is how many bytes of a fingerprint a reason names.
const fingerprintShown = 8

func pairsOf(prefill, decode []Worker) (pairs []Pair) {
	for _, p := range prefill {
		for _, d := range decode {
			if !slices.Contains(d.UnseenPeers, p.Node) && !slices.Contains(p.UnseenPeers, d.Node) {
				pairs = append(pairs, Pair{p, d})
			}
		}
	}
	return pairs
}

// fits reports whether there is room for so many tokens once freed pages of those held
// have come back.
func (w Worker) fits(tokens, freed int) bool {
	return w.PageTokens > 0 && w.HeldPages-freed+w.pages(tokens) <= w.UsablePages
}

// pages is how many pages so many tokens take; 0 for a worker that names no page size.
func (w Worker) pages(tokens int) int {
	if w.PageTokens < 1 {
		return 0
	}
	return (tokens + w.PageTokens - 1) / w.PageTokens
}

// compare orders pairs: those that failed lately last, then by tokens of work,
// then by the pages held, then by name so that equal loads have one answer.
func compare(now time.Time, rules Rules, a, b Pair) int {
	return cmp.Or(
		cmp.Compare(a.failures(now, rules), b.failures(now, rules)),
		cmp.Compare(a.work(), b.work()),
		cmp.Compare(a.Decode.HeldPages+a.Prefill.HeldPages, b.Decode.HeldPages+b.Prefill.HeldPages),
		strings.Compare(a.Prefill.Node, b.Prefill.Node),
		strings.Compare(a.Decode.Node, b.Decode.Node),
	)
}

func (c Pair) failures(now time.Time, rules Rules) (n int) {
	for _, w := range []Worker{c.Prefill, c.Decode} {
		if !w.LastFailure.IsZero() && now.Sub(w.LastFailure) < rules.AvoidFor {
			n++
		}
	}
	return n
}

// work is what stands before a new request: prompt tokens to compute at prefill,
// as the worker or this gateway counts them, and tokens held at decode.
func (c Pair) work() int {
	return max(c.Prefill.QueuedTokens, c.Prefill.HeldTokens) + c.Decode.HeldTokens
}

func reasons(p, d []Worker, outP, outD []string) string {
	out := append(slices.Clone(outP), outD...)
	switch {
	case len(p) > 0 && len(d) > 0:
		out = append(out, "their links don't pair")
	case len(out) == 0:
		out = append(out, "none is known")
	}
	return strings.Join(out, "; ")
}
