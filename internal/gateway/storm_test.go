package gateway

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// cut says when a request's client goes away.
type cut struct {
	phase string
	at    func(role cluster.Role, e *cluster.Event) bool // nil: never
}

var cuts = []cut{
	{"never", nil},
	{"at once", func(cluster.Role, *cluster.Event) bool { return true }},
	{"prefill", func(r cluster.Role, e *cluster.Event) bool { return r == cluster.Prefill && e.Kind == cluster.Progress }},
	{"transfer", func(r cluster.Role, e *cluster.Event) bool { return e.Kind == cluster.Committed }},
	{"first token", func(r cluster.Role, e *cluster.Event) bool { return e.Kind == cluster.Token && e.Index == 0 }},
	{"decode", func(r cluster.Role, e *cluster.Event) bool { return e.Kind == cluster.Token && e.Index == 4 }},
	{"last byte", func(r cluster.Role, e *cluster.Event) bool { return r == cluster.Decode && e.Kind == cluster.Finished }},
}

// stormRequests are sent, a few at a time, with room for fewer, so that some
// wait; each is cut in a random phase. Whoever is left gets their own text, and
// nothing is left counted, queued or open (the bench looks when it is closed).
const stormRequests = 700

func TestDisconnectStorm(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t, setup{members: []cluster.Member{member("p", cluster.Prefill, 16), member("d", cluster.Decode, 16), member("dd", cluster.Decode, 16)}})
	storm := &storm{cancels: map[string]context.CancelFunc{}, plans: map[string]cut{}}
	b.cluster.setHook(storm.hook)
	counts := map[string]int{}
	slots := make(chan struct{}, 24)
	var all sync.WaitGroup
	for i := range stormRequests {
		plan := cuts[random.IntN(len(cuts))]
		counts[plan.phase]++
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			storm.ask(b, fmt.Sprintf("%04d of the storm", i), plan, i%2 == 0)
		})
	}
	all.Wait()
	b.settled()
	b.client.CloseIdleConnections()
	t.Logf("seed %d, cuts by phase %v", seed, counts)
}

// storm cuts clients when the hook sees their moment. Requests are told apart by
// the first four bytes of their text.
type storm struct {
	mu      sync.Mutex
	plans   map[string]cut
	cancels map[string]context.CancelFunc
}

func (s *storm) hook(ctx context.Context, job cluster.Job, role cluster.Role, e *cluster.Event) error {
	var name strings.Builder
	for _, id := range job.Tokens[1:5] {
		name.WriteByte(byte(id))
	}
	s.mu.Lock()
	plan, cancel := s.plans[name.String()], s.cancels[name.String()]
	s.mu.Unlock()
	if plan.at != nil && plan.at(role, e) {
		cancel()
		<-ctx.Done() // the cut reaches the gateway before the event does
	}
	return nil
}

func (s *storm) ask(b *bench, text string, plan cut, stream bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	s.plans[text[:4]], s.cancels[text[:4]] = plan, cancel
	s.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/chat/completions", strings.NewReader(chat(text, fmt.Sprintf(`"stream":%v`, stream))))
	if err != nil {
		b.t.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+b.keys["ada"])
	resp, err := b.client.Do(r)
	if err != nil {
		if plan.at == nil {
			b.t.Errorf("%s: %v", text, err)
		}
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if plan.at != nil {
		return // the client is gone; what it got is of no matter
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Errorf("%s: %v", text, err)
	}
	said := string(body)
	if stream {
		said, _ = spoken(b.t, events(b.t, strings.NewReader(said)), 0)
	}
	if resp.StatusCode != 200 || !strings.Contains(said, text) {
		b.t.Errorf("%s: status %d, answer %s", text, resp.StatusCode, said)
	}
}
