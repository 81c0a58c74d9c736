package transfercheck

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

var (
	cutSize      = flag.Int("cuts", 0, "compute the minimal leaking sets of guards up to this size, and write them")
	cutTransport = flag.String("transport", "", "compute them for this transport only")
	cutSeed      = flag.Uint64("cutseed", 0, "seed of what is sampled; 0 takes a new one")
)

// byName are the transports for which leaking sets are computed.
var byName = []struct {
	name      string
	transport Transport
}{{"receiver", Receiver}, {"stream", Stream}, {"one-sided", OneSided}, {"torn", TornWrite}, {"poisoned", Poisoned}, {"drain-only", DrainOnly}}

// TestComputeCuts computes the cuts, when asked to, and writes them.
func TestComputeCuts(t *testing.T) {
	if *cutSize == 0 {
		t.Skip("on demand: a long computation, run by -args -cuts N")
	}
	for _, b := range byName {
		if *cutTransport != "" && *cutTransport != b.name {
			continue
		}
		start := time.Now()
		cuts, cutOff := Cuts(b.transport, *cutSize, func(p CutsProgress) {
			fmt.Fprintf(os.Stderr, "%7.1f s  %s, {%v} missing from the start, %s: %d states, %d questions; %d leaking sets, %d candidates refuted\n",
				time.Since(start).Seconds(), b.name, p.Base, p.World, p.States, p.Asked, p.Cuts, p.Refuted)
		})
		lines := []string{fmt.Sprintf("# looked at to size %d", *cutSize)}
		for _, missing := range cutOff {
			lines = append(lines, fmt.Sprintf("# bounded: %v", missing))
		}
		for _, c := range cuts {
			lines = append(lines, fmt.Sprintf("%v | %s | %d", c.Missing, c.World, c.Steps))
		}
		if err := os.WriteFile(cutsPath(b.name), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func cutsPath(name string) string { return filepath.Join("testdata", "cuts", name+".txt") }

// readCuts reads what is on record for a transport: the size to which all sets
// were looked at, those for which a world was cut off, and the cuts.
func readCuts(t *testing.T, name string) (size int, cutOff []string, cuts []Cut) {
	t.Helper()
	b, err := os.ReadFile(cutsPath(name))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if set, ok := strings.CutPrefix(line, "# bounded: "); ok {
			cutOff = append(cutOff, set)
			continue
		}
		if strings.HasPrefix(line, "#") {
			if _, err := fmt.Sscanf(line, "# looked at to size %d", &size); err != nil {
				t.Fatal(err)
			}
			continue
		}
		parts := strings.Split(line, " | ")
		c := Cut{World: parts[1]}
		for _, name := range strings.Fields(parts[0]) {
			g, ok := guard.Named(name)
			if !ok {
				t.Fatalf("%s: no guard is called %q", cutsPath(name), name)
			}
			c.Missing = c.Missing.With(g)
		}
		if _, err := fmt.Sscan(parts[2], &c.Steps); err != nil {
			t.Fatal(err)
		}
		cuts = append(cuts, c)
	}
	return size, cutOff, cuts
}

// What is on record as a cut leaks in its world, in as many steps, and is minimal
// among what is on record.
func TestRecordedCutsLeak(t *testing.T) {
	if testing.Short() {
		t.Skip("searched in full runs")
	}
	for _, b := range byName {
		size, _, cuts := readCuts(t, b.name)
		if size < sizeOnRecord {
			t.Errorf("%s: sets were looked at to size %d, want %d", b.name, size, sizeOnRecord)
		}
		for i, c := range cuts {
			for k, other := range cuts {
				if i != k && c.Missing.Includes(other.Missing) {
					t.Errorf("%s: {%v} contains {%v}", b.name, c.Missing, other.Missing)
				}
			}
		}
		for _, c := range cuts {
			r := Shortest(leakWorld(t, b.transport, c), modelcheck.Options{StatesMax: leakStatesMax})
			if r.Violation == nil || len(r.Violation.Trace) != c.Steps {
				t.Errorf("%s without %v: %v in %q, on record are %d steps", b.name, c.Missing, r.Violation, c.World, c.Steps)
			}
		}
	}
}

const (
	sizeOnRecord = 3 // all sets up to this size, at least, were looked at
	setsSampled  = 1 // sets of each transport that are looked at one by one
)

// sample is a source of random numbers under a new seed, which is printed.
func sample(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *cutSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("sampled by -args -cutseed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// leakWorld is the world in which a cut leaks first, without its guards.
func leakWorld(t *testing.T, tr Transport, c Cut) Config {
	t.Helper()
	for _, config := range LeakFamily(tr) {
		if config.Name == c.World {
			config.Without = c.Missing
			return config
		}
	}
	t.Fatalf("no world is called %q", c.World)
	return Config{}
}

// Sets of guards without a cut on record, looked at one by one, don't leak. One
// with a cut may leak or not: losing a further guard can get in the way.
func TestSetsOneByOneAgreeWithTheRecord(t *testing.T) {
	if testing.Short() {
		t.Skip("each set is a search in every world")
	}
	random := sample(t)
	for _, b := range byName {
		size, _, cuts := readCuts(t, b.name)
		for range setsSampled {
			missing := withoutCut(random, size, cuts)
			if v, world, complete := Leak(b.transport, missing); v != nil || !complete {
				t.Errorf("%s without %v: %v in %q, complete is %v, no cut on record is a part", b.name, missing, v, world, complete)
			}
		}
	}
}

// withoutCut draws a set of guards that contains no cut. Those from Tenant on have
// nothing to do in these worlds.
func withoutCut(random *rand.Rand, size int, cuts []Cut) guard.Set {
	for {
		var missing guard.Set
		for missing.Len() < size {
			missing = missing.With(guard.Guard(random.IntN(int(guard.Tenant))))
		}
		if !slices.ContainsFunc(cuts, func(c Cut) bool { return missing.Includes(c.Missing) }) {
			return missing
		}
	}
}
