package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
)

// noEvent is given where no worker's event is behind a record.
var noEvent = cluster.Event{}

// deliver writes the answer. It returns nil when the whole of it was written,
// else why not; the client has been told if it could be.
func (c *call) deliver(ctx context.Context, w http.ResponseWriter, f form) error {
	if c.options.Stream {
		return c.deliverStream(ctx, w, f)
	}
	return c.deliverWhole(ctx, w, f)
}

func (c *call) deliverWhole(ctx context.Context, w http.ResponseWriter, f form) error {
	var deltas []delta
	left, generated := len(c.choices), 0
	for left > 0 {
		select {
		case <-ctx.Done():
			err := context.Cause(ctx)
			if fault.Of(err) != fault.Cancelled {
				c.writeDeadline(w)
				writeError(w, c.concerning(err))
			}
			return err
		case <-c.out.wake:
		}
		for _, d := range c.out.take() {
			deltas = append(deltas, d)
			if d.finish != "" {
				left--
				generated += d.tokens
			}
		}
	}
	writeJSON(w, http.StatusOK, f.whole(deltas, c.usage(generated)))
	return nil
}

// writeDeadline bounds the next write of an answer that has begun.
func (c *call) writeDeadline(w http.ResponseWriter) {
	// A writer without deadlines (a recorder) has nothing that could block.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.gateway.config.WriteTimeout))
}

// deliverStream writes server-sent events. Until the first one is due, a failure
// is an HTTP status; after that it is an error event, and there is no [DONE].
func (c *call) deliverStream(ctx context.Context, w http.ResponseWriter, f form) error {
	s := &eventStream{call: c, w: w, form: f}
	keepAlive := time.NewTicker(c.gateway.config.KeepAlive)
	defer keepAlive.Stop()
	left, generated := len(c.choices), 0
	for left > 0 && ctx.Err() == nil {
		var err error
		select {
		case <-ctx.Done():
		case <-keepAlive.C:
			if c.dispatched.Load() {
				err = s.comment()
			}
		case <-c.out.wake:
			for _, d := range c.out.take() {
				if d.finish != "" {
					left--
					generated += d.tokens
				}
				if err == nil && ctx.Err() == nil {
					err = s.events(f.event(d)...)
				}
			}
			if err == nil {
				err = s.flush()
			}
		}
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return s.fail(context.Cause(ctx))
	}
	return s.end(c.usage(generated))
}

// eventStream writes the events of one answer.
type eventStream struct {
	call   *call
	w      http.ResponseWriter
	form   form
	begun  bool // the header was sent
	opened bool // the form's first events were
}

// begin sends the header. Requires: a pair was found, so that whatever is
// refused by status has been.
func (s *eventStream) begin() {
	s.call.writeDeadline(s.w)
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

// events writes events, before the first ones those with which the form begins.
func (s *eventStream) events(events ...any) error {
	s.begin()
	if !s.opened {
		s.opened = true
		events = append(s.form.begin(), events...)
	}
	for _, e := range events {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := s.write("data: " + string(data) + "\n\n"); err != nil {
			return err
		}
	}
	return nil
}

// comment keeps proxies and clients from giving up on a silent stream.
func (s *eventStream) comment() error {
	s.begin()
	if err := s.write(": keep-alive\n\n"); err != nil {
		return err
	}
	return s.flush()
}

// end is the regular end, after every choice's finish.
func (s *eventStream) end(u *openai.Usage) error {
	if s.call.options.IncludeUsage {
		if err := s.events(s.form.usage(u)); err != nil {
			return err
		}
	}
	if err := s.write("data: [DONE]\n\n"); err != nil {
		return err
	}
	return s.flush()
}

// fail tells the client why there is no more, by status if that is still
// possible, and returns the reason.
func (s *eventStream) fail(cause error) error {
	if fault.Of(cause) == fault.Cancelled {
		return cause
	}
	if !s.begun {
		s.call.writeDeadline(s.w)
		writeError(s.w, s.call.concerning(cause))
		return cause
	}
	s.opened = true
	body, _, _ := apiError(s.call.concerning(cause))
	if s.events(body.Body()) == nil {
		_ = s.flush() // the cause is what counts
	}
	return cause
}

func (s *eventStream) write(text string) error {
	if _, err := io.WriteString(s.w, text); err != nil {
		return fault.New(fault.Cancelled, "write to the client: %w", err)
	}
	return nil
}

func (s *eventStream) flush() error {
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		return fault.New(fault.Cancelled, "write to the client: %w", err)
	}
	return nil
}
