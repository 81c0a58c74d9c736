package transfercheck

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// kind is what happens.
type kind uint8

const (
	submit kind = iota
	cancel
	deliver
	stray
	join
	joinNot
	compute
	land
	landBody
	landTags
	poison
	report
	fence
	tear
	breakLink
	reconnect
	verify
	grow
	finish
	detect
	stopDecode
	stopPrefill
	staleDecode
	stalePrefill
	crashPrefill
	crashDecode
	suspect
	loseWrite
	misplaceWrite
	reportEarly
	evict
	evictSource
	scrub
	scrubEnds
	hear
	crashGateway
	orphan
	orphanSource
)

var kindNames = [...]string{"submit", "cancel", "deliver", "STRAY", "job joins", "job does not come", "compute and post", "write lands", "body lands", "tags land", "tags are poisoned",
	"write is reported", "fence proved", "link torn", "link breaks at prefill", "reconnect", "verify", "grow", "decode finishes", "decode detects",
	"decode kernel stops", "prefill kernel stops", "STALE decode kernel writes", "STALE prefill kernel writes", "CRASH prefill", "CRASH decode", "suspect",
	"write VANISHES, reported done", "write goes ASTRAY", "write is reported EARLY",
	"evict", "evict", "scrub reads", "scrub ends",
	"gateway hears", "CRASH gateway", "decode loses its gateway", "prefill loses its gateway"}

// Action is one thing that can happen. Its fields mean what its kind needs.
type Action struct {
	kind  kind
	a, b  int // nodes, requests, indexes
	x     kv.TransferID
	slots []kv.Slot
}

// Actions lists what can happen, in a fixed order.
func (m Model) Actions(w *World) (list []Action) {
	list = w.submits(make([]Action, 0, 16))
	list = w.decodeActions(list)
	list = w.prefillActions(list)
	list = w.letterActions(list)
	list = w.writeActions(list)
	list = w.linkActions(list)
	list = w.cacheActions(list)
	list = w.gatewayActions(list)
	return w.faultActions(list)
}

// submits lists what the gateway can start. Equal requests start in order.
func (w *World) submits(list []Action) []Action {
	c := w.config
	prefill := transfer.Hello{PoolPages: uint32(c.SourcePages), ContextTokens: uint32(c.SourcePages * kv.PageTokens)}
	for r := range w.requests {
		q := &w.requests[r]
		if q.done || w.waits(r) || int(q.attempts) >= c.Attempts {
			continue
		}
		if r > 0 && !c.Unreduced && c.Requests[r] == c.Requests[r-1] && c.tenant(uint8(r+1)) == c.tenant(uint8(r)) && w.requests[r-1].attempts == 0 && !w.requests[r-1].done {
			continue
		}
		need := c.Requests[r]
		if !w.missing(guard.Door) && (prefill.Takes(need*kv.PageTokens) != nil || need > c.Pages) {
			list = append(list, Action{kind: submit, a: r, b: -1})
			continue
		}
		if c.ranks() > 1 {
			list = w.submitRanks(list, r, need)
			continue
		}
		for d := range w.decodes {
			for p := range w.prefills {
				if w.healthy(uint8(d), uint8(p)) == nil {
					continue
				}
				for _, slots := range choices(w.freeSlots(d), need-len(w.decodePins(d, uint8(r+1)))) {
					list = append(list, Action{kind: submit, a: r, b: d<<4 | p, slots: slots})
				}
			}
		}
	}
	return list
}

func (w *World) freeSlots(d int) (slots []kv.Slot) {
	for slot := range w.config.Pages {
		if w.decodes[d].pool.Page(kv.Slot(slot)).State == pool.Free {
			slots = append(slots, kv.Slot(slot))
		}
	}
	return slots
}

