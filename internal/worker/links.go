package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// links maps the transports' links to the machine's peers. A peer number is used
// once: a new link is a new peer. Owner: the loop.
type links struct {
	peers map[transport.Link]transfer.Peer
	byID  map[transfer.Peer]transport.Link
	next  transfer.Peer
}

func newLinks() links {
	return links{peers: map[transport.Link]transfer.Peer{}, byID: map[transfer.Peer]transport.Link{}}
}

func (l *links) up(link transport.Link) transfer.Peer {
	l.next++
	l.peers[link], l.byID[l.next] = l.next, link
	return l.next
}

func (l *links) down(link transport.Link) (transfer.Peer, bool) {
	p, known := l.peers[link]
	delete(l.peers, link)
	delete(l.byID, p)
	return p, known
}

// node finds the newest link to a node.
func (l *links) node(name string) (transfer.Peer, transport.Link) {
	var best transfer.Peer
	for p, link := range l.byID {
		if link.Peer().Node == name && p > best {
			best = p
		}
	}
	return best, l.byID[best]
}

// Dial makes one link of a decode worker to a prefill worker. The transport posts
// its events, the link's Up among them, to the worker.
type Dial func(ctx context.Context, c transport.Config) (transport.Link, error)

const (
	redialFirst = 50 * time.Millisecond
	redialMax   = time.Second
	dialTimeout = 3 * time.Second
	// linksDownMax bounds ends of links that a dialer has not looked at yet.
	linksDownMax = 16
)

// statuses says which nodes there are links to, and why there is none to the
// others in failed.
func (l *links) statuses(failed map[string]string) []cluster.PeerStatus {
	up := map[string]bool{}
	var all []cluster.PeerStatus
	for link := range l.peers {
		if node := link.Peer().Node; !up[node] {
			up[node] = true
			all = append(all, cluster.PeerStatus{Node: node, Up: true})
		}
	}
	for node, why := range failed {
		if !up[node] {
			all = append(all, cluster.PeerStatus{Node: node, Err: why})
		}
	}
	slices.SortFunc(all, func(a, b cluster.PeerStatus) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// dialer keeps a link to one prefill worker. Timers here make connections, they
// free nothing.
type dialer struct {
	Source
	config transport.Config
	down   chan transport.Link // the loop says which link has ended
	failed func(node string, err error)
}

// run dials, waits for the link's end, and dials again, slower after each failure,
// until ctx ends.
func (d *dialer) run(ctx context.Context) {
	for wait := redialFirst; ctx.Err() == nil; {
		dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
		link, err := d.Dial(dialCtx, d.config)
		cancel()
		if err != nil {
			d.failed(d.Node, err)
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, redialMax)
			continue
		}
		wait = redialFirst
		if !d.wait(ctx, link) {
			return
		}
	}
}

func (d *dialer) wait(ctx context.Context, link transport.Link) bool {
	for {
		select {
		case l := <-d.down:
			if l == link {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Transport is what dialers of this worker need: links post their events to it.
func (d *Decode) Transport() transport.Config {
	c := transport.Default()
	c.Hello, c.Events, c.Gate = d.hello(), d.events, d.gate
	return c
}

// dialAll starts a dialer for each source. stop closes all links and waits for the
// dialers; events are taken meanwhile, so that no link waits for the loop that has
// ended.
func (d *Decode) dialAll(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := d.Transport()
	var running sync.WaitGroup
	for _, s := range d.sources {
		dl := &dialer{Source: s, config: c, down: make(chan transport.Link, linksDownMax), failed: func(node string, err error) {
			select {
			case d.refusal <- dialFailure{node, err}:
			default: // the next one says the same
			}
		}}
		d.dialers[s.Node] = dl
		running.Go(func() { dl.run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
		d.closeLinks()
	}
}

// closeLinks tears every link down and waits for the last word of each.
func (b *base) closeLinks() {
	for len(b.events) > 0 {
		b.noteEnd(<-b.events)
	}
	for link := range b.links.peers {
		go func() { _ = link.Close() }() // Down carries the error, and is waited for
	}
	for len(b.links.peers) > 0 {
		b.noteEnd(<-b.events)
	}
}

// logDown says that a link has ended. That a peer ends it is how peers stop and
// start again, and at this worker's own end it means nothing.
func (b *base) logDown(e transport.Event) {
	level := slog.LevelWarn
	switch {
	case b.draining:
		level = slog.LevelDebug
	case errors.Is(e.Err, transport.ErrEnded):
		level = slog.LevelInfo
	}
	b.Log.Log(context.Background(), level, "link is down", "node", e.Link.Peer().Node, "error", e.Err)
}

// logRefused says that a page was refused. One that was on its way when its transfer
// was given up, or its link ended, is no sign of anything.
func (b *base) logRefused(e transport.Event) {
	level := slog.LevelWarn
	if e.Refusal == transport.TransferEnded || e.Refusal == transport.Cut {
		level = slog.LevelDebug
	}
	b.Log.Log(context.Background(), level, "page refused", "x", e.X, "block", e.Block, "reason", e.Refusal)
}

func (b *base) noteEnd(e transport.Event) {
	switch e.Kind {
	case transport.Up:
		b.links.up(e.Link)
		go func() { _ = e.Link.Close() }()
	case transport.Down:
		b.links.down(e.Link)
	default:
	}
}

func (d *Decode) peers() []cluster.PeerStatus { return d.links.statuses(d.failures) }

func (d *Decode) queued() int { return 0 }

// noteDials takes in why dials failed.
func (d *Decode) noteDials() {
	for {
		select {
		case f := <-d.refusal:
			d.noteFailure(f)
		default:
			return
		}
	}
}

func (d *Decode) noteFailure(f dialFailure) {
	if d.failures[f.node] != f.err.Error() {
		d.Log.Info("no link", "node", f.node, "error", f.err)
	}
	d.failures[f.node] = f.err.Error()
}
