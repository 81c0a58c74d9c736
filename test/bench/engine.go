package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/slab"
	"golang.org/x/sys/unix"
)

// The tasks that both engines are given; testdata/peer.c has the same numbers.
const (
	promptTokens = 512
	decodeTokens = 128
	sequences    = 4
	depth        = 2048
	deepTokens   = 32
)

// measured is our engine with the memory that workers give it: weights in a shared
// memory file, keys and values in the pages of a slab, in no order.
type measured struct {
	engine   *engine.Engine
	vocab    int32
	tokens   *rand.Rand
	tables   [][]kv.Slot // of each sequence, the last one being the deep one
	logits   [][]float32
	deepened bool
}

// serveEngine answers the tasks that it reads from in with the seconds of wall and
// of processor time that they took.
func serveEngine(path string, threads int, in io.Reader, out io.Writer) error {
	runtime.GOMAXPROCS(threads + 2) // as in workers
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	m, err := sharedModel(f)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	e, pages, err := newMeasured(m, threads)
	if err != nil {
		return err
	}
	defer func() { _ = pages.Close() }()
	defer e.engine.Close()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := e.answer(lines.Text(), out); err != nil {
			return err
		}
	}
	return nil
}

func sharedModel(f *gguf.File) (*model.Model, error) {
	memory, err := model.Share(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = memory.Close() }()
	return model.FromShared(f, memory)
}

func newMeasured(m *model.Model, threads int) (*measured, *slab.Slab, error) {
	const each = (depth + deepTokens + decodeTokens + kv.PageTokens - 1) / kv.PageTokens
	pages, err := slab.New(m.Layout(), (sequences+1)*each)
	if err != nil {
		return nil, nil, err
	}
	c := engine.Default(m)
	c.Threads = threads
	e, err := engine.New(m, pages, c)
	if err != nil {
		return nil, nil, err
	}
	d := &measured{engine: e, vocab: int32(m.Config.Vocab), tokens: rand.New(rand.NewPCG(1, 1))}
	slots := d.tokens.Perm(pages.Len())
	for i := range sequences + 1 {
		var table []kv.Slot
		for _, s := range slots[i*each:][:each] {
			table = append(table, kv.Slot(s))
		}
		d.tables = append(d.tables, table)
		d.logits = append(d.logits, make([]float32, m.Config.Vocab))
	}
	return d, pages, nil
}

func (d *measured) answer(task string, out io.Writer) error {
	if task == "deep" && !d.deepened {
		for at := 0; at < depth; at += promptTokens {
			if err := d.step(d.row(sequences, at, promptTokens)); err != nil {
				return err
			}
		}
		d.deepened = true
	}
	start, cpu := time.Now(), processorTime()
	if err := d.run(task); err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	wall := time.Since(start)
	_, err := fmt.Fprintf(out, "%.6f %.6f\n", wall.Seconds(), (processorTime() - cpu).Seconds())
	return err
}

func (d *measured) run(task string) error {
	switch task {
	case "prefill":
		return d.step(d.row(0, 0, promptTokens))
	case "decode":
		return d.decode(decodeTokens, 0, 1, 0)
	case "batch":
		return d.decode(decodeTokens, 0, sequences, 0)
	case "deep":
		return d.decode(deepTokens, sequences, 1, depth)
	}
	return fmt.Errorf("unknown")
}

func (d *measured) decode(tokens, first, count, from int) error {
	rows := make([]engine.Row, count)
	for pos := from; pos < from+tokens; pos++ {
		for i := range rows {
			rows[i] = d.row(first+i, pos, 1)
		}
		if err := d.step(rows...); err != nil {
			return err
		}
	}
	return nil
}

// row is n tokens of a sequence, of which the last one's logits are wanted.
func (d *measured) row(sequence, start, n int) engine.Row {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = d.tokens.Int32N(d.vocab)
	}
	return engine.Row{Tokens: tokens, Start: start, Pages: d.tables[sequence], Logits: []engine.Logits{{Values: d.logits[sequence]}}}
}

func (d *measured) step(rows ...engine.Row) error {
	if err := d.engine.Step(rows); err != nil {
		return err
	}
	for i := range rows {
		if rows[i].Err != nil {
			return rows[i].Err
		}
	}
	return nil
}

func processorTime() time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		fmt.Fprintln(os.Stderr, "bench: processor time:", err)
		os.Exit(1)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
