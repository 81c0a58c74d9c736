package gateway

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// forgeries changes one event of one worker; each must fail its check.
var forgeries = []struct {
	name  string
	check string
	role  cluster.Role
	kind  cluster.EventKind
	edit  func(*cluster.Event)
	first bool // it fails before any token was due
}{
	{"another request's token", checkRequest, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Request++ }, false},
	{"another attempt's token", checkAttempt, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Attempt++ }, false},
	{"another epoch's token", checkEpoch, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Epoch++ }, false},
	{"prefill with decode's epoch", checkEpoch, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.Epoch = 2001 }, true},
	{"a token left out", checkIndex, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Index++ }, false},
	{"a token twice", checkIndex, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Index-- }, false},
	{"an id the model lacks", checkToken, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Token = vocabulary }, false},
	{"logprobs nobody asked for", checkToken, cluster.Decode, cluster.Token, func(e *cluster.Event) { e.Logprob = lp(e.Token) }, false},
	{"a token from prefill", checkOrder, cluster.Prefill, cluster.Progress, func(e *cluster.Event) { e.Kind = cluster.Token }, true},
	{"a verdict from the wrong side", checkOrder, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.Kind = cluster.Computed }, true},
	{"a token before the verdict", checkOrder, cluster.Decode, cluster.Accepted, func(e *cluster.Event) { e.Kind = cluster.Token }, true},
	{"prefill counts one less", checkCount, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.PromptTokens-- }, true},
	{"decode counts one more", checkCount, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.PromptTokens++ }, true},
	{"prefill counts nothing", checkCount, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.PromptTokens = 0 }, true},
	{"another transfer", checkX, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.X.Sequence++ }, true},
	{"a transfer of another epoch", checkX, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.X.Epoch++ }, true},
	{"no transfer", checkX, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.X = kv.TransferID{} }, true},
	{"other tokens", checkDigest, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.TokenDigest[0]++ }, true},
	{"no token digest", checkDigest, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.TokenDigest = kv.Sum{} }, true},
	{"other pages", checkRoot, cluster.Prefill, cluster.Computed, func(e *cluster.Event) { e.Root[5]++ }, true},
	{"no root", checkRoot, cluster.Decode, cluster.Committed, func(e *cluster.Event) { e.Root = kv.Digest{} }, true},
	{"a length that was not reached", checkLength, cluster.Decode, cluster.Finished, func(e *cluster.Event) { e.Reason = cluster.ReasonLength }, false},
	{"an unknown reason", checkOrder, cluster.Decode, cluster.Finished, func(e *cluster.Event) { e.Reason = "tired" }, false},
}

// The fault is at the third token, so that two right ones are out before it. It
// waits for begin.
func forge(i int, begin <-chan struct{}) hook {
	f := forgeries[i]
	return func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == f.role && e.Kind == f.kind && (e.Kind != cluster.Token || e.Index == 2) {
			wait(ctx, begin)
			f.edit(e)
		}
		return nil
	}
}

func wait(ctx context.Context, event <-chan struct{}) {
	select {
	case <-event:
	case <-ctx.Done():
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestForgedEventsFailTheRequest(t *testing.T) {
	b := newBench(t, setup{})
	for i, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			series := `bulkhead_provenance_faults_total{check="` + f.check + `"}`
			before := b.metric(series)
			b.cluster.setHook(forge(i, closed()))
			status, text := b.answer("/v1/chat/completions", chat("WXYZ"))
			if status != 500 || !strings.Contains(text, `"code":"integrity_check_failed"`) || strings.ContainsAny(text, "WXYZ") {
				t.Errorf("status %d, body %s; want 500 integrity_check_failed and nothing of the answer", status, text)
			}
			if after := b.metric(series); after == before {
				t.Errorf("the counter of check %s stays at %q", f.check, after)
			}
			begin := closed()
			if !f.first {
				begin = make(chan struct{})
			}
			b.cluster.setHook(forge(i, begin))
			resp := b.do("/v1/chat/completions", chat("WXYZ", `"stream":true`))
			defer resp.Body.Close()
			if f.first {
				if status, text := b.read(resp); status != 500 || strings.ContainsAny(text, "WXYZ") {
					t.Errorf("streamed: status %d, body %s; want 500 before any header of a stream", status, text)
				}
				return
			}
			close(begin) // the header is here, so the answer has begun
			data := events(t, resp.Body)
			last := data[len(data)-1]
			said, finishes := spoken(t, data, 0)
			if !strings.HasPrefix(last, `{"error":`) || len(finishes) > 0 || !strings.HasPrefix("WXYZ", said) {
				t.Errorf("streamed: %q ends with %s, finishes %v; want an error event and no finish", said, last, finishes)
			}
			if f.kind == cluster.Token && strings.Contains(said, "Y") {
				t.Errorf("streamed: the forged token is in %q", said)
			}
		})
	}
	if jobs, _, _ := b.cluster.counts(); jobs != 2*len(forgeries) {
		t.Errorf("%d jobs for %d requests: a failed check was tried again", jobs, 2*len(forgeries))
	}
	if text := b.logs.String(); !strings.Contains(text, "request failed") || strings.Contains(text, "WXYZ") {
		t.Error("the log lacks the failures, or holds text of a prompt")
	}
}

