package sim

import "testing"

// BenchmarkRun measures the simulator: requests a second on one core.
func BenchmarkRun(b *testing.B) {
	s := simulator(b)
	requests, seed := 0, uint64(1)
	for b.Loop() {
		r := s.Run(Config{Seed: seed, Faults: -1})
		if r.Failure != "" {
			b.Fatalf("seed %d: %s", seed, r.Failure)
		}
		requests += r.Requests
		seed++
	}
	b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
}
