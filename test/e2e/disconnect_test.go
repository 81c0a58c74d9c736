package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// question is a prompt with the answer and the page digest of its solo run.
type question struct {
	prompt, want, root string
}

// Clients hang up in every phase of a request. What survives is answered as if it
// were alone, page digests included; pages and queue places come back.
func TestDisconnectStorm(t *testing.T) {
	random := seed(t)
	requests, least := 2000, 50
	if testing.Short() {
		requests, least = 200, 0
	}
	flags := []string{"--prefill-pool", "8192", "--decode-pool", "8192", "--context", "4096", "--log-level", "error"}
	s := serve(t, flags...)
	calm := serve(t, flags...)
	questions := s.soloQuestions(t, 40)
	before := firstTokens(t, s, calm, questions, 200)

	c := &cutter{server: s, questions: questions, survivors: map[string]string{}, latest: map[string]time.Duration{}}
	phases := map[string]int{}
	batch := min(requests, 500)
	for asked := 0; asked < requests || c.scarce != "" && asked < 3*requests; asked += batch {
		c.run(t, random, batch)
		s.idle(t)
		phases = s.phases(t)
		phases["last byte"] += c.lastByte
		c.scarce, c.asked = scarcest(phases, least), asked+batch
	}
	after := firstTokens(t, s, calm, questions, 200)
	for _, name := range slices.Sorted(maps.Keys(phases)) {
		t.Logf("measured %d in phase %s", phases[name], name)
	}
	for _, name := range cutPhases {
		if phases[name] < least {
			t.Errorf("%d requests were cut in phase %s, want at least %d", phases[name], name, least)
		}
	}
	t.Logf("measured %d requests, %d survived, %d wrong", c.asked, len(c.survivors), c.wrong)
	slower, low, high := ratioOfMedians(random, after, before)
	t.Logf("measured time to the first token over that of an untouched server, after the storm against before: %.3f [%.3f, %.3f]", slower, low, high)
	if low > 1.05 {
		t.Errorf("after the storm the first token takes %.3f [%.3f, %.3f] times as long as before, want at most 1.05", slower, low, high)
	}
	roots, numbers := s.roots(t, 1), s.requests(t)
	for id, root := range c.survivors {
		if got := fmt.Sprintf("%x", roots[numbers.of(t, id)]); got != root {
			t.Errorf("answer %s had pages %s, alone %s", id, got, root)
		}
	}
}

// One tenant cancels long prompts in the middle of their transfer over TCP, again and
// again. The other one's requests share workers and link with them: they are answered,
// rightly, and no attempt of anybody is lost with a link.
func TestACancelStormOverTCPCostsOthersNothing(t *testing.T) {
	random := seed(t)
	requests := 120
	if testing.Short() {
		requests = 40
	}
	s := serve(t, "--transfer", "tcp", "--prefill-pool", "16384", "--decode-pool", "16384", "--context", "4096", "--log-level", "error")
	ctx, calm := context.WithCancel(t.Context())
	defer calm()
	var stormers sync.WaitGroup
	var cut atomic.Int64
	for i := range 6 {
		r := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		stormers.Go(func() {
			for ctx.Err() == nil {
				prompt, want := planted(0, i, 3500)
				after := time.Duration(5+r.IntN(120)) * time.Millisecond
				hang, hangUp := context.WithTimeout(ctx, after)
				if _, done, _ := s.stream(hang, s.key(0), prompt, len(want), always); !done {
					cut.Add(1)
				}
				hangUp()
			}
		})
	}
	var asked sync.WaitGroup
	work := make(chan int)
	for range 4 {
		asked.Go(func() {
			for i := range work {
				prompt, want := planted(1, i, 200+i*17%2500)
				r, err := s.post(t.Context(), s.key(1), "/v1/completions", object{"prompt": prompt, "max_tokens": len(want), "temperature": 0})
				if err != nil || r.Status != 200 || r.text() != want {
					t.Errorf("request %d beside the storm: status %d, %v, %+v, text %q, want %q", i, r.Status, err, r.Error, r.text(), want)
				}
			}
		})
	}
	for i := range requests {
		work <- i
	}
	close(work)
	asked.Wait()
	calm()
	stormers.Wait()
	t.Logf("measured %d requests beside %d cancelled ones", requests, cut.Load())
	if cut.Load() < int64(requests)/4 {
		t.Errorf("only %d requests were cancelled, that is no storm", cut.Load())
	}
	_, metrics := s.get(t, "/metrics")
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, `bulkhead_retries_total{reason="lost"}`) {
			t.Errorf("attempts were lost: %s", line)
		}
	}
	s.idle(t)
}

