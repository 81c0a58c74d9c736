package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// namedLink is the other end's name, all that a log line wants of a link.
type namedLink struct{ transport.Link }

func (namedLink) Peer() transfer.Hello { return transfer.Hello{Node: "p0"} }

// What happens at every disconnect and every end is not for an operator to read;
// what never should is.
func TestLevelsOfLinkLines(t *testing.T) {
	down := func(err error) func(*base) {
		return func(b *base) { b.logDown(transport.Event{Link: namedLink{}, Err: err}) }
	}
	refused := func(r transport.Refusal) func(*base) {
		return func(b *base) { b.logRefused(transport.Event{Refusal: r}) }
	}
	for _, c := range []struct {
		name     string
		draining bool
		log      func(*base)
		want     string
	}{
		{"a peer's end", false, down(fmt.Errorf("receive: %w", transport.ErrEnded)), "INFO"},
		{"a broken link", false, down(transport.ErrSilent), "WARN"},
		{"a broken link in a drain", true, down(transport.ErrSilent), "DEBUG"},
		{"a late page", false, refused(transport.TransferEnded), "DEBUG"},
		{"a page that its link cut", false, refused(transport.Cut), "DEBUG"},
		{"a foreign page", false, refused(transport.ForeignTransfer), "WARN"},
	} {
		var out bytes.Buffer
		b := &base{Config: Config{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}, draining: c.draining}
		c.log(b)
		if !strings.Contains(out.String(), "level="+c.want) {
			t.Errorf("%s is logged as %q, want level %s", c.name, out.String(), c.want)
		}
	}
}

// Whoever can connect can be refused as often as it likes.
func TestRefusedLinksDoNotFloodTheLog(t *testing.T) {
	var out bytes.Buffer
	p := &Prefill{base: &base{Config: Config{Log: slog.New(slog.NewTextHandler(&out, nil))}}}
	for range 1000 {
		p.logRejected(transport.ErrProtocol)
	}
	p.now += rejectedTicks
	p.logRejected(transport.ErrProtocol)
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.Contains(out.String(), "refused_since_the_last_line=1000") {
		t.Errorf("1001 refusals in two spans of time give %d lines, want 2, the second with 1000: %s", lines, &out)
	}
}
