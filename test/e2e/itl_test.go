package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// itlPromptTokens is how many tokens, at least, the long prompt has.
	itlPromptTokens = 4096
	itlRounds       = 2
	itlTokens       = 400
	// itlSamplesMin is how many gaps a percentile needs to mean anything.
	itlSamplesMin = 50
)

// A running answer keeps its pace while another tenant's prompt of 4,096 tokens is
// computed on the same cores. The times are printed; the machine decides them.
func TestPaceOfAnAnswerDuringALongPrefill(t *testing.T) {
	s := serve(t, smollm2(t), "--log-level", "error")
	long := longPrompt()
	var quiet, busy []time.Duration
	for range itlRounds {
		quiet = append(quiet, s.gaps(t, nil)...)
		busy = append(busy, s.gaps(t, func() {
			r, err := s.post(t.Context(), s.key(1), "/v1/completions", object{"prompt": long, "max_tokens": 1, "temperature": 0})
			if err != nil || r.Status != 200 {
				t.Errorf("long prompt: status %d, %v, %+v", r.Status, err, r.Error)
			}
			if r.Usage.PromptTokens < itlPromptTokens {
				t.Errorf("the long prompt has %d tokens, want at least %d", r.Usage.PromptTokens, itlPromptTokens)
			}
		})...)
	}
	if len(quiet) < itlSamplesMin || len(busy) < itlSamplesMin {
		t.Fatalf("%d quiet gaps and %d during prefills, want %d of each", len(quiet), len(busy), itlSamplesMin)
	}
	q, b := percentile(quiet, 0.99), percentile(busy, 0.99)
	fmt.Printf("measured time between tokens: quiet median %v, p99 %v (%d); during a prefill median %v, p99 %v (%d); p99 is %.2f times the quiet one\n",
		percentile(quiet, 0.5), q, len(quiet), percentile(busy, 0.5), b, len(busy), b.Seconds()/q.Seconds())
}

// longPrompt has more than five tokens for each of its numbers.
func longPrompt() string {
	var b strings.Builder
	for i := range itlPromptTokens / 5 {
		fmt.Fprintf(&b, "%d apples. ", i*7%1000)
	}
	return b.String()
}

// gaps are the times between the tokens of an answer, from the tenth on: all of
// them, or those that pass while beside runs.
func (s *server) gaps(t *testing.T, beside func()) []time.Duration {
	t.Helper()
	var all []time.Duration
	var last time.Time
	over := make(chan struct{})
	started := false
	defer func() {
		if started {
			<-over
		}
	}()
	_, _, err := s.stream(t.Context(), s.key(0), "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,", itlTokens, func(pieces int) bool {
		now := time.Now()
		switch {
		case pieces == 10 && beside != nil:
			started = true
			go func() { defer close(over); beside() }()
		case pieces > 10:
			all = append(all, now.Sub(last))
		}
		last = now
		select {
		case <-over:
			return false
		default:
			return true
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) { // hung up once the prefill was over
		t.Fatal(err)
	}
	return all
}

// percentile is the value that a share q of the durations do not exceed.
func percentile(durations []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Round(10 * time.Microsecond)
}
