package worker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
)

// everything is what the unguarded side of a measurement does without.
var everything = omitted{digests: true, tags: true, zeroing: true, holds: true, ledger: true}

func TestAWorkerOmitsNoGuard(t *testing.T) {
	m := smallModel(t)
	c := testConfig(m, "p0", 4, 64, &notes{})
	p, err := NewPrefill(c)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	d, err := NewDecode(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if p.omit != (omitted{}) || d.omit != (omitted{}) {
		t.Errorf("new workers omit %+v and %+v, want nothing", p.omit, d.omit)
	}
}

// settings lists the places of a file that could make a worker omit a guard: all
// that is done with the field but to read one of its fields, and all mentions of the
// type but its declaration and the field's.
func settings(fset *token.FileSet, file *ast.File) (found []string) {
	read := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				read[left] = true // written, so it is not a read
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				read[n.X] = true
			}
		}
		return true
	})
	allowed := map[*ast.Ident]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if inner, ok := n.X.(*ast.SelectorExpr); ok && inner.Sel.Name == "omit" && !read[n] && !read[inner] {
				allowed[inner.Sel] = true
			}
		case *ast.StructType:
			for _, f := range n.Fields.List {
				if kind, ok := f.Type.(*ast.Ident); ok && kind.Name == "omitted" && len(f.Names) == 1 {
					allowed[kind], allowed[f.Names[0]] = true, true
				}
			}
		case *ast.TypeSpec:
			allowed[n.Name] = true
		}
		return true
	})
	ast.Inspect(file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && (id.Name == "omit" || id.Name == "omitted") && !allowed[id] {
			found = append(found, fset.Position(id.Pos()).String())
		}
		return true
	})
	return found
}

func TestOnlyTestsOmitGuards(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if len(names) < 5 {
		t.Errorf("only %v were found", names)
	}
	for _, name := range names {
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range settings(fset, file) {
			t.Errorf("%s: a guard could be omitted here; only tests may", at)
		}
	}
}

func TestSettingsAreFound(t *testing.T) {
	for code, want := range map[string]int{
		"type omitted struct{ tags bool }\ntype w struct { omit omitted }\nfunc (x w) f() bool { return x.omit.tags }": 0,
		"func (x *w) f() { x.omit.tags = true }":                      1,
		"func (x *w) f() { x.omit = y }":                              1,
		"func (x *w) f() { x.omit = omitted{tags: true} }":            2,
		"func f() w { return w{omit: y} }":                            1,
		"func (x *w) f() *bool { return &x.omit.tags }":               1,
		"func (x *w) f() { g(&x.omit) }":                              1,
		"func (x *w) f() { g(x.omit) }":                               1,
		"var all = omitted{tags: true}":                               1,
		"func (x *w) Without(o omitted) { *x = w{o} }":                1,
		"func f() (o omitted) { return w{}.o }\nvar _ = new(omitted)": 2,
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "x.go", "package x\n"+code, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := settings(fset, file); len(got) != want {
			t.Errorf("found %v in %q, want %d places", got, code, want)
		}
	}
}

// The other side of a measurement answers the same; it only does not notice.
func TestWithoutGuardsTheAnswersAreTheSame(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 60, context: testContext, omit: everything})
	for _, n := range []int{1, 16, 17, 97, 300} {
		want, _ := solo(t, m, promptOf(n), 40)
		o := p.run(t.Context(), p.job(promptOf(n), 40), nil)
		if diff := cmp.Diff(want, o.tokens()); diff != "" {
			t.Errorf("prompt of %d: tokens differ from the solo run (-solo +served):\n%s", n, diff)
		}
	}
	p.idle(t)
	// A worker writes its machine's configuration before a test can make it omit anything.
	if n := len(p.record.entries) - p.record.count("boot"); n != 0 {
		t.Errorf("%d ledger entries were written behind the configurations, want none", n)
	}
}

// Each guard that can be omitted is there, and gone when it is omitted: a
// measurement of a guard that neither side has would show that it is cheap.
func TestWhatIsOmittedIsGone(t *testing.T) {
	m := smallModel(t)
	for _, omit := range []omitted{{}, {digests: true}} {
		var wire tampering
		p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 60, context: testContext, omit: omit, wire: wire.plainTCP})
		wire.spoil(p.decode, 3)
		o := p.run(t.Context(), p.job(promptOf(300), 6), nil)
		if got, want := last(o.decode).Kind == cluster.Finished, omit.digests; got != want {
			t.Errorf("with %+v omitted a request with a changed page ended with %+v", omit, last(o.decode))
		}
		p.idle(t)
	}
	for _, omit := range []omitted{{}, {tags: true}} {
		p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 60, context: testContext, omit: omit})
		o := p.run(t.Context(), p.job(promptOf(300), 6), func(r cluster.Role, e cluster.Event) {
			if r == cluster.Decode && e.Kind == cluster.Token && e.Index == 2 {
				p.decode.slab.Header(p.decode.byX[e.X].refs[1].Slot)[16]++
			}
		})
		if got, want := last(o.decode).Kind == cluster.Finished, omit.tags; got != want {
			t.Errorf("with %+v omitted a request with a foreign page ended with %+v", omit, last(o.decode))
		}
		p.idle(t)
	}
}

func TestOmittedZeroingAndHolds(t *testing.T) {
	m := smallModel(t)
	for _, omit := range []omitted{{}, {zeroing: true, holds: true}} {
		p, err := NewPrefill(testConfig(m, "p0", 4, 64, &notes{}))
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		p.omit = omit
		x := kv.TransferID{Epoch: 1, Sequence: 1}
		refs, err := p.pool.AllocLocal(x, 5, 1)
		if err != nil {
			t.Fatal(err)
		}
		p.slab.Poison(refs[0].Slot)
		p.clean(kv.Tag{Layout: p.layoutID, Transfer: x, Generation: refs[0].Generation, Tenant: 5, Slot: refs[0].Slot})
		if zero := !slices.Contains(p.slab.Body(refs[0].Slot), 0xff); zero == omit.zeroing {
			t.Errorf("with %+v omitted, a page that was taken is zero: %v", omit, zero)
		}
		p.holdKernel(x)
		if held := p.pool.Page(refs[0].Slot).Holders[pool.Kernel] != 0; held == omit.holds {
			t.Errorf("with %+v omitted, a running step holds its page: %v", omit, held)
		}
		p.releaseKernel(x)
	}
}
