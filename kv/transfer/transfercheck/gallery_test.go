package transfercheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// docs/gallery.md is made from the code, what the checker finds and the cuts on
// record. With -args -rewrite it is written again.
func TestGalleryIsWhatIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("made from searches that take a while")
	}
	path := filepath.Join(repository, "docs", "gallery.md")
	want := gallery(t)
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
		t.Errorf("%s is not what is found; write it again with: go test ./kv/transfer/transfercheck -run Gallery -args -rewrite", path)
	}
}

// repository is the repository's.
var repository = filepath.Join("..", "..", "..")

const galleryIntro = `# Remove this, and here is the leak

Made by ` + "`go test ./kv/transfer/transfercheck -run Gallery -args -rewrite`" + ` from the code, from exhaustive searches of small worlds, and
from the minimal leaking sets on record. [guards.md](guards.md) has the tables, [SPEC.md](SPEC.md) the protocol and the properties.

One section a guard: what it is and where it stands; which property breaks first without it, by the shortest run that breaks it; the
shortest leak of which its loss is a part; and what must be lost beside it on each kind of transport before a foreign or misplaced byte
is read. Stories are of the shipped machines in worlds with one decode worker D0 and one prefill worker P0. A, B and C are transfers; one
that gets a used id has the name of the one before. A message that was sent can arrive later, again, or never; a write can land any time
after it was posted.

`

// gallery is one section a guard.
func gallery(t *testing.T) string {
	var b strings.Builder
	b.WriteString(galleryIntro)
	comments, asked, says := guardComments(t), askedIn(t), propertySays(t)
	for _, p := range Proofs() {
		fmt.Fprintf(&b, "## %v\n\n%s\n\nIt stands in %s.%s\n\n", p.Guard, comments[p.Guard], asked[p.Guard], field[p.Guard])
		b.WriteString(firstBreak(p, says[p.Property]))
		b.WriteString(shortestLeak(t, p.Guard))
		b.WriteString(layersBehind(t, p.Guard))
	}
	return b.String()
}

// guardComments are the doc comments of the guards.
func guardComments(t *testing.T) map[guard.Guard]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, "kv", "internal", "guard", "guard.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[guard.Guard]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Doc != nil {
			if g, ok := guard.Named(spec.Names[0].Name); ok {
				comments[g] = strings.Join(strings.Fields(spec.Doc.Text()), " ")
			}
		}
		return true
	})
	for g := range guard.End {
		if comments[g] == "" {
			t.Errorf("%v has no comment", g)
		}
	}
	return comments
}

// standsIn is where a guard stands that the machines and the pool do not have:
// the world of the checker is asked in its place.
var standsIn = map[guard.Guard][2]string{
	guard.Door:      {"internal/admission/limit.go", "Decide"},
	guard.Gate:      {"kv/transport/gate.go", "judge"},
	guard.TagVerify: {"kv/slab/slab.go", "Check"},
	guard.SumVerify: {"kv/slab/slab.go", "Check"},
	guard.TagStep:   {"internal/worker/decode_step.go", "pagesHold"},
}

// askedIn names the functions that a guard stands in.
func askedIn(t *testing.T) map[guard.Guard]string {
	t.Helper()
	places := map[guard.Guard][]string{}
	add := func(g guard.Guard, path, function string) {
		if place := fmt.Sprintf("`%s` of `%s`", function, path); !slices.Contains(places[g], place) {
			places[g] = append(places[g], place)
		}
	}
	for _, path := range []string{"kv/pool/pool.go", "kv/transfer/source.go", "kv/transfer/target.go", "kv/transfer/join.go"} {
		for _, f := range functions(t, path) {
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "guard" {
						if g, ok := guard.Named(s.Sel.Name); ok {
							add(g, path, f.Name.Name)
						}
					}
				}
				return true
			})
		}
	}
	for g, at := range standsIn {
		if !slices.ContainsFunc(functions(t, at[0]), func(f *ast.FuncDecl) bool { return f.Name.Name == at[1] }) {
			t.Errorf("%v: %s has no function %s", g, at[0], at[1])
		}
		add(g, at[0], at[1])
	}
	text := map[guard.Guard]string{}
	for g := range guard.End {
		if len(places[g]) == 0 {
			t.Errorf("%v stands nowhere", g)
		}
		text[g] = inWords(places[g], "and")
	}
	return text
}

func functions(t *testing.T, path string) (list []*ast.FuncDecl) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, filepath.FromSlash(path)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			list = append(list, f)
		}
	}
	return list
}

// propertySays is the table of properties in docs/SPEC.md.
func propertySays(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, "docs", "SPEC.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "| property | says |\n|---|---|\n")
	says := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 2 {
			break
		}
		for _, name := range strings.Split(cells[0], ",") {
			says[strings.TrimSpace(name)] = strings.TrimSpace(cells[1])
		}
	}
	for _, p := range Proofs() {
		if says[p.Property] == "" {
			t.Errorf("docs/SPEC.md does not say what %s is", p.Property)
		}
	}
	return says
}

