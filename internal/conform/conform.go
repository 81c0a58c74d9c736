// Package conform re-executes ledgers on the machines that serve.
//
// A worker writes each step of its transfer machine into its ledger, see Journal:
// the configuration that it started with, then what went in, in canonical form, and
// a hash over all that went in and came out so far. Check gives the same to a machine
// of its own. The first entry that this machine would not have produced is named:
// a worker whose machine lacks a guard, that has skipped or repeated a step or that
// has freed pages without the machine's word does not conform, whoever wrote the
// entry and however well the chain of hashes holds.
//
// Re-execution needs the whole life of an incarnation: where its beginning was
// deleted, or entries were lost, nothing is said about what follows. It says nothing
// about entries that were cut off at the end, which only a copy of the chain's head
// kept elsewhere shows, and nothing about the shell's own doings but what stands
// in pool entries.
package conform

import (
	"errors"
	"fmt"
	"os"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Verdict is what a check has found.
type Verdict string

// The verdicts.
const (
	Conforms     Verdict = "conforms"
	Differs      Verdict = "differs"      // an entry that the machines would not have produced, or a broken chain
	Inconclusive Verdict = "inconclusive" // too much is missing to say either
	NoMachine    Verdict = "no machine"   // of a node without a transfer machine, a gateway say
)

// Finding is the first entry of an incarnation that the machines would not have
// produced.
type Finding struct {
	Place    ledger.Place
	Sequence uint64 // of the entry
	Event    string
	X        kv.TransferID // zero where the event is not of a transfer
	Why      string
	Expected string // what the machines answer, where it is the answer that differs
	Found    string // what is recorded
}

// String is the finding in a line.
func (f *Finding) String() string {
	s := fmt.Sprintf("%v: entry %d, %s", f.Place, f.Sequence, f.Event)
	if !f.X.IsZero() {
		s += fmt.Sprintf(" of %v", f.X)
	}
	s += ": " + f.Why
	if f.Expected != "" {
		s += fmt.Sprintf(": the machines give %s, recorded is %s", f.Expected, f.Found)
	}
	return s
}

// Epoch is what was found of one incarnation of a node.
type Epoch struct {
	Node    string
	Epoch   kv.Epoch
	Role    transfer.Role // zero without a machine
	Boot    string        // what its configuration's entry says to people
	Entries int           // of every kind
	Steps   int           // re-executed
	Ticks   uint64        // re-executed
	Verdict Verdict
	Why     string   // it is inconclusive
	Finding *Finding // it differs
}

// Report is what was found in a ledger.
type Report struct {
	Dir    string
	Chain  ledger.Report
	Broken *ledger.BadEntry // where the chain breaks, or nil
	Epochs []Epoch
}

// Verdict sums up: the worst of the chain and of all incarnations. A newest segment
// without its header may have held any of them, so it is inconclusive.
func (r *Report) Verdict() Verdict {
	worst := NoMachine
	if len(r.Epochs) == 0 || r.Chain.Headless {
		worst = Inconclusive
	}
	for _, e := range r.Epochs {
		if weight(e.Verdict) > weight(worst) {
			worst = e.Verdict
		}
	}
	if r.Broken != nil {
		worst = Differs
	}
	return worst
}

func weight(v Verdict) int {
	switch v {
	case Differs:
		return 3
	case Inconclusive:
		return 2
	case Conforms:
		return 1
	default:
	}
	return 0
}

// Check verifies the chain in dir and re-executes each incarnation's entries.
// progress, which may be nil, hears how many bytes of segments are done. An error
// is one of reading; what is wrong with the ledger stands in the report.
func Check(dir string, progress func(bytes int64)) (Report, error) {
	c := checker{report: Report{Dir: dir}, progress: progress}
	chain, err := ledger.Visit(dir, c.visit)
	c.report.Chain = chain
	if errors.As(err, &c.report.Broken) {
		err = nil
	}
	c.finish()
	return c.report, err
}

// Entries re-executes the entries of one incarnation that were kept in memory, in a
// simulation say. They are numbered from 1 on, and their places are lines of memory.
func Entries(node string, epoch kv.Epoch, entries []ledger.Entry) Epoch {
	r := newRun(node, epoch)
	for i, e := range entries {
		e.Node, e.Epoch, e.Sequence = node, epoch, uint64(i+1)
		r.entry(&e, ledger.Place{Path: "memory", Line: i + 1})
	}
	r.conclude()
	return r.Epoch
}

// checker goes through one ledger.
type checker struct {
	report   Report
	run      *run // of the incarnation that is read
	progress func(int64)
	tell     func(move) // is told each step that conforms; may be nil
	path     string
	bytes    int64
}

func (c *checker) visit(e ledger.Entry, at ledger.Place) bool {
	c.show(at.Path)
	if c.run == nil || c.run.Epoch.Epoch != e.Epoch || c.run.Node != e.Node {
		first := c.run == nil
		c.finish()
		c.run = newRun(e.Node, e.Epoch)
		// Only the first incarnation in a folder can have lost its beginning.
		c.run.cut = first && e.Sequence > 1
		c.run.tell = c.tell
	}
	c.run.entry(&e, at)
	return true
}

func (c *checker) finish() {
	if c.run == nil {
		return
	}
	c.run.conclude()
	c.report.Epochs = append(c.report.Epochs, c.run.Epoch)
}

// show counts a segment once it is through.
func (c *checker) show(path string) {
	if c.progress == nil || path == c.path {
		return
	}
	if info, err := os.Stat(c.path); err == nil && c.path != "" {
		c.bytes += info.Size()
		c.progress(c.bytes)
	}
	c.path = path
}
