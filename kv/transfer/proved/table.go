package proved

import (
	"iter"
	"maps"
)

// Table is a function of the proof: a key that is not in it has the zero value. Copies
// share what neither has changed. The zero Table is empty.
type Table[K comparable, V any] struct {
	m      map[K]V
	shared bool // with a copy
}

// Of is the value at k.
func (t *Table[K, V]) Of(k K) V { return t.m[k] }

// All goes through the keys that have a value, in no order.
func (t *Table[K, V]) All() iter.Seq2[K, V] { return maps.All(t.m) }

func (t *Table[K, V]) put(k K, v V) {
	t.own()
	t.m[k] = v
}

func (t *Table[K, V]) drop(k K) {
	if _, there := t.m[k]; there {
		t.own()
		delete(t.m, k)
	}
}

// own makes the table its own before a change.
func (t *Table[K, V]) own() {
	switch {
	case t.m == nil:
		t.m = map[K]V{}
	case t.shared:
		t.m = maps.Clone(t.m)
	}
	t.shared = false
}

// copied is a copy, which shares everything.
func (t *Table[K, V]) copied() Table[K, V] {
	t.shared = true
	return *t
}
