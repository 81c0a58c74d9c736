// Package session runs one link over a byte stream.
//
// A session has four goroutines: the reader places pages and reports messages,
// the writer sends what is queued, the poster hands events to their taker, and
// the keeper sends heartbeats, watches for silence, and closes the link's books
// in the one order that Down promises.
//
// Every frame begins with eight bytes, little-endian: a magic of 4 and, but for
// a page, the length 4 of what follows.
//
//	"BKM1" length | message, a heartbeat when length is 0
//	"BKN1" length | note of the carrier, at most NoteBytesMax
//	"BKV1" ...    | a page: header, body, trailer; its length is the layout's
package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// Door is what a session needs of a gate's door; transport.Door is the one that
// guards.
type Door interface {
	Open(transport.Grant) error
	Begin(header []byte) ([]byte, transport.Refusal)
	GrantBytes() int
	Live() bool
	End(complete bool, report func(transport.Refusal))
	Cut(report func(transport.Refusal))
	Shut(x kv.TransferID, drained func())
	Close()
}

// Carrier moves page bytes: in the stream, or beside it.
type Carrier interface {
	// Put sends a page or makes it ready to be sent. Called by the writer only.
	Put(out *Output, page transport.Page) error
	// Settle makes the pages put so far precede whatever is appended next.
	// Called by the writer only.
	Settle(out *Output) error
	// Page handles a page frame of which nothing has been read. Called by the
	// reader only.
	Page(in *Input) error
	// Note handles a note, valid until it returns. Called by the reader only.
	Note(note []byte) error
	// Stop makes Put and Settle return soon. Called once, when the link ends.
	Stop()
	// Release gives back what the carrier holds; reader and writer have ended and
	// the door is closed. A carrier whose peer places pages itself returns only
	// when the peer can't any more.
	Release()
}

// Session is a transport.Link over a stream.
type Session struct {
	cfg     transport.Config
	peer    transfer.Hello
	conn    net.Conn
	in      *Input
	out     *Output
	carrier Carrier
	door    Door // nil at a source
	kicked  atomic.Bool

	queue  *queue
	outbox *outbox
	torn   chan struct{} // closed when reader and writer have ended and the door is closed
	stop   chan struct{} // closed when the link is to end

	mu     sync.Mutex
	ended  bool  // protected by mu
	reason error // why it ended; protected by mu
}

// batchPagesMax bounds what is gathered into one write, and with it how many
// pages wait for the last of them before their Written.
const batchPagesMax = 16

// Start runs a session on a greeted connection. newDoor is given the kick of its
// reader and may be nil at a source; newCarrier gets the session before anything
// moves.
func (g *Greeted) Start(newDoor func(kick func()) Door, newCarrier func(*Session) Carrier) *Session {
	s := &Session{cfg: g.cfg, peer: g.peer, conn: g.conn, in: g.in, out: newOutput(g.conn), queue: newQueue(g.cfg.QueueMax),
		outbox: newOutbox(g.cfg.Events, g.cfg.PendingMax), torn: make(chan struct{}), stop: make(chan struct{})}
	if newDoor != nil {
		s.door = newDoor(s.kick)
	}
	s.carrier = newCarrier(s)
	s.outbox.put(transport.Event{Kind: transport.Up, Link: s})
	go s.outbox.run()
	go s.keep()
	return s
}

// Peer implements transport.Link.
func (s *Session) Peer() transfer.Hello { return s.peer }

// Send implements transport.Link.
func (s *Session) Send(m transfer.Message) error {
	message := m.Append(nil)
	if len(message) > transfer.MessageBytesMax {
		return fmt.Errorf("send to %q: message of %d bytes, at most %d are allowed", s.peer.Node, len(message), transfer.MessageBytesMax)
	}
	return s.enqueue(item{message: message})
}

// Write implements transport.Link.
func (s *Session) Write(p transport.Page) error {
	if s.door != nil {
		return fmt.Errorf("write block %d of %v to %q: a target sends no pages", p.Tag.Block, p.Tag.Transfer, s.peer.Node)
	}
	if got, want := len(p.Body), s.cfg.Hello.Layout.BodyBytes(); got != want {
		return fmt.Errorf("write block %d of %v to %q: body of %d bytes, pages have %d", p.Tag.Block, p.Tag.Transfer, s.peer.Node, got, want)
	}
	return s.enqueue(item{page: p})
}

