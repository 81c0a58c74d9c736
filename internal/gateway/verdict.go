package gateway

import (
	"slices"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// The checks of a verdict, as they are counted.
const (
	checkRequest = "request"
	checkAttempt = "attempt"
	checkEpoch   = "epoch"
	checkOrder   = "order"
	checkIndex   = "index"
	checkToken   = "token"
	checkCount   = "prompt_tokens"
	checkX       = "transfer"
	checkDigest  = "token_digest"
	checkRoot    = "root"
	checkLength  = "length"
)

// breach is a check that failed. Its kind is fault.Corrupt.
type breach struct {
	check string
	err   error
}

func (b *breach) Error() string { return b.err.Error() }
func (b *breach) Unwrap() error { return b.err }

// verdict holds one attempt's events to what the gateway asked for, whatever the
// layers below have checked: where each event comes from, that tokens are
// contiguous, and that prefill, decode and the gateway agree about the prompt
// before anything leaves. Pure.
//
//	prefill: Accepted? Progress* Computed Progress* Finished
//	decode:  Accepted? Committed Token* Finished
type verdict struct {
	job        *cluster.Job
	vocabulary int

	computed, committed *cluster.Event
	next                int // index of the next token
	finished            bool
}

func (v *verdict) fail(check, format string, args ...any) error {
	prefix := []any{v.job.Request, v.job.Attempt}
	return &breach{check, fault.New(fault.Corrupt, "request %d attempt %d: "+format, append(prefix, args...)...)}
}

// agreed reports whether both workers gave their verdicts and they are one.
func (v *verdict) agreed() bool { return v.computed != nil && v.committed != nil }

// step admits the next event of one worker of the pair.
func (v *verdict) step(role cluster.Role, e *cluster.Event) error {
	if err := v.origin(role, e); err != nil {
		return err
	}
	switch {
	case e.Kind == cluster.Computed && role == cluster.Prefill && v.computed == nil:
		v.computed = e
		return v.agree(e)
	case e.Kind == cluster.Committed && role == cluster.Decode && v.committed == nil:
		v.committed = e
		return v.agree(e)
	case e.Kind == cluster.Token && role == cluster.Decode && v.committed != nil && !v.finished:
		return v.token(e)
	case e.Kind == cluster.Finished && role == cluster.Decode && v.committed != nil && !v.finished:
		v.finished = true
		return v.end(e)
	case e.Kind == cluster.Finished && role == cluster.Prefill && v.computed != nil,
		e.Kind == cluster.Progress && role == cluster.Prefill, e.Kind == cluster.Accepted, e.Kind == cluster.Failed:
		return nil
	}
	return v.fail(checkOrder, "%s came from %s out of order", e.Kind, role)
}

func (v *verdict) origin(role cluster.Role, e *cluster.Event) error {
	epoch := v.job.DecodeEpoch
	if role == cluster.Prefill {
		epoch = v.job.PrefillEpoch
	}
	switch {
	case e.Request != v.job.Request:
		return v.fail(checkRequest, "%s event is of request %d", e.Kind, e.Request)
	case e.Attempt != v.job.Attempt:
		return v.fail(checkAttempt, "%s event is of attempt %d", e.Kind, e.Attempt)
	case e.Kind != cluster.Failed && e.Epoch != epoch: // a worker of another epoch refuses with its own
		return v.fail(checkEpoch, "%s event is of epoch %016x, not %016x", e.Kind, uint64(e.Epoch), uint64(epoch))
	}
	return nil
}

// agree checks one worker's verdict against the job, and against the other's
// once both are there. A missing value is a failure, not an agreement.
func (v *verdict) agree(e *cluster.Event) error {
	switch {
	case e.PromptTokens != len(v.job.Tokens):
		return v.fail(checkCount, "%s says %d prompt tokens, the gateway counted %d", e.Kind, e.PromptTokens, len(v.job.Tokens))
	case e.X.Epoch != v.job.DecodeEpoch || e.X.IsZero():
		return v.fail(checkX, "%s is of transfer %s, which is not of the decode worker's epoch", e.Kind, e.X)
	case e.TokenDigest == kv.Sum{}:
		return v.fail(checkDigest, "%s has no token digest", e.Kind)
	case e.Root == kv.Digest{}:
		return v.fail(checkRoot, "%s has no root", e.Kind)
	case !v.agreed():
		return nil
	case v.computed.X != v.committed.X:
		return v.fail(checkX, "prefill computed for transfer %s, decode committed %s", v.computed.X, v.committed.X)
	case v.computed.TokenDigest != v.committed.TokenDigest:
		return v.fail(checkDigest, "prefill and decode worked on different tokens")
	case v.computed.Root != v.committed.Root:
		return v.fail(checkRoot, "prefill's and decode's pages differ")
	}
	return nil
}

func (v *verdict) token(e *cluster.Event) error {
	switch {
	case e.Index != v.next:
		return v.fail(checkIndex, "token %d came where %d was due", e.Index, v.next)
	case e.Index >= v.job.MaxTokens:
		return v.fail(checkLength, "token %d came, %d were granted", e.Index, v.job.MaxTokens)
	case e.Token < 0 || int(e.Token) >= v.vocabulary:
		return v.fail(checkToken, "token %d has an id outside of the vocabulary of %d", e.Index, v.vocabulary)
	case (e.Logprob != nil) != (v.job.Sampling.Logprobs != cluster.NoLogprobs):
		return v.fail(checkToken, "token %d has logprobs that were not asked for, or lacks them", e.Index)
	case e.Logprob != nil && !areLogarithms(e.Logprob):
		return v.fail(checkToken, "token %d has a logprob that is not the logarithm of a probability", e.Index)
	case e.Logprob != nil && e.Logprob.Token != e.Token:
		return v.fail(checkToken, "token %d has the logprobs of another token", e.Index)
	}
	v.next++
	return nil
}

func (v *verdict) end(e *cluster.Event) error {
	switch {
	case e.Reason == cluster.ReasonStop:
		return nil
	case e.Reason != cluster.ReasonLength:
		return v.fail(checkOrder, "decode finished with an unknown reason")
	case v.next != v.job.MaxTokens:
		return v.fail(checkLength, "decode finished by length after %d tokens, %d were granted", v.next, v.job.MaxTokens)
	}
	return nil
}

// areLogarithms says that no value is NaN or infinitely large. Rounding may lift
// one a little over 0.
func areLogarithms(l *cluster.TokenLogprobs) bool {
	ok := func(v float32) bool { return v <= logprobMax } // false for NaN
	return ok(l.Logprob) && !slices.ContainsFunc(l.Top, func(t cluster.Logprob) bool { return !ok(t.Logprob) })
}

const logprobMax = 1e-3
