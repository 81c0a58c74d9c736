package transfercheck

import (
	"testing"

	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// BenchmarkExplore is how many states and actions a second are looked at, with
// every property of states and steps, and with healing from every state too.
func BenchmarkExplore(b *testing.B) {
	world := small("three requests", OneSided, func(c *Config) {
		c.Requests, c.Pages, c.SourcePages, c.PrefillCrashes = []int{1, 1, 1}, 3, 1, 1
	})
	for _, liveness := range []bool{false, true} {
		name := "safety"
		if liveness {
			name = "liveness"
		}
		b.Run(name, func(b *testing.B) {
			var properties []modelcheck.Property[*World]
			for _, p := range Properties(&world) {
				if liveness || p.Name != "Rest" && p.Name != "RestWithoutPrefill" {
					properties = append(properties, p)
				}
			}
			states, transitions := 0, 0
			for b.Loop() {
				r := modelcheck.Shortest(Model{&world}, properties, modelcheck.Options{StatesMax: 30_000})
				if r.Violation != nil {
					b.Fatal(r.Violation)
				}
				states, transitions = states+r.States, transitions+r.Transitions
			}
			b.ReportMetric(float64(states)/b.Elapsed().Seconds(), "states/s")
			b.ReportMetric(float64(transitions)/b.Elapsed().Seconds(), "transitions/s")
		})
	}
}
