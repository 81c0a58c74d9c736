package transfer

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bulkhead-kv/bulkhead/kv"
)

func goodHello() Hello {
	return Hello{Version: kv.WireVersion, Role: RoleDecode, Epoch: 1, Node: "decode-1", Fingerprint: kv.Fingerprint{1},
		Layout: kv.Layout{Layers: 2, KVHeads: 1, KeyDim: 4, ValueDim: 4}, PoolPages: 10, ContextTokens: 160, Capabilities: 5}
}

func goodGrant() Grant {
	return Grant{X: kv.TransferID{Epoch: 1, Sequence: 2, Rank: 3}, Request: 4, Attempt: 1, GatewayBoot: 5, SourceEpoch: 6, Tenant: 7, Tokens: 40,
		TokenDigest: kv.Sum{8}, Key: kv.Key{9}, Low: 2, FirstBlock: 1, Pages: []kv.PageRef{{Slot: 10, Generation: 11}, {Slot: 12, Generation: 13}}}
}

func goodClosed() Closed {
	return Closed{X: kv.TransferID{Epoch: 1, Sequence: 2, Rank: 3}, SourceEpoch: 6, Outcome: OutcomeDone, Tokens: 40, TokenDigest: kv.Sum{8}, Roots: []kv.Digest{{1}, {2}}}
}

func goodMessages() []Message {
	failed := Closed{X: kv.TransferID{Epoch: 1, Sequence: 2}, SourceEpoch: 6, Outcome: OutcomeFailed, Reason: ReasonBusy}
	aborted := Closed{X: kv.TransferID{Epoch: 1, Sequence: 2}, SourceEpoch: 6, Outcome: OutcomeAborted}
	return []Message{goodHello(), goodGrant(), Abort{X: kv.TransferID{Epoch: 1, Sequence: 2}, SourceEpoch: 6, Low: 1}, goodClosed(), failed, aborted}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, want := range goodMessages() {
		got, err := Parse(want.Append(nil))
		if err != nil {
			t.Errorf("%T: %v", want, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%T differs after the wire (-want +got):\n%s", want, diff)
		}
	}
}

func TestEveryCutAndEveryExtraByteIsAnError(t *testing.T) {
	for _, m := range goodMessages() {
		b := m.Append(nil)
		for n := range b {
			if got, err := Parse(b[:n]); err == nil {
				t.Errorf("%T cut to %d of %d bytes is read as %+v", m, n, len(b), got)
			}
		}
		if _, err := Parse(append(b, 0)); err == nil {
			t.Errorf("%T with a byte too many is read", m)
		}
	}
}

func TestUnknownKindsAndHugeFramesAreErrors(t *testing.T) {
	for _, b := range [][]byte{nil, {0}, {99}, make([]byte, MessageBytesMax+1)} {
		if m, err := Parse(b); err == nil {
			t.Errorf("a frame of %d bytes is read as %T", len(b), m)
		}
	}
}

// A list's length is held against the bytes that are there before it is allocated.
func TestListLengthsAreBoundByTheFrame(t *testing.T) {
	b := goodGrant().Append(nil)
	at := len(b) - 2*pageRefBytes - 4
	b[at], b[at+1] = 0xff, 0xff
	if _, err := Parse(b); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("a grant of 65535 pages in %d bytes: got %v", len(b), err)
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = Parse(b) }); n > 20 {
		t.Errorf("reading it allocates %v times", n)
	}
}

