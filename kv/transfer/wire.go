package transfer

import (
	"encoding/binary"
	"fmt"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Wire form, all integers little-endian, fields in the order of the structs:
//
//	kind 1 | fields
//	x = epoch 8, sequence 8, rank 1; page = slot 4, generation 8
//	a name or a list is its length (1 byte for a name, 4 for a list), then its elements
//
// The transport frames messages; a message has no length of its own and must
// fill its frame exactly.
const (
	wireHello byte = 1 + iota
	wireGrant
	wireAbort
	wireClosed
)

const (
	pageRefBytes = 12
	digestBytes  = 16
)

// Append appends the wire form.
func (h Hello) Append(b []byte) []byte { return h.appendFields(append(b, wireHello)) }

func (h Hello) appendFields(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, h.Version, byte(h.Role))
	b = le.AppendUint64(b, uint64(h.Epoch))
	b = append(append(b, byte(len(h.Node))), h.Node...)
	b = append(b, h.Fingerprint[:]...)
	for _, d := range []int{h.Layout.Layers, h.Layout.KVHeads, h.Layout.KeyDim, h.Layout.ValueDim} {
		b = le.AppendUint32(b, uint32(d))
	}
	b = le.AppendUint32(b, h.PoolPages)
	b = le.AppendUint32(b, h.ContextTokens)
	return le.AppendUint64(b, h.Capabilities)
}

// Append appends the wire form.
func (g Grant) Append(b []byte) []byte { return g.appendFields(append(b, wireGrant)) }

func (g Grant) appendFields(b []byte) []byte {
	le := binary.LittleEndian
	b = appendTransfer(b, g.X)
	b = le.AppendUint64(b, g.Request)
	b = le.AppendUint32(b, g.Attempt)
	b = le.AppendUint64(b, g.GatewayBoot)
	b = le.AppendUint64(b, uint64(g.SourceEpoch))
	b = le.AppendUint64(b, uint64(g.Tenant))
	b = le.AppendUint32(b, g.Tokens)
	b = append(b, g.TokenDigest[:]...)
	b = append(b, g.Key[:]...)
	b = le.AppendUint64(b, g.Low)
	b = le.AppendUint32(b, g.FirstBlock)
	return appendPages(le.AppendUint32(b, uint32(len(g.Pages))), g.Pages)
}

func appendPages(b []byte, pages []kv.PageRef) []byte {
	for _, p := range pages {
		b = binary.LittleEndian.AppendUint32(b, uint32(p.Slot))
		b = binary.LittleEndian.AppendUint64(b, uint64(p.Generation))
	}
	return b
}

// Append appends the wire form.
func (a Abort) Append(b []byte) []byte {
	b = appendTransfer(append(b, wireAbort), a.X)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.SourceEpoch))
	return binary.LittleEndian.AppendUint64(b, a.Low)
}

// Append appends the wire form.
func (c Closed) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendTransfer(append(b, wireClosed), c.X)
	b = le.AppendUint64(b, uint64(c.SourceEpoch))
	b = append(b, byte(c.Outcome), byte(c.Reason))
	b = le.AppendUint32(b, c.Tokens)
	b = append(b, c.TokenDigest[:]...)
	b = le.AppendUint32(b, uint32(len(c.Roots)))
	for _, r := range c.Roots {
		b = append(b, r[:]...)
	}
	return b
}

func appendTransfer(b []byte, x kv.TransferID) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(x.Epoch))
	b = binary.LittleEndian.AppendUint64(b, x.Sequence)
	return append(b, x.Rank)
}

// Parse reads one message that fills b. Lengths are held against their bounds
// and against the bytes that are there before anything is allocated; a message
// that could not have been sent by a correct peer (a zero id, no pages, a
// manifest without a digest) is an error.
func Parse(b []byte) (Message, error) {
	if len(b) > MessageBytesMax {
		return nil, fmt.Errorf("message of %d bytes, at most %d are allowed", len(b), MessageBytesMax)
	}
	r := reader{rest: b}
	m := r.message()
	switch {
	case r.short && len(b) > 0 && (b[0] < wireHello || b[0] > wireClosed):
		return nil, fmt.Errorf("message of unknown kind %d", b[0])
	case r.short:
		return nil, fmt.Errorf("message is cut short at %d bytes", len(b))
	case len(r.rest) != 0:
		return nil, fmt.Errorf("message of kind %d has %d bytes too many", b[0], len(r.rest))
	}
	if err := validate(m); err != nil {
		return nil, err
	}
	return m, nil
}

