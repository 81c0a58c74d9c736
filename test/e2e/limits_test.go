package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// limit is what /v1/models advertises.
func (s *server) limit(t *testing.T) int {
	t.Helper()
	_, body := s.get(t, "/v1/models/"+s.Model)
	var m struct {
		ContextLength int `json:"context_length"`
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("model: %v: %s", err, body)
	}
	return m.ContextLength
}

// promptOf is a text of exactly that many tokens of the built-in model: a byte
// each, and one that begins every sequence.
func promptOf(tokens int) string {
	return strings.Repeat("All of it is text. ", tokens/19+1)[:tokens-1]
}

// Each of the three can be the smallest. The limit answers; one more is refused
// with both numbers, and neither worker hears of it.
func TestTheSmallestOfContextAndPoolsIsTheLimit(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"served context", []string{"--context", "512"}, 512},
		{"prefill pool, auto", []string{"--prefill-pool", "512"}, 512},
		{"decode pool, auto", []string{"--decode-pool", "512"}, 512},
		{"second prefill and decode workers, auto", []string{"--prefills", "2", "--decodes", "2", "--prefill-pool", "1024", "--decode-pool", "512"}, 512},
		{"context above one pool's half, explicit", []string{"--context", "512", "--prefill-pool", "512", "--decode-pool", "4096"}, 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.args...)
			if got := s.limit(t); got != c.want {
				t.Fatalf("limit is %d, want %d", got, c.want)
			}
			at := s.complete(t, 0, promptOf(c.want), 1)
			if at.Usage.PromptTokens != c.want {
				t.Fatalf("prompt was %d tokens, want %d", at.Usage.PromptTokens, c.want)
			}
			tag := s.tagOf(t, s.requests(t).of(t, at.ID))
			before := s.traces(t, tag)
			for _, stream := range []bool{false, true} {
				over, err := s.post(t.Context(), s.key(0), "/v1/completions", object{"prompt": promptOf(c.want + 1), "max_tokens": 1, "stream": stream})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d tokens: %d %+v", c.want+1, over.Status, over.Error)
				if over.Status != 400 || over.Error == nil || over.Error.Code != "context_length_exceeded" ||
					!strings.Contains(over.Error.Message, strconv.Itoa(c.want)) || !strings.Contains(over.Error.Message, strconv.Itoa(c.want+1)) {
					t.Errorf("one token over the limit: status %d, %+v", over.Status, over.Error)
				}
			}
			if after := s.traces(t, tag); after != before {
				t.Errorf("refused requests left traces at the workers: %s before, %s after", before, after)
			}
			clamped := s.complete(t, 0, promptOf(c.want-3), 1000)
			if clamped.Usage.CompletionTokens > 4 {
				t.Errorf("prompt three below the limit got %d tokens, room was for 4", clamped.Usage.CompletionTokens)
			}
		})
	}
}

// tagOf is the tenant's tag in the ledgers.
func (s *server) tagOf(t *testing.T, request uint64) kv.TenantTag {
	t.Helper()
	for _, e := range s.entries(t, "gateway") {
		if e.Request == request && e.Tenant != 0 {
			return e.Tenant
		}
	}
	t.Fatalf("the gateway's ledger has no request %d", request)
	return 0
}

// traces counts what a tenant left in the ledgers: jobs, grants and allocations.
// Probes are another tenant's.
func (s *server) traces(t *testing.T, tag kv.TenantTag) string {
	t.Helper()
	counts := map[string]int{}
	for _, node := range []string{"gateway", "p0", "d0", "p1", "d1"} {
		for _, e := range s.entries(t, node) {
			if e.Tenant == tag {
				counts[node+" "+e.Event]++
			}
		}
	}
	return fmt.Sprint(counts)
}

func TestAPoolBelowTheDemandedContextRefusesToStart(t *testing.T) {
	for _, pool := range []string{"--prefill-pool", "--decode-pool"} {
		out, err := exec.Command(binary, "serve", "--home", t.TempDir(), "--listen", "127.0.0.1:0", "--context", "1024", pool, "512").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "512") || !strings.Contains(string(out), "1024") || !strings.Contains(string(out), "add 512 tokens") {
			t.Errorf("%s below the context: %v, says %q, want a refusal with both numbers and what to change", pool, err, out)
		}
		if strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s below the context: %d lines, want one", pool, strings.Count(string(out), "\n"))
		}
	}
}