// Drop implements transport.Link.
func (s *Session) Drop(x kv.TransferID) {
	for _, i := range s.queue.drop(x) {
		s.outbox.put(transport.Event{Kind: transport.Written, Link: s, X: x, Block: i.page.Tag.Block, Dropped: true})
	}
}

// Note queues a carrier's note, of at most NoteBytesMax and not empty.
func (s *Session) Note(note []byte) error { return s.enqueue(item{note: note}) }

func (s *Session) enqueue(i item) error {
	err := s.queue.put(i)
	if errors.Is(err, transport.ErrQueueFull) {
		s.Fail(fmt.Errorf("send to %q: %w at %d entries", s.peer.Node, err, s.cfg.QueueMax))
	}
	if err != nil {
		return fmt.Errorf("send to %q: %w", s.peer.Node, err)
	}
	return nil
}

// Open implements transport.Link.
func (s *Session) Open(g transport.Grant) error {
	if s.door == nil {
		return fmt.Errorf("open the gate for %v: a source has none", g.X)
	}
	return s.door.Open(g)
}

// Shut implements transport.Link.
func (s *Session) Shut(x kv.TransferID) (drained bool) {
	if s.door == nil {
		return true
	}
	var done atomic.Bool
	s.door.Shut(x, func() { done.Store(true) })
	return done.Load()
}

// Fence implements transport.Link.
func (s *Session) Fence(x kv.TransferID) {
	fenced := func() { s.outbox.put(transport.Event{Kind: transport.Fenced, Link: s, X: x}) }
	if s.door == nil {
		fenced()
		return
	}
	s.door.Shut(x, fenced)
}

// Close implements transport.Link.
func (s *Session) Close() error {
	s.Fail(nil)
	<-s.torn
	return nil
}

// Fail ends the link for a reason; the first reason stays. It doesn't wait.
func (s *Session) Fail(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.reason = true, reason
	close(s.stop)
}

// keep is the keeper: it starts reader and writer, and ends them.
func (s *Session) keep() {
	var workers sync.WaitGroup
	workers.Go(func() { s.Fail(s.read()) })
	workers.Go(func() { s.Fail(s.write()) })
	s.watch()

	// Nothing can be sent or received once the connection is closed; an error of
	// closing says nothing that the reason doesn't.
	_ = inner(s.conn).Close()
	s.queue.close()
	s.carrier.Stop()
	s.outbox.flood()
	workers.Wait()
	if s.door != nil {
		s.door.Close()
	}
	close(s.torn)
	s.carrier.Release()
	for _, left := range s.queue.rest() {
		s.reportWritten(left, false)
	}
	s.mu.Lock()
	reason := s.reason
	s.mu.Unlock()
	s.outbox.last(transport.Event{Kind: transport.Down, Link: s, Err: reason})
}

// inner is the connection below TLS. Closing that one waits for nothing, while
// TLS would first try to say good-bye to a peer that may have stopped reading.
func inner(conn net.Conn) net.Conn {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return secured.NetConn()
	}
	return conn
}

// watch sends heartbeats and returns when the link is to end, be it for silence.
func (s *Session) watch() {
	const beats = 4
	tick := time.NewTicker(s.cfg.SilenceTimeout / beats)
	defer tick.Stop()
	heard, silent := s.in.heard.Load(), 0
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		s.queue.beat()
		if now := s.in.heard.Load(); now != heard || s.outbox.holding() {
			heard, silent = now, 0
			continue
		}
		if silent++; silent >= beats {
			s.Fail(fmt.Errorf("link to %q: %w for %v", s.peer.Node, transport.ErrSilent, s.cfg.SilenceTimeout))
		}
	}
}

// write is the writer.
func (s *Session) write() error {
	var batch []item
	for {
		if batch = s.queue.take(batch[:0], batchPagesMax); len(batch) == 0 {
			return nil
		}
		err := s.writeBatch(batch)
		for _, i := range batch {
			s.reportWritten(i, err == nil)
		}
		if err != nil {
			return fmt.Errorf("send to %q: %w", s.peer.Node, err)
		}
	}
}