// Zero and missing values are errors, never skipped.
func TestNothingMayBeZero(t *testing.T) {
	grant := func(f func(*Grant)) Message { g := goodGrant(); f(&g); return g }
	closed := func(f func(*Closed)) Message { c := goodClosed(); f(&c); return c }
	hello := func(f func(*Hello)) Message { h := goodHello(); f(&h); return h }
	for name, m := range map[string]Message{
		"grant without an id":            grant(func(g *Grant) { g.X = kv.TransferID{} }),
		"grant without an epoch":         grant(func(g *Grant) { g.X.Epoch = 0 }),
		"grant without a sequence":       grant(func(g *Grant) { g.X.Sequence = 0 }),
		"grant without a request":        grant(func(g *Grant) { g.Request = 0 }),
		"grant without an attempt":       grant(func(g *Grant) { g.Attempt = 0 }),
		"grant without a gateway":        grant(func(g *Grant) { g.GatewayBoot = 0 }),
		"grant without a source":         grant(func(g *Grant) { g.SourceEpoch = 0 }),
		"grant without a tenant":         grant(func(g *Grant) { g.Tenant = 0 }),
		"grant without tokens":           grant(func(g *Grant) { g.Tokens, g.FirstBlock, g.Pages = 0, 0, nil }),
		"grant without a digest":         grant(func(g *Grant) { g.TokenDigest = kv.Sum{} }),
		"grant without a key":            grant(func(g *Grant) { g.Key = kv.Key{} }),
		"grant without pages":            grant(func(g *Grant) { g.Pages = nil }),
		"grant of a page too few":        grant(func(g *Grant) { g.Pages = g.Pages[:1] }),
		"grant of a page too many":       grant(func(g *Grant) { g.FirstBlock = 2 }),
		"grant of a dead page":           grant(func(g *Grant) { g.Pages = []kv.PageRef{{Slot: 1, Generation: 1}, {Slot: 2}} }),
		"grant beyond the last block":    grant(func(g *Grant) { g.Tokens, g.FirstBlock = 1<<32-1, 1<<28-2 }),
		"abort without an id":            Abort{SourceEpoch: 1},
		"abort without a source":         Abort{X: kv.TransferID{Epoch: 1, Sequence: 1}},
		"closed without an id":           closed(func(c *Closed) { c.X = kv.TransferID{} }),
		"closed without a source":        closed(func(c *Closed) { c.SourceEpoch = 0 }),
		"closed without an outcome":      closed(func(c *Closed) { c.Outcome = 0 }),
		"closed of an unknown outcome":   closed(func(c *Closed) { c.Outcome = 9 }),
		"closed of an unknown reason":    closed(func(c *Closed) { c.Outcome, c.Reason = OutcomeFailed, reasonsEnd }),
		"done with a reason":             closed(func(c *Closed) { c.Reason = ReasonBusy }),
		"done without tokens":            closed(func(c *Closed) { c.Tokens = 0 }),
		"done without a digest":          closed(func(c *Closed) { c.TokenDigest = kv.Sum{} }),
		"done without pages":             closed(func(c *Closed) { c.Roots = nil }),
		"done with a zero root":          closed(func(c *Closed) { c.Roots = []kv.Digest{{1}, {}} }),
		"failed without a reason":        Closed{X: kv.TransferID{Epoch: 1, Sequence: 2}, SourceEpoch: 6, Outcome: OutcomeFailed},
		"aborted with a manifest":        closed(func(c *Closed) { c.Outcome = OutcomeAborted }),
		"hello without a version":        hello(func(h *Hello) { h.Version = 0 }),
		"hello without a role":           hello(func(h *Hello) { h.Role = 0 }),
		"hello without an epoch":         hello(func(h *Hello) { h.Epoch = 0 }),
		"hello without a name":           hello(func(h *Hello) { h.Node = "" }),
		"hello with a long name":         hello(func(h *Hello) { h.Node = strings.Repeat("n", NodeBytesMax+1) }),
		"hello without a fingerprint":    hello(func(h *Hello) { h.Fingerprint = kv.Fingerprint{} }),
		"hello without a layout":         hello(func(h *Hello) { h.Layout = kv.Layout{} }),
		"hello without pages":            hello(func(h *Hello) { h.PoolPages = 0 }),
		"hello without a context":        hello(func(h *Hello) { h.ContextTokens = 0 }),
		"hello with more than its pool":  hello(func(h *Hello) { h.ContextTokens = 161 }),
		"hello with an impossible shape": hello(func(h *Hello) { h.Layout.Layers = 1 << 30 }),
	} {
		if got, err := Parse(m.Append(nil)); err == nil {
			t.Errorf("%s is read as %+v", name, got)
		}
	}
}

func TestPairRefusesWithBothValues(t *testing.T) {
	ours := goodHello()
	other := func(f func(*Hello)) Hello {
		h := goodHello()
		h.Role, h.Epoch, h.Node = RolePrefill, 2, "prefill-1"
		f(&h)
		return h
	}
	if err := ours.Pair(other(func(*Hello) {})); err != nil {
		t.Fatalf("two workers that fit do not pair: %v", err)
	}
	for name, c := range map[string]struct {
		other Hello
		says  []string
	}{
		"version":     {other(func(h *Hello) { h.Version = 9 }), []string{"version 1", "version 9"}},
		"role":        {other(func(h *Hello) { h.Role = RoleDecode }), []string{"both decode"}},
		"name":        {other(func(h *Hello) { h.Node = ours.Node }), []string{"decode-1"}},
		"epoch":       {other(func(h *Hello) { h.Epoch = ours.Epoch }), []string{"same epoch"}},
		"layout":      {other(func(h *Hello) { h.Layout.Layers = 3 }), []string{"Layers:2", "Layers:3"}},
		"fingerprint": {other(func(h *Hello) { h.Fingerprint = kv.Fingerprint{2} }), []string{ours.Fingerprint.String(), kv.Fingerprint{2}.String()}},
		"theirs":      {other(func(h *Hello) { h.PoolPages = 1 }), []string{"160", "16"}},
	} {
		err := ours.Pair(c.other)
		if err == nil {
			t.Errorf("workers of another %s pair", name)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("refusal for another %s is %q, which does not say %q", name, err, s)
			}
		}
	}
}

func TestGrantTagNamesThePageOfABlock(t *testing.T) {
	g := goodGrant()
	got, ok := g.Tag(2, 77)
	want := kv.Tag{Layout: 77, Tokens: 8, Transfer: g.X, Generation: 13, Tenant: 7, Slot: 12, Block: 2}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("tag of block 2 differs (-want +got):\n%s", diff)
	}
	for _, block := range []uint32{0, 3, 1<<32 - 1} {
		if tag, ok := g.Tag(block, 77); ok {
			t.Errorf("block %d is not granted and has tag %+v", block, tag)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range goodMessages() {
		f.Add(m.Append(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{wireGrant, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%T is read from\n%x\nand written as\n%x", m, b, again)
		}
	})
}

// What a node says that it takes is what it is asked for, to the token.
func TestHelloTakes(t *testing.T) {
	for _, c := range []struct {
		hello Hello
		limit int
	}{{Hello{PoolPages: 8, ContextTokens: 100}, 100}, {Hello{PoolPages: 6, ContextTokens: 100}, 96}, {Hello{}, 0}, {Hello{PoolPages: 1 << 31, ContextTokens: 1 << 31}, 1 << 31}} {
		if err := c.hello.Takes(c.limit); err != nil {
			t.Errorf("%d pages and %d tokens don't take the limit: %v", c.hello.PoolPages, c.hello.ContextTokens, err)
		}
		err := c.hello.Takes(c.limit + 1)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(c.limit)) || !strings.Contains(err.Error(), fmt.Sprint(c.limit+1)) {
			t.Errorf("one over %d tokens: %v, want both numbers", c.limit, err)
		}
	}
}
