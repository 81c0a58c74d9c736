package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// noEngine computes nothing.
type noEngine struct{ closed bool }

func (*noEngine) Step([]engine.Row) error { return nil }
func (e *noEngine) Close()                { e.closed = true }

// A driven worker does what a running one does, at the call that asks for it and by
// the clock it was given.
func TestADrivenWorker(t *testing.T) {
	m := smallModel(t)
	c := testConfig(m, "p0", 4, 64, &notes{})
	now := time.Unix(1_000_000, 0)
	eng := &noEngine{}
	c.Now, c.NewEngine = func() time.Time { return now }, func(engine.Pages) (Engine, error) { return eng, nil }
	p, err := NewPrefill(c)
	if err != nil {
		t.Fatal(err)
	}
	d := p.Driver()
	j := cluster.Job{GatewayBoot: 1, Request: 2, Attempt: 1, Tenant: 3, Prefill: "p0", Decode: "d0", PrefillEpoch: c.Epoch, DecodeEpoch: 9,
		Tokens: []int32{1, 2, 3}, MaxTokens: 1}
	var got []cluster.Event
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(d.Submit(j, func(e cluster.Event) error { got = append(got, e); return nil }))
	if d.Idle() == nil || len(got) != 1 || got[0].Kind != cluster.Accepted {
		t.Fatalf("a worker with a job is idle: %v, events %+v", d.Idle(), got)
	}
	for range joinTicks + 1 {
		now = now.Add(TickInterval)
		check(d.Tick(now))
	}
	if last(got).Kind != cluster.Failed || last(got).Fault != fault.Unavailable {
		t.Errorf("a job whose grant never came ended with %+v", last(got))
	}
	check(d.Audit())
	check(d.Idle())
	if body := p.slab.Body(1); slices.Contains(body, 0) {
		t.Error("a free page is not poisoned by an audit")
	}
	check(d.Cancel(j.ID(), nil)) // it is gone
	d.Drain()
	if !d.Done() {
		t.Error("a worker without jobs has not drained")
	}
	check(d.Close())
	if !eng.closed {
		t.Error("the engine stays open")
	}
}

// A gateway must not learn of a link's end by giving it a job.
func TestALinksEndShowsInTheStatus(t *testing.T) {
	m := smallModel(t)
	w, err := NewDecode(testConfig(m, "d0", 4, 64, &notes{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	d := w.Driver()
	defer d.Close()
	link := &namedLink{}
	for _, step := range []struct {
		kind transport.Kind
		up   bool
	}{{transport.Up, true}, {transport.Down, false}, {transport.Up, true}} {
		if err := d.Handle(transport.Event{Kind: step.kind, Link: link}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Step(); err != nil {
			t.Fatal(err)
		}
		if peers := d.Status().Peers; len(peers) != 1 || peers[0].Node != "p0" || peers[0].Up != step.up {
			t.Errorf("after %v the status says %+v, want p0 up: %v", step.kind, peers, step.up)
		}
	}
}

func TestADrivenWorkerEndsAtAViolation(t *testing.T) {
	m := smallModel(t)
	p, err := NewPrefill(testConfig(m, "p0", 4, 64, &notes{}))
	if err != nil {
		t.Fatal(err)
	}
	d := p.Driver()
	defer d.Close()
	if err := d.turn(func() { p.must("free", p.pool.Free(kv.TransferID{Epoch: 1, Sequence: 1})) }); err == nil {
		t.Error("a refusal by the pool does not end the worker")
	}
}

func TestOrdered(t *testing.T) {
	m := map[kv.TransferID]int{{Epoch: 2, Sequence: 1}: 3, {Epoch: 1, Sequence: 9}: 2, {Epoch: 1, Sequence: 2}: 1, {Epoch: 2, Sequence: 1, Rank: 1}: 4}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, ordered(m, compareTransfers)); diff != "" {
		t.Errorf("order differs (-want +got):\n%s", diff)
	}
	jobs := map[cluster.ID]int{{GatewayBoot: 1, Request: 2, Attempt: 2}: 2, {GatewayBoot: 1, Request: 2, Attempt: 1}: 1, {GatewayBoot: 3}: 3}
	if diff := cmp.Diff([]int{1, 2, 3}, ordered(jobs, compareJobs)); diff != "" {
		t.Errorf("order of jobs differs (-want +got):\n%s", diff)
	}
}
