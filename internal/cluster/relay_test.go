package cluster

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay carries connections to a target, until it is told to kill or to freeze them.
type relay struct {
	ln     net.Listener
	target string
	wait   sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	frozen chan struct{} // closed when nothing moves any more
}

func newRelay(t testing.TB, target string) *relay {
	r := &relay{ln: listen(t), target: target, frozen: make(chan struct{})}
	r.wait.Go(r.accept)
	t.Cleanup(func() {
		_ = r.ln.Close()
		r.kill()
		r.wait.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.ln.Addr().String() }

func (r *relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		r.mu.Unlock()
		r.wait.Go(func() { r.copy(in, out) })
		r.wait.Go(func() { r.copy(out, in) })
	}
}

func (r *relay) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		select {
		case <-r.frozen: // keep the connections open, move nothing
			_, _ = io.Copy(io.Discard, src)
			return
		default:
		}
		if err == nil {
			_, err = dst.Write(buf[:n])
		}
		if err != nil {
			_ = src.Close()
			_ = dst.Close()
			return
		}
	}
}

func (r *relay) freeze() { close(r.frozen) }

// kill closes all connections; further ones are carried.
func (r *relay) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}
