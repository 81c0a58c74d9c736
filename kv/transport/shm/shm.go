// Package shm carries transfer messages and pages through shared memory, between
// two processes of one user on one machine.
//
// Pages go through a ring: the source copies a page into it, the target reads the
// page's header into memory of its own, lets the gate decide by that copy, and
// copies the rest to where the gate says. What the source does to the ring
// afterwards changes nothing that was decided or placed, and it can never write to
// the target's slab. A fence is local and waits for one copy at most. This is the
// staged form; DialDirect makes the other one, for peers that trust each other.
//
//	target                                            source
//	make the ring, seal its size --- SCM_RIGHTS ---> check seals and size, map
//	HELLO <---------------------- unix socket -----> HELLO
//	      <--- note: pages up to n are in the ring
//	      note: the ring is free up to n --->
//	      <--- messages ---> each behind the pages that were sent before it
//
// All that is shared is pages: counts travel on the socket, where they are
// checked, and a side that has nothing to do sleeps in a read. The peer's death is
// seen through a pidfd, at once, whoever else may hold the socket.
package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// doorMaker makes the door of one link; tests put unguarded ones in its place.
type doorMaker func(kick func()) session.Door

// Dial connects to the source that listens at a path and returns once both sides
// know and suit each other. The context bounds that, not the link. The event Up
// comes as well. A path that begins with @ names an abstract socket.
func Dial(ctx context.Context, path string, config transport.Config) (transport.Link, error) {
	if config.Gate == nil {
		return nil, errors.New("shm: only a target dials, and this one has no gate")
	}
	return dial(ctx, path, config, func(kick func()) session.Door { return config.Gate.Door(kick) })
}

func dial(ctx context.Context, path string, config transport.Config, newDoor doorMaker) (transport.Link, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.HelloTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	link, err := offer(ctx, conn.(*net.UnixConn), config, newDoor)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return link, nil
}

// offer makes a ring, hands it to the source and starts the link.
func offer(ctx context.Context, conn *net.UnixConn, config transport.Config, newDoor doorMaker) (*session.Session, error) {
	peer, err := identify(conn)
	if err != nil {
		return nil, err
	}
	ring, err := newRing(config.Hello.Layout)
	if err != nil {
		return nil, errors.Join(err, peer.Close())
	}
	if err := ring.send(conn); err != nil {
		return nil, errors.Join(err, ring.close(), peer.Close())
	}
	greeted, err := session.Greet(ctx, conn, config)
	if err != nil {
		return nil, errors.Join(err, ring.close(), peer.Close())
	}
	return greeted.Start(newDoor, func(s *session.Session) session.Carrier { return newCarrier(s, ring, peer, targetSide) }), nil
}

// Listener takes links from dialling targets. They appear as the event Up, and
// what doesn't become a link as Rejected.
type Listener struct{ inner *session.Listener }

// Listen waits for targets at a path, which only this user may connect to. A
// socket that a dead process left there is replaced. A path that begins with @
// names an abstract socket.
func Listen(path string, config transport.Config) (*Listener, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Gate != nil {
		return nil, errors.New("shm: only a source listens, and this one has a gate")
	}
	listener, err := listen(path)
	if err != nil {
		return nil, err
	}
	return &Listener{session.Listen(listener, config, func(ctx context.Context, conn net.Conn) error {
		return accept(ctx, conn.(*net.UnixConn), config)
	})}, nil
}

func listen(path string) (net.Listener, error) {
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		listener, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, "@") {
		return listener, nil
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// abandoned reports whether a socket has a name and no listener.
func abandoned(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		// The listener sees a connection that says nothing.
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// accept takes the memory that a target hands over and starts the link.
func accept(ctx context.Context, conn *net.UnixConn, config transport.Config) error {
	peer, err := identify(conn)
	if err != nil {
		return err
	}
	offered, err := receive(ctx, conn)
	if err != nil {
		return errors.Join(err, peer.Close())
	}
	greeted, err := session.Greet(ctx, conn, config)
	if err != nil {
		return errors.Join(err, offered.close(), peer.Close())
	}
	return start(greeted, offered, config.Hello.Layout, peer)
}

// start maps what was offered and starts the link. It takes both.
func start(greeted *session.Greeted, offered *offered, layout kv.Layout, peer *os.File) error {
	if offered.magic == slabMagic {
		slab, err := openSlab(offered, layout)
		if err != nil {
			return errors.Join(err, peer.Close())
		}
		greeted.Start(nil, func(s *session.Session) session.Carrier { return newDirectSource(s, slab, peer) })
		return nil
	}
	ring, err := openRing(offered, layout)
	if err != nil {
		return errors.Join(err, peer.Close())
	}
	greeted.Start(nil, func(s *session.Session) session.Carrier { return newCarrier(s, ring, peer, sourceSide) })
	return nil
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Close stops taking links, removes the socket, and returns when no connection is
// being greeted any more. Links that exist stay.
func (l *Listener) Close() error { return l.inner.Close() }

// identify holds the process at the other end of a connection: it must be of our
// own user. The file is its pidfd.
func identify(conn *net.UnixConn) (*os.File, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("identify the peer: %w", err)
	}
	var who *unix.Ucred
	pidfd := -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		if who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			pidfd, failed = peerPidfd(int(fd), int(who.Pid))
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("identify the peer: %w", err)
	}
	process := os.NewFile(uintptr(pidfd), "peer process")
	if err := checkUser(int(who.Uid), os.Geteuid()); err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return process, nil
}

func checkUser(peer, own int) error {
	if peer != own {
		return fmt.Errorf("shm: the peer is of user %d, we are of user %d", peer, own)
	}
	return nil
}

// peerPidfd gives a descriptor of the process that made the other end of a socket.
// Kernels before 6.5 can't name it but by its number.
func peerPidfd(socket, pid int) (int, error) {
	pidfd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	}
	unix.CloseOnExec(pidfd)
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return -1, errors.Join(err, unix.Close(pidfd))
	}
	return pidfd, nil
}