func validate(m Message) error {
	switch m := m.(type) {
	case Hello:
		return m.Validate()
	case Grant:
		return m.Validate()
	case Abort:
		return m.validate()
	case Closed:
		return m.Validate()
	}
	return fmt.Errorf("message of unknown type %T", m)
}

// reader takes fields off the front of rest; once short, it gives zeros.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if r.short || n > len(r.rest) {
		r.short = true
		return make([]byte, min(n, digestBytes*2))
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) transfer() kv.TransferID {
	return kv.TransferID{Epoch: kv.Epoch(r.uint64()), Sequence: r.uint64(), Rank: r.byte()}
}

// message reads a message without asking whether anyone can have sent it.
func (r *reader) message() Message {
	switch r.byte() {
	case wireHello:
		return r.hello()
	case wireGrant:
		return r.grant()
	case wireAbort:
		return Abort{X: r.transfer(), SourceEpoch: kv.Epoch(r.uint64()), Low: r.uint64()}
	case wireClosed:
		return r.closed()
	}
	r.short = true
	return nil
}

// count reads a list's length, see fits.
func (r *reader) count(elementBytes int) int { return r.fits(r.uint32(), elementBytes) }

// fits is a list's length if it is within PagesMax and that many elements are left.
func (r *reader) fits(n uint32, elementBytes int) int {
	if n > PagesMax || int(n)*elementBytes > len(r.rest) {
		r.short = true
		return 0
	}
	return int(n)
}

func (r *reader) hello() Hello {
	h := Hello{Version: r.byte(), Role: Role(r.byte()), Epoch: kv.Epoch(r.uint64())}
	n := int(r.byte())
	if n > NodeBytesMax || n > len(r.rest) {
		r.short = true
		return h
	}
	h.Node = string(r.take(n))
	copy(h.Fingerprint[:], r.take(len(h.Fingerprint)))
	for _, d := range []*int{&h.Layout.Layers, &h.Layout.KVHeads, &h.Layout.KeyDim, &h.Layout.ValueDim} {
		*d = int(r.uint32())
	}
	h.PoolPages, h.ContextTokens, h.Capabilities = r.uint32(), r.uint32(), r.uint64()
	return h
}

func (r *reader) grant() Grant {
	g := Grant{X: r.transfer(), Request: r.uint64(), Attempt: r.uint32(), GatewayBoot: r.uint64(),
		SourceEpoch: kv.Epoch(r.uint64()), Tenant: kv.TenantTag(r.uint64()), Tokens: r.uint32()}
	copy(g.TokenDigest[:], r.take(digestBytes))
	copy(g.Key[:], r.take(digestBytes))
	g.Low, g.FirstBlock = r.uint64(), r.uint32()
	g.Pages = r.pages(r.uint32())
	return g
}

func (r *reader) pages(count uint32) []kv.PageRef {
	n := r.fits(count, pageRefBytes)
	if n == 0 {
		return nil
	}
	pages := make([]kv.PageRef, n)
	for i := range pages {
		pages[i] = kv.PageRef{Slot: kv.Slot(r.uint32()), Generation: kv.Generation(r.uint64())}
	}
	return pages
}

func (r *reader) closed() Closed {
	c := Closed{X: r.transfer(), SourceEpoch: kv.Epoch(r.uint64()), Outcome: Outcome(r.byte()), Reason: Reason(r.byte()), Tokens: r.uint32()}
	copy(c.TokenDigest[:], r.take(digestBytes))
	n := r.count(digestBytes)
	if n == 0 {
		return c
	}
	c.Roots = make([]kv.Digest, n)
	for i := range c.Roots {
		copy(c.Roots[i][:], r.take(digestBytes))
	}
	return c
}
