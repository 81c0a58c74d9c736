package e2e

import (
	"sync"
	"testing"
)

// Two prefill and two decode workers, two tenants, 200 requests at once on a real
// model: every answer and the digest of every page is that of the request alone.
func TestConcurrentAnswersAndPagesAreThoseOfSoloRuns(t *testing.T) {
	model := smollm2(t)
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) {
			s := serve(t, model, "--prefills", "2", "--decodes", "2", "--transfer", transport, "--context", "1024", "--prefill-pool", "4096", "--decode-pool", "4096", "--threads", "1", "--queue-timeout", "10m")
			questions := make([]string, 20)
			solo := make([]reply, len(questions))
			for i := range questions {
				prompt, _ := planted(i%2, i, 60+i*11)
				questions[i] = prompt
				solo[i] = s.complete(t, i%2, prompt, 8)
			}
			const n = 200
			crowd := make([]reply, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { crowd[i] = s.complete(t, i%2, questions[i%len(questions)], 8) })
			}
			wg.Wait()
			roots, requests := s.roots(t, 2), s.requests(t)
			same := 0
			for i, r := range crowd {
				alone := solo[i%len(questions)]
				root, aloneRoot := roots[requests.of(t, r.ID)], roots[requests.of(t, alone.ID)]
				if r.text() != alone.text() || root == "" || root != aloneRoot {
					t.Errorf("request %d got %q with pages %x, alone %q with %x", i, r.text(), root, alone.text(), aloneRoot)
					continue
				}
				same++
			}
			t.Logf("measured %d of %d answers and page digests equal to the solo run, over %s", same, n, transport)
		})
	}
}
