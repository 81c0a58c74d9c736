package transfercheck

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Properties are what is asked of every state.
func Properties(c *Config) []modelcheck.Property[*World] {
	all := []modelcheck.Property[*World]{
		modelcheck.Always("NoLeak", noLeak),
		modelcheck.Always("PageLedger", pageLedger),
		modelcheck.Always("FencedReuse", fencedReuse),
		modelcheck.Always("ClosedMeansClosed", closedMeansClosed),
		modelcheck.Always("SourceHeld", sourceHeld),
		modelcheck.Always("VerifiedBeforeDecode", verifiedBeforeDecode),
		modelcheck.Always("NoStaleKernel", noStaleKernel),
		modelcheck.Always("Forgets", forgets),
		modelcheck.Always("PinsHeld", pinsHeld),
		modelcheck.Always("OwnCache", ownCache),
		modelcheck.Always("ScrubHeld", scrubHeld),
		modelcheck.Always("EndTogether", endTogether),
	}
	if !c.SafetyOnly {
		all = append(all, modelcheck.Recovers("Rest", healingSteps, (*World).heal, (*World).unrest),
			modelcheck.Recovers("RestWithoutPrefill", healingSteps, (*World).healAlone, (*World).unrestAlone))
	}
	step := modelcheck.Always("Step", func(w *World) error {
		if w.broken != "" {
			return errors.New(w.broken)
		}
		return nil
	})
	if c.Only == "" {
		return append(all, step)
	}
	for _, p := range all {
		if p.Name == c.Only {
			return []modelcheck.Property[*World]{p, step}
		}
	}
	return []modelcheck.Property[*World]{step}
}

// healingSteps is how many steps of healing may be needed.
const healingSteps = 500

// noLeak: what a sequence reads while it decodes is its own request's, or its
// tenant's where prompts have blocks in common, and each block is in its place. With the tags checked again at each step, a page whose
// tag is not its own is found before the token leaves.
func noLeak(w *World) error {
	for i, d := range w.decodes {
		for k := range d.jobs {
			j := &d.jobs[k]
			if !j.started || j.answered || (!w.missing(guard.TagStep) && !w.tagsOK(d, j)) {
				continue
			}
			for n, ref := range j.table() {
				m := d.memory[ref.Slot]
				if m.body.request != w.wanted(j.request, n).request {
					return fmt.Errorf("request %d decodes page %d of D%d, which holds bytes of request %d", j.request, ref.Slot, i, m.body.request)
				}
				if int(m.body.block) != n && m.body.block != placeholder {
					return fmt.Errorf("request %d decodes page %d of D%d, which holds block %d instead of %d", j.request, ref.Slot, i, m.body.block, n)
				}
			}
		}
	}
	return nil
}

// pageLedger: in every pool each page is free or has exactly one owner.
func pageLedger(w *World) error {
	for _, d := range w.decodes {
		if err := d.pool.Identity(); err != nil {
			return err
		}
	}
	for _, p := range w.prefills {
		if err := p.pool.Identity(); err != nil {
			return err
		}
	}
	return nil
}

// fencedReuse: a write that can land is to a page that its transfer still has.
func fencedReuse(w *World) error {
	for i := range w.writes {
		r := &w.writes[i]
		if r.landed || r.refused || !w.accepts(r) {
			continue
		}
		page := w.decodes[w.link(r.link).decode].pool.Page(r.to.Slot)
		if page.X != r.x || page.Ref != r.to {
			return fmt.Errorf("a write of %s can land in page %d, which it no longer has", showX(r.x), r.to.Slot)
		}
		switch page.State {
		case pool.Granted, pool.Revoking, pool.Quarantined:
		default:
			return fmt.Errorf("a write of %s can land in page %d, which is %v", showX(r.x), r.to.Slot, page.State)
		}
	}
	return nil
}

// closedMeansClosed: where CLOSED was sent on a link, no write of that transfer is
// in flight on it and the source will post none.
func closedMeansClosed(w *World) error {
	if w.config.Transport.Stream {
		return nil // CLOSED may be on its way behind them
	}
	for i := range w.letters {
		c, ok := w.letters[i].message.(transfer.Closed)
		if !ok {
			continue
		}
		for k := range w.writes {
			r := &w.writes[k]
			if r.x == c.X && r.link == w.letters[i].link && !r.landed && !r.refused && w.accepts(r) {
				return fmt.Errorf("CLOSED %s is out, a write of it is in flight to page %d", showX(c.X), r.to.Slot)
			}
		}
	}
	return nil
}

