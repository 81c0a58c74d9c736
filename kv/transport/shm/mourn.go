package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// mourn ends a session when the peer's process has ended, and reports that to
// dead. It returns then, or when the pidfd is closed.
func mourn(s *session.Session, process *os.File, dead func()) {
	raw, err := process.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			return err == nil && n == 1
		})
	}
	if errors.Is(err, os.ErrClosed) {
		return // nobody waits for it any more
	}
	if err == nil {
		err = errors.New("the peer's process has ended")
		dead()
	}
	s.Fail(fmt.Errorf("link to %q: %w", s.Peer().Node, err))
}
