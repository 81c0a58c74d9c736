package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// route wraps a handler with what all routes share: the method, the echoed
// request id, the dropped headers and the counts. An empty method means any.
func (g *Gateway) route(name, method string, serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.parts.Metrics.Set(metrics.HTTPInFlight, float64(g.inFlight.Add(1)))
		seen := &statusWriter{ResponseWriter: w}
		defer func() {
			g.parts.Metrics.Set(metrics.HTTPInFlight, float64(g.inFlight.Add(-1)))
			g.parts.Metrics.Add(metrics.HTTPRequests, 1, name, strconv.Itoa(seen.code()))
		}()
		w.Header().Set("X-Request-Id", requestID(r, "req-"+publicName()))
		g.dropHeaders(r.Header)
		if method != "" && r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead) {
			w.Header().Set("Allow", method)
			writeJSON(seen, http.StatusMethodNotAllowed, (&openai.Error{Message: "this route takes " + method, Type: openai.TypeInvalidRequest, Code: "method_not_allowed"}).Body())
			return
		}
		serve(seen, r)
	})
}

// requestID is what a response says in X-Request-Id: the client's own, or ours.
func requestID(r *http.Request, ours string) string {
	if id := r.Header.Get("X-Request-Id"); echoable(id) {
		return id
	}
	return ours
}

// requestIDBytesMax bounds an X-Request-Id that is echoed.
const requestIDBytesMax = 128

// echoable says whether a client's request id may be sent back: it is short and
// printable ASCII. It is used for nothing else.
func echoable(id string) bool {
	return id != "" && len(id) <= requestIDBytesMax && !strings.ContainsFunc(id, func(r rune) bool { return r < '!' || r > '~' })
}

// dropHeaders removes and counts the headers that would steer a request.
func (g *Gateway) dropHeaders(h http.Header) {
	for _, name := range openai.SteeringHeaders() {
		if h.Get(name) != "" {
			g.parts.Metrics.Add(metrics.DroppedFields, 1, name)
			h.Del(name)
		}
	}
}

// statusWriter remembers the status for the counts.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader passes the status on.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends status 200 if none was sent before.
func (w *statusWriter) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(data)
}

// Unwrap gives http.ResponseController the writer below.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// code is the status that was sent, 499 when the client went away before one.
func (w *statusWriter) code() int {
	if w.status == 0 {
		return answerTo(fault.Cancelled).status
	}
	return w.status
}

// authenticate finds the tenant of the request's key.
func (g *Gateway) authenticate(r *http.Request) (*tenant.Tenant, error) {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") || key == "" {
		return nil, fault.New(fault.Unauthenticated, "no key: send Authorization: Bearer KEY")
	}
	return g.parts.Tenants.Authenticate(strings.TrimSpace(key), g.parts.Now())
}

// refuse answers with an error before anything else was sent, and counts it. Who
// went away gets no answer.
func (g *Gateway) refuse(w http.ResponseWriter, err error) {
	g.countFailure(err)
	if fault.Of(err) == fault.Cancelled {
		breakOff()
	}
	writeError(w, err)
}

// countFailure counts an error and logs those that are ours.
func (g *Gateway) countFailure(err error) {
	kind := kindOf(err)
	g.parts.Metrics.Add(metrics.Rejections, 1, kind)
	if k := fault.ParseKind(kind); k == fault.Corrupt || k == fault.Internal {
		g.parts.Log.Error("request failed", "kind", kind, "error", err)
	} else if k == fault.Unavailable && !errors.Is(err, errStopped) && !errors.Is(err, errUnrecorded) { // these are said once
		g.parts.Log.Warn("request failed", "kind", kind, "error", err)
	}
}
