package transfercheck

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

var rewrite = flag.Bool("rewrite", false, "find the shortest counterexamples again and write them, and the documents made from them")

// story is a leak, told by its shortest counterexample.
type story struct {
	name, about string
	transport   Transport
	vary        func(*Config)
	missing     []guard.Guard
}

func stories() []story {
	return []story{
		{"incident", "A prompt is too large for prefill. A one-page placeholder is computed in its place, and decode reads pages that it owns and nobody wrote.", OneSided,
			func(c *Config) { c.Requests, c.SourcePages = []int{1, 2}, 1 },
			[]guard.Guard{guard.Door, guard.Size, guard.Coverage, guard.TagVerify, guard.SumVerify, guard.TagStep}},
		{"abort-reuse", "Decode gives up on a request and uses its pages again while a write into them is on its way.", OneSided,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.DeferRelease, guard.TagStep}},
		{"lost-ack", "ABORT overtakes its GRANT and is answered but not remembered: the GRANT starts a transfer whose pages are another's by now.", DrainOnly,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.Tombstone, guard.TagStep}},
		{"early-closed", "Prefill says CLOSED while a write is on its way.", DrainOnly,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.Drain, guard.TagStep}},
		{"late-post", "Prefill posts a block for a transfer after its CLOSED.", DrainOnly,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.Silence, guard.TagStep}},
		{"lost-write", "A link breaks at prefill. Its writes are taken for failed, CLOSED is said, and one of them lands all the same.", DrainOnly,
			func(c *Config) { c.Pages, c.Breaks = 1, 1 }, []guard.Guard{guard.LostWrite, guard.TagStep}},
		{"stale-epoch", "Prefill restarts. Its new incarnation answers for a transfer of the old one, whose write is still on its way.", DrainOnly,
			func(c *Config) { c.Pages, c.Strays, c.PrefillCrashes = 1, 1, 1 }, []guard.Guard{guard.Epochs, guard.TagStep}},
		{"unfenced-peer", "Prefill restarts. Decode takes the pages back before the old link is torn down.", DrainOnly,
			func(c *Config) { c.Pages, c.PrefillCrashes = 1, 1 }, []guard.Guard{guard.FencePeer, guard.TagStep}},
		{"running-kernel", "A request is cancelled and its pages go to another while the step that writes them still runs. Tags show nothing.", Receiver,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.KernelStop, guard.Holders}},
		{"source-reuse", "Prefill's page is used again before the write that reads it has ended, so another request's bytes travel under the right tag.", DrainOnly,
			func(c *Config) { c.SourcePages = 1 }, []guard.Guard{guard.Drain, guard.SourceHold, guard.Holders, guard.SumVerify}},
		{"mixed-jobs", "Prefill joins a grant with another request's job.", Receiver,
			func(c *Config) { c.MixedJobs = true }, []guard.Guard{guard.JobDigest, guard.Provenance}},
		{"used-id", "A retry gets the id of the attempt before it, and its CLOSED.", DrainOnly,
			func(c *Config) { c.Requests, c.Attempts = []int{1}, 2 }, []guard.Guard{guard.FreshID, guard.TagVerify, guard.SumVerify, guard.TagStep}},
		{"torn-write", "Pages are used again while a write is on its way whose body lands before its tags: no tag check sees it in time.", TornWrite,
			func(c *Config) { c.Pages = 1 }, []guard.Guard{guard.DeferRelease}},
	}
}

func (s story) config(missing ...guard.Guard) Config {
	c := small(s.name, s.transport, s.vary)
	c.Only, c.Without = "NoLeak", guard.Without(missing...)
	return c
}

// Each story leaks without its guards. With all guards, its script is either
// impossible or harmless; and no guard of the set is there for show: with any one
// of them given back, nothing leaks in that world.
func TestStories(t *testing.T) {
	for _, s := range stories() {
		path := filepath.Join("testdata", "stories", s.name+".txt")
		if *rewrite {
			writeStory(t, s, path)
		}
		script := readScript(t, path)
		bad := s.config(s.missing...)
		v, err := modelcheck.Replay(Model{&bad}, Properties(&bad), script)
		if err != nil || v == nil || len(v.Trace) != len(script) {
			t.Errorf("%s does not leak at its last line without its guards: %v, %v", s.name, v, err)
		}
		good := s.config()
		v, err = modelcheck.Replay(Model{&good}, Properties(&good), script)
		if v != nil {
			t.Errorf("%s leaks with all guards: %v", s.name, v)
		}
		t.Logf("%-15s %2d lines; with all guards: %v", s.name, len(script), err)
		for i := range s.missing {
			given := s.config(append(append([]guard.Guard{}, s.missing[:i]...), s.missing[i+1:]...)...)
			if r := Shortest(given, modelcheck.Options{StatesMax: 60_000}); r.Violation != nil || !r.Complete {
				t.Errorf("%s with %v given back: %v, complete is %v", s.name, s.missing[i], r.Violation, r.Complete)
			}
		}
	}
}

func writeStory(t *testing.T, s story, path string) {
	t.Helper()
	r := Shortest(s.config(s.missing...), modelcheck.Options{StatesMax: 200_000})
	if r.Violation == nil {
		t.Fatalf("%s does not leak, %d states, complete is %v", s.name, r.States, r.Complete)
	}
	text := fmt.Sprintf("# %s\n# Transport: %s. Without: %v.\n# %v\n# The shortest of all: %d steps, %d states.\n%s\n", s.about, s.transport.Name,
		guard.Without(s.missing...), r.Violation, len(r.Violation.Trace), r.States, strings.Join(r.Violation.Trace, "\n"))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readScript(t *testing.T, path string) (script []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if !strings.HasPrefix(line, "#") {
			script = append(script, line)
		}
	}
	return script
}