// choices lists every ordered choice of n slots: no allocator is assumed.
func choices(free []kv.Slot, n int) (all [][]kv.Slot) {
	if n == 0 {
		return [][]kv.Slot{nil}
	}
	for i, slot := range free {
		rest := slices.Delete(slices.Clone(free), i, i+1)
		for _, more := range choices(rest, n-1) {
			all = append(all, append([]kv.Slot{slot}, more...))
		}
	}
	return all
}

func (w *World) decodeActions(list []Action) []Action {
	for i, d := range w.decodes {
		for k := range d.jobs {
			j := &d.jobs[k]
			if w.config.Cancels && !j.answered {
				list = append(list, Action{kind: cancel, a: i, x: j.x})
			}
			if j.fencing {
				list = append(list, Action{kind: fence, a: i, x: j.x})
			}
			if j.checking {
				list = append(list, Action{kind: verify, a: i, x: j.x})
			}
			list = w.decoding(list, i, j)
		}
		for k := range d.stale {
			for n := range d.stale[k].slots {
				list = append(list, Action{kind: staleDecode, a: i, b: k<<4 | n, x: d.stale[k].x})
			}
		}
	}
	return list
}

// decoding lists what a running sequence can do.
func (w *World) decoding(list []Action, i int, j *job) []Action {
	if j.stopping {
		return append(list, Action{kind: stopDecode, a: i, x: j.x})
	}
	if !j.started || j.answered {
		return list
	}
	if !w.missing(guard.TagStep) && !w.tagsOK(w.decodes[i], j) {
		return append(list, Action{kind: detect, a: i, x: j.x})
	}
	list = append(list, Action{kind: finish, a: i, x: j.x})
	if w.config.Grow && len(j.grown) == 0 {
		for _, slot := range w.freeSlots(i) {
			list = append(list, Action{kind: grow, a: i, x: j.x, slots: []kv.Slot{slot}})
		}
	}
	return list
}

// tagsOK compares the tags of every page in a sequence's page table.
func (w *World) tagsOK(d *decode, j *job) bool {
	for _, list := range [...][]kv.PageRef{j.pages, j.grown} {
		for _, ref := range list {
			h := d.memory[ref.Slot].header
			if h.x != j.x || h.generation != ref.Generation {
				return false
			}
		}
	}
	return d.pinnedTagsOK(j)
}

func (w *World) prefillActions(list []Action) []Action {
	for i, p := range w.prefills {
		for k := range p.jobs {
			j := &p.jobs[k]
			if j.joining {
				list = append(list, Action{kind: join, a: i, x: j.x}, Action{kind: joinNot, a: i, x: j.x})
			}
			if j.kernel && w.room() {
				list = append(list, Action{kind: compute, a: i, x: j.x})
			}
			if j.kernel && j.stopping {
				list = append(list, Action{kind: stopPrefill, a: i, x: j.x})
			}
		}
		for k := range p.stale {
			for n := range p.stale[k].slots {
				list = append(list, Action{kind: stalePrefill, a: i, b: k<<4 | n, x: p.stale[k].x})
			}
		}
	}
	return list
}

// room reports whether one more write can be posted.
func (w *World) room() bool {
	flying := 0
	for i := range w.writes {
		if r := &w.writes[i]; !r.landed && !r.refused {
			flying++
		}
	}
	return w.config.FlightMax == 0 || flying < w.config.FlightMax
}

func (w *World) letterActions(list []Action) []Action {
	for i := range w.letters {
		if w.arrives(&w.letters[i], w.link(w.letters[i].link)) && !w.behind(&w.letters[i]) {
			list = append(list, Action{kind: deliver, a: i})
		}
	}
	if int(w.used.strays) >= w.config.Strays {
		return list
	}
	for i := range w.letters {
		own := w.link(w.letters[i].link)
		for k := range w.links {
			l := &w.links[k]
			other := l.decode == own.decode && l.prefill == own.prefill && (l.target != own.target || l.source != own.source)
			rank := w.config.ranks() > 1 && l.decode != own.decode && l.target == own.target && l.source == own.source
			if (other || rank) && w.arrives(&w.letters[i], l) {
				list = append(list, Action{kind: stray, a: i, b: k})
			}
		}
	}
	return list
}

