package sim

import (
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/worker"
)

// stream carries one job to one worker and its events back, each way in order.
type stream struct {
	gateway *gateway
	attempt *attempt
	node    *node
	boot    int // of the node
	role    cluster.Role

	toNode, toGateway time.Duration // when what was sent last arrives
	deaf              bool          // the worker's events go nowhere any more
	over              bool          // the gateway no longer listens
}

var (
	errGone    = fault.New(fault.Cancelled, "the stream has ended")
	errHungUp  = fault.New(fault.Cancelled, "the gateway let the job go")
	errGateway = fault.New(fault.Cancelled, "the gateway is gone")
)

// open sends a job to a worker.
func (g *gateway) open(a *attempt, n *node, role cluster.Role) *stream {
	w := g.world
	s := &stream{gateway: g, attempt: a, node: n, boot: n.boot, role: role}
	g.streams = append(g.streams, s)
	s.send(func() {
		if n.driver == nil || n.boot != s.boot {
			s.fails(fault.New(fault.Unavailable, "no worker answers at %s", n.name))
			return
		}
		n.post(func(d *worker.Driver) error { return d.Submit(a.job, s.emit) })
	})
	w.trace("gateway sends request %d attempt %d to %s", a.job.Request, a.job.Attempt, n.name)
	return s
}

func (s *stream) send(do func()) {
	w := s.gateway.world
	s.toNode = max(s.toNode, w.clock.now+w.net.between(w.swarm.controlMin, w.swarm.controlMax))
	w.clock.at(s.toNode, do)
}

// emit is the worker's way to the gateway.
func (s *stream) emit(e cluster.Event) error {
	if s.deaf {
		return errGone
	}
	if s = s.gateway.world.bugs.crossed(s); s == nil {
		return nil
	}
	s.receive(func() { s.gateway.take(s, e) })
	return nil
}

// receive has something arrive at the gateway, behind what the worker sent before.
func (s *stream) receive(do func()) {
	w := s.gateway.world
	s.toGateway = max(s.toGateway, w.clock.now+w.net.between(w.swarm.controlMin, w.swarm.controlMax))
	w.clock.at(s.toGateway, func() {
		if !s.over {
			do()
		}
	})
}

// fails tells the gateway that the stream broke.
func (s *stream) fails(err error) { s.receive(func() { s.gateway.broken(s, err) }) }

// hangUp ends the gateway's interest.
func (s *stream) hangUp() {
	if !s.over {
		s.over = true
		s.cancel(errHungUp)
	}
}

// cancel lets the worker know that nobody listens.
func (s *stream) cancel(cause error) {
	s.send(func() {
		s.deaf = true
		if s.node.boot == s.boot {
			id := s.attempt.job.ID()
			s.node.post(func(d *worker.Driver) error { return d.Cancel(id, cause) })
		}
	})
}

// breaks is the end of the connection below, which both sides notice at some time.
func (s *stream) breaks(cause error) {
	s.fails(fault.New(fault.Unavailable, "the connection to %s broke", s.node.name))
	s.cancel(cause)
}
