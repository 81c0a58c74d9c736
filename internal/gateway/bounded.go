package gateway

import (
	"io"
	"net/http"
	"time"
)

// unreadTimeout bounds the wait for what is still to come of a body after the answer.
const unreadTimeout = 500 * time.Millisecond

// bounded bounds what an answer waits for. The client must take it in WriteTimeout, and
// the connection of a request that is answered before its body was read to its end is
// closed: net/http would wait without a bound for the client to read and for the rest to
// come, with the connection in a request, which neither a bound on connections nor a
// stop can end.
func (g *Gateway) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &boundedWriter{ResponseWriter: w, timeout: g.config.WriteTimeout}
		if r.ContentLength != 0 && r.ProtoMajor == 1 { // HTTP/2 resets the stream alone
			b.body = &endReader{ReadCloser: r.Body}
			r.Body = b.body
		}
		next.ServeHTTP(b, r)
		b.begin()
	})
}

// endReader remembers that its end was read.
type endReader struct {
	io.ReadCloser
	ended bool
}

// Read implements io.Reader.
func (b *endReader) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// boundedWriter sets the bounds when the answer begins.
type boundedWriter struct {
	http.ResponseWriter
	timeout time.Duration
	body    *endReader // nil: there is none to wait for
	begun   bool
}

func (w *boundedWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	deadlines, now := http.NewResponseController(w.ResponseWriter), time.Now()
	// A writer without deadlines (a recorder) has nothing that could block.
	_ = deadlines.SetWriteDeadline(now.Add(w.timeout))
	if w.body != nil && !w.body.ended {
		w.Header().Set("Connection", "close")
		_ = deadlines.SetReadDeadline(now.Add(unreadTimeout))
	}
}

// WriteHeader passes the status on.
func (w *boundedWriter) WriteHeader(status int) {
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Write passes a part of the answer on.
func (w *boundedWriter) Write(data []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(data)
}

// Unwrap gives http.ResponseController the writer below.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
