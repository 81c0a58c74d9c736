package proved

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the tables in docs/PROOF.md again")

var formal = filepath.Join("..", "..", "..", "formal")

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section is the text between two marks.
func section(t *testing.T, text, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, from)
	part, _, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("nothing between %q and %q", from, to)
	}
	return part
}

// coq is a transition as Machine.v has it.
type coq struct{ guards, changes []string }

var (
	comment = regexp.MustCompile(`(?s)\(\*.*?\*\)`)
	word    = regexp.MustCompile(`\w+`)
	setter  = regexp.MustCompile(`\bset_(\w+)`)
)

// machine reads Machine.v: what each transition asks for and changes, what it calls by name included.
func machine(t *testing.T) (transitions map[string]coq, fields, guards []string) {
	text := comment.ReplaceAllString(read(t, formal, "Machine.v"), "")
	for _, f := range regexp.MustCompile(`(?m)(\w+)\s+: `).FindAllStringSubmatch(section(t, text, "Record st := mk {", "}."), -1) {
		fields = append(fields, f[1])
	}
	guards = word.FindAllString(section(t, text, "Inductive guard :=", "."), -1)
	helpers := map[string]string{}
	for _, d := range regexp.MustCompile(`(?s)Definition (\w+)[^.]*?:=(.*?)\.\n`).FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(d[1], "set_") {
			helpers[d[1]] = d[2]
		}
	}
	transitions = map[string]coq{}
	for _, c := range strings.Split(section(t, text, "Inductive step (s : st) : st -> Prop :=", "Definition init"), "\n| ")[1:] {
		name := word.FindString(c)
		body := c
		for _, w := range word.FindAllString(c, -1) {
			body += helpers[w]
		}
		var k coq
		for _, g := range regexp.MustCompile(`\bon (\w+)`).FindAllStringSubmatch(body, -1) {
			k.guards = append(k.guards, g[1])
		}
		for _, f := range setter.FindAllStringSubmatch(body, -1) {
			k.changes = append(k.changes, f[1])
		}
		transitions[name] = coq{unique(k.guards), unique(k.changes)}
	}
	return transitions, fields, guards
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// ours reads the methods of this package in the same way.
func ours(t *testing.T) map[string]coq {
	var text string
	for _, file := range []string{"machine.go", "decode.go", "prefill.go", "write.go"} {
		text += read(t, file)
	}
	bodies := map[string]string{}
	for _, m := range regexp.MustCompile(`(?ms)^func \(s \*State\) (\w+)\((?:[^\n]*}$|.*?^})`).FindAllStringSubmatch(text, -1) {
		bodies[m[1]] = m[0]
	}
	transitions := map[string]coq{}
	state := reflect.TypeFor[*State]()
	for i := range state.NumMethod() {
		m := state.Method(i)
		if m.Type.NumOut() != 1 || m.Type.Out(0) != reflect.TypeFor[error]() || m.Name == "Decode" || m.Name == "Prefill" {
			continue
		}
		body := bodies[m.Name]
		for _, call := range regexp.MustCompile(`s\.(\w+)\(`).FindAllStringSubmatch(body, -1) {
			if call[1] != "allow" {
				body += bodies[call[1]]
			}
		}
		var k coq
		for g := None + 1; g < guards; g++ {
			if regexp.MustCompile(`\b` + g.String() + `\b`).MatchString(strings.TrimPrefix(body, "func (s *State) "+m.Name)) {
				k.guards = append(k.guards, g.String())
			}
		}
		for _, c := range regexp.MustCompile(`s\.([A-Z]\w*)\.(?:put|drop)\(`).FindAllStringSubmatch(body, -1) {
			k.changes = append(k.changes, strings.ToLower(c[1]))
		}
		transitions[m.Name] = coq{unique(k.guards), unique(k.changes)}
	}
	return transitions
}

// Each transition of Machine.v is here and asks for the same guards and changes the same
// fields, and nothing else is.
func TestTransitionsAreThoseOfTheProof(t *testing.T) {
	want, _, _ := machine(t)
	if diff := cmp.Diff(want, ours(t), cmp.AllowUnexported(coq{})); diff != "" {
		t.Errorf("formal/Machine.v and this package differ (-Coq +Go):\n%s", diff)
	}
	if len(want) < 30 {
		t.Errorf("Machine.v is read as %d transitions", len(want))
	}
}

func TestGuardsAndFieldsAreThoseOfTheProof(t *testing.T) {
	_, fields, wantGuards := machine(t)
	var got []string
	for g := None + 1; g < guards; g++ {
		got = append(got, g.String())
	}
	if diff := cmp.Diff(wantGuards, got); diff != "" {
		t.Errorf("guards differ (-Coq +Go):\n%s", diff)
	}
	got = nil
	for _, f := range reflect.VisibleFields(reflect.TypeFor[State]()) {
		if !slices.Contains([]string{"World", "Tally", "on"}, f.Name) {
			got = append(got, strings.ToLower(f.Name))
		}
	}
	if diff := cmp.Diff(fields, got); diff != "" {
		t.Errorf("fields differ (-Coq +Go):\n%s", diff)
	}
}

// The solvers' text has the same transitions and guards.
func TestTheSolversHaveTheSameTransitions(t *testing.T) {
	text := read(t, formal, "smt", "machine.py")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^    "(\w+)": \(`).FindAllStringSubmatch(section(t, text, "TRANSITIONS = {", "\n}"), -1) {
		names = append(names, m[1])
	}
	var got []string
	for name := range ours(t) {
		got = append(got, name)
	}
	if diff := cmp.Diff(unique(names), unique(got)); diff != "" {
		t.Errorf("transitions differ (-SMT +Go):\n%s", diff)
	}
	var want []string
	for g := None + 1; g < guards; g++ {
		want = append(want, g.String())
	}
	if diff := cmp.Diff(strings.Fields(section(t, text, `GUARDS = """`, `"""`)), want); diff != "" {
		t.Errorf("guards differ (-SMT +Go):\n%s", diff)
	}
}

// docs/PROOF.md's tables are made from the cells.
func TestTheDocumentHasTheCells(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "PROOF.md")
	got := read(t, path)
	want := got
	for name, cells := range map[string][]Cell{"decode": DecodeCells, "prefill": PrefillCells, "besides": BesideCells} {
		from, to := fmt.Sprintf("<!-- begin %s -->\n", name), fmt.Sprintf("<!-- end %s -->\n", name)
		want = strings.Replace(want, from+section(t, want, from, to)+to, from+table(cells)+to, 1)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s is not what the cells say; write it again with: go test ./kv/transfer/proved -run Document -rewrite", path)
	}
}

func table(cells []Cell) string {
	var b strings.Builder
	b.WriteString("| state | input | transitions |\n|---|---|---|\n")
	for _, c := range cells {
		run := strings.Join(slices.Concat(c.Run, c.Silent), ", ")
		if run == "" {
			run = "-"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.State, c.Input, run)
	}
	return b.String()
}

// Each transition that a cell names can be taken by its name.
func TestCellsNameTransitions(t *testing.T) {
	known := ours(t)
	for _, c := range slices.Concat(DecodeCells, PrefillCells, BesideCells) {
		for _, name := range slices.Concat(c.Run, c.Silent) {
			if _, is := known[name]; !is || take[name] == nil {
				t.Errorf("%s, %s: no transition is called %q", c.State, c.Input, name)
			}
		}
	}
}
