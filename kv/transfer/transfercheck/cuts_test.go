package transfercheck

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
)

var (
	cutSize      = flag.Int("cuts", 0, "compute the minimal leaking sets of guards up to this size, and write them")
	cutTransport = flag.String("transport", "", "compute them for this transport only")
)

// byName are the transports for which leaking sets are computed.
var byName = []struct {
	name      string
	transport Transport
}{{"receiver", Receiver}, {"stream", Stream}, {"one-sided", OneSided}, {"torn", TornWrite}, {"poisoned", Poisoned}, {"drain-only", DrainOnly}}

// TestComputeCuts computes, when asked to, every set of up to so many guards
// whose loss leaks and of which no smaller set does.
func TestComputeCuts(t *testing.T) {
	if *cutSize == 0 {
		t.Skip("on demand: a long computation, run by -args -cuts N")
	}
	for _, b := range byName {
		if *cutTransport != "" && *cutTransport != b.name {
			continue
		}
		var lines, bounded []string
		var cuts [][]guard.Guard
		for size := 1; size <= *cutSize; size++ {
			n := 0
			sets(size, func(set []guard.Guard) {
				if containsCut(set, cuts) {
					return
				}
				n++
				v, where, complete := leaks(b.transport, guard.Without(set...))
				if v == nil && !complete {
					bounded = append(bounded, fmt.Sprintf("# bounded: %v", guard.Without(set...)))
				}
				if v != nil {
					cuts = append(cuts, append([]guard.Guard{}, set...))
					lines = append(lines, fmt.Sprintf("%v | %s | %d", guard.Without(set...), where, len(v.Trace)))
				}
			})
			t.Logf("%s: %d sets of %d looked at, %d cuts so far", b.name, n, size, len(cuts))
			text := fmt.Sprintf("# looked at to size %d\n%s\n", size, strings.Join(append(bounded, lines...), "\n"))
			if err := os.WriteFile(cutsPath(b.name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func cutsPath(name string) string { return filepath.Join("testdata", "cuts", name+".txt") }

// sets calls visit for each set of that size.
func sets(size int, visit func([]guard.Guard)) {
	var grow func(from guard.Guard, set []guard.Guard)
	grow = func(from guard.Guard, set []guard.Guard) {
		if len(set) == size {
			visit(set)
			return
		}
		for g := from; g < guard.End; g++ {
			grow(g+1, append(set, g))
		}
	}
	grow(0, nil)
}

func containsCut(set []guard.Guard, cuts [][]guard.Guard) bool {
	missing := guard.Without(set...)
	for _, cut := range cuts {
		all := true
		for _, g := range cut {
			all = all && missing.Missing(g)
		}
		if all {
			return true
		}
	}
	return false
}

// cut is one line of a file of cuts.
type cut struct {
	guards []guard.Guard
	where  string
	steps  int
}

func readCuts(t *testing.T, name string) (size int, bounded []string, list []cut) {
	t.Helper()
	b, err := os.ReadFile(cutsPath(name))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if set, ok := strings.CutPrefix(line, "# bounded: "); ok {
			bounded = append(bounded, set)
			continue
		}
		if strings.HasPrefix(line, "#") {
			if _, err := fmt.Sscanf(line, "# looked at to size %d", &size); err != nil {
				t.Fatal(err)
			}
			continue
		}
		parts := strings.Split(line, " | ")
		c := cut{where: parts[1]}
		for _, n := range strings.Fields(parts[0]) {
			g, ok := guard.Named(n)
			if !ok {
				t.Fatalf("%s: no guard is called %q", cutsPath(name), n)
			}
			c.guards = append(c.guards, g)
		}
		if _, err := fmt.Sscan(parts[2], &c.steps); err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	return size, bounded, list
}

// What is on record as a cut leaks, in as many steps, and is minimal among what
// is on record.
func TestRecordedCutsLeak(t *testing.T) {
	if testing.Short() {
		t.Skip("each recorded set is searched again")
	}
	for _, b := range byName {
		size, _, list := readCuts(t, b.name)
		if size < 1 {
			t.Errorf("%s: sets were looked at to size %d, want at least 1", b.name, size)
		}
		for i, c := range list {
			v, where, _ := leaks(b.transport, guard.Without(c.guards...))
			if v == nil || where != c.where || len(v.Trace) != c.steps {
				t.Errorf("%s without %v: %v in %q, on record are %d steps in %q", b.name, c.guards, v, where, c.steps, c.where)
			}
			for k, other := range list {
				if i != k && containsCut(c.guards, [][]guard.Guard{other.guards}) {
					t.Errorf("%s: %v contains %v", b.name, c.guards, other.guards)
				}
			}
		}
	}
}