// soloQuestions asks each question alone and keeps the digest of its pages.
func (s *server) soloQuestions(t *testing.T, n int) []question {
	t.Helper()
	questions := make([]question, n)
	ids := make([]string, n)
	for i := range questions {
		prompt, want := planted(i%2, i, 200+i*30)
		r := s.complete(t, i%2, prompt, len(want))
		if r.text() != want {
			t.Fatalf("alone, question %d got %q, want %q", i, r.text(), want)
		}
		questions[i], ids[i] = question{prompt: prompt, want: want}, r.ID
	}
	roots, requests := s.roots(t, 1), s.requests(t)
	for i := range questions {
		if questions[i].root = fmt.Sprintf("%x", roots[requests.of(t, ids[i])]); questions[i].root == "" {
			t.Fatalf("no page digest of answer %s is in the ledger", ids[i])
		}
	}
	return questions
}

// firstTokens asks two servers in turns, one request at a time, n times each. It gives
// the ratios of their times to the first token: what the machine does meanwhile
// is in both times of a pair.
func firstTokens(t *testing.T, s, calm *server, questions []question, n int) []float64 {
	t.Helper()
	ratios := make([]float64, n)
	for i := range ratios {
		q := questions[i%5]
		var pair [2]time.Duration
		for k := range pair {
			which := (i + k) % 2
			pair[which] = []*server{s, calm}[which].firstToken(t, q)
		}
		ratios[i] = float64(pair[0]) / float64(pair[1])
	}
	return ratios
}

func (s *server) firstToken(t *testing.T, q question) (took time.Duration) {
	t.Helper()
	begun := time.Now()
	_, _, err := s.stream(t.Context(), s.key(0), q.prompt, 2, func(pieces int) bool {
		if pieces == 1 {
			took = time.Since(begun)
		}
		return true
	})
	if err != nil || took == 0 {
		t.Fatalf("a request to an idle server has no first token: %v", err)
	}
	return took
}

