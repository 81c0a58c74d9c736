package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestTheBuiltInModelAnswersFromItsContext(t *testing.T) {
	start := time.Now()
	s := serve(t)
	up := time.Since(start)
	prompt, want := planted(0, 5, 3000)
	r := s.complete(t, 0, prompt, len(want))
	t.Logf("measured ready after %v, first answer after %v", up.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if r.text() != want {
		t.Errorf("answer is %q, the context says %q", r.text(), want)
	}
	if status, body := s.get(t, "/readyz"); status != 200 {
		t.Errorf("readyz is %d: %s", status, body)
	}
	if status, body := s.get(t, "/metrics"); status != 200 || strings.Contains(body, want) || strings.Contains(body, s.key(0)) {
		t.Errorf("metrics have status %d or carry text or a key", status)
	}
	if out := s.output(); strings.Contains(out, want) || strings.Contains(out, "speaks of tenant") {
		t.Error("the log carries prompt or answer")
	}
}

// Two tenants at once, each with secrets of its own: everybody gets exactly their own.
func TestTwoTenantsGetTheirOwn(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			s := serve(t, "--prefills", "2", "--decodes", "2", "--transfer", transport)
			n := 200
			if testing.Short() {
				n = 40
			}
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					tenant := i % 2
					prompt, want := planted(tenant, i, 200+i*37%3000)
					if got := s.complete(t, tenant, prompt, len(want)).text(); got != want {
						t.Errorf("request %d of tenant %d got %q, want %q", i, tenant, got, want)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestTheOfficialSDKs(t *testing.T) {
	model := smollm2(t)
	oracle := os.Getenv("BULKHEAD_ORACLE")
	python := os.Getenv("BULKHEAD_PYTHON")
	if oracle == "" || python == "" {
		t.Skip("BULKHEAD_ORACLE and BULKHEAD_PYTHON name no SDKs")
	}
	s := serve(t, model)
	env := append(os.Environ(), "BULKHEAD_URL="+s.URL, "BULKHEAD_MODEL="+s.Model, fmt.Sprintf("BULKHEAD_KEYS=%s,%s", s.key(0), s.key(1)))
	run := func(name string, cmd *exec.Cmd) {
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		t.Logf("%s:\n%s", name, out)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	run("python", exec.Command(python, "../sdk/openai_sdk.py"))
	// Node resolves packages from the script's folder, so the script goes beside them.
	script, err := os.ReadFile("../sdk/openai_sdk.mjs")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "--input-type=module", "-")
	cmd.Dir, cmd.Stdin = oracle+"/..", strings.NewReader(string(script))
	run("node", cmd)
}
