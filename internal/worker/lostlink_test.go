package worker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// brokenLink is a link whose writes fail from some page on: its end has gone.
type brokenLink struct {
	transport.Link
	pages int // that still go through
}

func (l *brokenLink) Write(p transport.Page) error {
	if l.pages--; l.pages < 0 {
		return errors.New("the other end is gone")
	}
	return l.Link.Write(p)
}

// The link ends at each page of a chunk of several: the transfer is given up, the
// worker goes on, every page comes back.
func TestALinkThatEndsInTheMiddleOfAChunk(t *testing.T) {
	m := smallModel(t)
	for pages := range 8 {
		p := startPair(t, m, pairConfig{prefillPages: 30, decodePages: 30, context: testContext})
		broken := false
		o := p.run(t.Context(), p.job(promptOf(200), 3), func(r cluster.Role, e cluster.Event) {
			if r == cluster.Prefill && e.Kind == cluster.Accepted {
				// Events are emitted by the loop: nothing else looks at the links now.
				for peer, link := range p.prefill.links.byID {
					p.prefill.links.byID[peer], broken = &brokenLink{link, pages}, true
				}
			}
		})
		if !broken {
			t.Fatal("the link was not there to be broken")
		}
		if e := last(o.decode); e.Kind != cluster.Failed {
			t.Errorf("link lost at page %d: decode ended with %+v, want a failure", pages, e)
		}
		p.idle(t)
		want, root := solo(t, m, promptOf(40), 3)
		p.await(t, "a link", func(s cluster.Status) bool { return len(s.Peers) == 1 && s.Peers[0].Up })
		checkAnswer(t, fmt.Sprintf("after a link that was lost at page %d", pages), p.run(t.Context(), p.job(promptOf(40), 3), nil), 40, want, root)
	}
}