// A logprob that is NaN is a fault, minus infinity is a number that JSON has.
func TestLogprobsThatAreNoNumbers(t *testing.T) {
	for _, c := range []struct {
		name    string
		logprob float64
		status  int
		says    string
	}{
		{"NaN", math.NaN(), 500, "integrity_check_failed"},
		{"infinity", math.Inf(1), 500, "integrity_check_failed"},
		{"minus infinity", math.Inf(-1), 200, `"logprob":-9999,`},
	} {
		for _, top := range []bool{false, true} {
			b := newBench(t, setup{})
			b.cluster.setHook(func(_ context.Context, _ cluster.Job, _ cluster.Role, e *cluster.Event) error {
				if e.Kind == cluster.Token && top {
					e.Logprob.Top[0].Logprob = float32(c.logprob)
				} else if e.Kind == cluster.Token {
					e.Logprob.Logprob = float32(c.logprob)
				}
				return nil
			})
			status, text := b.answer("/v1/chat/completions", chat("a", `"logprobs":true`, `"top_logprobs":1`))
			if status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("%s, alternative %v: status %d, body %s; want %d with %s", c.name, top, status, text, c.status, c.says)
			}
		}
	}
}

// More tokens than were granted never leave.
func TestTokensBeyondTheGrant(t *testing.T) {
	b := newBench(t, setup{})
	b.cluster.setHook(func(_ context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Finished {
			e.Kind, e.Index, e.Token = cluster.Token, 2, 'Z'
		}
		return nil
	})
	status, text := b.answer("/v1/chat/completions", chat("WXYZ", `"max_tokens":2`))
	if status != 500 || !strings.Contains(text, "integrity_check_failed") || strings.Contains(text, "Z") {
		t.Errorf("status %d, body %s; want 500", status, text)
	}
}

// Whichever verdict is late, nothing leaves before both are in: no header, no
// byte, though all tokens are there.
func TestOutputIsWithheldUntilBothVerdicts(t *testing.T) {
	for _, late := range []cluster.Role{cluster.Prefill, cluster.Decode} {
		t.Run(late.String(), func(t *testing.T) {
			b := newBench(t, setup{})
			reached, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
				if role == late && (e.Kind == cluster.Computed || e.Kind == cluster.Committed) {
					close(reached)
					wait(ctx, release)
				}
				if role == cluster.Decode && e.Kind == cluster.Finished {
					close(ended)
				}
				return nil
			})
			answered := make(chan string)
			go func() {
				_, text := b.answer("/v1/chat/completions", chat("hi", `"stream":true`))
				answered <- text
			}()
			<-reached
			if late == cluster.Prefill {
				<-ended // all of decode's tokens have left it
			}
			select {
			case text := <-answered:
				t.Errorf("an answer left before %s's verdict: %s", late, text)
			default:
			}
			if b.record.kinds() != "accepted" {
				t.Errorf("the ledger has %q before %s's verdict", b.record.kinds(), late)
			}
			close(release)
			if text := <-answered; !strings.HasSuffix(text, "data: [DONE]\n\n") {
				t.Errorf("the released answer is not whole: %s", text)
			}
		})
	}
}
