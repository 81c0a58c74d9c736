// Package transport carries transfer messages and page bytes between two nodes.
//
// A Link joins a decode worker, the target, which dials, with a prefill worker,
// the source, which listens. Both say HELLO first, and a link exists only
// between two that pair. A transport never decides anything about a transfer: it
// reports what happened as events, and what may land is decided by the target's
// Gate.
//
// What holds on every link, whatever carries it:
//
//  1. What one side sends arrives in that order, pages and messages alike, or
//     the link ends.
//  2. Landed comes once for a block, when all its bytes are in place, and never
//     after Fenced of its transfer.
//  3. Fenced(x) means that no byte of x lands from now on. It needs nothing from
//     the peer.
//  4. Down is a link's last event. When it comes, our own end has been torn down,
//     no page is being placed, every grant of the link is shut, every page handed
//     to Write has had its Written, and no source page is read any more.
//  5. Silence ends a link; nothing else follows from it.
package transport

import (
	"fmt"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Link is one session with one peer. Its methods may be called from any
// goroutine, and none but Close waits for anything.
type Link interface {
	// Peer is what the other side said of itself.
	Peer() transfer.Hello

	// Send queues a message behind all that was queued before. An error means
	// that it won't be sent and that Down follows or has come.
	Send(transfer.Message) error

	// Write queues a page behind all that was queued before (source). When it
	// returns nil, exactly one Written follows, and until then the page's bytes
	// must stay as they are. When it returns an error none follows.
	Write(Page) error

	// Drop takes back the pages of x that are queued and not being sent (source);
	// each has its Written, Dropped. It keeps an aborted transfer's pages from
	// standing in the way of others.
	Drop(x kv.TransferID)

	// Open lets the pages of a grant land (target). It must be called before the
	// GRANT is sent. An error is the caller's mistake; on a link that has ended,
	// whose Down is on its way, there is none, and nothing lands.
	Open(Grant) error

	// Shut takes a grant back without an event (target): no page of x is accepted
	// any more. It reports whether none is being placed either.
	Shut(x kv.TransferID) (drained bool)

	// Fence takes a grant back (target); the event Fenced{X} follows once nothing
	// of x can land any more, unless Down comes first, which says the same.
	Fence(x kv.TransferID)

	// Close tears down our end and returns when this side neither places a page nor
	// reads one any more. What was queued and not sent is lost. Down follows, and is
	// the proof that nothing can land: at once where the target places the pages,
	// and where the source does, when it is known to be out of them. Close may be
	// called again and from the goroutine that takes the events.
	Close() error
}

// Page is a page on its way to a target's slot.
type Page struct {
	Tag  kv.Tag // of the target's page: its slot and generation, the grant's tenant and transfer
	Sum  kv.Sum // the body's root bound to Tag under the grant's key
	Body []byte // all leaves, kv.Layout.BodyBytes of them
}

// Kind tells events apart.
type Kind uint8

// The kinds of events, with the fields that each of them carries beside Link.
const (
	// Up is the first event of a link.
	Up Kind = iota + 1
	// Message carries Message, any but a HELLO.
	Message
	// Landed carries X and Block: the page is complete (target).
	Landed
	// Refused carries X, Block and Refusal: the page was not placed, or not wholly
	// (target). With BadHeader X and Block are zero; behind Cut comes Down.
	Refused
	// Written carries X, Block, OK and Dropped: the page's bytes may change again
	// (source). OK is false if they didn't all leave, and Dropped is true if none of
	// them did or will, because Drop took the page back.
	Written
	// Fenced carries X: nothing of it can land any more (target).
	Fenced
	// Down is a link's last event; Err says why it ended, nil after Close.
	Down
	// Rejected carries Err: a connection came in that didn't become a link. Link
	// is nil. Those of a flood may have none.
	Rejected
)

var kindNames = [...]string{"none", "up", "message", "landed", "refused", "written", "fenced", "down", "rejected"}

// String names the kind.
func (k Kind) String() string {
	if int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Event is something that happened on a link. See Kind for the fields in use.
type Event struct {
	Kind    Kind
	Link    Link
	Message transfer.Message
	X       kv.TransferID
	Block   uint32
	OK      bool
	Dropped bool
	Refusal Refusal
	Err     error
}

// Config is what every transport needs to know of its own side.
type Config struct {
	Hello transfer.Hello

	// Gate of the target's slab; nil at a source, where a page from the peer ends
	// the link.
	Gate *Gate

	// Events takes the events of all links. Each link must be drained until its
	// Down has come: a link whose events nobody takes stops reading.
	Events chan<- Event

	// HelloTimeout bounds connecting, securing and greeting, 100 ms to 5 min.
	HelloTimeout time.Duration

	// SilenceTimeout is how long a peer may send nothing before the link ends,
	// 50 ms to 10 min; a heartbeat goes out four times as often.
	SilenceTimeout time.Duration

	// QueueMax is how many messages and pages may wait in a link to be sent, 1 to
	// 2^24. More end the link.
	QueueMax int

	// PendingMax is how many events may wait in a link before it stops reading, 1
	// to 2^24.
	PendingMax int
}

// Default is a configuration that lacks only Hello, Gate and Events.
func Default() Config {
	return Config{HelloTimeout: 10 * time.Second, SilenceTimeout: 5 * time.Second, QueueMax: 1 << 16, PendingMax: 1 << 10}
}

// Validate reports the first thing that no link can be made with.
func (c Config) Validate() error {
	if err := c.Hello.Validate(); err != nil {
		return fmt.Errorf("transport configuration: %w", err)
	}
	if c.Events == nil {
		return fmt.Errorf("transport configuration: nobody takes the events")
	}
	for _, d := range []struct {
		name          string
		got, min, max time.Duration
	}{{"hello timeout", c.HelloTimeout, 100 * time.Millisecond, 5 * time.Minute}, {"silence timeout", c.SilenceTimeout, 50 * time.Millisecond, 10 * time.Minute}} {
		if d.got < d.min || d.got > d.max {
			return fmt.Errorf("transport configuration: %s is %v, must be %v to %v", d.name, d.got, d.min, d.max)
		}
	}
	for _, n := range []struct {
		name string
		got  int
	}{{"queue", c.QueueMax}, {"pending events", c.PendingMax}} {
		if n.got < 1 || n.got > boundMax {
			return fmt.Errorf("transport configuration: %s is bounded by %d, must be 1 to %d", n.name, n.got, boundMax)
		}
	}
	if c.Gate != nil && c.Gate.Layout() != c.Hello.Layout {
		return fmt.Errorf("transport configuration: the gate's pages are %+v, HELLO says %+v", c.Gate.Layout(), c.Hello.Layout)
	}
	if target := c.Hello.Role == transfer.RoleDecode; target != (c.Gate != nil) {
		return fmt.Errorf("transport configuration: role %v with a gate: %v", c.Hello.Role, c.Gate != nil)
	}
	return nil
}

// boundMax bounds the bounds.
const boundMax = 1 << 24
