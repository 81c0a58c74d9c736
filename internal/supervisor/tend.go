package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// errStop ends a child's care without a failure.
var errStop = errors.New("stopped")

// tend keeps one child running until it is to stop or can't be kept.
func (s *Supervisor) tend(c *child) error {
	defer s.update(c, func() { c.state.Phase = Ended })
	failures := 0
	for {
		stable, err := s.life(c)
		if errors.Is(err, errStop) {
			return nil
		}
		if stable {
			failures = 0
		}
		failures++
		s.update(c, func() { c.state.LastExit = err.Error() })
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == ExitConfig {
			return fmt.Errorf("child %s can't run as it is configured: %w", c.Name, err)
		}
		if failures >= s.config.FailuresMax {
			return fmt.Errorf("child %s failed %d times in a row, must be less than %d: %w", c.Name, failures, s.config.FailuresMax, err)
		}
		wait := s.backoff(failures)
		s.config.Log.Error("child ended", "child", c.Name, "err", err, "failures", failures, "failures_max", s.config.FailuresMax, "restart_in", wait)
		if !c.pause(wait) {
			return nil
		}
	}
}

// backoff is the wait after the n-th failure in a row.
func (s *Supervisor) backoff(n int) time.Duration {
	wait := s.config.BackoffFirst
	for range n - 1 {
		wait = min(2*wait, s.config.BackoffMax)
	}
	return min(wait, s.config.BackoffMax)
}

// pause waits; false: the child is to stop.
func (c *child) pause(d time.Duration) bool {
	again := time.NewTimer(d)
	defer again.Stop()
	select {
	case <-c.stop:
		return false
	case <-again.C:
		return true
	}
}

// life is one process from its start to its death. The error says how it ended,
// errStop if it was to; stable tells whether it was ready for long.
func (s *Supervisor) life(c *child) (stable bool, err error) {
	select {
	case <-c.stop: // it need not begin
		return false, errStop
	default:
	}
	p, err := s.start(c)
	if err != nil {
		return false, err
	}
	s.update(c, func() {
		c.process = p
		c.state.Phase, c.state.Epoch, c.state.PID, c.state.Ready = Starting, p.epoch, p.pid, ""
		c.state.Starts++
	})
	w := watch{s: s, c: c, p: p, stop: c.stop}
	err = w.run()
	s.update(c, func() {
		c.process = nil
		c.state.Phase, c.state.PID = Waiting, 0
	})
	return !w.readyAt.IsZero() && time.Since(w.readyAt) >= s.config.Stable, err
}

// watch is the care for one process.
type watch struct {
	s       *Supervisor
	c       *child
	p       *process
	stop    <-chan struct{} // nil once the child was told
	hurry   <-chan struct{} // set once the child was told
	late    *time.Timer     // for being ready, then for signs of life, then for the end
	readyAt time.Time
	reason  string // why we killed it; empty if we did not
}

// run returns when the process is dead.
func (w *watch) run() error {
	w.late = time.NewTimer(w.s.config.ReadyMax)
	defer w.late.Stop()
	signs := w.p.signs
	for {
		select {
		case <-w.p.dead:
			return w.ending()
		case sign, ok := <-signs:
			if !ok {
				signs = nil
				continue
			}
			w.sign(sign)
		case <-w.stop:
			w.tell()
		case <-w.hurry:
			w.hurry = nil
			w.force()
		case <-w.late.C:
			w.overdue()
		}
	}
}

// sign takes a sign of life; the first is that the child is ready.
func (w *watch) sign(text string) {
	if w.told() {
		return
	}
	if w.readyAt.IsZero() {
		w.readyAt = time.Now()
		level, message := slog.LevelInfo, "child is ready"
		if w.c.state.Starts > 1 { // written by this goroutine only
			level, message = slog.LevelWarn, "child is ready again" // the end of what its death began
		}
		w.s.config.Log.Log(context.Background(), level, message, "child", w.c.Name, "pid", w.p.pid, "epoch", fmt.Sprintf("%016x", uint64(w.p.epoch)))
		w.s.update(w.c, func() { w.c.state.Phase, w.c.state.Ready = Ready, text })
	}
	w.late.Stop()
	if w.c.Silence > 0 {
		w.late.Reset(w.c.Silence)
	}
}

func (w *watch) told() bool { return w.stop == nil }

// tell asks the child to end.
func (w *watch) tell() {
	w.stop, w.hurry = nil, w.s.hurry
	w.late.Reset(w.s.config.Grace)
	w.p.signal(unix.SIGTERM)
}

// force kills a child that was told to end and has not.
func (w *watch) force() {
	w.s.update(w.c, func() { w.c.forced = true })
	w.p.kill()
}

func (w *watch) overdue() {
	switch {
	case w.told():
		w.force()
		return
	case w.readyAt.IsZero():
		w.reason = fmt.Sprintf("not ready within %v", w.s.config.ReadyMax)
	default:
		w.reason = fmt.Sprintf("no sign of life for %v", w.c.Silence)
	}
	w.p.kill()
}

func (w *watch) ending() error {
	switch {
	case w.told():
		return errStop
	case w.reason != "":
		return fmt.Errorf("killed: %s", w.reason)
	case w.p.err == nil:
		return errors.New("ended by itself with status 0")
	}
	return w.p.err
}
