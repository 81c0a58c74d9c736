package gateway

import (
	"io"
	"net/http"
	"time"
)

// unreadTimeout bounds the wait for what is still to come of a body after the answer.
const unreadTimeout = 500 * time.Millisecond

// closeUnread closes the connection of a request that is answered before its body was
// read to its end. net/http would wait for the rest without a bound, with the connection
// in a request, which neither a bound on connections nor a stop can end.
func closeUnread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 || r.ProtoMajor != 1 { // HTTP/2 resets the stream alone
			next.ServeHTTP(w, r)
			return
		}
		body := &endReader{ReadCloser: r.Body}
		r.Body = body
		u := &unreadWriter{ResponseWriter: w, body: body}
		next.ServeHTTP(u, r)
		u.begin()
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

// unreadWriter looks at the body when the answer begins.
type unreadWriter struct {
	http.ResponseWriter
	body  *endReader
	begun bool
}

func (w *unreadWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	if w.body.ended {
		return
	}
	w.Header().Set("Connection", "close")
	// A writer without deadlines (a recorder) has nothing that could block.
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(unreadTimeout))
}

// WriteHeader passes the status on.
func (w *unreadWriter) WriteHeader(status int) {
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Write passes a part of the answer on.
func (w *unreadWriter) Write(data []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(data)
}

// Unwrap gives http.ResponseController the writer below.
func (w *unreadWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
