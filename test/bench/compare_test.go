package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpreadIsMedianAndQuartiles(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{4, 2}, spread{2.5, 3, 3.5}},
		{[]float64{5, 1, 4, 2, 3}, spread{2, 3, 4}},
	} {
		if diff := cmp.Diff(c.want, spreadOf(c.values), cmp.AllowUnexported(spread{})); diff != "" {
			t.Errorf("spread of %v (-want +got):\n%s", c.values, diff)
		}
	}
}

// A ratio is taken in each pair, before any median: the machine's moods cancel.
func TestRowPairsRunsBeforeItTakesMedians(t *testing.T) {
	pairs := []pair{
		{timing{1, 1}, timing{2, 3}},
		{timing{10, 1}, timing{20, 3}}, // a slow moment, for both
		{timing{1, 1}, timing{2, 3}},
	}
	r := newRow(task{name: "decode", tokens: 100}, pairs)
	want := row{task: r.task, ours: 100, theirs: 50, ratio: spread{2, 2, 2}, cpu: spread{3, 3, 3}}
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(row{}, task{}, spread{})); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if v := r.verdict(2.1); !strings.HasPrefix(v, "MISSED") {
		t.Errorf("a ratio of 2 against a bound of 2.1 is %q", v)
	}
	if v := r.verdict(2); !strings.HasPrefix(v, "ok") {
		t.Errorf("a ratio of 2 against a bound of 2 is %q", v)
	}
}

// An engine that ends in the middle is an error that names the task.
func TestEngineThatEndsIsAnError(t *testing.T) {
	p, err := startEngine("true")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.time("decode"); err == nil || !strings.Contains(err.Error(), "decode") && !strings.Contains(err.Error(), "pipe") {
		t.Errorf("error is %v, want one about the task", err)
	}
	_ = p.close()
}
