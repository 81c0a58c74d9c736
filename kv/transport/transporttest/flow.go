package transporttest

import (
	"errors"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

func testSlowReader(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	target.events = make(chan transport.Event)
	target.config.Events, target.config.PendingMax = target.events, 2
	join(t, tr, target, source)
	const rounds = 20
	g := granted(1, 0, 60)
	target.open(g)
	// Far more than the buffers on the way hold, before the target takes anything.
	for round := range rounds {
		for i := range g.Pages {
			tag := g.tag(i)
			if round > 0 {
				tag.Generation++
			}
			source.write(tag, g.body(i))
		}
	}
	drained := source.drain()
	for range g.Pages {
		target.expect(transport.Landed)
	}
	for range (rounds - 1) * len(g.Pages) {
		target.expect(transport.Refused)
	}
	for i := range g.Pages {
		target.checkPage(g.tag(i), g.body(i))
	}
	if err := source.link.Close(); err != nil {
		t.Error(err)
	}
	target.until(transport.Down)
	<-drained
}

func testDrop(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	target.events = make(chan transport.Event)
	target.config.Events, target.config.PendingMax = target.events, 1
	source.events = make(chan transport.Event, 1<<16)
	source.config.Events = source.events
	join(t, tr, target, source)
	same := make([]byte, layout.BodyBytes())
	// So many pages that most of them are still queued when nobody takes events.
	const rounds = 100
	aborted, other := granted(1, 0, 40), granted(2, 50, 2)
	target.open(aborted)
	target.open(other)
	for range rounds {
		for i := range aborted.Pages {
			source.write(aborted.tag(i), same)
		}
	}
	source.write(other.tag(0), other.body(0))
	source.send(mark(1))
	source.link.Drop(aborted.X)
	source.link.Drop(aborted.X)
	written, dropped := 0, 0
	arrived := 0
	for {
		e := <-target.events
		if e.Kind == transport.Message {
			break
		}
		if e.X == other.X && e.Kind == transport.Landed {
			continue
		}
		arrived++
	}
	for written+dropped < rounds*len(aborted.Pages)+1 {
		switch e := source.expect(transport.Written); {
		case e.OK == e.Dropped:
			t.Fatalf("block %d of %v is neither written nor dropped, or both", e.Block, e.X)
		case e.OK:
			written++
		default:
			if dropped++; e.X != aborted.X {
				t.Errorf("a page of %v was dropped with those of %v", e.X, aborted.X)
			}
		}
	}
	if arrived+1 != written {
		t.Errorf("%d pages of the aborted transfer arrived and %d were sent", arrived, written-1)
	}
	if dropped == 0 {
		t.Error("no page was dropped, though most can't have been sent")
	}
	target.checkPage(other.tag(0), other.body(0))
	part(target, source)
}

func testQueueFull(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	target.events = make(chan transport.Event)
	target.config.Events, target.config.PendingMax = target.events, 1
	source.config.QueueMax = 32
	source.events = make(chan transport.Event, 1<<16)
	source.config.Events = source.events
	join(t, tr, target, source)
	g := granted(1, 0, 60)
	target.open(g)
	queued := 0
	for {
		page := queued % len(g.Pages)
		if err := source.link.Write(transport.Page{Tag: g.tag(page), Body: g.body(page)}); err != nil {
			if !errors.Is(err, transport.ErrQueueFull) {
				t.Fatalf("a queue that nobody empties ended with %v, want %v", err, transport.ErrQueueFull)
			}
			break
		}
		queued++
	}
	written := 0
	for e := range source.events {
		if e.Kind == transport.Written {
			written++
			continue
		}
		if e.Kind != transport.Down || !errors.Is(e.Err, transport.ErrQueueFull) {
			t.Fatalf("the link ended with %v and %v, want down and %v", e.Kind, e.Err, transport.ErrQueueFull)
		}
		break
	}
	if written != queued {
		t.Errorf("%d pages were taken and %d accounted for", queued, written)
	}
	target.until(transport.Down)
}

func testClose(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	target.events, source.events = make(chan transport.Event), make(chan transport.Event)
	target.config.Events, source.config.Events = target.events, source.events
	target.config.PendingMax = 1
	join(t, tr, target, source)
	g := granted(1, 0, 60)
	target.open(g)
	for i := range g.Pages {
		source.write(g.tag(i), g.body(i))
	}
	target.link.Fence(kv.TransferID{Epoch: 0xd0, Sequence: 77})
	// Nobody takes events now, and each side has some to give.
	for _, n := range []*node{target, source} {
		if err := n.link.Close(); err != nil {
			t.Fatal(err)
		}
		if err := n.link.Close(); err != nil {
			t.Fatal(err)
		}
	}
	written := 0
	for e := range source.events {
		if e.Kind == transport.Written {
			written++
		}
		if e.Kind == transport.Down {
			break
		}
	}
	if written != len(g.Pages) {
		t.Errorf("%d of %d pages are accounted for when the link is down", written, len(g.Pages))
	}
	target.until(transport.Down)
}

func testRoles(t *testing.T, tr Transport) {
	target, source := newTarget(t, tr), newSource(t)
	join(t, tr, target, source)
	g := granted(1, 0, 1)
	if source.link.Open(g.Grant) == nil {
		t.Error("a source opens a grant")
	}
	if !source.link.Shut(g.X) {
		t.Error("a source has a grant to drain")
	}
	source.link.Fence(g.X)
	source.expect(transport.Fenced)
	if target.link.Write(transport.Page{Tag: g.tag(0), Body: g.body(0)}) == nil {
		t.Error("a target writes a page")
	}
	if source.link.Write(transport.Page{Tag: g.tag(0), Body: g.body(0)[1:]}) == nil {
		t.Error("a source writes a page that isn't whole")
	}
	part(target, source)
}
