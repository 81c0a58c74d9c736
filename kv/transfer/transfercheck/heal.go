package transfercheck

import "github.com/bulkhead-kv/bulkhead/kv/transfer"

// phase is where a world that heals is in its round: it settles, then time passes,
// then it hears so many times what has been said since.
type phase uint8

const (
	faulty phase = iota // not healing
	settling
	hearing // this one and those above are left to hear

	hearings = 4 // in a round
)

// heal is one step towards rest: every message of before is lost, no fault
// happens, everything that can go on does, time passes, and what is said from then
// on arrives once.
func (w *World) heal() *World { return w.healingStep(true) }

// healAlone is heal with every prefill worker dead for ever, and suspected.
func (w *World) healAlone() *World { return w.healingStep(false) }

// healingStep drops no message by itself, as Apply does: those that forget drops
// are said again only while none is lost.
func (w *World) healingStep(prefillLives bool) *World {
	n := w.clone()
	switch n.healing {
	case faulty:
		n.letters, n.healing = nil, settling
		if !prefillLives {
			n.losePrefill()
		}
	case settling:
		if a, ok := n.goesOn(prefillLives); ok {
			n.apply(a)
			break
		}
		n.letters, n.healing = nil, hearing+hearings-1
		for d := range n.decodes {
			n.stepTarget(uint8(d), transfer.Tick{})
		}
	default:
		n.healing--
		n.hearAll()
	}
	n.broken = "" // what healing does is not what is asked
	return n
}

// losePrefill ends every prefill worker. What comes after them says nothing.
func (w *World) losePrefill() {
	for p := range w.prefills {
		w.crashPrefill(uint8(p))
	}
	for i := range w.links {
		if w.targetUp(&w.links[i]) {
			w.stepTarget(w.links[i].decode, transfer.Suspect{Peer: w.links[i].peer})
		}
	}
}

// hearAll delivers each message once.
func (w *World) hearAll() {
	now := w.letters
	w.letters = nil
	for _, m := range now {
		if l := w.link(m.link); w.arrives(&m, l) && !w.behind(&m) {
			w.deliver(m, l)
		}
	}
}

// goesOn is the first of what happens by itself, if anything does.
func (w *World) goesOn(prefillLives bool) (Action, bool) {
	var room [8]Action
	for _, list := range []func([]Action) []Action{w.decodeActions, w.prefillActions, w.writeActions, w.linkActions, w.cacheActions, w.gatewayActions} {
		for _, a := range list(room[:0]) {
			orphan := a.kind == finish && w.orphaned(w.decodes[a.a].job(a.x).ticket.boot)
			if a.goesOn() && !orphan && (prefillLives || a.kind != reconnect) {
				return a, true
			}
		}
	}
	return Action{}, false
}

// goesOn reports whether nobody has to want an action, and nothing has to fail,
// for it to happen.
func (a Action) goesOn() bool {
	switch a.kind {
	case land, landBody, landTags, poison, report, fence, tear, verify, finish, detect, stopDecode, stopPrefill, compute, join, breakLink, reconnect,
		evict, evictSource, scrubEnds, hear, orphan, orphanSource:
		return true
	default:
		return false
	}
}
