package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

// How a child finds its supervisor.
const (
	pipeEnv  = "BULKHEAD_SUPERVISOR_FD"
	epochEnv = "BULKHEAD_SUPERVISOR_EPOCH"
	pipeFD   = 3
)

// processName is what a child is called.
const processName = "bulkhead"

// readyBytesMax bounds the ready line, its newline included.
const readyBytesMax = 4096

// Parent is a child's view of its supervisor. Without one it does nothing, so
// that a process runs the same under a supervisor and alone. It is safe for
// concurrent use.
type Parent struct {
	epoch kv.Epoch
	fd    int // -1: none

	mu    sync.Mutex
	ready bool // protected by mu
}

// FindParent reads the environment. Alone, a process gets an epoch of its own.
// Call it once.
func FindParent() (*Parent, error) {
	text := os.Getenv(pipeEnv)
	if text == "" {
		epoch, err := newEpoch()
		return &Parent{epoch: epoch, fd: -1}, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd != pipeFD {
		return nil, fmt.Errorf("find supervisor: %s is %.40q, must be %d", pipeEnv, text, pipeFD)
	}
	epoch, err := strconv.ParseUint(os.Getenv(epochEnv), 16, 64)
	if err != nil || epoch == 0 {
		return nil, fmt.Errorf("find supervisor: %s is not an epoch", epochEnv)
	}
	unix.CloseOnExec(fd)
	// A supervisor that is stopped must not stop its children.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("find supervisor: %w", err)
	}
	nameProcess()
	return &Parent{epoch: kv.Epoch(epoch), fd: fd}, nil
}

// nameProcess gives lists of processes and sockets a name that says something: the
// program was started by way of /proc/self/exe, whose last part is no name. A
// system without the file keeps what it has.
func nameProcess() { _ = os.WriteFile("/proc/self/comm", []byte(processName), 0) }

// IsChild tells whether the environment names a supervisor, before FindParent does more.
func IsChild() bool { return os.Getenv(pipeEnv) != "" }

// Epoch is this process's epoch.
func (p *Parent) Epoch() kv.Epoch { return p.epoch }

// Supervised tells whether there is a supervisor.
func (p *Parent) Supervised() bool { return p.fd >= 0 }

// Ready reports that the process serves. The text, one line such as an address,
// appears in State.Ready; it has at most 4,095 bytes.
func (p *Parent) Ready(text string) error {
	if len(text) >= readyBytesMax || strings.Contains(text, "\n") {
		return fmt.Errorf("report ready: %d bytes, must be one line of less than %d", len(text), readyBytesMax)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready {
		return nil
	}
	p.ready = true
	return p.write(text + "\n")
}

// Alive gives a sign of life: a process whose Silence is bounded calls it
// several times in that span, from the loop whose life matters. Before Ready
// it does nothing.
func (p *Parent) Alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ready {
		return nil
	}
	return p.write("\n")
}

func (p *Parent) write(text string) error {
	if p.fd < 0 {
		return nil
	}
	_, err := unix.Write(p.fd, []byte(text))
	if err != nil && err != unix.EAGAIN { // a full pipe holds signs enough
		return fmt.Errorf("tell supervisor: %w", err)
	}
	return nil
}

// File is the i-th of Child.Files, in the child.
func File(i int, name string) *os.File {
	unix.CloseOnExec(pipeFD + 1 + i)
	return os.NewFile(uintptr(pipeFD+1+i), name)
}
