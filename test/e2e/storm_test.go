package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// seed is printed by each storm and can be given again with E2E_SEED.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if text := os.Getenv("E2E_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (E2E_SEED=%d go test -run '^%s$' ./test/e2e)", n, n, t.Name())
	return rand.New(rand.NewPCG(n, 1))
}

// stream asks for a streamed completion. each is called for every piece of text and
// says whether to go on; false hangs up. It returns the text, whether [DONE] came,
// and what went wrong.
func (s *server) stream(ctx context.Context, key, prompt string, maxTokens int, each func(pieces int) bool) (text string, done bool, err error) {
	text, _, done, err = s.streamID(ctx, key, prompt, maxTokens, each)
	return text, done, err
}

// streamID is stream that gives the response's id, too.
func (s *server) streamID(ctx context.Context, key, prompt string, maxTokens int, each func(pieces int) bool) (text, id string, done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := json.Marshal(object{"model": s.Model, "prompt": prompt, "max_tokens": maxTokens, "temperature": 0, "stream": true})
	if err != nil {
		return "", "", false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return "", "", false, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := s.http().Do(req)
	if err != nil {
		return "", "", false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		var r reply
		_ = json.NewDecoder(resp.Body).Decode(&r)
		return "", "", false, fmt.Errorf("status %d: %+v", resp.StatusCode, r.Error)
	}
	pieces := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		if !isData {
			continue
		}
		if data == "[DONE]" {
			return text, id, true, nil
		}
		var r reply
		if err := json.Unmarshal([]byte(data), &r); err != nil {
			return text, id, false, err
		}
		if r.Error != nil {
			return text, id, false, fmt.Errorf("error event: %+v", *r.Error)
		}
		id = r.ID
		if piece := r.text(); piece != "" {
			text += piece
			if pieces++; !each(pieces) {
				return text, id, false, context.Canceled
			}
		}
	}
	return text, id, false, fmt.Errorf("stream ended without [DONE]")
}

func always(int) bool { return true }

// pid is the process of a child, found by its command line; 0 while it is not running.
func (s *server) pid(name string) int {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(s.cmd.Process.Pid), "-f", "ledger/"+name+"( |$)").Output()
	pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return pid
}

// running waits for a child to run and gives its process.
func (s *server) running(t *testing.T, name string) int {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if pid := s.pid(name); pid > 0 {
			return pid
		}
	}
	t.Fatalf("%s does not run", name)
	return 0
}

var gauge = regexp.MustCompile(`(?m)^(bulkhead_worker_[a-z_]+)\{([^}]*)\} ([0-9.e+]+)$`)

// workerGauges reads what /metrics says of each worker.
func (s *server) workerGauges(t *testing.T) map[string]float64 {
	t.Helper()
	status, body := s.get(t, "/metrics")
	if status != 200 {
		t.Fatalf("metrics: status %d", status)
	}
	found := map[string]float64{}
	for _, m := range gauge.FindAllStringSubmatch(body, -1) {
		v, _ := strconv.ParseFloat(m[3], 64)
		found[m[1]+"{"+m[2]+"}"] = v
	}
	return found
}

// idle waits until every worker is there and says that all its pages are free.
func (s *server) idle(t *testing.T) {
	t.Helper()
	var last map[string]float64
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		last = s.workerGauges(t)
		free, total, down := 0.0, 0.0, 0
		for name, v := range last {
			if strings.HasPrefix(name, "bulkhead_worker_up{") && v != 1 {
				down++
			}
			if strings.Contains(name, `state="free"`) {
				free += v
			}
			if strings.Contains(name, `state="pool"`) {
				total += v
			}
		}
		if total > 0 && free == total && down == 0 {
			return
		}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		t.Logf("%s %g", name, last[name])
	}
	t.Fatalf("pages are missing 30 s after the last request\n%s", tail(s.output()))
}

func tail(s string) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// hangs is what no client waits, however loaded the machine; what it should wait is
// printed, not asserted.
const hangs = 30 * time.Second

// next demands that a request works soon after a kill.
func (s *server) next(t *testing.T, victim string) {
	t.Helper()
	prompt, want := planted(1, 77, 300)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := s.post(t.Context(), s.key(1), "/v1/completions", object{"prompt": prompt, "max_tokens": len(want), "temperature": 0})
		if err == nil && r.Status == 200 {
			if r.text() != want {
				t.Errorf("after a kill of %s: answer is %q, want %q", victim, r.text(), want)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no request works 20 s after a kill of %s: %v %+v\n%s", victim, err, r, tail(s.output()))
		}
	}
}

// A stopped worker is fenced, not waited for.
func TestStoppedWorkersAreFenced(t *testing.T) {
	random := seed(t)
	s := serve(t, "--prefills", "2", "--decodes", "2", "--log-level", "error")
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	worst := time.Duration(0)
	for i := range rounds {
		victim := []string{"p0", "d0", "p1", "d1", "p0"}[i]
		pid := s.running(t, victim)
		var wg sync.WaitGroup
		for k := range 6 {
			prompt, want := planted(k, random.IntN(10000), 4000)
			wg.Go(func() {
				begun := time.Now()
				text, done, err := s.stream(t.Context(), s.key(k), prompt, len(want), always)
				if done && text != want || !strings.HasPrefix(want, text) {
					t.Errorf("%s stopped: got %q, %v, want %q", victim, text, err, want)
				}
				if took := time.Since(begun); took > hangs {
					t.Errorf("%s stopped: a client waited %v", victim, took)
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		begun := time.Now()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Errorf("stop %s: %v", victim, err)
		}
		wg.Wait()
		worst = max(worst, time.Since(begun))
		s.next(t, victim)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		s.next(t, victim)
	}
	t.Logf("measured longest wait for the last of six clients after a stop: %v", worst.Round(time.Millisecond))
	s.idle(t)
}
