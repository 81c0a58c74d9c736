package worker

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// estimate is a slowdown, as a share, with its 95 % interval.
type estimate struct {
	n                int // independent samples
	at, lower, upper float64
	quartile         [2]float64 // of the samples
}

// slower turns log ratios into shares.
func (e estimate) slower() estimate {
	for _, v := range []*float64{&e.at, &e.lower, &e.upper, &e.quartile[0], &e.quartile[1]} {
		*v = math.Expm1(*v)
	}
	return e
}

// z95 is the two-sided 95 % quantile of the normal distribution.
const z95 = 1.959964

// hodgesLehmann is the median of all pairwise means, with the interval that belongs to
// Wilcoxon's signed-rank test: exact for symmetric noise of any shape, and hardly
// moved by outliers, of which a shared machine has many. It needs 6 samples.
func hodgesLehmann(samples []float64) estimate {
	n := len(samples)
	means := make([]float64, 0, n*(n+1)/2)
	for i, a := range samples {
		for _, b := range samples[:i+1] {
			means = append(means, (a+b)/2)
		}
	}
	slices.Sort(means)
	e := estimate{n: n, at: quantile(means, 0.5), lower: math.Inf(-1), upper: math.Inf(1), quartile: quartiles(samples)}
	if n < 6 {
		return e
	}
	deviation := math.Sqrt(float64(n) * float64(n+1) * float64(2*n+1) / 24)
	outside := max(0, int(float64(len(means))/2-z95*deviation))
	e.lower, e.upper = means[outside], means[len(means)-1-outside]
	return e
}

// byPosition is the slowdown of tokens: log ratios of duels by token. The work at a
// token depends on its place in the page, which is sealed at the last; so the median
// is taken at each place, over all duels, and the places are averaged. The interval
// is a bootstrap over duels, since a duel's tokens share its moment.
func byPosition(duels [][]float64, period int, r *rand.Rand) estimate {
	const resamples = 500
	var all []float64
	for _, d := range duels {
		all = append(all, d...)
	}
	e := estimate{n: len(duels), at: placeMean(duels, period), quartile: quartiles(all), lower: math.Inf(-1), upper: math.Inf(1)}
	if len(duels) < 6 {
		return e
	}
	means := make([]float64, resamples)
	again := make([][]float64, len(duels))
	for i := range means {
		for k := range again {
			again[k] = duels[r.IntN(len(duels))]
		}
		means[i] = placeMean(again, period)
	}
	slices.Sort(means)
	e.lower, e.upper = quantile(means, 0.025), quantile(means, 0.975)
	return e
}

func placeMean(duels [][]float64, period int) float64 {
	places := make([][]float64, period)
	for _, d := range duels {
		for k, v := range d {
			places[k%period] = append(places[k%period], v)
		}
	}
	sum := 0.0
	for _, p := range places {
		slices.Sort(p)
		sum += quantile(p, 0.5)
	}
	return sum / float64(period)
}

// quantile of sorted values, interpolated.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	lo := int(at)
	hi := min(lo+1, len(sorted)-1)
	return sorted[lo] + (at-float64(lo))*(sorted[hi]-sorted[lo])
}

func quartiles(samples []float64) [2]float64 {
	s := slices.Sorted(slices.Values(samples))
	return [2]float64{quantile(s, 0.25), quantile(s, 0.75)}
}

func median(samples []float64) float64 {
	return quantile(slices.Sorted(slices.Values(samples)), 0.5)
}

// verdict says what estimates show of a limit.
type verdict string

const (
	within       verdict = "within the limit"
	inconclusive verdict = "inconclusive"
	above        verdict = "above the limit"
)

func judge(limit float64, estimates ...estimate) verdict {
	v := within
	for _, e := range estimates {
		switch {
		case e.lower > limit:
			return above
		case !(e.upper <= limit): // NaN included
			v = inconclusive
		}
	}
	return v
}

// noise is what a shared machine does to a log ratio: mostly a little, sometimes a lot.
func noise(r *rand.Rand) float64 {
	v := 0.02 * r.NormFloat64()
	if r.IntN(12) == 0 {
		v += 0.4 * r.NormFloat64()
	}
	return v
}

func TestIntervalsCoverTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const truth, experiments = 0.004, 240
	missed := map[string]int{}
	for range experiments {
		samples := make([]float64, 40)
		for i := range samples {
			samples[i] = truth + noise(r)
		}
		if e := hodgesLehmann(samples); e.lower > truth || e.upper < truth {
			missed["signed rank"]++
		}
	}
	for range experiments / 6 {
		duels := make([][]float64, 24)
		for i := range duels {
			moment := 0.01 * r.NormFloat64()
			for k := range 32 {
				at := moment + noise(r)
				if k%16 == 15 {
					at += 16 * truth // all of the cost is where pages are sealed
				}
				duels[i] = append(duels[i], at)
			}
		}
		if e := byPosition(duels, 16, r); e.lower > truth || e.upper < truth {
			missed["by position"] += 6
		}
	}
	for name, n := range missed {
		t.Logf("measured %s: missed the truth in %.1f %% of experiments", name, 100*float64(n)/experiments)
		if n > experiments/10 {
			t.Errorf("%s: the interval missed the truth in %d of %d experiments, 5 %% are expected", name, n, experiments)
		}
	}
}

func TestVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	with := func(n int, slowdown float64) estimate {
		samples := make([]float64, n)
		for i := range samples {
			samples[i] = math.Log1p(slowdown) + noise(r)
		}
		return hodgesLehmann(samples).slower()
	}
	for _, c := range []struct {
		name  string
		given []estimate
		want  verdict
	}{
		{"many samples of 0.2 %", []estimate{with(400, 0.002)}, within},
		{"few samples of 0.2 %", []estimate{with(6, 0.002)}, inconclusive},
		{"too few samples for an interval", []estimate{with(5, 0)}, inconclusive},
		{"many samples of 3 %", []estimate{with(400, 0.03)}, above},
		{"one of two too slow", []estimate{with(400, 0), with(400, 0.03)}, above},
		{"one of two unsure", []estimate{with(400, 0), with(8, 0)}, inconclusive},
		{"no numbers", []estimate{{upper: math.NaN()}}, inconclusive},
	} {
		if got := judge(0.01, c.given...); got != c.want {
			t.Errorf("%s: %q, want %q (%+v)", c.name, got, c.want, c.given)
		}
	}
}
