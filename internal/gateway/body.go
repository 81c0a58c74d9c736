package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// readBody reads the whole body within its bounds of size, time and memory, which is
// the tenant's until release. The memory of a body that says its length is taken before
// any of it is read: bodies that don't fit together are not all begun and none finished.
// After an error the deadline stands for what is thrown away of the body.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, tenant string) (body []byte, release func(), err error) {
	control := http.NewResponseController(w)
	// A writer without deadlines (a recorder) has nothing that could block.
	_ = control.SetReadDeadline(time.Now().Add(g.config.BodyTimeout))
	m := &metered{Reader: r.Body, budget: g.bodies, tenant: tenant}
	if r.ContentLength > g.config.BodyBytesMax {
		err = fault.New(fault.TooLarge, "the body has %d bytes, the limit is %d", r.ContentLength, g.config.BodyBytesMax)
	} else if err = m.reserve(max(r.ContentLength, 0)); err == nil { // in chunks no length is known
		body, err = io.ReadAll(io.LimitReader(m, g.config.BodyBytesMax+1))
	}
	if err == nil && int64(len(body)) > g.config.BodyBytesMax {
		err = fault.New(fault.TooLarge, "the body is over the limit of %d bytes", g.config.BodyBytesMax)
	}
	if err != nil {
		m.release()
		return nil, nil, g.bodyError(r, int64(len(body)), err)
	}
	// From here on only the client's going away is read.
	_ = control.SetReadDeadline(time.Time{})
	return body, m.release, nil
}

// bodyError says why a body was not read. What the client still sends is taken and
// thrown away where that is not too much, because a client that is in the middle of
// sending does not read an answer.
func (g *Gateway) bodyError(r *http.Request, read int64, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Invalid, "the body did not come in whole within %s", g.config.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF) && r.ContentLength >= 0:
		return fault.New(fault.Invalid, "the body ended after %d bytes, %d were announced", read, r.ContentLength)
	case fault.Of(err) == fault.Internal: // net/http's, not ours
		return fault.New(fault.Invalid, "the body did not come in whole, it broke off after %d bytes", read)
	}
	discardMax := discardFactor * g.config.BodyBytesMax
	if r.Header.Get("Expect") == "" && r.ContentLength <= discardMax {
		_, _ = io.CopyN(io.Discard, r.Body, discardMax) // what matters is that it was read, not how it ended
	}
	return err
}

// discardFactor is how many times the largest body a refused one may have and still
// be answered for certain.
const discardFactor = 4

// heavy waits for the tenant's place for heavy bodies, if the body is one: parsing and
// tokenizing it takes a core for a while, and a tenant shall have one of those.
func (g *Gateway) heavy(ctx context.Context, tenant string, body []byte) (leave func(), err error) {
	if int64(len(body)) <= g.config.HeavyBodyBytes {
		return func() {}, nil
	}
	if err := g.heavies.enter(ctx, tenant); err != nil {
		return nil, err
	}
	return func() { g.heavies.leave(tenant) }, nil
}
