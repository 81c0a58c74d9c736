package guard

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
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
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return nil // the compiler says so
		}
		for _, imported := range file.Imports {
			name, _ := strconv.Unquote(imported.Path.Value)
			if strings.HasSuffix(name, "kv/internal/guard") && !allowed[filepath.ToSlash(dir)] {
				t.Errorf("%s imports %s", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
