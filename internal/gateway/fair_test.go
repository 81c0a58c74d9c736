package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// stall holds ada's jobs at decode until they are cancelled, and lets bob's through.
func (b *bench) stall() {
	first := make(chan kv.TenantTag, 1) // ada asks first
	b.cluster.setHook(func(ctx context.Context, job cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role != cluster.Decode || e.Kind != cluster.Committed {
			return nil
		}
		select {
		case first <- job.Tenant:
		default:
		}
		ada := <-first
		if first <- ada; job.Tenant != ada {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
}

// post lets ada ask and not wait for the answer; the result hangs up.
func (b *bench) post(body string) (hangUp func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := b.client.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (b *bench) running() int {
	b.gateway.dispatch.mu.Lock()
	defer b.gateway.dispatch.mu.Unlock()
	return b.gateway.dispatch.running
}

// One tenant's request for all that there is waits for that tenant's own stream, and
// nobody else waits for it, however often it hangs up and asks anew.
func TestATenantInItsOwnWayStopsNobodyElse(t *testing.T) {
	b := newBench(t, setup{})
	b.stall()
	defer b.post(chat("x", `"max_tokens":100`))()
	b.until(func() bool { return b.running() == 1 })
	whole := chat("x", `"max_tokens":1000`)
	hangUp := b.post(whole)
	b.until(func() bool { return b.gateway.dispatch.queued() == 1 })
	for range 20 {
		next := b.post(whole)
		b.until(func() bool { return b.gateway.dispatch.queued() == 2 })
		hangUp()
		hangUp = next
		if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hello", `"max_tokens":200`))); status != 200 {
			t.Fatalf("bob gets %d, %s", status, text)
		}
		b.until(func() bool { return b.gateway.dispatch.queued() == 1 })
	}
	hangUp()
}

// A tenant may ask for more than there is at one time: its running requests leave
// room for the next tenant's.
func TestATenantLeavesRoomForTheNext(t *testing.T) {
	b := newBench(t, setup{})
	b.stall()
	for range 20 {
		defer b.post(chat("x", `"max_tokens":100`))()
	}
	b.until(func() bool { return b.running()+b.gateway.dispatch.queued() == 20 })
	if n := b.running(); n < 4 || b.gateway.dispatch.queued() == 0 {
		t.Errorf("%d of ada's requests run and %d wait, want most of the room used", n, b.gateway.dispatch.queued())
	}
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hello", `"max_tokens":100`))); status != 200 {
		t.Fatalf("bob gets %d, %s", status, text)
	}
}
