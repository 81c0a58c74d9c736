package transfer

import "github.com/bulkhead-kv/bulkhead/kv"

// Cell is a cell of a machine's table that it has come to, by the names of
// docs/SPEC.md. "forgotten" of a source's closed transfer stands in no table.
type Cell struct {
	X            kv.TransferID
	State, Input string
	Effects      []Effect // what it has asked for
}

// Watch has see told each cell that the machine comes to, also one in which nothing
// is done. It changes nothing else; a clone goes on telling.
func (t *Target) Watch(see func(Cell)) { t.see = see }

// Watch has see told each cell that the machine comes to, also one in which nothing
// is done. It changes nothing else; a clone goes on telling.
func (s *Source) Watch(see func(Cell)) { s.see = see }
