package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/sim"
)

// A failure is told with the command that shows it again.
func TestFailuresCanBeReplayed(t *testing.T) {
	s, err := sim.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	failed := sim.Report{Config: sim.Config{Seed: 3, Requests: 2, Faults: -1}, Failure: "two answers", Requests: 2, Steps: 50}
	if err := tellFailure(cmd, s, failed); err == nil || !strings.Contains(err.Error(), "seed 3") {
		t.Errorf("the command ends with %v, want the seed that failed", err)
	}
	for _, part := range []string{"seed 3: two answers", "replay:  bulkhead sim --seed 3 --requests 2\n", "smaller: bulkhead sim --seed 3"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the output lacks %q:\n%s", part, out.String())
		}
	}
}
