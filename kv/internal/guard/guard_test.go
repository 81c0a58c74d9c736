package guard

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestNamesAreDifferentAndFound(t *testing.T) {
	seen := map[string]bool{}
	for g := range End {
		name := g.String()
		if name == "" || seen[name] {
			t.Errorf("guard %d is called %q, which is empty or another's", g, name)
		}
		seen[name] = true
		if got, ok := Named(name); !ok || got != g {
			t.Errorf("%q names guard %d, want %d", name, got, g)
		}
	}
	if _, ok := Named("nothing"); ok {
		t.Error("a guard is called nothing")
	}
}

func TestASetMissesWhatItWasMadeWithout(t *testing.T) {
	var all Set
	s := Without(Drain, TagStep)
	for g := range End {
		if all.Missing(g) {
			t.Errorf("the zero set misses %v", g)
		}
		if want := g == Drain || g == TagStep; s.Missing(g) != want {
			t.Errorf("%v is missing: %v, want %v", g, s.Missing(g), want)
		}
	}
	if s.String() != "Drain TagStep" {
		t.Errorf("the set reads %q", s)
	}
}

// Guards are asked for by the packages that have them and taken away by the
// checker alone: nothing that serves can run without one.
func TestOnlyTheCheckerTakesGuardsAway(t *testing.T) {
	allowed := map[string]bool{"kv/pool": true, "kv/transfer": true, "kv/transfer/transfercheck": true}
	root := filepath.Join("..", "..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
		if err != nil {
			return nil // the compiler says so
		}
		for _, imported := range file.Imports {
			name, _ := strconv.Unquote(imported.Path.Value)
			if strings.HasSuffix(name, "kv/internal/guard") && !allowed[filepath.ToSlash(dir)] {
				t.Errorf("%s imports %s", path, name)
			}
		}
		if !strings.HasPrefix(filepath.ToSlash(dir), "kv/") && !bytes.HasPrefix(source, []byte(unguarded)) {
			for _, name := range takesAway(file) {
				t.Errorf("%s says %s", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// unguarded begins a file that no build has which serves.
const unguarded = "//go:build unguarded\n"

// takesAway lists what a file says by which a guard could be taken away.
func takesAway(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Without", "Proofs", "BreakWithout"}, s.Sel.Name) {
			names = append(names, s.Sel.Name)
		}
		return true
	})
	return names
}

func TestTakingAGuardAwayIsSeen(t *testing.T) {
	for source, want := range map[string]bool{
		"func f() { target.Without(c.Without) }":           true,
		"var worlds = transfercheck.Proofs()":              true,
		"func f() { transfercheck.Shortest(c, o) }":        false,
		"func without() { _ = transfercheck.Config.Size }": false,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(takesAway(file)) > 0; got != want {
			t.Errorf("%s: taken away is %v, want %v", source, got, want)
		}
	}
}
