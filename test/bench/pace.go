package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	paceRounds = 3
	// paceTokens is the length of the answer whose pace is measured, and paceFrom the
	// first token that counts.
	paceTokens = 400
	paceFrom   = 10
	// paceNumbers makes the long prompt: each is more than five tokens.
	paceNumbers = 4096 / 5
	// paceBound is how many times the quiet 99th percentile the one beside a long
	// prompt may be.
	paceBound = 3
	// paceSamplesMin is how many gaps a percentile needs to mean anything, and
	// paceNoiseMax how many times their median the quiet 99th percentile may be on a
	// machine that does little else.
	paceSamplesMin = 100
	paceNoiseMax   = 4
)

// pace is a check that an answer goes on while another tenant's long prompt is computed
// on the same cores.
type pace struct{ binary, model string }

func (p *pace) run(out io.Writer) (err error) {
	s, err := serve(p.binary, p.model, "--log-level", "error")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	var quiet, busy []time.Duration
	for range paceRounds {
		alone, err := s.gaps(nil)
		if err != nil {
			return err
		}
		beside, err := s.gaps(func(ctx context.Context) error { return s.ask(ctx, 1, longPrompt(), 1, func() {}) })
		if err != nil {
			return err
		}
		quiet, busy = append(quiet, alone...), append(busy, beside...)
	}
	text, err := judgePace(quiet, busy)
	fmt.Fprintf(out, "pace      of an answer of `bulkhead serve` (time between tokens, alone and while a prompt of over 4,096 tokens is computed)\n\n%s\n", text)
	return err
}

// judgePace compares the times between tokens, alone and beside a long prompt.
func judgePace(quiet, busy []time.Duration) (text string, err error) {
	if len(quiet) < paceSamplesMin || len(busy) < paceSamplesMin {
		return "", fmt.Errorf("%w: %d gaps alone and %d beside a long prompt, want %d of each", errInconclusive, len(quiet), len(busy), paceSamplesMin)
	}
	q, b := percentile(quiet, 99), percentile(busy, 99)
	text = fmt.Sprintf("alone     median %v, p99 %v (%d)\nbeside    median %v, p99 %v (%d), %.2f times; the bound is %d", percentile(quiet, 50), q, len(quiet),
		percentile(busy, 50), b, len(busy), b.Seconds()/q.Seconds(), paceBound)
	switch {
	case b > paceBound*q:
		return text, fmt.Errorf("the 99th percentile of the time between tokens is %.2f times the quiet one beside a long prompt, want at most %d", b.Seconds()/q.Seconds(), paceBound)
	case q > paceNoiseMax*percentile(quiet, 50):
		return text, fmt.Errorf("%w: the quiet 99th percentile is over %d times the median: the machine does something else", errInconclusive, paceNoiseMax)
	}
	return text, nil
}

func longPrompt() string {
	var b strings.Builder
	for i := range paceNumbers {
		fmt.Fprintf(&b, "%d apples. ", i*7%1000)
	}
	return b.String()
}

// gaps are the times between the tokens of an answer: all, or those that pass while
// beside runs.
func (s *serving) gaps(beside func(context.Context) error) (all []time.Duration, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan error, 1)
	var last time.Time
	pieces := 0
	err = s.ask(ctx, 0, "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,", paceTokens, func() {
		now := time.Now()
		pieces++
		if pieces == paceFrom && beside != nil {
			go func() {
				over <- unlessCancelled(beside(ctx))
				cancel() // what comes now is not beside it
			}()
		}
		if pieces > paceFrom && ctx.Err() == nil {
			all = append(all, now.Sub(last))
		}
		last = now
	})
	cancel() // nor does what is beside it go on
	if beside != nil && pieces >= paceFrom {
		return all, errors.Join(unlessCancelled(err), <-over)
	}
	return all, err
}

func unlessCancelled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// percentile is the value that so many of a hundred durations do not exceed.
func percentile(durations []time.Duration, n int) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(n*len(sorted)/100, len(sorted)-1)].Round(10 * time.Microsecond)
}