// behind reports whether a message has to wait for writes before it on its stream.
func (w *World) behind(m *letter) bool {
	if !w.config.Transport.Stream || m.toSource {
		return false
	}
	x := letterX(m)
	return slices.ContainsFunc(w.writes, func(r write) bool { return r.x == x && r.link == m.link && !r.landed && !r.refused })
}

// arrives reports whether the receiving end of a link is there.
func (w *World) arrives(m *letter, l *link) bool {
	if m.toSource {
		return w.sourceUp(l)
	}
	return w.targetUp(l)
}

func (w *World) writeActions(list []Action) []Action {
	t := w.config.Transport
	for i := range w.writes {
		r := &w.writes[i]
		if !r.landed && !r.refused {
			if t.Torn && w.accepts(r) {
				list = w.parts(list, i)
			} else {
				list = append(list, Action{kind: land, a: i})
			}
			if !t.Stream {
				continue
			}
		}
		if !r.reported && w.sourceUp(w.link(r.link)) {
			list = append(list, Action{kind: report, a: i})
		}
	}
	return list
}

// parts lists what can land of a write whose body and tags are apart.
func (w *World) parts(list []Action, i int) []Action {
	r := &w.writes[i]
	if w.config.Transport.Poison {
		next := landTags
		switch {
		case !r.poisoned:
			next = poison
		case !r.body:
			next = landBody
		}
		return append(list, Action{kind: next, a: i})
	}
	if !r.body {
		list = append(list, Action{kind: landBody, a: i})
	}
	if !r.tags {
		list = append(list, Action{kind: landTags, a: i})
	}
	return list
}

func (w *World) linkActions(list []Action) []Action {
	for i := range w.links {
		l := &w.links[i]
		if l.doubted && w.targetUp(l) {
			list = append(list, Action{kind: tear, a: i})
		}
		if (l.sourceDoubt || l.torn || w.decodes[l.decode].epoch != l.target) && w.sourceUp(l) {
			list = append(list, Action{kind: breakLink, a: i})
		}
	}
	for d := range w.decodes {
		for p := range w.prefills {
			l := w.healthy(uint8(d), uint8(p))
			if w.paired(d, p) && (l == nil || !w.sourceUp(l)) {
				list = append(list, Action{kind: reconnect, a: d, b: p})
			}
		}
	}
	return list
}

func (w *World) faultActions(list []Action) []Action {
	c := w.config
	if int(w.used.prefillCrashes) < c.PrefillCrashes {
		for p := range w.prefills {
			list = append(list, Action{kind: crashPrefill, a: p})
		}
	}
	if int(w.used.decodeCrashes) < c.DecodeCrashes {
		for d := range w.decodes {
			list = append(list, Action{kind: crashDecode, a: d})
		}
	}
	for i := range w.links {
		l := &w.links[i]
		if int(w.used.suspicions) < c.Suspicions && !l.doubted && w.targetUp(l) {
			list = append(list, Action{kind: suspect, a: i})
		}
		if int(w.used.breaks) < c.Breaks && !l.torn && !l.sourceDoubt && w.sourceUp(l) {
			list = append(list, Action{kind: breakLink, a: i, b: 1})
		}
	}
	return w.hardwareActions(list)
}

// hardwareActions break what a transport promises.
func (w *World) hardwareActions(list []Action) []Action {
	c := w.config
	for i := range w.writes {
		r := &w.writes[i]
		if r.landed || r.refused || r.reported || r.body || r.tags || r.poisoned || r.left {
			continue
		}
		if int(w.used.lost) < c.LostWrites {
			list = append(list, Action{kind: loseWrite, a: i})
		}
		if int(w.used.late) < c.LateWrites {
			list = append(list, Action{kind: reportEarly, a: i})
		}
		for slot := range c.Pages {
			if int(w.used.astray) < c.AstrayWrites && kv.Slot(slot) != r.slot {
				list = append(list, Action{kind: misplaceWrite, a: i, b: slot})
			}
		}
	}
	return list
}

