package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// killPhases are where a request is when somebody is killed: nobody has it yet; its
// prompt is being computed; its pages are on their way, the first of them there and
// the last one not, while the rest is computed; its client has the first token; some
// of them; the last one, but not the answer's end.
var killPhases = []string{"idle", "queued", "prefill", "transfer", "first token", "decode", "last byte"}

// The questions of a phase: as long as it takes to be caught there.
var (
	killPromptBytes  = map[string]int{"idle": 100, "queued": 300, "prefill": 4000, "transfer": 4000, "first token": 2000, "decode": 1000, "last byte": 1000}
	killAnswerTokens = map[string]int{"idle": 15, "queued": 15, "prefill": 15, "transfer": 15, "first token": 120, "decode": 1000, "last byte": 60}
)

// killVariants is how many questions each phase has, killRoundsMax how often kills are
// tried again that came too early or too late.
const (
	killVariants  = 2
	killRoundsMax = 6
	decodePace    = 5 // pieces of an answer, from which on a kill is in "decode"
)

// kill is one kill and the request that it was aimed at.
type kill struct {
	role, phase, victim string
	tokens              int       // of the prompt
	begun, at           time.Time // of the request and the kill; at is zero if its moment never came
	took                time.Duration
	what                string // the client got
}

// storm is a run of kills.
type storm struct {
	*server
	random    *rand.Rand
	questions map[string][]question // by phase
	epochs    map[string]string     // by node: of its process
	seen      map[string]bool       // all epochs
	kills     []kill
}

// Each role is killed in each phase of a request. The client gets its answer, a
// retried one or an error, soon; nobody gets a wrong byte; pages come back; the next
// request works, and who was killed is back, as a new incarnation. That a kill fell
// into its phase is seen in the ledgers and by the client; others don't count.
func TestKilledWorkersCostNoPageAndNoWrongByte(t *testing.T) {
	s := &storm{random: seed(t), epochs: map[string]string{}, seen: map[string]bool{}}
	s.server = serve(t, "--prefills", "2", "--decodes", "2", "--context", "8192", "--prefill-pool", "16384", "--decode-pool", "16384", "--tenant-share", "100", "--log-level", "error")
	least := 5
	if testing.Short() {
		least = 1
	}
	for _, node := range []string{"p0", "p1", "d0", "d1", "gateway"} {
		s.epochs[node] = s.incarnation(t, node)
		s.seen[s.epochs[node]] = true
	}
	s.askAlone(t)
	fell := map[string]int{}
	for range killRoundsMax {
		for _, role := range []string{"p", "d", "gateway"} {
			for _, phase := range killPhases {
				for range least - fell[role+" in "+phase] {
					s.kill(t, role, phase)
				}
			}
		}
		if fell = s.fell(t); !slices.ContainsFunc(cells(), func(cell string) bool { return fell[cell] < least }) {
			break
		}
	}
	s.report(t, fell, least)
	s.idle(t)
	s.stop(t)
	s.nothingTwice(t)
}

func cells() (all []string) {
	for _, role := range []string{"p", "d", "gateway"} {
		for _, phase := range killPhases {
			all = append(all, role+" in "+phase)
		}
	}
	return all
}

func (s *storm) report(t *testing.T, fell map[string]int, least int) {
	t.Helper()
	outcomes, worst := map[string]int{}, time.Duration(0)
	for _, k := range s.kills {
		outcomes[k.role+" in "+k.phase+": "+k.what]++
		worst = max(worst, k.took)
	}
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		t.Logf("measured %s %d", name, outcomes[name])
	}
	for _, cell := range cells() {
		if fell[cell] < least {
			t.Errorf("%d kills of %s fell into it, want %d", fell[cell], cell, least)
		}
	}
	t.Logf("measured %d kills, at least %d in each phase, longest wait of a client after one: %v", len(s.kills), least, worst.Round(time.Millisecond))
	if worst > hangs {
		t.Errorf("a client waited %v after a kill: that is a hang", worst)
	}
}

