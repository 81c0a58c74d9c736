package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Spans of the simulated world that no seed changes.
const (
	silence      = 5 * time.Second // after which a link without a sign of life ends
	keepAlive    = 3 * time.Second // after which a worker notices that its gateway is gone
	restartMax   = 2 * time.Second
	drainMax     = 5 * time.Second
	slowPlaceMax = 9 * time.Second // longer than a fence may take before its link is torn down
	reorderMax   = 8               // parcels that may overtake each other
)

// fault kinds, each with the mean time between two of them; zero is never.
type faultKind int

const (
	cutLink faultKind = iota
	killPrefill
	killDecode
	killGateway
	stallLoop
	stopProcess
	breakControl
	partLink
	drainWorker
	faultKinds
)

var faultNames = [faultKinds]string{"cut link", "kill prefill", "kill decode", "kill gateway", "stall loop", "stop process", "break control", "part link", "drain"}

// swarm is one seed's mix: which faults there are and how often, how large and how
// slow everything is. A fault that is in every run hides what only happens without
// it, so that each is left out of many.
type swarm struct {
	prefills, decodes       int
	poolMin, poolMax        int // pages of a worker's pool, beside the reserve
	context, limit          int // served context of the gateway, 0: what fits; and what it comes to at most
	tenants, tenantShare    int // share in percent
	quotas                  bool
	promptMax, outputMax    int
	arrival                 time.Duration // mean time between requests
	sendMax, netMin, netMax time.Duration
	placeMax                time.Duration
	controlMin, controlMax  time.Duration
	turnMin, turnMax        time.Duration
	slowPlaceEvery          int
	reorder                 bool
	leaveEvery, hurryEvery  int
	patience                time.Duration
	oversizeEvery           int
	probeEvery              int
	auditEvery              int
	ledgers                 bool // are kept, and held against the machines
	cold                    bool // clients come before the workers are there
	faults                  [faultKinds]time.Duration
}

func drawSwarm(d dice) swarm {
	pick := func(list ...int) int { return list[d.IntN(len(list))] }
	span := func(list ...time.Duration) time.Duration { return list[d.IntN(len(list))] }
	us, ms := time.Microsecond, time.Millisecond
	s := swarm{prefills: d.within(1, 3), decodes: d.within(1, 3), poolMin: pick(4, 8, 16, 40, 80), tenants: d.within(1, 4), tenantShare: pick(25, 75, 100), quotas: d.chance(6),
		outputMax: pick(1, 4, 12, 40), arrival: span(3*ms, 15*ms, 60*ms, 200*ms),
		sendMax: span(10*us, 200*us, 2*ms, 20*ms), netMin: 5 * us, netMax: span(100*us, 2*ms, 30*ms, 300*ms), placeMax: span(10*us, 500*us, 20*ms),
		controlMin: 50 * us, controlMax: span(1*ms, 10*ms, 200*ms), turnMin: 20 * us, turnMax: span(200*us, 3*ms, 20*ms),
		slowPlaceEvery: pick(0, 0, 20, 200), reorder: d.chance(3), leaveEvery: pick(0, 2, 5, 20), hurryEvery: pick(0, 0, 10),
		patience: span(20*ms, 200*ms, 3*time.Second), oversizeEvery: pick(0, 30), probeEvery: pick(0, 20), cold: d.chance(6), ledgers: d.chance(3), auditEvery: pick(1, 4, 32)}
	s.poolMax = s.poolMin * d.within(1, 3)
	s.limit = s.poolMin * kv.PageTokens
	if d.chance(3) {
		s.context = d.within(1, s.limit)
		s.limit = s.context
	}
	s.promptMax = max(1, min(s.limit, pick(8, 40, 100, 400, 1000)))
	for k := range s.faults {
		if d.chance(2) {
			s.faults[k] = span(500*ms, 2*time.Second, 6*time.Second, 20*time.Second)
		}
	}
	if d.chance(8) { // a quiet world
		s.faults = [faultKinds]time.Duration{}
	}
	return s
}

// String is the mix in one line.
func (s swarm) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d prefill and %d decode workers of %d to %d pages, %d tenants, prompts to %d of %d tokens, answers to %d, a request each %v",
		s.prefills, s.decodes, s.poolMin, s.poolMax, s.tenants, s.promptMax, s.limit, s.outputMax, s.arrival)
	for k, mean := range s.faults {
		if mean > 0 {
			fmt.Fprintf(&b, ", %s each %v", faultNames[k], mean)
		}
	}
	return b.String()
}
