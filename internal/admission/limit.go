// Package admission decides whether a request may start.
//
// Three questions, each with its own type: does the prompt fit the served limit
// and how much output is granted (Limit), may this tenant spend that much now
// (Quotas), and whose turn is it when there is no room (Queue). Time is passed in;
// nothing here is safe for concurrent use by itself.
package admission

import (
	"errors"
	"fmt"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// Worker is what one prefill or decode worker can hold.
type Worker struct {
	Node          string
	Role          string // "prefill" or "decode", for messages
	ContextTokens int    // the model's context at this worker
	ServedTokens  int    // what its operator asked for; 0: as much as fits
	PoolPages     int
	ReservedPages int // kept for probes
	UsablePages   int // pool less reserved and quarantined pages
	PageTokens    int
}

// NominalTokens is the longest sequence of the worker with no page quarantined.
func (w Worker) NominalTokens() int {
	tokens, _ := w.least((w.PoolPages - w.ReservedPages) * w.PageTokens)
	return tokens
}

// UsableTokens is the longest sequence of the worker as it is now.
func (w Worker) UsableTokens() int {
	tokens, _ := w.least(w.UsablePages * w.PageTokens)
	return tokens
}

// least is the smallest of the worker's bounds with its name.
func (w Worker) least(poolTokens int) (tokens int, by string) {
	tokens, by = max(poolTokens, 0), "pool"
	if w.ContextTokens < tokens {
		tokens, by = w.ContextTokens, "model context"
	}
	if w.ServedTokens > 0 && w.ServedTokens < tokens {
		tokens, by = w.ServedTokens, "served context"
	}
	return tokens, by
}

// Limit is the longest sequence that is served: the tokens whose K and V are
// stored at one time. The last token of an answer is never stored, so a prompt of
// exactly Tokens gets an answer of one token.
type Limit struct {
	Tokens int
	By     string // what is the smallest, for the operator
}

// Effective is the minimum over the gateway's own served context (0: none) and
// what each worker holds nominally. A worker that falls below it later leaves
// routing; the limit doesn't shrink. Without workers and context it is zero.
func Effective(servedTokens int, workers []Worker) Limit {
	limit := Limit{Tokens: servedTokens, By: "served context of the gateway"}
	bounded := servedTokens > 0
	for _, w := range workers {
		tokens, by := w.least((w.PoolPages - w.ReservedPages) * w.PageTokens)
		if !bounded || tokens < limit.Tokens {
			limit = Limit{Tokens: tokens, By: fmt.Sprintf("%s of %s worker %s", by, w.Role, w.Node)}
			bounded = true
		}
	}
	return limit
}

// Grant is the verdict on a prompt that fits.
type Grant struct {
	Output  int  // tokens of output, at least 1
	Clamped bool // the client asked for more
}

// Stored is the number of tokens that decode stores for a prompt and a granted
// output: all but the last one.
func Stored(promptTokens, outputTokens int) int { return promptTokens + outputTokens - 1 }

// Decide grants output for a prompt: what was asked, or reserve when nothing was
// (0), clamped to the room that the limit leaves. A prompt over the limit is an
// error of kind fault.OverContext with both numbers.
func (l Limit) Decide(promptTokens, askedTokens, reserveTokens int) (Grant, error) {
	if promptTokens < 1 {
		return Grant{}, fault.New(fault.Invalid, "the prompt is empty")
	}
	if promptTokens > l.Tokens {
		return Grant{}, fault.New(fault.OverContext, "the prompt has %d tokens, the context limit is %d tokens", promptTokens, l.Tokens)
	}
	room := l.Tokens - promptTokens + 1
	wanted := askedTokens
	if wanted == 0 {
		wanted = max(reserveTokens, 1)
	}
	return Grant{Output: min(wanted, room), Clamped: askedTokens > room}, nil
}

// refusal is an error that says when to ask again.
type refusal struct {
	message string
	after   time.Duration
}

func (r *refusal) Error() string { return r.message }

func refuse(kind fault.Kind, after time.Duration, format string, args ...any) error {
	return fault.New(kind, "%w", &refusal{fmt.Sprintf(format, args...), after})
}

// RetryAfter is the time after which a refused request may be sent again; false
// when waiting does not help or err is no refusal.
func RetryAfter(err error) (time.Duration, bool) {
	var r *refusal
	if !errors.As(err, &r) || r.after <= 0 {
		return 0, false
	}
	return r.after, true
}
