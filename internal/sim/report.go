package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Replay is the command that gives the same run again.
func (r Report) Replay() string {
	c := r.Config
	b := fmt.Sprintf("bulkhead sim --seed %d", c.Seed)
	for _, f := range []struct {
		name  string
		value int
		none  int
	}{{"steps", c.Steps, 0}, {"requests", c.Requests, 0}, {"faults", c.Faults, -1}} {
		if f.value != f.none {
			b += fmt.Sprintf(" --%s %d", f.name, f.value)
		}
	}
	return b
}

// Sum adds runs up.
type Sum struct {
	Runs, Requests, Attempts, Tokens, Entries, Events int
	Transitions                                       int // of the proved machine, that the workers' steps are runs of
	Outcomes, Faults                                  map[string]int
	Took                                              time.Duration // simulated
}

// Add adds a run.
func (s *Sum) Add(r Report) {
	if s.Outcomes == nil {
		s.Outcomes, s.Faults = map[string]int{}, map[string]int{}
	}
	s.Runs++
	s.Requests += r.Requests
	s.Attempts += r.Attempts
	s.Tokens += r.Tokens
	s.Entries += r.Entries
	if r.Lockstep.Tally != nil {
		s.Transitions += r.Lockstep.Tally.Sum()
	}
	s.Events += r.Events
	s.Took += r.Took
	for how, n := range r.Outcomes {
		s.Outcomes[how] += n
	}
	for kind, n := range r.Faults {
		s.Faults[kind] += n
	}
}

// String is the sum in two lines.
func (s Sum) String() string {
	return fmt.Sprintf("%d runs, %d requests (%s), %d attempts, %d tokens, %d ledger entries re-executed, %d proved transitions in lockstep, %d events in %v of simulated time; faults: %s",
		s.Runs, s.Requests, list(s.Outcomes), s.Attempts, s.Tokens, s.Entries, s.Transitions, s.Events, s.Took.Round(time.Second), list(s.Faults))
}

func list(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
