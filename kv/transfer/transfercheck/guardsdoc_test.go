package transfercheck

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// docs/guards.md is made from what the checker finds. With -args -rewrite it is
// written again.
func TestGuardsDocumentIsWhatIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("made from searches that take a while")
	}
	path := filepath.Join("..", "..", "..", "docs", "guards.md")
	want := guardsIntro + transportTable() + proofTable() + singlesTable(t) + cutTables(t) + hardwareTable() + storyList(t) + guardsLimits
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what is found; write it again with: go test ./kv/transfer/transfercheck -run GuardsDocument -args -rewrite", path)
	}
}

const guardsIntro = `# What each guard is for

Made by ` + "`go test ./kv/transfer/transfercheck -run GuardsDocument -args -rewrite`" + ` from exhaustive searches of small worlds: the shipped
machines and pool with a guard taken away, which only test code can do. Door stands before the machines: the decode worker asks
` + "`transfer.Hello.Takes`" + ` before there is a transfer, and so do the worlds. [SPEC.md](SPEC.md) has the protocol and the properties,
[gallery.md](gallery.md) tells the leaks guard by guard.

`

// transportTable says once what the names of transports mean.
func transportTable() string {
	var b strings.Builder
	b.WriteString("## Transports\n\nA transport is what it can do. These are the names here, in [SPEC.md](SPEC.md), in [gallery.md](gallery.md) and in `bulkhead check --transport`;\n" +
		"mctcp, ofi and ucx are transports of the field, the others are this repository's.\n\n| transport | what it can do | such are |\n|---|---|---|\n")
	for _, t := range Transports() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.Name, t.About, t.Like)
	}
	return b.String() + "\n"
}

// proofTable is one line a guard.
func proofTable() string {
	var b strings.Builder
	b.WriteString("## 1. One by one\n\nEach removal breaks the property named, by the shortest trace of that many steps; with the guard the property holds in every\n" +
		"state of the same world. A guard that stands behind others is looked at with those gone too.\n\n" +
		"| guard | property that breaks | behind | and with this fault | steps | states till then | states with it |\n|---|---|---|---|---|---|---|\n")
	for _, p := range Proofs() {
		without, with := Shortest(p.Without(), modelcheck.Options{}), Shortest(p.With(), modelcheck.Options{})
		fmt.Fprintf(&b, "| %v | %s | %s | %s | %d | %d | %d |\n", p.Guard, p.Property, joined(p.Behind), p.Fault, len(without.Violation.Trace), without.States, with.States)
	}
	return b.String() + "\n"
}

func joined(guards []guard.Guard) string {
	var names []string
	for _, g := range guards {
		names = append(names, g.String())
	}
	return strings.Join(names, ", ")
}

// singlesTable says which single removals let a foreign byte reach an answer.
func singlesTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("## 2. Which single removals leak\n\nA leak is a foreign or misplaced byte that a sequence reads while it decodes, with no tag check left to see it.\n\n" +
		"| transport | guards whose loss alone leaks |\n|---|---|\n")
	for _, k := range byName {
		var found []string
		for _, c := range recorded(t, k.name, 1) {
			found = append(found, c.Missing.String())
		}
		if len(found) == 0 {
			found = []string{"none"}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", k.transport.Name, strings.Join(found, ", "))
	}
	return b.String() + "\n"
}

// recorded are the cuts on record of one size.
func recorded(t *testing.T, name string, size int) (list []Cut) {
	_, _, all := readCuts(t, name)
	for _, c := range all {
		if c.Missing.Len() == size {
			list = append(list, c)
		}
	}
	return list
}

