package worker

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/sample"
)

// mixing is an engine that mixes up the rows of the first step for which mix does.
type mixing struct {
	Engine
	mix func(step func([]engine.Row) error, rows []engine.Row) (mixed bool, err error)

	done bool
}

func (m *mixing) Step(rows []engine.Row) error {
	if m.done || len(rows) < 2 {
		return m.Engine.Step(rows)
	}
	mixed, err := m.mix(m.Engine.Step, rows)
	m.done = mixed
	return err
}

// Rows of a batch that are mixed up end the decode worker, and no token of that step
// leaves: not to the tenant whose it is, and not to the other.
func TestMixedUpRowsStopTheWorker(t *testing.T) {
	m := smallModel(t)
	for name, mix := range map[string]func(step func([]engine.Row) error, rows []engine.Row) (bool, error){
		"results swapped": func(step func([]engine.Row) error, rows []engine.Row) (bool, error) {
			err := step(rows)
			rows[0].Logits, rows[1].Logits = rows[1].Logits, rows[0].Logits
			return true, err
		},
		"rows swapped": func(step func([]engine.Row) error, rows []engine.Row) (bool, error) {
			rows[0], rows[1] = rows[1], rows[0]
			return true, step(rows)
		},
		"a row left out, its room as it was": func(step func([]engine.Row) error, rows []engine.Row) (bool, error) {
			return true, step(rows[:len(rows)-1])
		},
		"a result given twice": func(step func([]engine.Row) error, rows []engine.Row) (bool, error) {
			err := step(rows)
			rows[1].Logits = rows[0].Logits
			return true, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 80, context: testContext,
				decodes: func(e Engine) Engine { return &mixing{Engine: e, mix: mix} }, ended: func(err error) { ended <- err }})
			var both sync.WaitGroup
			var stopped atomic.Bool
			for i, length := range []int{40, 70} {
				want, _ := solo(t, m, promptOf(length), 200)
				job := p.job(promptOf(length), 200)
				both.Go(func() {
					// Until both answers are in one step: each alone is as it should be.
					for round := uint64(0); round < 200 && !stopped.Load(); round++ {
						job.Request = 2*round + uint64(i) + 1
						o := p.run(t.Context(), job, nil)
						got := o.tokens()
						if !slices.Equal(got, want[:len(got)]) {
							t.Errorf("answer %d has tokens that its solo run has not", i)
						}
						if e := last(o.decode); e.Kind != cluster.Finished {
							stopped.Store(true)
						}
					}
				})
			}
			both.Wait()
			if !stopped.Load() {
				t.Fatal("the worker lives on")
			}
			if err := <-ended; !errors.Is(err, sample.ErrForeign) || !strings.Contains(err.Error(), "stands where request") {
				t.Errorf("the worker ended with %v, want the two origins", err)
			}
			if p.record.count("invariant-broken") != 1 {
				t.Error("the ledger does not say that an invariant is broken")
			}
		})
	}
}
