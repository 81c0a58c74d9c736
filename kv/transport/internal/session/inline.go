package session

import (
	"fmt"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// Inline is the carrier that sends pages in the stream itself.
type Inline struct {
	session *Session
	header  [kv.HeaderBytes]byte

	ends [batchPagesMax]pageEnds // of the pages appended since the last flush
	used int
}

type pageEnds struct {
	header  [kv.HeaderBytes]byte
	trailer [kv.TrailerBytes]byte
}

// NewInline makes the carrier of one session.
func NewInline(s *Session) *Inline { return &Inline{session: s} }

// Put implements Carrier.
func (c *Inline) Put(out *Output, p transport.Page) error {
	ends := &c.ends[c.used%batchPagesMax]
	c.used++
	p.Tag.Put(ends.header[:])
	kv.PutSum(ends.header[:], p.Sum)
	p.Tag.PutTrailer(ends.trailer[:])
	out.Append(ends.header[:], p.Body, ends.trailer[:])
	return nil
}

// Settle implements Carrier: a stream keeps its order by itself.
func (c *Inline) Settle(*Output) error { return nil }

// Page implements Carrier. What the gate refuses, or takes back in mid-page, is
// read to nowhere.
func (c *Inline) Page(in *Input) error {
	if err := in.Header(c.header[:]); err != nil {
		return err
	}
	rest := c.session.Layout().FrameBytes() - kv.HeaderBytes
	err := c.session.Land(c.header[:], func(p Place) (bool, error) {
		n, err := in.Fill(p.Into, p.Live)
		rest -= n
		return rest == 0, err
	})
	if err != nil || rest == 0 {
		return err
	}
	return in.Skip(rest)
}

// Note implements Carrier.
func (c *Inline) Note(note []byte) error {
	return fmt.Errorf("%w: a note of %d bytes on a stream that carries its pages", transport.ErrProtocol, len(note))
}

// Stop implements Carrier: closing the connection is enough.
func (c *Inline) Stop() {}

// Release implements Carrier.
func (c *Inline) Release() {}
