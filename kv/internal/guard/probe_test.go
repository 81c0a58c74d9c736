package guard

import "testing"

func TestSetsAreCountedAndCompared(t *testing.T) {
	s := Without(Drain, TagStep)
	if s.Len() != 2 || len(s.Guards()) != 2 || s.Guards()[0] != Drain || s.Guards()[1] != TagStep {
		t.Errorf("%q has %d guards, listed as %v", s, s.Len(), s.Guards())
	}
	if s.With(Drain) != s || s.With(Gate) != Without(Drain, Gate, TagStep) || s.Less(Without(Drain, Gate)) != Without(TagStep) {
		t.Errorf("with Gate it is %q, less Drain and Gate %q", s.With(Gate), s.Less(Without(Drain, Gate)))
	}
	if !s.Includes(Without()) || !s.Includes(s) || !s.Includes(Without(Drain)) || s.Includes(Without(Drain, Gate)) {
		t.Error("a set does not include exactly its parts")
	}
}

// What a probe is told holds in every set that it made, and what is asked of
// such a set is on its record.
func TestAProbeAnswersAndRemembersTheQuestions(t *testing.T) {
	var p Probe
	before := p.Set()
	p.Miss(Without(Drain))
	if !before.Missing(Drain) || before.Missing(Gate) || before.String() != "Drain" {
		t.Errorf("the probe misses Drain, its set %q", before)
	}
	if p.Asked() != Without(Drain, Gate) {
		t.Errorf("Drain and Gate were asked for, on record are %q", p.Asked())
	}
	p.Miss(before.With(Gate))
	if p.Asked() != Without() || !before.Missing(Gate) || !before.Includes(Without(Drain, Gate)) {
		t.Errorf("the probe misses Drain and Gate and was asked nothing: its set is %q, asked for %q", before, p.Asked())
	}
}
