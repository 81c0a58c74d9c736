package transfercheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Tell is a violation in plain sentences, one for each action: what happens, and
// what the workers do about it; and at last one for what is broken then. Transfers
// are called A, B and so on in the order in which they are opened.
func Tell(c Config, v *modelcheck.Violation[Action]) (run []string, broken string) {
	m := Model{&c}
	t := teller{names: map[kv.TransferID]string{}}
	w := m.Initial()
	for _, a := range v.Actions {
		next := m.Apply(w, a)
		t.name(next)
		run = append(run, t.happens(w, a)+t.follows(w, next)+".")
		w = next
	}
	return run, t.broken(v)
}

// broken is what was broken, without the property's name.
func (t *teller) broken(v *modelcheck.Violation[Action]) string {
	what := t.named(strings.TrimPrefix(v.Err.Error(), PropertyOf(v)+": "))
	return strings.ReplaceAll(what, "bytes of request 0", "bytes of somebody from before") + "."
}

// named calls transfers by their names.
func (t *teller) named(text string) string {
	ids := slices.Collect(maps.Keys(t.names))
	slices.SortFunc(ids, func(a, b kv.TransferID) int { return strings.Compare(showX(b), showX(a)) }) // x0.0.1/1 before x0.0.1
	for _, x := range ids {
		text = strings.ReplaceAll(text, showX(x), t.names[x])
	}
	return text
}

// teller knows what transfers are called. A transfer whose id was used before
// gets that one's name.
type teller struct{ names map[kv.TransferID]string }

func (t *teller) name(w *World) {
	for _, d := range w.decodes {
		for i := range d.jobs {
			if x := d.jobs[i].x; t.names[x] == "" {
				t.names[x] = string('A' + rune(len(t.names)))
			}
		}
	}
}

// happens is the first half of a sentence: the action.
func (t *teller) happens(w *World, a Action) string {
	x := t.names[a.x]
	switch a.kind {
	case submit:
		if a.b < 0 {
			return fmt.Sprintf("Request %d is refused at the door", a.a+1)
		}
		return fmt.Sprintf("Request %d goes to D%d and P%d", a.a+1, a.b>>4, a.b&15)
	case cancel:
		return fmt.Sprintf("The client of %s goes away", x)
	case deliver, stray:
		return t.arrives(w, a)
	case join:
		return fmt.Sprintf("The job of %s comes to P%d", x, a.a)
	case joinNot:
		return fmt.Sprintf("The job of %s does not come to P%d", x, a.a)
	case compute:
		return fmt.Sprintf("P%d computes block %d of %s", a.a, w.prefills[a.a].job(a.x).computed, x)
	case fence:
		return fmt.Sprintf("At D%d the fence of %s is proved", a.a, x)
	case verify:
		return fmt.Sprintf("D%d verifies the pages of %s", a.a, x)
	case grow:
		return fmt.Sprintf("%s grows at D%d by page %d", x, a.a, a.slots[0])
	case finish:
		return fmt.Sprintf("%s is finished at D%d", x, a.a)
	case detect:
		return fmt.Sprintf("D%d finds a tag of %s that is not its own", a.a, x)
	case stopDecode:
		return fmt.Sprintf("The step of %s at D%d has stopped", x, a.a)
	case stopPrefill:
		return fmt.Sprintf("The step of %s at P%d has stopped", x, a.a)
	case staleDecode:
		return fmt.Sprintf("The old step of %s writes into page %d of D%d, which is no longer its own", x, w.decodes[a.a].stale[a.b>>4].slots[a.b&15], a.a)
	case stalePrefill:
		return fmt.Sprintf("The old step of %s writes into source page %d of P%d, which is no longer its own", x, w.prefills[a.a].stale[a.b>>4].slots[a.b&15], a.a)
	default:
	}
	return t.happensOutside(w, a)
}

// arrives tells of a message.
func (t *teller) arrives(w *World, a Action) string {
	m := &w.letters[a.a]
	l, arrives := w.link(m.link), "arrives at"
	if a.kind == stray {
		l, arrives = &w.links[a.b], "goes astray, to"
	}
	to, what := fmt.Sprintf("D%d", l.decode), ""
	if m.toSource {
		to = fmt.Sprintf("P%d", l.prefill)
	}
	switch m := m.message.(type) {
	case transfer.Grant:
		what = "GRANT"
	case transfer.Abort:
		what = "ABORT"
	case transfer.Closed:
		what = fmt.Sprintf("CLOSED (%v)", m.Outcome)
	}
	return fmt.Sprintf("%s of %s %s %s", what, t.names[letterX(m)], arrives, to)
}

// happensOutside tells of writes, links and faults.
func (t *teller) happensOutside(w *World, a Action) string {
	switch a.kind {
	case land, landBody, landTags, poison, report, loseWrite, misplaceWrite, reportEarly:
		return t.lands(w, a)
	case tear:
		return fmt.Sprintf("Link %d is torn down at decode: nothing of it can land any more", a.a+1)
	case breakLink:
		return fmt.Sprintf("Link %d breaks at prefill", a.a+1)
	case reconnect:
		return fmt.Sprintf("D%d and P%d connect again", a.a, a.b)
	case suspect:
		return fmt.Sprintf("D%d suspects its peer on link %d without cause", w.links[a.a].decode, a.a+1)
	case crashPrefill:
		return fmt.Sprintf("P%d crashes and restarts", a.a)
	case crashDecode:
		return fmt.Sprintf("D%d crashes and restarts", a.a)
	default:
	}
	line := t.named(Model{w.config}.Describe(w, a))
	return strings.ToUpper(line[:1]) + line[1:]
}