// askAlone asks each question once, with nobody beside it.
func (s *storm) askAlone(t *testing.T) {
	t.Helper()
	s.questions = map[string][]question{}
	for i, phase := range killPhases {
		for k := range killVariants {
			prompt, seal := planted(0, 100*i+k, killPromptBytes[phase])
			answer := s.complete(t, 0, prompt, killAnswerTokens[phase]).text()
			if !strings.HasPrefix(answer, seal) || len(answer) != killAnswerTokens[phase] {
				t.Fatalf("alone, a question of %s got %q, want %d letters that begin with %q", phase, answer, killAnswerTokens[phase], seal)
			}
			s.questions[phase] = append(s.questions[phase], question{prompt: prompt, want: answer})
		}
	}
}

// kill asks a question and kills the role's process when the question is in the phase.
func (s *storm) kill(t *testing.T, role, phase string) {
	t.Helper()
	q := s.questions[phase][s.random.IntN(killVariants)]
	a := &aim{storm: s, t: t, role: role, phase: phase, pids: s.processes(t), answer: len(q.want), any: role}
	if role != "gateway" {
		a.any += strconv.Itoa(s.random.IntN(2))
	}
	release := func() {}
	switch phase {
	case "idle":
		a.shoot(a.any)
	case "queued":
		release = s.occupy(t)
	case "prefill":
		a.delay = time.Duration(1+s.random.IntN(60)) * time.Millisecond
	case "transfer":
		a.delay = time.Duration(40+s.random.IntN(120)) * time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	var aiming sync.WaitGroup
	aiming.Go(func() {
		a.watch(ctx, kv.PagesFor(len(q.prompt)))
		release()
	})
	begun := time.Now()
	text, done, err := s.stream(t.Context(), s.key(0), q.prompt, len(q.want), a.piece)
	ended := time.Now()
	cancel()
	aiming.Wait()
	what := "error"
	switch {
	case done && text == q.want:
		what = "right answer"
	case done:
		t.Errorf("%s killed in %s: answer is %q, want %q", a.victim, phase, text, q.want)
	case !strings.HasPrefix(q.want, text):
		t.Errorf("%s killed in %s: %q was streamed before the error %v, want a beginning of %q", a.victim, phase, text, err, q.want)
	}
	if a.at.IsZero() {
		return // its moment never came
	}
	s.kills = append(s.kills, kill{role: role, phase: phase, victim: a.victim, tokens: len(q.prompt) + 1, begun: begun, at: a.at, took: ended.Sub(a.at), what: what})
	s.next(t, a.victim)
	s.rejoins(t, a.victim)
}

// aim waits for a request to be in a phase, and kills somebody then.
type aim struct {
	storm       *storm
	t           *testing.T
	role, phase string
	any         string         // of the role
	pids        map[string]int // by node
	answer      int            // pieces of the whole answer
	delay       time.Duration  // from the moment that a pair has the request

	mu     sync.Mutex
	holder string // the role's part of the pair, once it is known; protected by mu
	victim string // protected by mu
	at     time.Time
}

// shoot kills the victim, unless somebody was killed already. at is the time before it.
func (a *aim) shoot(victim string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() {
		return
	}
	a.victim, a.at = victim, time.Now()
	if err := syscall.Kill(a.pids[victim], syscall.SIGKILL); err != nil {
		a.t.Errorf("kill %s, process %d: %v", victim, a.pids[victim], err)
	}
}

// watch looks where the request is, until ctx ends.
func (a *aim) watch(ctx context.Context, pages int) {
	switch a.phase {
	case "idle":
	case "queued":
		if a.storm.await(ctx, func(page string) bool { return value(page, "bulkhead_queue_tickets") == 1 }) {
			a.shoot(a.any)
		}
	default:
		var prefill, decode string
		if !a.storm.await(ctx, func(page string) bool {
			prefill, decode = holder(page, "prefill", pages), holder(page, "decode", pages)
			return prefill != "" && decode != ""
		}) {
			return
		}
		a.mu.Lock()
		a.holder = map[string]string{"p": prefill, "d": decode, "gateway": "gateway"}[a.role]
		a.mu.Unlock()
		if a.delay == 0 {
			return // piece says when
		}
		select {
		case <-time.After(a.delay):
			a.shoot(a.holder)
		case <-ctx.Done():
		}
	}
}

// piece is called for each piece of the answer that the client gets.
func (a *aim) piece(pieces int) bool {
	var now bool
	switch a.phase {
	case "first token":
		now = pieces == 1
	case "decode": // at the first of them by which it is known who gives the answer
		now = pieces >= decodePace && pieces < a.answer/2
	case "last byte":
		now = pieces == a.answer
	}
	if !now {
		return true
	}
	a.mu.Lock()
	victim := a.holder
	a.mu.Unlock()
	if victim != "" { // else the answer was faster than the look at who gives it
		a.shoot(victim)
	}
	return true
}

// occupy fills the decode workers with long answers of another tenant, so that a
// request waits. The result lets them go, and may be called again.
func (s *storm) occupy(t *testing.T) (release func()) {
	t.Helper()
	const occupants = 4 // each needs half of a decode worker
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range occupants {
		running.Go(func() {
			_, _, _ = s.stream(ctx, s.key(1), strings.Repeat("the sea is wide and blue. ", 8), 7800, always)
		})
	}
	full, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if !s.await(full, func(page string) bool { return value(page, "bulkhead_running_tickets") == occupants }) {
		t.Error("the decode workers can't be filled")
	}
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
}

// await looks at the metrics until they satisfy cond; false: ctx ended before.
func (s *server) await(ctx context.Context, cond func(page string) bool) bool {
	for ctx.Err() == nil {
		if page, err := s.page(ctx); err == nil && cond(page) {
			return true
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

func (s *server) page(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := s.http().Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// value is that of a metric without labels, -1 if there is none.
func value(page, name string) float64 {
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err == nil {
				return v
			}
		}
	}
	return -1
}

var heldPages = regexp.MustCompile(`(?m)^bulkhead_worker_held_pages\{node="([^"]*)",role="([^"]*)"\} ([0-9.e+]+)$`)

// holder is the worker of that role that a request of so many pages holds, or empty.
func holder(page, role string, pages int) string {
	for _, m := range heldPages.FindAllStringSubmatch(page, -1) {
		if held, err := strconv.ParseFloat(m[3], 64); err == nil && m[2] == role && held >= float64(pages) {
			return m[1]
		}
	}
	return ""
}

var nodeOfProcess = regexp.MustCompile(`(?m)^(\d+) .* \S*/ledger/(\S+)`)

// processes are the children's, by their nodes.
func (s *server) processes(t *testing.T) map[string]int {
	t.Helper()
	out, err := exec.Command("pgrep", "-a", "-P", strconv.Itoa(s.cmd.Process.Pid)).Output()
	if err != nil {
		t.Fatalf("list the server's children: %v", err)
	}
	all := map[string]int{}
	for _, m := range nodeOfProcess.FindAllStringSubmatch(string(out), -1) {
		all[m[2]], _ = strconv.Atoi(m[1])
	}
	return all
}

// incarnation is the epoch of a node's newest process that has opened its ledger.
func (s *server) incarnation(t *testing.T, node string) string {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(s.home, "ledger", node, "*.ledger"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("%s has no ledger: %v", node, err)
	}
	f, err := os.Open(slices.Max(segments))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var header struct {
		Epoch string `json:"epoch"`
	}
	line, _ := bufio.NewReader(f).ReadBytes('\n')
	_ = json.Unmarshal(line, &header) // half a line is of a process that is not ready
	return header.Epoch
}

// rejoins demands that a victim is back, under an epoch that nobody had, and gets
// requests again.
func (s *storm) rejoins(t *testing.T, victim string) {
	t.Helper()
	labels := fmt.Sprintf(`{node="%s",role="%s"}`, victim, map[byte]string{'p': "prefill", 'd': "decode"}[victim[0]])
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		epoch, gauges := s.incarnation(t, victim), s.workerGauges(t)
		up, routable := gauges["bulkhead_worker_up"+labels], gauges["bulkhead_worker_routable"+labels]
		if epoch != "" && epoch != s.epochs[victim] && (victim == "gateway" || up == 1 && routable == 1) {
			if s.seen[epoch] {
				t.Errorf("%s is back under epoch %s, which was there before", victim, epoch)
			}
			s.epochs[victim], s.seen[epoch] = epoch, true
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("20 s after a kill %s is not back: epoch %s after %s, up %g, routable %g\n%s", victim, epoch, s.epochs[victim], up, routable, tail(s.output()))
		}
	}
}