// Describe tells an action with names that do not depend on what else can happen.
func (m Model) Describe(w *World, a Action) string {
	s := kindNames[a.kind]
	switch a.kind {
	case submit:
		if a.b < 0 {
			return fmt.Sprintf("%s r%d: refused at the door", s, a.a+1)
		}
		return fmt.Sprintf("%s r%d to D%d and P%d, pages %v", s, a.a+1, a.b>>4, a.b&15, a.slots)
	case deliver, stray:
		line := fmt.Sprintf("%s %s on link %d", s, showMessage(w.letters[a.a].message), w.letters[a.a].link)
		if a.kind == stray {
			line += fmt.Sprintf(" by link %d", a.b+1)
		}
		return line
	case land, landBody, landTags, poison, report, loseWrite, misplaceWrite, reportEarly:
		r := &w.writes[a.a]
		line := fmt.Sprintf("%s: %s block %d to page %d on link %d", s, showX(r.x), r.block, r.slot, r.link)
		if a.kind == misplaceWrite {
			line += fmt.Sprintf(", in page %d", a.b)
		}
		return line
	case staleDecode:
		return fmt.Sprintf("%s: %s page %d of D%d", s, showX(a.x), w.decodes[a.a].stale[a.b>>4].slots[a.b&15], a.a)
	case stalePrefill:
		return fmt.Sprintf("%s: %s page %d of P%d", s, showX(a.x), w.prefills[a.a].stale[a.b>>4].slots[a.b&15], a.a)
	case tear, suspect, breakLink:
		if a.kind == breakLink && a.b == 1 {
			s = "LINK BREAKS at prefill"
		}
		return fmt.Sprintf("%s: link %d", s, a.a+1)
	case reconnect:
		return fmt.Sprintf("%s D%d and P%d", s, a.a, a.b)
	case crashPrefill, crashDecode:
		return fmt.Sprintf("%s %d", s, a.a)
	case evict, evictSource, scrub, scrubEnds:
		return s + ": " + w.describeCache(a)
	case crashGateway:
		return s
	case hear:
		r := w.replies[a.a]
		return fmt.Sprintf("%s %v for try %d of number %d of boot %d: text of r%d", s, r.code, r.try, r.number, r.boot, r.request)
	case grow:
		return fmt.Sprintf("%s %s by page %d", s, showX(a.x), a.slots[0])
	default:
	}
	node := "D"
	if slices.Contains([]kind{join, joinNot, compute, stopPrefill, orphanSource}, a.kind) {
		node = "P"
	}
	return fmt.Sprintf("%s: %s at %s%d", s, showX(a.x), node, a.a)
}

// showX names a transfer by its decode worker, that one's incarnation, and the sequence.
func showX(x kv.TransferID) string {
	s := fmt.Sprintf("x%d.%d.%d", x.Epoch&0xf, x.Epoch>>12, x.Sequence)
	if x.Rank > 0 {
		s += fmt.Sprintf("/%d", x.Rank)
	}
	return s
}

func showMessage(m transfer.Message) string {
	switch m := m.(type) {
	case transfer.Grant:
		return fmt.Sprintf("GRANT %s r%d", showX(m.X), m.Request)
	case transfer.Abort:
		return fmt.Sprintf("ABORT %s", showX(m.X))
	case transfer.Closed:
		if m.Outcome == transfer.OutcomeDone {
			return fmt.Sprintf("CLOSED %s done, %d pages", showX(m.X), len(m.Roots))
		}
		return fmt.Sprintf("CLOSED %s %v, %v", showX(m.X), m.Outcome, m.Reason)
	}
	return "HELLO"
}