// ratioOfMedians is the median of over divided by that of under, with a 95 %
// interval by resampling.
func ratioOfMedians(random *rand.Rand, over, under []float64) (ratio, low, high float64) {
	sample := func(of []float64) float64 {
		drawn := make([]float64, len(of))
		for i := range drawn {
			drawn[i] = of[random.IntN(len(of))]
		}
		return median(drawn)
	}
	resampled := make([]float64, 1000)
	for i := range resampled {
		resampled[i] = sample(over) / sample(under)
	}
	slices.Sort(resampled)
	return median(over) / median(under), resampled[25], resampled[974]
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

var cutPhases = []string{"queued", "prefill", "transfer", "before first token", "decode", "last byte"}

// scarcest is the phase with the fewest cuts, if any has less than demanded.
func scarcest(phases map[string]int, least int) string {
	name := slices.MinFunc(cutPhases, func(a, b string) int { return phases[a] - phases[b] })
	if phases[name] >= least {
		return ""
	}
	return name
}

// cutter asks questions and hangs up on many of them.
type cutter struct {
	server    *server
	questions []question
	scarce    string // phase to aim at

	mu              sync.Mutex
	asked           int
	lastByte, wrong int
	survivors       map[string]string        // page digests of their solo runs by the answers' ids
	firsts          []time.Duration          // latest times to the first token
	latest          map[string]time.Duration // the latest of each prompt
}

// run asks count questions, many at a time; a few at a time where the moment that
// is aimed at is short against the noise of a crowd.
func (c *cutter) run(t *testing.T, random *rand.Rand, count int) {
	work := make(chan *rand.Rand)
	var wg sync.WaitGroup
	crowd := 24
	if c.scarce == "before first token" {
		crowd = 2
	}
	for range crowd {
		wg.Go(func() {
			for r := range work {
				c.ask(t, r)
			}
		})
	}
	for range count {
		work <- rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
	}
	close(work)
	wg.Wait()
}

// ask asks one question and hangs up after a time, at a piece of the answer, or
// not at all.
func (c *cutter) ask(t *testing.T, r *rand.Rand) {
	q := c.questions[r.IntN(len(c.questions))]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at, after := c.plan(r, q)
	if after > 0 {
		timer := time.AfterFunc(after, cancel)
		defer timer.Stop()
	}
	begun := time.Now()
	text, id, done, _ := c.server.streamID(ctx, c.server.key(r.IntN(2)), q.prompt, len(q.want), func(pieces int) bool {
		if pieces == 1 {
			c.first(q, time.Since(begun))
		}
		return pieces != at
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !done && at == len(q.want):
		c.lastByte++
	case done && text != q.want:
		c.wrong++
		t.Errorf("a surviving request got %q, want %q", text, q.want)
	case done:
		c.survivors[id] = q.root
	}
}

// plan says at which piece to hang up, or after what time; 0 and 0: not at all.
func (c *cutter) plan(r *rand.Rand, q question) (at int, after time.Duration) {
	early := time.Duration(1 + r.IntN(20_000_000))
	near := time.Duration(float64(c.expected(r, q)) * (0.85 + 0.2*r.Float64()))
	within := time.Duration(float64(c.typical(r)) * r.Float64())
	switch n := r.IntN(10); {
	case n < 8 && c.scarce == "before first token":
		return 0, near
	case n < 6 && c.scarce == "queued":
		return 0, early
	case n < 6 && (c.scarce == "prefill" || c.scarce == "transfer"):
		return 0, max(within, near/2)
	case n == 0 || n < 6 && c.scarce == "decode":
		return 1 + r.IntN(len(q.want)-2), 0
	case n == 1 || n < 6 && c.scarce == "last byte":
		return len(q.want), 0
	case n == 2:
		return 0, early
	case n < 5:
		return 0, within
	case n < 8:
		return 0, near
	}
	return 0, 0
}

func (c *cutter) first(q question, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest[q.prompt] = d
	if c.firsts = append(c.firsts, d); len(c.firsts) > 64 {
		c.firsts = c.firsts[1:]
	}
}

// typical is one of the latest times to the first token.
func (c *cutter) typical(r *rand.Rand) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.firsts) == 0 {
		return 50 * time.Millisecond
	}
	return c.firsts[r.IntN(len(c.firsts))]
}

// expected is what the same question's first token took the last time.
func (c *cutter) expected(r *rand.Rand, q question) time.Duration {
	c.mu.Lock()
	latest := c.latest[q.prompt]
	c.mu.Unlock()
	if latest == 0 {
		return c.typical(r)
	}
	return latest
}

// phases says, from the ledgers, where each request was that its client left.
func (s *server) phases(t *testing.T) map[string]int {
	t.Helper()
	type progress struct{ accepted, computing, computed, adopted bool }
	seen := map[uint64]*progress{}
	of := func(request uint64) *progress {
		if seen[request] == nil {
			seen[request] = &progress{}
		}
		return seen[request]
	}
	request := map[kv.TransferID]uint64{}
	for _, node := range []string{"p0", "d0"} {
		for _, e := range s.entries(t, node) {
			switch e.Event {
			case "open", "grant":
				request[e.X] = e.Request
				of(e.Request).accepted = true
			case "admitted":
				of(request[e.X]).computing = true
			case "computed":
				of(request[e.X]).computed = true
			case "adopted":
				of(request[e.X]).adopted = true
			}
		}
	}
	phases := map[string]int{}
	for _, e := range s.entries(t, "gateway") {
		if e.Event != "failed" {
			continue
		}
		p := seen[e.Request]
		var prompt, output int
		_, _ = fmt.Sscanf(e.Detail, "%d prompt tokens, %d output tokens", &prompt, &output)
		switch {
		case p == nil || !p.accepted:
			phases["queued"]++
		case !p.computed:
			phases["prefill"]++
		case !p.adopted:
			phases["transfer"]++
		case output == 0:
			phases["before first token"]++
		default:
			phases["decode"]++
		}
	}
	return phases
}
