package gateway

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
)

// answer is how a kind of error looks to a client.
type answer struct {
	status  int
	kind    string        // the error's type
	code    string        // the error's code
	retry   time.Duration // Retry-After, when the error itself names none
	message string        // replaces the error's own, which is for the log
}

// answers is the one table of errors. A client that went away gets none, so
// that row's status is for metrics.
func answerTo(kind fault.Kind) answer {
	switch kind {
	case fault.Invalid:
		return answer{status: 400, kind: openai.TypeInvalidRequest, code: openai.CodeInvalidValue}
	case fault.Unauthenticated:
		return answer{status: 401, kind: openai.TypeInvalidRequest, code: "invalid_api_key"}
	case fault.Forbidden:
		return answer{status: 403, kind: openai.TypePermission, code: "forbidden"}
	case fault.NotFound:
		return answer{status: 404, kind: openai.TypeInvalidRequest, code: "model_not_found"}
	case fault.OverContext:
		return answer{status: 400, kind: openai.TypeInvalidRequest, code: "context_length_exceeded"}
	case fault.TooLarge:
		return answer{status: 413, kind: openai.TypeInvalidRequest, code: "request_too_large"}
	case fault.OverQuota:
		return answer{status: 429, kind: openai.TypeRateLimit, code: "rate_limit_exceeded"}
	case fault.Busy:
		return answer{status: 429, kind: openai.TypeRateLimit, code: "server_busy", retry: time.Second}
	case fault.Unavailable:
		return answer{status: 503, kind: openai.TypeServer, code: "service_unavailable", retry: time.Second}
	case fault.Cancelled:
		return answer{status: 499, kind: openai.TypeServer, code: "cancelled"}
	case fault.Deadline:
		return answer{status: 504, kind: openai.TypeServer, code: "request_timeout"}
	case fault.Corrupt:
		return answer{status: 500, kind: openai.TypeServer, code: "integrity_check_failed",
			message: "a check on this answer failed, nothing that failed it was delivered"}
	case fault.Internal:
	}
	return answer{status: 500, kind: openai.TypeServer, code: "internal_error", message: "the server made a mistake"}
}

// detailed is an error whose own text, with nodes and reasons, is for the log;
// a client is told what stands in public.
type detailed struct {
	public string
	err    error
}

func (d *detailed) Error() string { return d.err.Error() }
func (d *detailed) Unwrap() error { return d.err }

// about is an error about one field of a request.
type about struct {
	param string
	err   error
}

func (a *about) Error() string { return a.err.Error() }
func (a *about) Unwrap() error { return a.err }

// The fields that prompts come in.
const (
	paramMessages = "messages"
	paramPrompt   = "prompt"
)

// errorBytesMax bounds an error's message.
const errorBytesMax = 600

// apiError is the error as the API shows it, with the status and the
// Retry-After in whole seconds (0: none).
func apiError(err error) (body *openai.Error, status, retryAfter int) {
	var bad *openai.Error
	if errors.As(err, &bad) {
		return bad, http.StatusBadRequest, 0
	}
	a := answerTo(fault.Of(err))
	body = &openai.Error{Message: a.message, Type: a.kind, Code: a.code}
	var d *detailed
	switch {
	case a.message != "":
	case errors.As(err, &d):
		body.Message = d.public
	default:
		body.Message = err.Error()[:min(len(err.Error()), errorBytesMax)]
	}
	var field *about
	if errors.As(err, &field) {
		body.Param = field.param
	}
	after, ok := admission.RetryAfter(err)
	if !ok {
		after = a.retry
	}
	return body, a.status, int(math.Ceil(after.Seconds()))
}

// kindOf is the error's kind for metrics.
func kindOf(err error) string {
	var bad *openai.Error
	if errors.As(err, &bad) {
		return fault.Invalid.String()
	}
	return fault.Of(err).String()
}

// writeError answers with an error. No header has been sent before.
func writeError(w http.ResponseWriter, err error) {
	body, status, retryAfter := apiError(err)
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, status, body.Body())
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		// Only finite numbers and strings are marshalled; this is a mistake of ours.
		http.Error(w, `{"error":{"message":"the server made a mistake","type":"server_error","param":null,"code":"internal_error"}}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // a client that went away is noticed through its context
}