// sourceHeld: a write that has not left reads a page that its transfer still has.
func sourceHeld(w *World) error {
	for i := range w.writes {
		r := &w.writes[i]
		l := w.link(r.link)
		if r.left || r.landed || r.refused || w.prefills[l.prefill].epoch != l.source {
			continue
		}
		page := w.prefills[l.prefill].pool.Page(r.from.Slot)
		if page.Ref != r.from || page.X != r.x && page.State != pool.Cached {
			return fmt.Errorf("a write of %s reads source page %d, which it no longer has", showX(r.x), r.from.Slot)
		}
	}
	return nil
}

// verifiedBeforeDecode: a sequence's pages have an extent only when it has been verified.
func verifiedBeforeDecode(w *World) error {
	for _, d := range w.decodes {
		for k := range d.jobs {
			j := &d.jobs[k]
			for _, ref := range j.pages {
				if tokens, _ := d.pool.Extent(ref); (tokens != 0) != j.started {
					return fmt.Errorf("page %d of %s has an extent of %d tokens, decoding is %v", ref.Slot, showX(j.x), tokens, j.started)
				}
			}
		}
	}
	return nil
}

// noStaleKernel: no step runs on pages that are no longer its own.
func noStaleKernel(w *World) error {
	for _, d := range w.decodes {
		for _, s := range d.stale {
			return fmt.Errorf("a step of %s runs on pages %v of decode, which it no longer has", showX(s.x), s.slots)
		}
	}
	for _, p := range w.prefills {
		for _, s := range p.stale {
			return fmt.Errorf("a step of %s runs on pages %v of prefill, which it no longer has", showX(s.x), s.slots)
		}
	}
	return nil
}

// forgets: what decode has closed, as far as prefill was told, is not remembered.
func forgets(w *World) error {
	for i := range w.links {
		l := &w.links[i]
		if !w.sourceUp(l) {
			continue
		}
		p := w.prefills[l.prefill]
		for sequence := l.first; sequence < l.low; sequence++ {
			x := kv.TransferID{Epoch: l.target, Sequence: sequence, Rank: w.config.rank(int(l.prefill))}
			if p.source.Stage(x) == "closed" && p.job(x) == nil {
				return fmt.Errorf("%s is below the low mark %d and remembered", showX(x), l.low)
			}
		}
	}
	return nil
}

// PropertyOf is the name of what was broken: for a step, its own.
func PropertyOf(v *modelcheck.Violation[Action]) string {
	if v == nil {
		return ""
	}
	if v.Property != "Step" {
		return v.Property
	}
	name, _, _ := strings.Cut(v.Err.Error(), ":")
	return name
}

// unrest says what keeps the world from rest: an open transfer, a page that is
// not free, a request without an answer, a write on its way.
func (w *World) unrest() error {
	if err := w.unrestAlone(); err != nil {
		return err
	}
	for i, p := range w.prefills {
		if n := p.pool.Counts()[pool.Free]; n != p.pool.Len() {
			return fmt.Errorf("%d of %d pages of P%d are free", n, p.pool.Len(), i)
		}
		if len(p.jobs) > 0 {
			return fmt.Errorf("%s is open at P%d", showX(p.jobs[0].x), i)
		}
	}
	if len(w.writes) > 0 {
		return fmt.Errorf("a write of %s is on its way", showX(w.writes[0].x))
	}
	return nil
}

// unrestAlone asks of decode workers and requests only.
func (w *World) unrestAlone() error {
	for i, d := range w.decodes {
		if n := d.target.Len(); n != 0 {
			return fmt.Errorf("%d transfers are open at D%d, one is %s", n, i, d.target.Stage(d.jobs[0].x))
		}
		if n := d.pool.Counts()[pool.Free]; n != d.pool.Len() {
			return fmt.Errorf("%d of %d pages of D%d are free", n, d.pool.Len(), i)
		}
	}
	for r, q := range w.requests {
		if q.open > 0 {
			return fmt.Errorf("request %d has %d attempts without an answer", r+1, q.open)
		}
	}
	return w.unanswered()
}
