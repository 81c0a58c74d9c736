package cluster

import (
	"fmt"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// EventKind says what happened to a job at one worker.
type EventKind uint8

// The kinds, in the order in which they may come:
//
//	prefill: [Accepted] Progress* Computed Progress* Finished
//	decode:  [Accepted] Committed Token* Finished
//
// and Failed instead of any of them. Finished or Failed ends the stream.
const (
	Accepted  EventKind = iota + 1 // the worker took the job
	Progress                       // prefill: PromptTokens are computed so far
	Computed                       // prefill's verdict: the whole prompt is computed
	Committed                      // decode's verdict: all pages are verified
	Token                          // one token of the answer
	Finished                       // the worker's part is done
	Failed                         // it will never be
)

var eventNames = [...]string{Accepted: "accepted", Progress: "progress", Computed: "computed", Committed: "committed",
	Token: "token", Finished: "finished", Failed: "failed"}

// String is the kind's name in logs and metrics.
func (k EventKind) String() string {
	if k.known() {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

func (k EventKind) known() bool { return k >= Accepted && k <= Failed }

// Terminal reports whether the kind ends a stream.
func (k EventKind) Terminal() bool { return k == Finished || k == Failed }

// Reasons of Finished at decode. Prefill gives ReasonDone.
const (
	ReasonStop   = "stop"   // a stop id was sampled; it is not delivered
	ReasonLength = "length" // the granted output is used up
	ReasonDone   = "done"   // the prompt is handed over
)

// Logprob is a token's id and the natural logarithm of its probability.
type Logprob struct {
	Token   int32
	Logprob float32
}

// TokenLogprobs is the chosen token's own and the likeliest alternatives,
// in falling order, at most LogprobsTopMax.
type TokenLogprobs struct {
	Token   int32
	Logprob float32
	Top     []Logprob
}

// Event is something that happened to a job at one worker.
type Event struct {
	Kind EventKind

	// Provenance, on every event: the job's request and attempt, and the epoch
	// of the worker that speaks.
	Request uint64
	Attempt uint32
	Epoch   kv.Epoch

	X            kv.TransferID // Computed, Committed
	PromptTokens int           // Progress, Computed, Committed
	TokenDigest  kv.Sum        // Computed, Committed: of the token ids, under the grant's key
	Root         kv.Digest     // Computed, Committed: over the roots of the prompt's pages

	Index   int            // Token: 0, 1, 2, ... without a gap
	Token   int32          // Token
	Logprob *TokenLogprobs // Token, if asked for

	Reason string     // Finished: a Reason; Failed: a message without content
	Fault  fault.Kind // Failed
}

// sequence holds the events of one job at one worker to their order, to their
// provenance and to the presence of what they must carry. Server and client each
// keep one: where events are given and where they are used.
type sequence struct {
	role    Role
	request uint64
	attempt uint32
	epoch   kv.Epoch
	tokens  int // granted output

	begun   bool
	verdict bool // Computed or Committed came
	ended   bool
	next    int // index of the next token
}

func newSequence(j *Job, role Role, epoch kv.Epoch) *sequence {
	return &sequence{role: role, request: j.Request, attempt: j.Attempt, epoch: epoch, tokens: j.MaxTokens}
}

// step admits the next event or says why it can't be. Its kind is fault.Corrupt.
func (s *sequence) step(e *Event) error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Corrupt, "request %d attempt %d: %v event: "+format,
			append([]any{s.request, s.attempt, e.Kind}, args...)...)
	}
	switch {
	case !e.Kind.known():
		return refuse("unknown kind")
	case e.Request != s.request || e.Attempt != s.attempt:
		return refuse("is of request %d attempt %d", e.Request, e.Attempt)
	case s.ended:
		return refuse("came after the last one")
	case e.Kind == Failed: // a worker of another epoch refuses with its own
		s.ended = true
		return nil
	case e.Epoch != s.epoch:
		return refuse("is of epoch %016x, not %016x", uint64(e.Epoch), uint64(s.epoch))
	case !s.fits(e):
		return refuse("is out of order at %v", s.role)
	}
	if e.Kind == Computed || e.Kind == Committed {
		if e.X.IsZero() || e.PromptTokens < 1 || e.TokenDigest == (kv.Sum{}) || e.Root == (kv.Digest{}) {
			return refuse("lacks the transfer, the count or a digest")
		}
		s.verdict = true
	}
	if e.Kind == Token {
		if e.Index != s.next || e.Index >= s.tokens {
			return refuse("index %d, expected %d of %d", e.Index, s.next, s.tokens)
		}
		s.next++
	}
	s.begun = true
	s.ended = e.Kind.Terminal()
	return nil
}

func (s *sequence) fits(e *Event) bool {
	switch e.Kind {
	case Accepted:
		return !s.begun
	case Progress:
		return s.role == Prefill
	case Computed:
		return s.role == Prefill && !s.verdict
	case Committed:
		return s.role == Decode && !s.verdict
	case Token:
		return s.role == Decode && s.verdict
	case Finished:
		return s.verdict && (e.Reason == ReasonDone) == (s.role == Prefill) &&
			(s.role == Prefill || e.Reason == ReasonStop || e.Reason == ReasonLength)
	case Failed:
		return true
	}
	return false
}
