package main

import (
	"errors"
	"testing"
	"time"
)

func TestPaceIsJudged(t *testing.T) {
	gaps := func(n int, usual, worst time.Duration) []time.Duration {
		all := make([]time.Duration, n)
		for i := range all {
			all[i] = usual
			if i%20 == 0 { // one in twenty, so that it is the 99th percentile
				all[i] = worst
			}
		}
		return all
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name               string
		quiet, busy        []time.Duration
		fails, undecidable bool
	}{
		{"as good as alone", gaps(200, 10*ms, 12*ms), gaps(200, 12*ms, 14*ms), false, false},
		{"at the bound", gaps(200, 10*ms, 12*ms), gaps(200, 12*ms, 36*ms), false, false},
		{"over the bound", gaps(200, 10*ms, 12*ms), gaps(200, 12*ms, 37*ms), true, false},
		{"few samples", gaps(99, 10*ms, 12*ms), gaps(200, 12*ms, 14*ms), false, true},
		{"few samples beside", gaps(200, 10*ms, 12*ms), gaps(99, 12*ms, 14*ms), false, true},
		{"a noisy machine", gaps(200, 10*ms, 60*ms), gaps(200, 12*ms, 60*ms), false, true},
		{"a noisy machine does not excuse", gaps(200, 10*ms, 60*ms), gaps(200, 12*ms, 190*ms), true, false},
	} {
		_, err := judgePace(c.quiet, c.busy)
		if undecidable := errors.Is(err, errInconclusive); undecidable != c.undecidable || (err != nil) != (c.fails || c.undecidable) {
			t.Errorf("%s: %v, want a failure: %v, inconclusive: %v", c.name, err, c.fails, c.undecidable)
		}
	}
}