func (s *Session) writeBatch(batch []item) error {
	for _, i := range batch {
		if err := s.writeItem(i); err != nil {
			return err
		}
	}
	if err := s.carrier.Settle(s.out); err != nil {
		return err
	}
	return s.out.Flush()
}

func (s *Session) writeItem(i item) error {
	switch {
	case i.isPage():
		return s.carrier.Put(s.out, i.page)
	case i.note != nil:
		s.out.Note(i.note)
		return nil
	}
	if err := s.carrier.Settle(s.out); err != nil {
		return err
	}
	s.out.Message(i.message)
	return nil
}

func (s *Session) reportWritten(i item, ok bool) {
	if i.isPage() {
		s.outbox.put(transport.Event{Kind: transport.Written, Link: s, X: i.page.Tag.Transfer, Block: i.page.Tag.Block, OK: ok})
	}
}

// read is the reader.
func (s *Session) read() error {
	for {
		if !s.outbox.room() {
			return nil
		}
		if err := s.readFrame(); err != nil {
			if errors.Is(err, io.EOF) {
				err = transport.ErrEnded
			}
			return fmt.Errorf("receive from %q: %w", s.peer.Node, err)
		}
	}
}

func (s *Session) readFrame() error {
	magic, length, err := s.in.peek()
	if err != nil {
		return err
	}
	switch magic {
	case kv.Magic:
		return s.carrier.Page(s.in)
	case noteMagic:
		note, err := s.in.note(length)
		if err != nil {
			return err
		}
		return s.carrier.Note(note)
	case messageMagic:
		m, err := s.in.message(length, transfer.MessageBytesMax)
		if err != nil || m == nil {
			return err
		}
		if _, hello := m.(transfer.Hello); hello {
			return fmt.Errorf("%w: a second HELLO", transport.ErrProtocol)
		}
		s.outbox.put(transport.Event{Kind: transport.Message, Link: s, Message: m})
		return nil
	}
	return fmt.Errorf("%w: a frame of unknown kind %08x", transport.ErrProtocol, magic)
}

// Place is where a page goes.
type Place struct {
	Into       []byte      // body and trailer
	GrantBytes int         // of all pages of the grant
	Live       func() bool // false when the grant has been taken back meanwhile
}

// Land takes one page through the gate: fill puts body and trailer in their place,
// looking at Live as it goes, and says whether they are complete. It isn't called
// for a page that the gate refuses; an error of it ends the link. The outcome is
// reported. Called by the reader only.
func (s *Session) Land(header []byte, fill func(Place) (complete bool, err error)) error {
	if s.door == nil {
		return fmt.Errorf("%w: a page for a source", transport.ErrProtocol)
	}
	tag, _ := kv.ParseTag(header)
	into, refusal := s.door.Begin(header)
	if refusal != transport.None {
		s.reportPage(tag, refusal)
		return nil
	}
	complete, err := fill(Place{Into: into, GrantBytes: s.door.GrantBytes(), Live: s.door.Live})
	report := func(r transport.Refusal) { s.reportPage(tag, r) }
	if err != nil {
		s.door.Cut(report)
	} else {
		s.door.End(complete, report)
	}
	if s.kicked.Swap(false) && err == nil {
		err = s.conn.SetReadDeadline(time.Time{})
	}
	return err
}

func (s *Session) reportPage(tag kv.Tag, r transport.Refusal) {
	e := transport.Event{Kind: transport.Landed, Link: s, X: tag.Transfer, Block: tag.Block}
	if r != transport.None {
		e.Kind, e.Refusal = transport.Refused, r
	}
	s.outbox.put(e)
}

// kick wakes a reader that is parked in mid-page. The gate calls it only while a
// page is being placed, so the reader clears the deadline behind it in Land.
func (s *Session) kick() {
	s.kicked.Store(true)
	// On a connection that is closed the reader has been woken already.
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

// Layout is the shape of the pages on this link.
func (s *Session) Layout() kv.Layout { return s.cfg.Hello.Layout }
