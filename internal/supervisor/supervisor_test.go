package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// running is a supervisor under test.
type running struct {
	*Supervisor
	t      *testing.T
	cancel context.CancelFunc
	done   chan error
}

// quick has short waits, so that failures follow each other.
func quick(children ...Child) Config {
	return Config{Children: children, BackoffFirst: time.Millisecond, BackoffMax: 4 * time.Millisecond, ReadyMax: 30 * time.Second, Grace: 30 * time.Second}
}

func run(t *testing.T, c Config) *running {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{s, t, cancel, make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.Kill()
		r.done <- <-r.done
	})
	return r
}

// await waits until the states are as wanted; the bound names what never came.
func (r *running) await(what string, ok func(s []State) bool) []State {
	r.t.Helper()
	never := time.After(time.Minute)
	for {
		changed := r.Changed()
		states := r.State()
		if ok(states) {
			return states
		}
		select {
		case <-changed:
		case <-never:
			r.t.Fatalf("never: %s: %+v", what, states)
		}
	}
}

func (r *running) ready() []State {
	r.t.Helper()
	return r.await("all children are ready", func(states []State) bool {
		for _, s := range states {
			if s.Phase != Ready {
				return false
			}
		}
		return true
	})
}

// result waits for Run's end.
func (r *running) result() error {
	err := <-r.done
	r.done <- err
	return err
}

// stop begins to drain and waits.
func (r *running) stop() error {
	r.cancel()
	return r.result()
}

// gone reports whether a process has ended, without a race against its number.
func gone(pidfd int, timeout time.Duration) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(timeout.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n == 1, err
	}
}

func pidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd of %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestChildrenAreReadyWithTheirEpochs(t *testing.T) {
	r := run(t, quick(as("serve", Child{Name: "p1"}), as("serve", Child{Name: "d1"})))
	states := r.ready()
	for _, s := range states {
		if want := fmt.Sprintf("epoch %016x", uint64(s.Epoch)); s.Ready != want {
			t.Errorf("child %s says %q, its state %q", s.Name, s.Ready, want)
		}
	}
	if states[0].Epoch == states[1].Epoch {
		t.Error("two children must have two epochs")
	}
	if err := r.stop(); err != nil {
		t.Errorf("children that end when told are no failure: %v", err)
	}
	for _, s := range r.State() {
		if s.Phase != Ended || s.PID != 0 {
			t.Errorf("after Run nothing may run: %+v", s)
		}
	}
}

func TestKilledChildIsRestartedWithANewEpoch(t *testing.T) {
	log := &logged{}
	config := quick(as("serve", Child{Name: "p1"}), as("serve", Child{Name: "d1"}))
	config.Log = slog.New(slog.NewTextHandler(log, nil))
	r := run(t, config)
	before := r.ready()
	if err := syscall.Kill(before[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := r.await("the child is ready again", func(s []State) bool { return s[0].Phase == Ready && s[0].Starts == 2 })
	if after[0].Epoch == before[0].Epoch || after[0].Epoch == 0 || !strings.Contains(after[0].LastExit, "killed") {
		t.Errorf("the restarted child must have a new epoch and say why: %+v", after[0])
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", after[0].PID))
	if err != nil || string(name) != "bulkhead\n" {
		t.Errorf("the child's process is called %q (%v), want bulkhead", name, err)
	}
	if out := log.String(); !strings.Contains(out, "level=INFO msg=\"child is ready\" child=p1") ||
		!strings.Contains(out, "level=WARN msg=\"child is ready again\" child=p1") {
		t.Errorf("the log must say at first that the child is ready, then as a warning that it is again:\n%s", out)
	}
	if after[1] != before[1] {
		t.Errorf("the other child must be left alone: %+v, then %+v", before[1], after[1])
	}
}

// logged keeps a log's lines.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestFailingChildrenMakeRunGiveUp(t *testing.T) {
	for _, tc := range []struct {
		role   string
		child  Child
		change func(*Config)
		starts int
		want   string
	}{
		{"crash", Child{}, nil, 3, "failed 3 times in a row, must be less than 3: exit status 3"},
		{"end", Child{}, nil, 3, "ended by itself with status 0"},
		{"config", Child{}, nil, 1, "can't run as it is configured: exit status 78"},
		{"hang", Child{}, func(c *Config) { c.ReadyMax = 50 * time.Millisecond }, 3, "killed: not ready within 50ms"},
		{"silent", Child{Silence: 20 * time.Millisecond}, nil, 3, "killed: no sign of life for 20ms"},
		{"chatty", Child{}, func(c *Config) { c.ReadyMax = 50 * time.Millisecond }, 3, "killed: not ready within"},
		{"missing", Child{}, func(c *Config) { c.Program = "/nonexistent" }, 0, "no such file"},
	} {
		t.Run(tc.role, func(t *testing.T) {
			child := as(tc.role, tc.child)
			child.Name = "bad"
			c := quick(child)
			c.FailuresMax = 3
			if tc.change != nil {
				tc.change(&c)
			}
			r := run(t, c)
			if err := r.result(); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "bad") {
				t.Errorf("Run must fail with %q: %v", tc.want, err)
			}
			if got := r.State()[0]; got.Starts != tc.starts || got.Phase != Ended {
				t.Errorf("%d starts, must be %d: %+v", got.Starts, tc.starts, got)
			}
		})
	}
}

func TestOthersAreDrainedWhenOneGivesUp(t *testing.T) {
	c := quick(as("serve", Child{Name: "good"}), as("crash", Child{Name: "bad"}))
	c.FailuresMax = 2
	r := run(t, c)
	if err := r.result(); err == nil || !strings.Contains(err.Error(), "child bad failed 2 times") || strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("only the bad child may be blamed: %v", err)
	}
}