func (t *teller) lands(w *World, a Action) string {
	r := &w.writes[a.a]
	d := w.link(r.link).decode
	what := fmt.Sprintf("The write of %s block %d", t.names[r.x], r.block)
	switch a.kind {
	case landBody:
		return fmt.Sprintf("The body of %s block %d lands in page %d of D%d", t.names[r.x], r.block, r.slot, d)
	case landTags:
		return fmt.Sprintf("The tags of %s block %d land in page %d of D%d", t.names[r.x], r.block, r.slot, d)
	case poison:
		return fmt.Sprintf("Before %s block %d is written, the tags of page %d of D%d are made invalid", t.names[r.x], r.block, r.slot, d)
	case report:
		return what + " is reported to prefill"
	case loseWrite:
		return what + " vanishes and is reported done"
	case reportEarly:
		return what + " is reported done before it has landed"
	case misplaceWrite:
		return fmt.Sprintf("%s goes astray, to page %d of D%d", what, a.b, d)
	default:
	}
	if !w.accepts(r) {
		return what + " is refused"
	}
	return fmt.Sprintf("%s lands in page %d of D%d", what, r.slot, d)
}

// follows is the second half: what the workers do.
func (t *teller) follows(before, after *World) string {
	var list []string
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for i, d := range after.decodes {
		t.decodeFollows(before.decodes[i], d, fmt.Sprintf("D%d", i), say)
	}
	for i, p := range after.prefills {
		t.prefillFollows(before.prefills[i], p, fmt.Sprintf("P%d", i), say)
	}
	t.networkFollows(before, after, say)
	if len(list) == 0 {
		return ""
	}
	return ": " + strings.Join(list, ", ")
}

func (t *teller) decodeFollows(before, after *decode, name string, say func(string, ...any)) {
	if before.epoch != after.epoch {
		return
	}
	for i := range after.jobs {
		j := &after.jobs[i]
		was := before.job(j.x)
		switch {
		case was == nil:
			say("%s opens transfer %s into %s", name, t.names[j.x], pages(slotsOf(j.pages)))
			continue
		case j.started && !was.started:
			say("%s starts to decode %s", name, t.names[j.x])
		case j.answered && !was.answered:
			say("%s answers", name)
		}
		if j.fencing && !was.fencing {
			say("%s asks for a fence", name)
		}
		if j.checking && !was.checking {
			say("%s will verify", name)
		}
		if j.stopping && !was.stopping {
			say("%s tells the step to stop", name)
		}
	}
	for i := range before.jobs {
		j := &before.jobs[i]
		if after.job(j.x) != nil {
			continue
		}
		if !j.answered {
			say("%s answers", name)
		}
		say("%s takes back %s", name, pages(slotsOf(append(j.pages[:len(j.pages):len(j.pages)], j.grown...))))
		if len(after.stale) > len(before.stale) {
			say("while a step still runs there")
		}
	}
}

func (t *teller) prefillFollows(before, after *prefill, name string, say func(string, ...any)) {
	if before.epoch != after.epoch {
		return
	}
	for i := range after.jobs {
		j := &after.jobs[i]
		was := before.job(j.x)
		switch {
		case was == nil && j.joining:
			say("%s waits for its job", name)
		case was == nil || was.joining && !j.joining:
			say("%s takes source %s for it", name, pages(slotsOf(j.pages)))
			if j.of != j.request {
				say("and mixes it up with the job of request %d", j.of)
			}
		case j.stopping && !was.stopping:
			say("%s tells the step to stop", name)
		}
	}
	for i := range before.jobs {
		j := &before.jobs[i]
		if after.job(j.x) != nil || len(j.pages) == 0 {
			continue
		}
		say("%s takes back source %s", name, pages(slotsOf(j.pages)))
		if len(after.stale) > len(before.stale) {
			say("while a step still runs there")
		}
	}
}

func (t *teller) networkFollows(before, after *World, say func(string, ...any)) {
	for i := range after.letters {
		m := &after.letters[i]
		if _, there := slices.BinarySearchFunc(before.letters, *m, compareLetters); there {
			continue
		}
		switch message := m.message.(type) {
		case transfer.Grant:
			say("GRANT of %s is sent", t.names[message.X])
		case transfer.Abort:
			say("ABORT of %s is sent", t.names[message.X])
		case transfer.Closed:
			say("CLOSED (%v) of %s is sent", message.Outcome, t.names[message.X])
		}
	}
	for i := range after.writes {
		r := &after.writes[i]
		if !posted(before, r) {
			say("a write to page %d is posted", r.slot)
		}
	}
	for i := range before.links {
		was, is := &before.links[i], &after.links[i]
		if is.doubted && !was.doubted && !is.torn {
			say("link %d is to be torn down", i+1)
		}
		if is.sourceDoubt && !was.sourceDoubt {
			say("link %d is given up at prefill", i+1)
		}
	}
}

func posted(w *World, r *write) bool {
	for i := range w.writes {
		if o := &w.writes[i]; o.link == r.link && o.x == r.x && o.block == r.block {
			return true
		}
	}
	return false
}

// pages lists slots in words.
func pages(slots []kv.Slot) string {
	var list []string
	for _, slot := range slots {
		list = append(list, fmt.Sprint(slot))
	}
	if len(list) == 1 {
		return "page " + list[0]
	}
	return "pages " + strings.Join(list, " and ")
}
