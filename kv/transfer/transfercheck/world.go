// Package transfercheck puts transfer, pool and a faulty network under the model checker.
//
// The machines are the shipped ones. Around them is a hostile world: a message
// that was sent on a link may arrive any number of times, in any order, or never;
// a write lands any time after it was posted, also after its sender died, and its
// bytes are read from the source page when it lands; workers crash and restart,
// are suspected wrongly, and links break at either end; clients cancel; requests
// are retried, too large, or too many; a kernel runs on until it is stopped.
//
// A page's content is who wrote it for which request and block. What a request
// reads while it decodes must be its own.
package transfercheck

import (
	"fmt"
	"strings"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Transport is what a transport can do, as far as safety is concerned.
type Transport struct {
	Name   string // in commands and documents
	About  string // what it can do, for docs/guards.md and the help of commands
	Like   string // transports that are of this kind
	Places bool   // the receiver decides about each write before it places bytes, and reports it
	Fences bool   // a single transfer can be fenced at the target
	Torn   bool   // body and tags of one write land separately, in either order
	Poison bool   // with Torn: the tags are made invalid first, and written last
	Stream bool   // a write is reported when it is handed over; CLOSED arrives behind the writes before it
}

// The transports that are told apart.
var (
	Receiver = Transport{Name: "receiver", Places: true, Fences: true, Like: "our shm, and mctcp",
		About: "the receiver decides about each write, places its bytes and reports it"}
	Stream = Transport{Name: "stream", Places: true, Fences: true, Stream: true, Like: "our tcp",
		About: "as receiver, and pages and messages arrive in the order in which they were sent"}
	OneSided = Transport{Name: "one-sided", Fences: true, Like: "ofi",
		About: "the sender writes into the receiver's pages; the receiver can fence one grant"}
	TornWrite = Transport{Name: "torn", Fences: true, Torn: true, Like: "one-sided writes of body and tags that nothing orders",
		About: "as one-sided, but a page's body and its tags land apart, in either order"}
	Poisoned = Transport{Name: "poisoned", Fences: true, Torn: true, Poison: true, Like: "our shm dialled direct, which no command uses",
		About: "as torn, but tags are made invalid first and written last"}
	DrainOnly = Transport{Name: "drain-only", Like: "ucx",
		About: "the sender writes into the receiver's pages; no single grant can be fenced, only drained"}
)

// Transports lists them.
func Transports() []Transport {
	return []Transport{Receiver, Stream, OneSided, TornWrite, Poisoned, DrainOnly}
}

// Config is the size of a world, and its faults.
type Config struct {
	Name        string
	Transport   Transport
	Requests    []int // pages of each request's prompt
	Pages       int   // of each decode worker
	SourcePages int   // of each prefill worker, and so its longest prompt
	Prefills    int
	Decodes     int
	Ranks       int  // shards of each request, one at each node of a kind; 0 is 1
	Attempts    int  // times that a request may be submitted
	Twice       bool // the gateway submits again before the first attempt has ended
	Cancels     bool
	Grow        bool // decode takes one more page while it runs
	SlowJoin    bool // the job comes later than the grant, or not at all
	SlowReports bool // a landing and its report to the source are apart
	FlightMax   int  // writes that can be on their way at a time, 0 is any number: a transport has room for so many

	PrefillCrashes int
	DecodeCrashes  int
	Suspicions     int // a link is suspected at the target without cause
	Breaks         int // a link breaks at the source first
	Strays         int // a message reaches another incarnation of its addressee

	LostWrites   int  // reported done, never landed
	AstrayWrites int  // landed in another page
	LateWrites   int  // reported done, lands later
	MixedJobs    bool // prefill joins grants with another request's job

	Sharing  // prefix caches and scrub
	Fronting // a gateway as a machine

	Without    guard.Set // the guards that are missing
	Only       string    // the one property that is asked for; "" asks for all
	Lockstep   *Lockstep // the proved machine follows; nil is none
	SafetyOnly bool      // rest is not asked for
	DepthFirst bool      // too many states for whole levels of them to be kept
	Unreduced  bool      // no symmetry, no reduction, every state apart
	StatesMax  int       // bound of the exploration; 0 is none
}

// Size tells the numbers of requests' pages, decode pages, source pages, prefill
// and decode workers, and attempts.
func (c Config) Size() string {
	return fmt.Sprintf("requests %v, %d+%d pages, %dP %dD, attempts %d", c.Requests, c.Pages, c.SourcePages, c.Prefills, c.Decodes, c.Attempts)
}

// content is what a page's bytes are: whose, and which block. The zero value is
// somebody else's, from before.
type content struct {
	request uint8
	block   uint8
}

// placeholder is the block of a page that was computed in place of a prompt that
// is too large.
const placeholder = 7

// header is what a page's tags and sum say.
type header struct {
	x          kv.TransferID
	generation kv.Generation
	block      uint8
	sum        content
}

// memory is one page of decode's slab.
type memory struct {
	body   content
	header header
}

// job is a transfer at decode as its worker sees it.
type job struct {
	x        kv.TransferID
	request  uint8
	ticket   ticket
	link     transfer.Peer
	prefix   []entry      // pinned
	pages    []kv.PageRef // granted
	grown    []kv.PageRef
	roots    []kv.Digest // to be verified against
	fencing  bool        // DoFence is under way
	checking bool        // DoVerify is under way
	verified bool        // it found the pages right
	started  bool        // decoding: its pages are read
	answered bool
	kernel   bool  // a step may be running
	stopping bool  // DoStopKernel was asked
	owed     bool  // DoRelease was refused by the pool
	sound    bool  // answered done: its pages may go into the cache
	landed   uint8 // bit set of the blocks that were placed
}

// decode is a decode worker.
type decode struct {
	epoch  kv.Epoch
	target *transfer.Target
	pool   *pool.Pool
	memory []memory
	jobs   []job
	fenced []kv.TransferID // no write of these can land
	stale  []kernel        // steps that run on although their pages are gone
	opened uint64          // the last sequence that was opened

	cache    []entry    // ordered by tenant and block
	scrubbed kv.PageRef // the page that the scrub reads, if any
}

// sourceJob is a transfer at prefill as its worker sees it.
type sourceJob struct {
	x        kv.TransferID
	request  uint8
	of       uint8 // whose tokens are computed: request, unless jobs are mixed up
	joining  bool  // DoAdmit was not answered
	grant    *transfer.Grant
	pages    []kv.PageRef
	pinned   int // of pages: the first ones are the cache's
	want     int
	computed int
	kernel   bool
	stopping bool
	owed     bool // DoRelease was refused by the pool

	cancelled bool // its gateway is gone, and the source knows
}

// prefill is a prefill worker.
type prefill struct {
	epoch  kv.Epoch
	source *transfer.Source
	pool   *pool.Pool
	memory []content
	jobs   []sourceJob
	stale  []kernel
	cache  []entry
}

// kernel is a running step and the pages it may write.
type kernel struct {
	x       kv.TransferID
	request uint8
	slots   []kv.Slot
}

// link is a session between one incarnation of each end.
type link struct {
	peer        transfer.Peer
	decode      uint8
	prefill     uint8
	target      kv.Epoch // decode's epoch
	source      kv.Epoch // prefill's epoch
	first       uint64   // sequences from here on are of this link, or of a later one
	low         uint64   // highest low-water mark that arrived
	doubted     bool     // the target tears it down
	torn        bool     // gone at the target: nothing of it can land
	sourceDoubt bool     // the source tears it down
	sourceGone  bool     // gone at the source
}

// letter is a message that was sent, and may arrive at any time.
type letter struct {
	link     transfer.Peer
	toSource bool
	message  transfer.Message
}

// write is one block on its way.
type write struct {
	link       transfer.Peer
	x          kv.TransferID
	block      uint8
	to         kv.PageRef
	slot       kv.Slot // where it lands; to.Slot unless astray
	from       kv.PageRef
	sum        content // what its sum was made from
	left       bool    // the bytes have left the sender
	bytes      content // what left
	body, tags bool    // what has landed, where the two are apart
	poisoned   bool    // the tags have been made invalid
	landed     bool
	refused    bool
	reported   bool // its completion has been reported
}

// request is what the gateway wants.
type request struct {
	done     bool
	attempts uint8
	open     uint8 // attempts that are not answered
}

// World is a state. Its parts are shared with other states and copied before a
// change. A world that has been cloned is not changed any more.
type World struct {
	config   *Config
	decodes  []*decode
	prefills []*prefill
	links    []link
	letters  []letter
	writes   []write
	requests []request
	gateway  gateway
	replies  []reply
	ranked   []ranked
	due      []rankReport // empty between two actions
	used     faults
	broken   string // what an action broke, for the step properties
	shadow   *shadow
	healing  phase
	own      owned // workers that no other world has
	stock    *stock
}

// faults is how many of each were used up.
type faults struct {
	prefillCrashes, decodeCrashes, suspicions, breaks, strays, lost, astray, late, gatewayCrashes uint8
}

// epochs make incarnations: equality is all that is asked of them.
func decodeEpoch(node, incarnation int) kv.Epoch  { return kv.Epoch(0xd0 + node + 0x1000*incarnation) }
func prefillEpoch(node, incarnation int) kv.Epoch { return kv.Epoch(0xa0 + node + 0x1000*incarnation) }

// NewWorld is the start: every worker is up, every pair linked, every page free.
func NewWorld(c *Config) *World {
	w := &World{config: c, requests: make([]request, len(c.Requests)), stock: newStock()}
	w.crashGateway()
	for d := range c.Decodes {
		w.decodes = append(w.decodes, newDecode(c, d, decodeEpoch(c.nodeEpoch(d), 0)))
	}
	for p := range c.Prefills {
		w.prefills = append(w.prefills, newPrefill(c, p, prefillEpoch(c.nodeEpoch(p), 0)))
	}
	if c.Lockstep != nil {
		w.shadow = newShadow(w)
	}
	for d := range c.Decodes {
		for p := range c.Prefills {
			if w.paired(d, p) {
				w.connect(uint8(d), uint8(p))
			}
		}
	}
	return w
}

func newDecode(c *Config, node int, epoch kv.Epoch) *decode {
	return &decode{epoch: epoch, target: transfer.NewTarget(transfer.TargetConfig{Epoch: epoch, Rank: c.rank(node), RepeatTicks: 1, FenceTicks: 3, QuarantineTicks: 5}).Without(c.Without),
		pool: pool.New(c.Pages, 0).Without(c.Without), memory: make([]memory, c.Pages)}
}

func newPrefill(c *Config, node int, epoch kv.Epoch) *prefill {
	config := transfer.SourceConfig{Epoch: epoch, Rank: c.rank(node), PagesMax: c.SourcePages, TokensMax: c.SourcePages * kv.PageTokens}
	return &prefill{epoch: epoch, source: transfer.NewSource(config).Without(c.Without),
		pool: pool.New(c.SourcePages, 0).Without(c.Without), memory: make([]content, c.SourcePages)}
}

func (w *World) missing(g guard.Guard) bool { return w.config.Without.Missing(g) }

// fail records that an action broke a step property. The first one stays.
func (w *World) fail(what string) {
	if w.broken == "" && (w.config.Only == "" || strings.HasPrefix(what, w.config.Only+":")) {
		w.broken = what
	}
}

func (d *decode) job(x kv.TransferID) *job {
	for i := range d.jobs {
		if d.jobs[i].x == x {
			return &d.jobs[i]
		}
	}
	return nil
}

func (p *prefill) job(x kv.TransferID) *sourceJob {
	for i := range p.jobs {
		if p.jobs[i].x == x {
			return &p.jobs[i]
		}
	}
	return nil
}

func (w *World) link(peer transfer.Peer) *link { return &w.links[peer-1] }

// at reports whether an end of a link is the incarnation that runs now.
func (w *World) targetUp(l *link) bool { return !l.torn && w.decodes[l.decode].epoch == l.target }
func (w *World) sourceUp(l *link) bool {
	return !l.sourceGone && w.prefills[l.prefill].epoch == l.source
}

// healthy is the link of a pair that grants can be sent on, or nil.
func (w *World) healthy(d, p uint8) *link {
	for i := range w.links {
		l := &w.links[i]
		if l.decode == d && l.prefill == p && !l.doubted && w.targetUp(l) {
			return l
		}
	}
	return nil
}

// connect makes a new session between two nodes as they are now.
func (w *World) connect(d, p uint8) {
	peer := transfer.Peer(len(w.links) + 1)
	w.links = append(w.links, link{peer: peer, decode: d, prefill: p, target: w.decodes[d].epoch, source: w.prefills[p].epoch,
		first: w.decodes[d].opened + 1})
	t := w.config.Transport
	w.stepTarget(d, transfer.PeerUp{Peer: peer, Places: t.Places, Fences: t.Fences,
		Hello: transfer.Hello{Node: string('p' + rune(p)), Epoch: w.prefills[p].epoch}})
	w.stepSource(p, transfer.PeerUp{Peer: peer, Hello: transfer.Hello{Node: string('a' + rune(d)), Epoch: w.decodes[d].epoch}})
}

func root(c content) kv.Digest { return kv.Digest{1, c.request, c.block} }

// digest stands for the keyed digest of a request's token ids.
func digest(request uint8) kv.Sum { return kv.Sum{1, request} }
