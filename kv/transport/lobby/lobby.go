// Package lobby gives places to connections whose peer is not known yet.
//
// Anybody can connect and say nothing. A listener that waits for a place when all are
// taken would wait for such peers' time-out, and honest ones with it. Here the newest
// connection always gets in: when all places are taken, the one that has been there
// for longest is closed, once it has had its least stay. With 512 places and a least
// stay of 100 ms, 5,120 connections a second pass, and each has at least 100 ms to say
// who it is; at a lower rate it has longer.
//
// The rule does not look at addresses: on one host all peers have the same, and a
// stranger on another may have many.
package lobby

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// The bounds of a listener that has no reason for others.
const (
	PlacesMax = 512
	StayMin   = 100 * time.Millisecond
)

// Lobby is the places of one listener.
type Lobby struct {
	places int           // immutable
	stay   time.Duration // immutable

	mu     sync.Mutex
	guests *list.List    // of *Guest, the oldest in front; protected by mu
	freed  chan struct{} // holds a token when a guest has left
}

// Guest is a connection in its place.
type Guest struct {
	lobby *Lobby
	conn  io.Closer
	since time.Time
	at    *list.Element // nil once it has no place; protected by lobby.mu
	away  bool          // closed for a newer one; protected by lobby.mu
}

// New makes a lobby of 1 or more places, in which each guest may stay for at least
// stay.
func New(places int, stay time.Duration) *Lobby {
	return &Lobby{places: max(places, 1), stay: stay, guests: list.New(), freed: make(chan struct{}, 1)}
}

// Enter gives a connection a place, and closes the oldest guest's for it if there is
// no other. It waits while all guests are younger than the least stay; an error means
// that ctx ended first, and the connection is still the caller's to close. It is for
// one goroutine at a time, the one that accepts.
func (l *Lobby) Enter(ctx context.Context, conn io.Closer) (*Guest, error) {
	for {
		guest, oldest, wait := l.try(conn)
		if oldest != nil {
			_ = oldest.Close() // whoever reads from it sees that it is closed
		}
		if guest != nil {
			return guest, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-l.freed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("wait for one of %d places: %w", l.places, err)
		}
	}
}

// try gives a place, and the connection that had it before, or how long to wait.
func (l *Lobby) try(conn io.Closer) (guest *Guest, oldest io.Closer, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.guests.Len() >= l.places {
		g := l.guests.Front().Value.(*Guest)
		if wait := l.stay - now.Sub(g.since); wait > 0 {
			return nil, nil, wait
		}
		l.removeLocked(g)
		g.away, oldest = true, g.conn
	}
	guest = &Guest{lobby: l, conn: conn, since: now}
	guest.at = l.guests.PushBack(guest)
	return guest, oldest, 0
}

// Requires: mu is held.
func (l *Lobby) removeLocked(g *Guest) {
	l.guests.Remove(g.at)
	g.at = nil
}

// Leave gives the place back: the peer is known, or its connection has ended. An
// error says that it was sent away before, so that its connection is closed. Leave
// may be called again.
func (g *Guest) Leave() error {
	l := g.lobby
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.away {
		return fmt.Errorf("closed for a newer connection: all %d places were taken by peers that had not said who they are", l.places)
	}
	if g.at == nil {
		return nil
	}
	l.removeLocked(g)
	select {
	case l.freed <- struct{}{}:
	default:
	}
	return nil
}