// field is what a guard answers of what has gone wrong elsewhere, in public.
var field = map[guard.Guard]string{
	guard.Door: " It answers the incident for which this project exists: a prompt that was too large for prefill was not refused at the door, and was " +
		"handed over as if it had been computed.",
	guard.Size:         " It is the second layer in that incident: prefill put a placeholder of one page in place of a prompt that it could not hold.",
	guard.Coverage:     " It is the third layer in that incident: decode took a hand-over of one page for the whole of its grant.",
	guard.DeferRelease: " In the field: SGLang #24527, where decode used the pages of an aborted request again while the old write was on its way. That the new owner's bytes replace the old ones (#24580) is no answer: the new write can land first.",
	guard.FencePeer:    " In the field: SGLang #38961 and sglang-omni #2078: a time-out or an abort at one end says nothing about what the other end still writes. LightLLM #1406 is the other side of it: without a fence, pages of a transfer that hangs are kept for ever.",
	guard.Drain:        " In the field: SGLang #38961 and #40645: whom to answer was forgotten before the last write had ended; #35360: a transfer was acknowledged while writes of it went on.",
	guard.Replay:       " In the field: SGLang #38961 and #40645: an acknowledgement that could be said only once left pages waiting for a time-out, which became the common path.",
	guard.Tombstone:    " In the field: SGLang #35360, where an unknown transfer was acknowledged while writes of it could still start; and #38961, where the abort of one that had been cleared was never answered.",
	guard.SourceHold:   " In the field: SGLang #38961, in which source pages went back as soon as a transfer failed; the Linux NFS client over RDMA (commit 01bb35c) keeps memory until a send has completed, for a retransmission would show what is in it by then.",
}

// firstBreak is the shortest run that breaks the property that a guard holds up.
func firstBreak(p Proof, says string) string {
	c := p.Without()
	v := Shortest(c, modelcheck.Options{}).Violation
	also := ""
	if len(p.Behind) > 0 {
		also += ", with what stands before it gone too (" + joined(p.Behind) + ")"
	}
	if p.Fault != "" {
		also += ", when " + p.Fault
	}
	return fmt.Sprintf("**What breaks first:** %s: %s. On transport %s%s:\n\n%s\n", p.Property, says, c.Transport.Name, also, numbered(c, v))
}

// numbered tells a run and what it broke.
func numbered(c Config, v *modelcheck.Violation[Action]) string {
	var b strings.Builder
	run, broken := Tell(c, v)
	for i, sentence := range run {
		fmt.Fprintf(&b, "%d. %s\n", i+1, sentence)
	}
	fmt.Fprintf(&b, "\nSo %s\n", broken)
	return b.String()
}

// shortestLeak tells the leak with the fewest guards lost beside this one.
func shortestLeak(t *testing.T, g guard.Guard) string {
	c, missing, found := leakWith(t, g)
	if !found {
		return "**The leak:** none is on record in which its loss has a part. It holds up the property above.\n\n"
	}
	v := Shortest(c, modelcheck.Options{StatesMax: leakStatesMax}).Violation
	if v == nil {
		t.Errorf("no leak without %v in %q", missing, c.Name)
		return ""
	}
	return fmt.Sprintf("**The leak:** without %s, on transport %s, in the world \"%s\":\n\n%s\n", inWords(names(missing), "and"), c.Transport.Name, c.Name, numbered(c, v))
}

// leakWith chooses a leak for a guard: the smallest cut on record, then the one
// with the fewest steps; else a story.
func leakWith(t *testing.T, g guard.Guard) (c Config, missing guard.Set, found bool) {
	steps := 0
	for _, b := range byName {
		_, _, cuts := readCuts(t, b.name)
		for _, cut := range cuts {
			if !cut.Missing.Missing(g) {
				continue
			}
			if n := cut.Missing.Len(); !found || n < missing.Len() || n == missing.Len() && cut.Steps < steps {
				c, missing, steps, found = leakWorld(t, b.transport, cut), cut.Missing, cut.Steps, true
			}
		}
	}
	for _, s := range stories() {
		if set := guard.Without(s.missing...); !found && set.Missing(g) {
			c, missing, found = s.config(s.missing...), set, true
		}
	}
	return c, missing, found
}

// layersBehind says for each transport what must be lost beside a guard.
func layersBehind(t *testing.T, g guard.Guard) string {
	var b strings.Builder
	b.WriteString("| transport | what else must be lost before it leaks |\n|---|---|\n")
	if g >= guard.Tenant {
		return "It has nothing to do in the worlds in which sets were looked at.\n\n"
	}
	for _, k := range byName {
		size, _, cuts := readCuts(t, k.name)
		var rest []string
		for _, c := range cuts {
			if !c.Missing.Missing(g) {
				continue
			}
			if c.Missing.Len() == 1 {
				rest = []string{"nothing: it is the only layer"}
				break
			}
			rest = append(rest, inWords(names(c.Missing.Less(guard.Without(g))), "and"))
		}
		if len(rest) == 0 {
			rest = []string{fmt.Sprintf("%d more at least, if any do", size)}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", k.transport.Name, strings.Join(rest, "; or "))
	}
	return b.String() + "\n"
}

func names(s guard.Set) (list []string) {
	for _, g := range s.Guards() {
		list = append(list, g.String())
	}
	return list
}

// inWords is "a", "a and b", "a, b and c".
func inWords(list []string, last string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " " + last + " " + list[len(list)-1]
}
