package lobby_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/transport/lobby"
)

// conn remembers that it was closed.
type conn struct{ closed bool }

func (c *conn) Close() error {
	c.closed = true
	return nil
}

const stay = time.Second

func enter(t *testing.T, l *lobby.Lobby) (*lobby.Guest, *conn) {
	t.Helper()
	c := new(conn)
	g, err := l.Enter(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

func TestTheOldestMakesRoomForTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lobby.New(2, stay)
		first, firstConn := enter(t, l)
		time.Sleep(stay / 2)
		second, secondConn := enter(t, l)
		if firstConn.closed || secondConn.closed {
			t.Fatal("a connection is closed while there are places")
		}
		before := time.Now()
		_, thirdConn := enter(t, l)
		if waited := time.Since(before); waited != stay/2 {
			t.Errorf("the third connection waited %v, want %v: until the first has had its stay", waited, stay/2)
		}
		if !firstConn.closed || secondConn.closed || thirdConn.closed {
			t.Errorf("closed are the first %v, the second %v, the third %v; want only the first", firstConn.closed, secondConn.closed, thirdConn.closed)
		}
		if err := first.Leave(); err == nil || !strings.Contains(err.Error(), "all 2 places") {
			t.Errorf("the first leaves with %v, want an error that says it was closed and has the number of places", err)
		}
		for range 2 {
			if err := second.Leave(); err != nil {
				t.Errorf("the second, whose peer is known, leaves with %v", err)
			}
		}
	})
}

func TestAKnownPeerIsNotClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lobby.New(1, stay)
		known, knownConn := enter(t, l)
		if err := known.Leave(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			enter(t, l)
			time.Sleep(stay)
		}
		if knownConn.closed {
			t.Error("a connection whose peer is known was closed for a newer one")
		}
	})
}

func TestAPlaceThatIsFreedIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lobby.New(1, stay)
		first, firstConn := enter(t, l)
		go func() {
			time.Sleep(stay / 4)
			if err := first.Leave(); err != nil {
				t.Error(err)
			}
		}()
		before := time.Now()
		enter(t, l)
		if waited := time.Since(before); waited != stay/4 || firstConn.closed {
			t.Errorf("the second waited %v, the first is closed: %v; want %v and false", waited, firstConn.closed, stay/4)
		}
	})
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lobby.New(1, stay)
		enter(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), stay/2)
		defer cancel()
		late := new(conn)
		if _, err := l.Enter(ctx, late); err == nil || late.closed {
			t.Errorf("a wait that was cancelled gives %v, closed: %v; want an error and a connection that is the caller's", err, late.closed)
		}
	})
}
