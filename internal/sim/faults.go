package sim

import (
	"slices"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// plague lets faults of a kind come at random times, as long as the budget lasts.
func (w *world) plague(kind faultKind) {
	mean := w.swarm.faults[kind]
	if mean == 0 {
		return
	}
	w.clock.after(w.faults.between(0, 3*mean), func() {
		if w.healing || w.injected >= w.faultsMax {
			return
		}
		if w.inject(kind) {
			w.injected++
			w.report.Faults[faultNames[kind]]++
		}
		w.plague(kind)
	})
}

// inject makes a fault happen; false when there is nothing that it could hit.
func (w *world) inject(kind faultKind) bool {
	switch kind {
	case cutLink:
		return w.cut()
	case killPrefill:
		return w.kill(prefillRole)
	case killDecode:
		return w.kill(decodeRole)
	case killGateway:
		return w.killGateway()
	case partLink:
		return w.part()
	default:
	}
	n := w.workers[w.faults.IntN(len(w.workers))]
	if n.driver == nil {
		return false
	}
	switch kind {
	case stallLoop:
		w.trace("%s stalls", n.name)
		n.stall(w.lasts(w.faults.between(0, 8*time.Second)))
	case stopProcess:
		w.trace("%s is stopped", n.name)
		n.stop(w.lasts(w.faults.between(0, 14*time.Second)))
	case breakControl:
		w.trace("the control connection to %s breaks", n.name)
		w.gateway.lose(n, func(s *stream) { s.breaks(errGateway) })
	case drainWorker:
		if n.draining {
			return false
		}
		w.trace("%s drains", n.name)
		n.draining = true
		n.driver.Drain()
		n.wake()
	default:
	}
	return true
}

// lasts notes a fault that goes on for a while.
func (w *world) lasts(span time.Duration) time.Duration {
	w.quiet = max(w.quiet, w.clock.now+span)
	return span
}

// cut ends a link: one end notices, the other later.
func (w *world) cut() bool {
	n := w.workers[w.faults.IntN(len(w.workers))]
	if len(n.ends) == 0 {
		return false
	}
	n.ends[w.faults.IntN(len(n.ends))].close(errCut)
	return true
}

func (w *world) kill(role cluster.Role) bool {
	var alive []*node
	for _, n := range w.workers {
		if n.role == role && n.driver != nil {
			alive = append(alive, n)
		}
	}
	if len(alive) == 0 {
		return false
	}
	n := alive[w.faults.IntN(len(alive))]
	w.trace("%s is killed", n.name)
	n.die()
	w.clock.after(w.faults.between(0, restartMax), n.revive)
	return true
}

func (w *world) killGateway() bool {
	if w.gateway.dead {
		return false
	}
	w.gateway.crash()
	w.clock.after(w.faults.between(0, restartMax), func() {
		if w.gateway.dead {
			w.gateway = w.newGateway()
		}
	})
	return true
}

// part keeps a decode and a prefill worker from hearing each other for a while.
func (w *world) part() bool {
	d, p := w.pair()
	span := w.lasts(w.faults.between(0, 8*time.Second))
	w.trace("%s and %s are parted for %v", d.name, p.name, span)
	w.parted[d.index*len(w.workers)+p.index] = w.clock.now + span
	for _, e := range slices.Clone(d.ends) {
		if e.other.node != p {
			continue
		}
		e.hold(w.clock.now + span)
		e.other.hold(w.clock.now + span)
		if span > silence {
			w.clock.after(silence, func() { e.close(errCut) })
			w.clock.after(silence, func() { e.other.close(errCut) })
		}
	}
	return true
}

func (w *world) pair() (decode, prefill *node) {
	s := &w.swarm
	return w.workers[s.prefills+w.faults.IntN(s.decodes)], w.workers[w.faults.IntN(s.prefills)]
}

// apart says until when two workers don't hear each other.
func (w *world) apart(d, p *node) time.Duration { return w.parted[d.index*len(w.workers)+p.index] }

// hold keeps what is on its way here until t.
func (e *end) hold(t time.Duration) {
	e.arrived = max(e.arrived, t)
	for _, p := range e.flight {
		if p.at < t {
			p.at = t
		}
	}
	e.world.clock.at(t, e.receive)
}

// nodeDied tells the gateway, sooner or later, that a worker's process has ended.
func (w *world) nodeDied(n *node) {
	epoch := n.epoch
	w.clock.after(w.net.between(w.swarm.controlMin, silence/2), func() {
		w.gateway.gone[n.index] = epoch
		if m := &w.gateway.members[n.index]; m.Epoch == epoch {
			m.Up = false
		}
	})
	w.gateway.lose(n, func(s *stream) {
		s.deaf = true
		s.fails(errDied)
	})
}

// nodeSilent ends the gateway's connection to a worker of which it hears nothing.
func (w *world) nodeSilent(n *node) {
	w.gateway.members[n.index].Up = false
	w.gateway.lose(n, func(s *stream) { s.breaks(errGateway) })
}
