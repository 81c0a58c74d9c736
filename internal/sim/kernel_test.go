package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/kv"
)

func TestLayoutModel(t *testing.T) {
	m, err := layoutModel()
	if err != nil {
		t.Fatal(err)
	}
	if l := m.Layout(); l.KeyBytes() != keyBytes || l.LeafBytes() != 2*keyBytes || m.Config.Vocab != vocabulary {
		t.Errorf("layout is %+v", l)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// leaves are pages without a worker.
type leaves [][]byte

func (l leaves) Leaf(slot kv.Slot, _ int) []byte { return l[slot] }

func newLeaves(pages int) leaves {
	l := make(leaves, pages)
	for i := range l {
		l[i] = make([]byte, 2*keyBytes)
	}
	return l
}

func newKernel(pages engine.Pages) *kernel {
	return &kernel{pages: pages, meanwhile: func() {}, table: func(t []kv.Slot) []kv.Slot { return t }, odd: func(string) {}}
}

// compute is a step of one row, and the token that it gives.
func (k *kernel) compute(tokens []int32, at int, pages []kv.Slot) int32 {
	logits := make([]float32, vocabulary)
	rows := []engine.Row{{Tokens: tokens, Start: at, Pages: pages, Logits: []engine.Logits{{Values: logits}}}}
	_ = k.Step(rows) // it has no error to give
	return int32(slices.Index(logits, 1))
}

// Whatever the chunks, a sequence computed through pages is the solo one, and with
// any lane changed, swapped or emptied it is another.
func TestEveryLaneCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 100).Draw(t, "tokens")
		prompt := rapid.SliceOfN(rapid.Int32Range(0, vocabulary-1), n, n).Draw(t, "prompt")
		pages := newLeaves(kv.PagesFor(n + 1))
		k := newKernel(pages)
		var table []kv.Slot
		for i := range pages {
			table = append(table, kv.Slot(len(pages)-1-i))
		}
		var got int32
		for at := 0; at < n; {
			chunk := rapid.IntRange(1, n-at).Draw(t, "chunk")
			got = k.compute(prompt[at:at+chunk], at, table)
			at += chunk
		}
		answer, stopped := solo(prompt, 1)
		if stopped {
			answer = []int32{stopToken}
		}
		if diff := cmp.Diff(answer, []int32{got}); diff != "" {
			t.Fatalf("the first token differs from the solo one:\n%s", diff)
		}
		sum, _ := k.attend(table, n)
		position := rapid.IntRange(0, n-1).Draw(t, "changed position")
		leaf, lane := pages[table[position/kv.PageTokens]], position%kv.PageTokens
		before := slices.Clone(leaf)
		for name, change := range map[string]func(){
			"emptied":       func() { stamp{}.put(leaf, lane) },
			"another token": func() { next(1, 2, position, 3).put(leaf, lane) },
			"one bit of V":  func() { leaf[keyBytes+lane*laneBytes+rapid.IntRange(0, 23).Draw(t, "byte")] ^= 1 },
			"one bit of K":  func() { leaf[lane*2+rapid.IntRange(0, 3).Draw(t, "row")*laneBytes] ^= 1 },
			"poison":        func() { fill(leaf, 0xff) },
			"a zeroed page": func() { clear(leaf) },
		} {
			change()
			if other, _ := k.attend(table, n); other == sum {
				t.Fatalf("position %d of %d, %s: nothing changes", position, n, name)
			}
			copy(leaf, before)
		}
	})
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func TestClockKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		type done struct{ At, Order int }
		var got []done
		for i, at := range rapid.SliceOf(rapid.IntRange(0, 20)).Draw(t, "times") {
			c.at(time.Duration(at), func() { got = append(got, done{at, i}) })
		}
		for c.step() {
			if c.now != time.Duration(got[len(got)-1].At) {
				t.Fatalf("what was to happen at %d happens at %v", got[len(got)-1].At, c.now)
			}
		}
		if !slices.IsSortedFunc(got, func(a, b done) int {
			if a.At != b.At {
				return a.At - b.At
			}
			return a.Order - b.Order
		}) {
			t.Fatalf("order is %v", got)
		}
	})
}
