package chatclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	readyPoll     = 20 * time.Millisecond
	readyBytesMax = 1 << 20
	stopGrace     = 10 * time.Second // from the request to end to the kill
	logTailMax    = 4 << 10
)

// Ready is what a server writes into its ready file, by rename, once it serves.
type Ready struct {
	URL   string            `json:"url"`
	Keys  map[string]string `json:"keys"` // by tenant
	Model string            `json:"model"`
}

// Private is a server that belongs to one command.
type Private struct {
	Ready
	done    chan struct{} // closed when the process has ended
	process *os.Process
	err     error // how it ended; read after done
	log     *logTail
	dir     string
}

// StartPrivate starts a server and waits until it serves. The command must take
// --ready-file PATH and --ledger DIR, both of which go with the server. The server is in a process group of its own, so that Ctrl-C
// at the terminal is not for it, and is told to end when this process dies. The
// caller calls Stop. Where it ends before it serves, the error wraps its *exec.ExitError.
func StartPrivate(ctx context.Context, command string, args ...string) (*Private, error) {
	dir, err := os.MkdirTemp("", "bulkhead-")
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	p := &Private{done: make(chan struct{}), log: &logTail{}, dir: dir}
	readyFile := filepath.Join(dir, "ready.json")
	cmd := exec.Command(command, append(args, "--ledger", filepath.Join(dir, "ledger"), "--ready-file", readyFile)...)
	cmd.Args[0] = filepath.Base(os.Args[0]) // in lists of processes it is the same program
	if err := p.start(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start a server: %w", err), os.RemoveAll(dir))
	}
	if err := p.awaitReady(ctx, readyFile); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// start runs the process on a thread that lives as long as it does: the signal
// that ends an orphan is sent when the starting thread ends.
func (p *Private) start(cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.process = cmd.Process
	return nil
}

func (p *Private) awaitReady(ctx context.Context, path string) error {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("start a server: %w", ctx.Err())
		case <-p.done:
			return fmt.Errorf("start a server: it ended before it was ready: %w", endedError{p.log.last(p.err), p.err})
		case <-ticker.C:
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && len(text) <= readyBytesMax {
			err = json.Unmarshal(text, &p.Ready)
		}
		if err != nil || p.URL == "" {
			return fmt.Errorf("start a server: its ready file can't be read")
		}
		return nil
	}
}

// endedError is how a process ended, in its own last words.
type endedError struct {
	words string
	err   error // an *exec.ExitError, or nil for status 0
}

func (e endedError) Error() string { return e.words }
func (e endedError) Unwrap() error { return e.err }

// Client makes a client for the server, with the first tenant's key.
func (p *Private) Client() (*Client, error) {
	key := ""
	if tenants := slices.Sorted(maps.Keys(p.Keys)); len(tenants) > 0 {
		key = p.Keys[tenants[0]]
	}
	return New(p.URL, key)
}

// Stop ends the server, by force if it must, and returns when it has ended.
func (p *Private) Stop() error {
	_ = p.process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		_ = p.process.Kill()
		<-p.done
	}
	return os.RemoveAll(p.dir)
}

// logTail keeps the end of what the server wrote.
type logTail struct {
	text []byte // owner: the process's copying goroutine until done, then anybody
}

var _ io.Writer = (*logTail)(nil)

func (l *logTail) Write(b []byte) (int, error) {
	l.text = append(l.text, b...)
	if over := len(l.text) - logTailMax; over > 0 {
		l.text = append(l.text[:0], l.text[over:]...)
	}
	return len(b), nil
}

// last is the last line that was written, or else how the process ended.
func (l *logTail) last(err error) string {
	lines := strings.Split(strings.TrimSpace(string(l.text)), "\n")
	if line := lines[len(lines)-1]; line != "" {
		return line
	}
	return fmt.Sprint(err)
}
