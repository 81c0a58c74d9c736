package transfercheck

import (
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Proof shows that a guard earns its place: without it, and without what stands
// before it, a property breaks that holds with it.
type Proof struct {
	Guard    guard.Guard
	Property string
	Behind   []guard.Guard // guards that must have failed before this one is needed
	Fault    string        // what else must have gone wrong, in words
	Config   Config
}

// With is the proof's world with the guard, Without is the same without it.
func (p Proof) With() Config { return p.config(p.Behind) }

// Without is the proof's world without the guard.
func (p Proof) Without() Config {
	return p.config(append(p.Behind[:len(p.Behind):len(p.Behind)], p.Guard))
}

func (p Proof) config(missing []guard.Guard) Config {
	c := p.Config
	c.Only, c.Without = p.Property, guard.Without(missing...)
	return c
}

// Proofs is one proof for each guard.
func Proofs() []Proof { return slices.Concat(baseProofs(), pinProofs(), rankProofs()) }

func baseProofs() []Proof {
	tooLarge := func(c *Config) { c.Requests, c.SourcePages = []int{1, 2}, 1 }
	onePage := func(c *Config) { c.Pages, c.SourcePages = 1, 1 }
	strays := func(c *Config) { c.Strays, c.PrefillCrashes, c.Pages, c.SourcePages = 1, 1, 1, 1 }
	lost := func(c *Config) { c.LostWrites, c.Pages, c.SourcePages = 1, 1, 1 }
	late := func(c *Config) { c.LateWrites, c.Pages, c.SourcePages = 1, 1, 1 }
	mixed := func(c *Config) { c.MixedJobs = true }
	return []Proof{
		{guard.Door, "Admission", nil, "", small("too large", OneSided, tooLarge)},
		{guard.Size, "NoPlaceholder", []guard.Guard{guard.Door}, "", small("too large", OneSided, tooLarge)},
		{guard.Coverage, "Coverage", []guard.Guard{guard.Door, guard.Size}, "", small("too large", OneSided, tooLarge)},
		{guard.JobDigest, "RightTokens", nil, "jobs are mixed up at prefill", small("mixed jobs", OneSided, mixed)},
		{guard.Provenance, "SoundStart", []guard.Guard{guard.JobDigest}, "jobs are mixed up at prefill", small("mixed jobs", OneSided, mixed)},
		{guard.Landings, "LandedBeforeVerify", nil, "a write is lost and reported done", small("lost write", Receiver, lost)},
		{guard.FenceFirst, "FencedBeforeVerify", nil, "", small("one page", OneSided, onePage)},
		{guard.DeferRelease, "ProofBeforeRelease", nil, "", small("one page", OneSided, onePage)},
		{guard.FencePeer, "ProofBeforeRelease", nil, "prefill is suspected", small("suspicion", OneSided, func(c *Config) { onePage(c); c.Suspicions = 1 })},
		{guard.Epochs, "ProofBeforeRelease", nil, "prefill restarts, a message reaches the wrong incarnation", small("strays", DrainOnly, strays)},
		{guard.FreshID, "SoundStart", []guard.Guard{guard.TagVerify, guard.SumVerify}, "", small("retries", DrainOnly, func(c *Config) { onePage(c); c.Attempts, c.Pages, c.Requests = 2, 2, []int{1} })},
		{guard.KernelStop, "ReleaseHeld", nil, "", small("one page", OneSided, onePage)},
		{guard.Silence, "ClosedMeansClosed", nil, "", small("one page", OneSided, onePage)},
		{guard.Drain, "ClosedMeansClosed", nil, "", small("one page", OneSided, onePage)},
		{guard.LostWrite, "ClosedMeansClosed", nil, "the link breaks at prefill", small("break", OneSided, func(c *Config) { onePage(c); c.Breaks = 1 })},
		{guard.Tombstone, "Rest", nil, "", small("one page", DrainOnly, onePage)},
		{guard.Replay, "Rest", nil, "", small("one page", DrainOnly, onePage)},
		{guard.SourceHold, "ReleaseHeld", nil, "", small("one page", OneSided, onePage)},
		{guard.LowMark, "Forgets", nil, "", small("one page", OneSided, onePage)},
		{guard.Holders, "NoStaleKernel", []guard.Guard{guard.KernelStop}, "", small("one page", OneSided, onePage)},
		{guard.Gate, "ForeignLanding", nil, "a write lands after it was reported", small("late write", Receiver, late)},
		{guard.TagVerify, "SoundStart", []guard.Guard{guard.SumVerify}, "a write is lost and reported done", small("lost write", OneSided, lost)},
		{guard.SumVerify, "SoundStart", []guard.Guard{guard.TagVerify}, "a write is lost and reported done", small("lost write", OneSided, lost)},
		{guard.TagStep, "NoLeak", nil, "a write lands after it was reported", small("late write", OneSided, late)},
	}
}

// Shortest explores a configuration breadth first.
func Shortest(c Config, o modelcheck.Options) modelcheck.Result[Action] {
	if o.StatesMax == 0 {
		o.StatesMax = c.StatesMax
	}
	return modelcheck.Shortest(Model{&c}, Properties(&c), o)
}

// The room of LeakFamily's transports for writes on their way. Without Tombstone a
// stream would take any number of writes of one block, and is given less: a late
// write and another.
const (
	flightMax       = 4
	flightMaxStream = 2
)

// Explore explores a configuration as it asks for. A violation comes with the
// shortest way to it.
func Explore(c Config, o modelcheck.Options) modelcheck.Result[Action] {
	if c.DepthFirst {
		if r := modelcheck.Deep(Model{&c}, Properties(&c), o); r.Violation == nil {
			return r
		}
	}
	return Shortest(c, o)
}

// LeakFamily is the set of small configurations in which a set of guards is
// looked at for a leak.
func LeakFamily(t Transport) []Config {
	one := func(name string, vary func(*Config)) Config {
		c := small(name, t, func(c *Config) { c.Pages, c.FlightMax, c.Only = 1, flightMax, "NoLeak" })
		if t.Stream {
			c.FlightMax = flightMaxStream
		}
		vary(&c)
		return c
	}
	return []Config{
		one("crash of prefill", func(c *Config) { c.PrefillCrashes = 1 }),
		one("too large", func(c *Config) { c.Requests, c.Pages, c.SourcePages = []int{1, 2}, 2, 1 }),
		one("false suspicion", func(c *Config) { c.Suspicions = 1 }),
		one("link breaks at prefill", func(c *Config) { c.Breaks = 1 }),
		one("retries", func(c *Config) { c.Attempts, c.Requests, c.Pages = 2, []int{1}, 2 }),
		one("one source page", func(c *Config) { c.Pages, c.SourcePages = 2, 1 }),
		one("crash of decode", func(c *Config) { c.DecodeCrashes = 1 }),
		one("stray messages", func(c *Config) { c.Strays, c.PrefillCrashes = 1, 1 }),
	}
}
