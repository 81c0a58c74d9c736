package tidy

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/bulkhead-kv/bulkhead"

type goPackage struct {
	ImportPath, Name, Dir, Doc string
	GoFiles, Imports           []string
}

func (p goPackage) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func (p goPackage) ours() []string {
	var ours []string
	for _, i := range p.Imports {
		if rest, ok := strings.CutPrefix(i, module+"/"); ok {
			ours = append(ours, rest)
		}
	}
	return ours
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func packages(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Doc,GoFiles,Imports", "./...")
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string]goPackage{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all[p.path()] = p
		}
	}
}

func table(t *testing.T) []Row {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(root(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := ParseTable(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// line is the row that the code itself would write.
func line(p goPackage, rule string) string {
	purpose := strings.TrimPrefix(strings.TrimPrefix(p.Doc, "Package "), "Command ")
	purpose = strings.TrimPrefix(purpose, p.Name+" ")
	if p.Name == "main" {
		purpose = strings.TrimPrefix(purpose, filepath.Base(p.Dir)+" ")
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", p.path(), purpose, strings.Join(p.ours(), " "), rule)
}

func TestPackageTableIsTheCode(t *testing.T) {
	all, seen := packages(t), map[string]bool{}
	for _, row := range table(t) {
		p, exists := all[row.Package]
		if !exists || seen[row.Package] {
			t.Errorf("the table names %s, which is no package or stands there twice", row.Package)
			continue
		}
		want := fmt.Sprintf("| %s | %s | %s | %s |", row.Package, row.Purpose, strings.Join(row.Imports, " "), row.Rule)
		if got := line(p, row.Rule); got != want {
			t.Errorf("the code's row for %s is\n%s\nthe table has\n%s", row.Package, got, want)
		}
		for _, i := range row.Imports {
			if !seen[i] {
				t.Errorf("%s imports %s, which does not stand above it", row.Package, i)
			}
		}
		seen[row.Package] = true
	}
	var missing []string
	for path, p := range all {
		if !seen[path] {
			missing = append(missing, line(p, ""))
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("packages without a row:\n%s", strings.Join(missing, "\n"))
	}
}

// What a pure package may not touch: clocks, I/O, goroutines, locks, logging and
// unseeded randomness.
var (
	impureImports   = []string{"os", "net", "net/http", "sync", "sync/atomic", "log", "log/slog", "crypto/rand", "os/exec", "syscall", "golang.org/x/sys/unix"}
	impureSelectors = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.Tick", "time.NewTimer",
		"time.NewTicker", "rand.Int", "rand.IntN", "rand.Intn", "rand.Uint64", "rand.Float64", "rand.Float32", "rand.Perm", "rand.Shuffle"}
)

func impurities(fset *token.FileSet, file *ast.File) (found []string) {
	at := func(n ast.Node) string { return fset.Position(n.Pos()).String() }
	for _, i := range file.Imports {
		if path, _ := strconv.Unquote(i.Path.Value); slices.Contains(impureImports, path) {
			found = append(found, fmt.Sprintf("%s: imports %s", at(i), path))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, at(n)+": starts a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureSelectors, x.Name+"."+n.Sel.Name) {
				found = append(found, fmt.Sprintf("%s: uses %s.%s", at(n), x.Name, n.Sel.Name))
			}
		}
		return true
	})
	return found
}

func TestPurePackagesArePure(t *testing.T) {
	all := packages(t)
	for _, row := range table(t) {
		if !strings.Contains(row.Rule, "pure") {
			continue
		}
		for _, name := range all[row.Package].GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(all[row.Package].Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range impurities(fset, file) {
				t.Errorf("pure package %s: %s", row.Package, f)
			}
		}
	}
}

func TestImpuritiesAreFound(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "x.go", "package x\nimport (\"sync\"; \"time\")\nvar mu sync.Mutex\nfunc f() { go f(); _ = time.Now() }", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(impurities(fset, file)); got != 3 {
		t.Fatalf("found %d impurities in a file with a lock, a goroutine and a clock, want 3", got)
	}
}

func TestParseTable(t *testing.T) {
	rows, err := ParseTable("# x\n\n## Packages\n\n| package | purpose | imports | rule |\n|---|---|---|---|\n| a | does a. | b c | pure |\n\n## Next\n| z | z | z | z |\n")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Row{{"a", "does a.", []string{"b", "c"}, "pure"}}, rows); diff != "" {
		t.Fatalf("rows differ (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "\n## Packages\n", "\n## Packages\n| a | b |\n"} {
		if _, err := ParseTable(bad); err == nil {
			t.Errorf("table %q is accepted", bad)
		}
	}
}

// Phrases that would make a finished line of something unfinished. They are put
// together here so that this file does not contain them.
func TestNothingIsLeftForLater(t *testing.T) {
	phrases := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X:", "not imple" + "mented", "unimple" + "mented"}
	for path, p := range packages(t) {
		for _, name := range p.GoFiles {
			if strings.HasSuffix(name, ".pb.go") {
				continue // generated: gRPC's own words for a method that a server lacks
			}
			b, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, phrase := range phrases {
				if strings.Contains(string(b), phrase) {
					t.Errorf("%s/%s says %q", path, name, phrase)
				}
			}
			if lines := strings.Count(string(b), "\n"); lines > 800 {
				t.Errorf("%s/%s has %d lines, limit 800: does one thing own too much there?", path, name, lines)
			}
		}
	}
}
