package gateway

import (
	"container/list"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/metrics"
)

// connections bounds the open connections of a server. For one more, the one that has
// been without a request longest is closed, which is the new one itself when all others
// are in a request: who holds connections and asks nothing keeps nobody out.
type connections struct {
	most    int
	metrics *metrics.Set
	log     *slog.Logger

	mu      sync.Mutex
	open    map[net.Conn]*list.Element // its place in waiting, nil in a request; protected by mu
	waiting *list.List                 // of *waiting, the longest first; protected by mu
	closed  int                        // since the log said so; protected by mu
	said    time.Time                  // when the log said so; protected by mu
}

// waiting is a connection without a request.
type waiting struct {
	conn  net.Conn
	state http.ConnState // new or idle
}

// connectionsSayEvery is the least time between two lines of the log about connections
// that were closed.
const connectionsSayEvery = 5 * time.Second

func (g *Gateway) newConnections() *connections {
	return &connections{most: g.config.ConnectionsMax, metrics: g.parts.Metrics, log: g.parts.Log,
		open: map[net.Conn]*list.Element{}, waiting: list.New()}
}

// follow is an http.Server's ConnState.
func (c *connections) follow(conn net.Conn, state http.ConnState) {
	if victim := c.note(conn, state); victim != nil {
		c.end(victim)
	}
}

// note takes a connection's new state and gives the connection that is to be closed.
func (c *connections) note(conn net.Conn, state http.ConnState) (victim *waiting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place, known := c.open[conn]
	if !known && state != http.StateNew {
		return nil // it was closed already
	}
	if place != nil {
		c.waiting.Remove(place)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(&waiting{conn, state})
	case http.StateActive:
		c.open[conn] = nil
	case http.StateHijacked, http.StateClosed:
		delete(c.open, conn)
	}
	if len(c.open) <= c.most {
		return nil
	}
	victim = c.waiting.Remove(c.waiting.Front()).(*waiting) // the new one at least waits
	delete(c.open, victim.conn)
	return victim
}

// end closes a connection. Over TLS it is the one below, because TLS would first say
// goodbye to a peer that may not read.
func (c *connections) end(victim *waiting) {
	conn := victim.conn
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
	c.metrics.Add(metrics.ClosedConnections, 1, victim.state.String())
	if closed := c.tell(); closed > 0 {
		c.log.Warn("too many connections: those that asked nothing longest are closed for new ones", "limit", c.most, "closed", closed)
	}
}

// tell counts a closed connection and gives how many the log is to be told of, 0 for none.
func (c *connections) tell() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	if now := time.Now(); c.said.IsZero() || now.Sub(c.said) >= connectionsSayEvery {
		closed := c.closed
		c.closed, c.said = 0, now
		return closed
	}
	return 0
}
