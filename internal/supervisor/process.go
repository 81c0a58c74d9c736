package supervisor

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

// process is one running child.
type process struct {
	pid   int
	epoch kv.Epoch
	signs chan string   // the ready line, then signs of life; closed when the pipe is
	dead  chan struct{} // closed when the kernel has reaped it
	err   error         // how it ended; written before dead is closed
	exit  *os.Process

	reader sync.WaitGroup
}

// start begins a process. When it returns without an error, two goroutines
// belong to the process; both have ended when dead is closed.
func (s *Supervisor) start(c *child) (*process, error) {
	epoch, err := newEpoch()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	cmd := exec.Command(s.config.Program, c.Args...)
	cmd.Args[0] = processName
	cmd.Env = append(environment(os.Environ()), c.Env...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", pipeEnv, pipeFD), fmt.Sprintf("%s=%016x", epochEnv, uint64(epoch)))
	cmd.ExtraFiles = append([]*os.File{w}, c.Files...)
	cmd.Stdout, cmd.Stderr = s.config.Stdout, s.config.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // a terminal's Ctrl-C reaches the supervisor only, which drains
		Pdeathsig: syscall.SIGKILL,
	}
	p := &process{epoch: epoch, signs: make(chan string, 1), dead: make(chan struct{})}
	started := make(chan error)
	go p.live(cmd, c.Nice, r, started)
	err = <-started
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return p, nil
}

// live starts the command and waits for its death, on a thread of its own: the
// child inherits the thread's priority, and the kernel kills the child when the
// thread ends. The goroutine never unlocks, so the thread ends with it.
func (p *process) live(cmd *exec.Cmd, nice int, r *os.File, started chan<- error) {
	runtime.LockOSThread()
	var err error
	if nice > 0 {
		err = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		started <- errors.Join(err, r.Close())
		return
	}
	p.exit, p.pid = cmd.Process, cmd.Process.Pid
	p.reader.Go(func() { p.read(r) })
	started <- nil
	p.err = cmd.Wait()
	_ = r.Close() // ends the reader even if somebody else holds the pipe's other end
	p.reader.Wait()
	close(p.dead)
}

// read passes the child's signs on. Signs that nobody has taken yet are merged.
func (p *process) read(r io.Reader) {
	defer close(p.signs)
	in := bufio.NewReaderSize(r, readyBytesMax)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return // the child is gone, or said more than it may
		}
		select {
		case p.signs <- strings.TrimSuffix(string(line), "\n"):
		default:
		}
	}
}

// signal sends through the process's pidfd, which os.Process holds. A process
// that is dead already is what the caller wants.
func (p *process) signal(sig syscall.Signal) { _ = p.exit.Signal(sig) }

func (p *process) kill() { p.signal(syscall.SIGKILL) }

func newEpoch() (kv.Epoch, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("make an epoch: %w", err)
		}
		if e := kv.Epoch(binary.LittleEndian.Uint64(b[:])); e != 0 {
			return e, nil
		}
	}
}

// environment leaves out what only a supervisor's child has.
func environment(env []string) (out []string) {
	for _, e := range env {
		if !strings.HasPrefix(e, pipeEnv+"=") && !strings.HasPrefix(e, epochEnv+"=") {
			out = append(out, e)
		}
	}
	return out
}
