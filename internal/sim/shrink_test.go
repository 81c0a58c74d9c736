package sim

import (
	"strings"
	"testing"
)

func TestShrinkGivesASmallerRunThatFails(t *testing.T) {
	s := simulator(t)
	c := Config{Seed: 3, Faults: -1, bugs: bugs{writtenEarly: true}}
	failed := s.Run(c)
	if failed.Failure == "" {
		t.Fatal("the planted bug is not found by the seed")
	}
	small := s.Shrink(failed)
	t.Logf("measured %d faults, %d requests, %d steps shrunk to %s: %s", failed.FaultCount(), failed.Requests, failed.Steps, small.Replay(), small.Failure)
	if small.Failure == "" || small.Steps >= failed.Steps || small.FaultCount() > failed.FaultCount() {
		t.Errorf("%d steps were shrunk to %d, %d faults to %d", failed.Steps, small.Steps, failed.FaultCount(), small.FaultCount())
	}
	if again := s.Run(small.Config); again.Failure != small.Failure {
		t.Errorf("the shrunk run fails with %q, and the next time with %q", small.Failure, again.Failure)
	}
}

func TestReplayNamesWhatDiffersFromTheSeedsOwn(t *testing.T) {
	for want, c := range map[string]Config{
		"bulkhead sim --seed 7":                                     {Seed: 7, Faults: -1},
		"bulkhead sim --seed 7 --faults 0":                          {Seed: 7},
		"bulkhead sim --seed 8 --steps 9 --requests 10 --faults 11": {Seed: 8, Steps: 9, Requests: 10, Faults: 11},
	} {
		if got := (Report{Config: c}).Replay(); got != want {
			t.Errorf("replay is %q, want %q", got, want)
		}
	}
}

// The trace tells the story of a run, and keys and tokens are not in it.
func TestTraceTellsTheStory(t *testing.T) {
	s := simulator(t)
	var story strings.Builder
	r := s.Run(Config{Seed: 5, Faults: -1, Requests: 30, Trace: &story})
	if r.Failure != "" {
		t.Fatal(r.Failure)
	}
	for _, part := range []string{"the gateway starts", "starts in epoch", "request 1 of ", "no faults from here on"} {
		if !strings.Contains(story.String(), part) {
			t.Errorf("the story lacks %q", part)
		}
	}
}
