package transfer

import (
	"fmt"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Bounds of what a message may carry.
const (
	// NodeBytesMax bounds a node's name in bytes.
	NodeBytesMax = 64
	// PagesMax bounds the pages of one grant: 2,097,152 tokens.
	PagesMax = 1 << 17
	// MessageBytesMax bounds the wire form of any message. A CLOSED with a root
	// for each of PagesMax pages is the longest.
	MessageBytesMax = 256 + PagesMax*len(kv.Digest{})
)

// Message is what the two machines say to each other: Hello, Grant, Abort or Closed.
type Message interface {
	// Append appends the wire form, see Parse.
	Append(b []byte) []byte
	message()
}

// TransferOf is the transfer that a message is about; zero for a Hello.
func TransferOf(m Message) kv.TransferID {
	switch m := m.(type) {
	case Grant:
		return m.X
	case Abort:
		return m.X
	case Closed:
		return m.X
	}
	return kv.TransferID{}
}

func (Hello) message()  {}
func (Grant) message()  {}
func (Abort) message()  {}
func (Closed) message() {}

// Role says which half of the work a node does.
type Role uint8

// The roles.
const (
	RolePrefill Role = 1 + iota
	RoleDecode
)

// String names the role.
func (r Role) String() string {
	switch r {
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Hello opens a link, from both ends, before anything else travels.
type Hello struct {
	Version       uint8 // kv.WireVersion
	Role          Role
	Epoch         kv.Epoch // the sender's boot nonce
	Node          string   // the sender's name in the cluster, 1 to NodeBytesMax bytes
	Fingerprint   kv.Fingerprint
	Layout        kv.Layout
	PoolPages     uint32 // pages that requests can use
	ContextTokens uint32 // longest sequence the sender takes, at most what its pool holds
	Capabilities  uint64 // bit set, meaning left to the transports; unknown bits are ignored
}

// Validate reports the first field that no node can have.
func (h Hello) Validate() error {
	switch {
	case h.Version == 0:
		return fmt.Errorf("hello: version is 0")
	case h.Role != RolePrefill && h.Role != RoleDecode:
		return fmt.Errorf("hello: %v is neither prefill nor decode", h.Role)
	case h.Epoch == 0:
		return fmt.Errorf("hello: epoch is 0")
	case len(h.Node) == 0 || len(h.Node) > NodeBytesMax:
		return fmt.Errorf("hello: node name has %d bytes, must have 1 to %d", len(h.Node), NodeBytesMax)
	case h.Fingerprint == kv.Fingerprint{}:
		return fmt.Errorf("hello: fingerprint of %q is zero", h.Node)
	case h.PoolPages == 0 || h.ContextTokens == 0:
		return fmt.Errorf("hello: %q has %d pages for %d tokens, needs some of both", h.Node, h.PoolPages, h.ContextTokens)
	case uint64(h.ContextTokens) > uint64(h.PoolPages)*kv.PageTokens:
		return fmt.Errorf("hello: %q offers a context of %d tokens, its pool holds %d", h.Node, h.ContextTokens, uint64(h.PoolPages)*kv.PageTokens)
	}
	return h.Layout.Validate()
}

// Takes reports why the sender can never take a prompt of that many tokens, with both
// numbers, or nil. It is asked before there is an id or a page for the transfer.
func (h Hello) Takes(tokens int) error {
	if limit := min(int64(h.ContextTokens), int64(h.PoolPages)*kv.PageTokens); int64(tokens) > limit {
		return fmt.Errorf("prompt of %d tokens, the limit is %d tokens", tokens, limit)
	}
	return nil
}

// Pair reports why two nodes cannot work together, with both values, or nil.
func (h Hello) Pair(other Hello) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if err := other.Validate(); err != nil {
		return err
	}
	switch {
	case h.Version != other.Version:
		return fmt.Errorf("hello: %q speaks version %d, %q version %d", h.Node, h.Version, other.Node, other.Version)
	case h.Role == other.Role:
		return fmt.Errorf("hello: %q and %q are both %v", h.Node, other.Node, h.Role)
	case h.Node == other.Node:
		return fmt.Errorf("hello: both ends are called %q", h.Node)
	case h.Epoch == other.Epoch:
		return fmt.Errorf("hello: %q and %q have the same epoch %016x", h.Node, other.Node, uint64(h.Epoch))
	case h.Layout != other.Layout:
		return fmt.Errorf("hello: %q has page layout %+v, %q has %+v", h.Node, h.Layout, other.Node, other.Layout)
	case h.Fingerprint != other.Fingerprint:
		return fmt.Errorf("hello: %q has fingerprint %v, %q has %v", h.Node, h.Fingerprint, other.Node, other.Fingerprint)
	}
	return nil
}

// Grant hands pages of decode's pool to one transfer and says what must be
// computed into them. It travels from decode to prefill.
type Grant struct {
	X           kv.TransferID
	Request     uint64 // with GatewayBoot and Attempt: the job that prefill joins
	Attempt     uint32 // 1 is the first
	GatewayBoot uint64
	SourceEpoch kv.Epoch // the incarnation of prefill that is meant
	Tenant      kv.TenantTag
	Tokens      uint32 // length of the prompt
	TokenDigest kv.Sum // kv.TokenDigest of the prompt's ids under Key
	Key         kv.Key // of this grant only, random
	Low         uint64 // decode needs no CLOSED any more of smaller sequences on this link
	FirstBlock  uint32 // first block that is wanted; those before it are in decode's cache
	Pages       []kv.PageRef
}

// Validate reports why no transfer can have this grant.
func (g Grant) Validate() error {
	want := kv.PagesFor(int(g.Tokens)) - int(g.FirstBlock)
	switch {
	case g.X.IsZero() || g.X.Epoch == 0 || g.X.Sequence == 0:
		return fmt.Errorf("grant: transfer %v has no epoch or no sequence", g.X)
	case g.Request == 0 || g.Attempt == 0 || g.GatewayBoot == 0:
		return fmt.Errorf("grant of %v: request %d, attempt %d of gateway %016x names no job", g.X, g.Request, g.Attempt, g.GatewayBoot)
	case g.SourceEpoch == 0:
		return fmt.Errorf("grant of %v: source epoch is 0", g.X)
	case g.Tenant == 0:
		return fmt.Errorf("grant of %v: tenant is 0", g.X)
	case g.Tokens == 0 || g.TokenDigest == kv.Sum{}:
		return fmt.Errorf("grant of %v: %d tokens or no digest of them", g.X, g.Tokens)
	case g.Key.IsZero():
		return fmt.Errorf("grant of %v: key is zero", g.X)
	case len(g.Pages) == 0 || len(g.Pages) > PagesMax:
		return fmt.Errorf("grant of %v: %d pages, must be 1 to %d", g.X, len(g.Pages), PagesMax)
	case kv.PagesFor(int(g.Tokens))-1 > kv.BlockMax:
		return fmt.Errorf("grant of %v: %d tokens have more blocks than %d", g.X, g.Tokens, kv.BlockMax+1)
	case len(g.Pages) != want:
		return fmt.Errorf("grant of %v: %d pages, %d tokens from block %d on need %d", g.X, len(g.Pages), g.Tokens, g.FirstBlock, want)
	}
	for i, p := range g.Pages {
		if p.Generation == 0 {
			return fmt.Errorf("grant of %v: page %d of %d has generation 0", g.X, i, len(g.Pages))
		}
	}
	return nil
}

// Tag is the tag that prefill puts on a block for decode, or ok false when the
// block, an index into the whole sequence, is not of this grant. layout is the
// page layout's ID.
func (g Grant) Tag(block uint32, layout uint16) (tag kv.Tag, ok bool) {
	if block < g.FirstBlock || block-g.FirstBlock >= uint32(len(g.Pages)) {
		return kv.Tag{}, false
	}
	page := g.Pages[block-g.FirstBlock]
	return kv.Tag{
		Layout: layout, Tokens: uint8(kv.ExtentAt(int(g.Tokens), int(block))), Transfer: g.X,
		Generation: page.Generation, Tenant: g.Tenant, Slot: page.Slot, Block: block,
	}, true
}

// Abort asks for a transfer to end. It is legal in every state, may be repeated,
// and is answered by CLOSED in any case. It travels from decode to prefill.
type Abort struct {
	X           kv.TransferID
	SourceEpoch kv.Epoch
	Low         uint64 // as in Grant
}

// Outcome is how a transfer ended at prefill.
type Outcome uint8

// The outcomes.
const (
	OutcomeDone Outcome = 1 + iota
	OutcomeFailed
	OutcomeAborted
)

// String names the outcome.
func (o Outcome) String() string { return nameOf(uint8(o), "", "done", "failed", "aborted") }

// Reason says why a transfer did not end with OutcomeDone.
type Reason uint8

// The reasons. ReasonNone goes with OutcomeDone and OutcomeAborted.
const (
	ReasonNone        Reason = iota
	ReasonBusy               // no source pages or no place in the batch now: ask again
	ReasonTooLarge           // can never fit this prefill worker
	ReasonJobUnknown         // the gateway's job did not come in time
	ReasonJobMismatch        // the job has other tokens than the grant
	ReasonCancelled          // the gateway cancelled the job
	ReasonCompute            // computing failed
	ReasonWrite              // a page could not be sent
	ReasonMalformed          // the grant contradicts itself
	ReasonShutdown           // prefill is draining
	reasonsEnd
)

// String names the reason.
func (r Reason) String() string {
	return nameOf(uint8(r), "none", "busy", "too large", "job unknown", "job mismatch", "cancelled", "computing failed", "writing failed", "malformed", "shutdown")
}

// Closed is a promise: no write of X is in flight and none will ever be posted.
// It travels from prefill to decode, and with OutcomeDone carries the manifest.
type Closed struct {
	X           kv.TransferID
	SourceEpoch kv.Epoch
	Outcome     Outcome
	Reason      Reason
	Tokens      uint32      // prompt tokens that prefill computed; 0 unless done
	TokenDigest kv.Sum      // of the ids that prefill computed, under the grant's key; zero unless done
	Roots       []kv.Digest // body root of each granted page, in the grant's order; none unless done
}

// Validate reports why no source can have sent this.
func (c Closed) Validate() error {
	switch {
	case c.X.IsZero() || c.X.Epoch == 0 || c.X.Sequence == 0 || c.SourceEpoch == 0:
		return fmt.Errorf("closed: transfer %v of source %016x names nothing", c.X, uint64(c.SourceEpoch))
	case c.Outcome < OutcomeDone || c.Outcome > OutcomeAborted || c.Reason >= reasonsEnd:
		return fmt.Errorf("closed of %v: outcome %d, reason %d are unknown", c.X, c.Outcome, c.Reason)
	case c.Outcome == OutcomeFailed && c.Reason == ReasonNone:
		return fmt.Errorf("closed of %v: failed without a reason", c.X)
	case c.Outcome != OutcomeFailed && c.Reason != ReasonNone:
		return fmt.Errorf("closed of %v: %v with reason %v", c.X, c.Outcome, c.Reason)
	case c.Outcome != OutcomeDone && (c.Tokens != 0 || c.TokenDigest != kv.Sum{} || len(c.Roots) != 0):
		return fmt.Errorf("closed of %v: %v with a manifest of %d pages", c.X, c.Outcome, len(c.Roots))
	case c.Outcome == OutcomeDone && (c.Tokens == 0 || c.TokenDigest == kv.Sum{}):
		return fmt.Errorf("closed of %v: done with %d tokens or no digest of them", c.X, c.Tokens)
	case c.Outcome == OutcomeDone && (len(c.Roots) == 0 || len(c.Roots) > PagesMax):
		return fmt.Errorf("closed of %v: done with %d pages, must be 1 to %d", c.X, len(c.Roots), PagesMax)
	}
	for i, r := range c.Roots {
		if r == (kv.Digest{}) {
			return fmt.Errorf("closed of %v: root %d of %d is zero", c.X, i, len(c.Roots))
		}
	}
	return nil
}

func (a Abort) validate() error {
	if a.X.IsZero() || a.X.Epoch == 0 || a.X.Sequence == 0 || a.SourceEpoch == 0 {
		return fmt.Errorf("abort: transfer %v at source %016x names nothing", a.X, uint64(a.SourceEpoch))
	}
	return nil
}

func nameOf(v uint8, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("unknown %d", v)
}