func TestStableChildrenStartANewRow(t *testing.T) {
	c := quick(as("serve", Child{Name: "p1"}))
	c.FailuresMax = 2
	c.Stable = time.Nanosecond
	r := run(t, c)
	for n := range 5 {
		states := r.await("the child is ready", func(s []State) bool { return s[0].Phase == Ready && s[0].Starts == n+1 })
		if err := syscall.Kill(states[0].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	r.await("it is started a sixth time", func(s []State) bool { return s[0].Starts == 6 })
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	s, err := New(Config{Children: []Child{{Name: "a"}}, BackoffFirst: 100, BackoffMax: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []time.Duration{1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000, 70: 1000} {
		if n > 0 && want > 0 && s.backoff(n) != want {
			t.Errorf("wait after %d failures is %v, must be %v", n, s.backoff(n), want)
		}
	}
}

func TestStoppedChildIsKilledForItsSilence(t *testing.T) {
	r := run(t, quick(as("serve", Child{Name: "p1", Silence: 3 * time.Second})))
	before := r.ready()[0]
	fd := pidfd(t, before.PID)
	if err := syscall.Kill(before.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	after := r.await("the child is ready again", func(s []State) bool { return s[0].Phase == Ready && s[0].Starts == 2 })[0]
	if dead, err := gone(fd, 0); !dead || err != nil {
		t.Errorf("the stopped process must be dead before another starts: %v, %v", dead, err)
	}
	if !strings.Contains(after.LastExit, "no sign of life") {
		t.Errorf("the reason must be its silence: %+v", after)
	}
}

func TestDeafChildIsKilledAfterGrace(t *testing.T) {
	c := quick(as("deaf", Child{Name: "deaf"}))
	c.Grace = 50 * time.Millisecond
	r := run(t, c)
	fd := pidfd(t, r.ready()[0].PID)
	err := r.stop()
	if err == nil || !strings.Contains(err.Error(), "killed: deaf") {
		t.Errorf("Run must name who had to be killed: %v", err)
	}
	if dead, err := gone(fd, 0); !dead || err != nil {
		t.Errorf("when Run returns the process must be dead: %v, %v", dead, err)
	}
}

func TestKillEndsGrace(t *testing.T) {
	c := quick(as("deaf", Child{Name: "a"}), as("deaf", Child{Name: "b", Wave: 1}))
	c.Grace = time.Hour
	r := run(t, c)
	r.ready()
	r.cancel()
	r.Kill()
	if err := r.result(); err == nil || !strings.Contains(err.Error(), "killed without grace: a, b") {
		t.Errorf("both must be killed at once: %v", err)
	}
}

func TestWavesEndInOrderAndLogsPassThrough(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	named := func(name string, wave int) Child {
		return as("serve", Child{Name: name, Wave: wave, Env: []string{"NAME=" + name}})
	}
	c := quick(named("decode", 2), named("gateway", 0), named("prefill", 1))
	c.Stderr = log
	r := run(t, c)
	r.ready()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, name := range []string{"gateway", "prefill", "decode"} {
		want += fmt.Sprintf("{\"msg\":\"drained\",\"name\":\"%s\"}\n", name)
	}
	if string(got) != want {
		t.Errorf("log is\n%s\nmust be\n%s", got, want)
	}
}

func TestNiceIsOfAllThreads(t *testing.T) {
	r := run(t, quick(as("nice", Child{Name: "plain"}), as("nice", Child{Name: "nice", Nice: 7})))
	states := r.ready()
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the kernel gives 20 less nice
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("map[%d:true]", 20-own); states[0].Ready != want {
		t.Errorf("the plain child's threads have nice %s, must be %s", states[0].Ready, want)
	}
	if states[1].Ready != "map[7:true]" {
		t.Errorf("the nice child's threads have nice %s, must be 7", states[1].Ready)
	}
}

func TestFilesArrive(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "weights"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString("shared"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	r := run(t, quick(as("file", Child{Name: "p1", Files: []*os.File{f}})))
	if got := r.ready()[0].Ready; got != "shared <nil>" {
		t.Errorf("the child reads %q", got)
	}
}

func TestNothingOutlivesAKilledSupervisor(t *testing.T) {
	r := run(t, quick(as("supervisor", Child{Name: "supervisor"})))
	s := r.ready()[0]
	var pids [2]int
	if _, err := fmt.Sscan(s.Ready, &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	fds := [2]int{pidfd(t, pids[0]), pidfd(t, pids[1])}
	for _, fd := range fds {
		if dead, err := gone(fd, 0); dead || err != nil {
			t.Fatalf("the children must run: %v, %v", dead, err)
		}
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		if dead, err := gone(fd, time.Minute); !dead || err != nil {
			t.Errorf("child %d must die with its supervisor: %v, %v", i, dead, err)
		}
	}
}

func TestAloneAParentDoesNothing(t *testing.T) {
	p, err := FindParent()
	if err != nil || p.Supervised() || p.Epoch() == 0 {
		t.Fatalf("alone, a process has an epoch of its own: %+v, %v", p, err)
	}
	if err := errors.Join(p.Ready("x"), p.Alive()); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"two\nlines", strings.Repeat("x", readyBytesMax)} {
		if p.Ready(bad) == nil {
			t.Errorf("%d bytes must be refused", len(bad))
		}
	}
}

func TestNewListsAllMistakes(t *testing.T) {
	_, err := New(Config{Children: []Child{{Name: "a"}, {Name: "a"}, {}, {Name: "b", Nice: -1}}})
	for _, want := range []string{`child 1: name "a"`, `child 2: name ""`, "child b: nice is -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error must list %q: %v", want, err)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a supervisor without children must be refused")
	}
}