// cutTables are the minimal leaking sets of two and more.
func cutTables(t *testing.T) string {
	var b strings.Builder
	b.WriteString("## 3. Minimal sets that leak\n\nNo smaller part of such a set leaks. Every set up to the size given was looked at, in " +
		fmt.Sprint(len(LeakFamily(Receiver))) + " small worlds without broken promises.\n" +
		"In each world all of them were looked at in one exploration, in which guards are lost on the way; each set that was found was then searched for\n" +
		"a leak with its guards missing from the start (`kv/transfer/transfercheck/forks.go` has the argument). A transport there has room for " + fmt.Sprint(flightMax) + " writes\n" +
		"on their way at a time, and one stream for " + fmt.Sprint(flightMaxStream) + ": without Tombstone it would take any number.\n\n")
	for _, k := range byName {
		size, bounded, all := readCuts(t, k.name)
		fmt.Fprintf(&b, "**%s**, to size %d:\n\n", k.transport.Name, size)
		if len(bounded) > 0 {
			fmt.Fprintf(&b, "Cut off at %d states in some world, without a leak till then: {%s}.\n\n", leakStatesMax, strings.Join(bounded, "}, {"))
		}
		if len(all) == 0 {
			b.WriteString("No set leaks.\n\n")
			continue
		}
		b.WriteString("| set | world | steps |\n|---|---|---|\n")
		for _, c := range all {
			fmt.Fprintf(&b, "| %s | %s | %d |\n", joined(c.Missing.Guards()), c.World, c.Steps)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// promises are what hardware and transports promise, each broken once.
var promises = []struct {
	name string
	vary func(*Config)
}{
	{"a write is reported done and never lands", func(c *Config) { c.LostWrites = 1 }},
	{"a write goes to another page", func(c *Config) { c.AstrayWrites = 1 }},
	{"a write lands after it was reported done", func(c *Config) { c.LateWrites = 1 }},
}

// detection are the guards that look at bytes, tags and reports.
var detection = []guard.Guard{guard.Landings, guard.Gate, guard.TagVerify, guard.SumVerify, guard.TagStep}

// hardwareTable says which detection layers are enough when a promise is broken.
func hardwareTable() string {
	var b strings.Builder
	b.WriteString("## 4. Broken promises\n\nEach promise of a transport is broken once, and every choice of detection layers is tried: " + joined(detection) +
		".\nThe minimal choices that still let nothing through:\n\n| transport | broken promise | enough |\n|---|---|---|\n")
	for _, k := range byName {
		for _, p := range promises {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", k.transport.Name, p.name, enough(k.transport, p.vary))
		}
	}
	return b.String() + "\n"
}

// enough lists the minimal sets of detection layers with which nothing leaks.
func enough(tr Transport, vary func(*Config)) string {
	var minimal []int
	for size := 0; size <= len(detection); size++ {
		for on := range 1 << len(detection) {
			if ones(on) == size && !slices.ContainsFunc(minimal, func(m int) bool { return m&on == m }) && tight(tr, vary, on) {
				minimal = append(minimal, on)
			}
		}
	}
	var choices []string
	for _, on := range minimal {
		var names []string
		for i, g := range detection {
			if on>>i&1 != 0 {
				names = append(names, g.String())
			}
		}
		choices = append(choices, "{"+strings.Join(names, ", ")+"}")
	}
	if len(choices) == 0 {
		return "nothing"
	}
	return strings.Join(choices, " or ")
}

func ones(v int) (n int) {
	for ; v != 0; v &= v - 1 {
		n++
	}
	return n
}

// tight reports whether nothing leaks with these detection layers.
func tight(tr Transport, vary func(*Config), on int) bool {
	var missing []guard.Guard
	for i, g := range detection {
		if on>>i&1 == 0 {
			missing = append(missing, g)
		}
	}
	for _, pages := range []int{1, 2} {
		c := small("broken promise", tr, vary)
		c.Pages, c.Only, c.Without = pages, "NoLeak", guard.Without(missing...)
		if r := Shortest(c, modelcheck.Options{StatesMax: 60_000}); r.Violation != nil || !r.Complete {
			return false
		}
	}
	return true
}

// storyList is the gallery.
func storyList(t *testing.T) string {
	var b strings.Builder
	b.WriteString("## 5. Stories\n\nEach is the shortest leak of its kind, as a script in `kv/transfer/transfercheck/testdata/stories`. With all guards it is impossible.\n\n")
	for _, s := range stories() {
		script := readScript(t, filepath.Join("testdata", "stories", s.name+".txt"))
		fmt.Fprintf(&b, "**%s.** %s Without %s, on transport %s.\n\n```\n%s\n```\n\n", s.name, s.about, joined(s.missing), s.transport.Name, strings.Join(script, "\n"))
	}
	return b.String()
}

const guardsLimits = `## 6. What this does not say

- Worlds have two requests, one or two pages and one worker of a kind; sets larger than the size given were not looked at.
- The worlds of sections 2 to 4 have no prefix cache and one rank: Tenant, Readers, Pins, Rank, AllVerified and OneEnds have nothing to do in
  them. In the worlds of [SPEC.md](SPEC.md) section 10 none of the six leaks when it alone is missing.
- A guard is taken away everywhere at once. Half a guard, or a wrong one, is another fault.
- Where the transport can land a write's body before its tags, no check of tags is a second layer for a late write: such a
  transport belongs inside one trust domain.
`
