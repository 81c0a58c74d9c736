package transfercheck

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/kv/transfer/proved"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// lockstep explores a world with the proved machine beside it.
func lockstep(c Config, tally *proved.Tally, but ...proved.Guard) modelcheck.Result[Action] {
	c.Only, c.Lockstep = "Lockstep", &Lockstep{But: but, Tally: tally}
	return Shortest(c, modelcheck.Options{StatesMax: 100_000, Workers: 1}) // they would count together
}

// What the shipped machines do in the small worlds is a run of proved transitions,
// and both agree after each action. A state is told apart by the world and by the
// proved machine beside it.
func TestTheProvedMachineFollows(t *testing.T) {
	configs := CI()
	if testing.Short() {
		configs = Every(Receiver)[1:3]
	}
	actions, tally := 0, proved.NewTally()
	for _, c := range configs {
		r := lockstep(c, tally)
		actions += r.Transitions
		t.Logf("%-30.30s %-30s %6d states %7d actions", c.Transport.Name, c.Name, r.States, r.Transitions)
		if r.Violation != nil || !r.Complete {
			t.Errorf("%s, %s: %v, complete is %v", c.Transport.Name, c.Name, r.Violation, r.Complete)
			if r.Violation != nil {
				t.Log(strings.Join(r.Violation.Trace, "\n"))
			}
		}
	}
	visited := 0
	for _, cells := range [][]proved.Cell{proved.DecodeCells, proved.PrefillCells, proved.BesideCells} {
		for i := range cells {
			visited += min(1, tally.Cells[&cells[i]])
		}
	}
	t.Logf("measured %d worlds: %d actions are runs of %d proved transitions, through %d cells", len(configs), actions, tally.Sum(), visited)
	if testing.Short() {
		return
	}
	// No time passes in these worlds, decode maps no cached page, and no peer is wild.
	elsewhere := []string{"Quarantine", "Pin", "WildWrite", "WildClosed"}
	state := reflect.TypeFor[*proved.State]()
	for i := range state.NumMethod() {
		m := state.Method(i)
		transition := m.Type.NumOut() == 1 && m.Type.Out(0) == reflect.TypeFor[error]() && m.Name != "Decode" && m.Name != "Prefill"
		if transition && (tally.Transitions[m.Name] == 0) != slices.Contains(elsewhere, m.Name) {
			t.Errorf("%s is taken %d times", m.Name, tally.Transitions[m.Name])
		}
	}
}

// parting says how the proved machine parts from one without a guard.
type parting struct {
	finds string // what is said of the first action that is no run of proved transitions; "" for none
	why   string // that nothing is found
	but   []proved.Guard
	apart bool // its world is not followed
}

var partings = map[guard.Guard]parting{
	guard.Door:         {why: "admission is before the transfer: not in the proof"},
	guard.Size:         {finds: "Post of 00000000000000d0/1/0 is not possible: guard Complete is false"},
	guard.Coverage:     {finds: "guard Coverage is false", but: []proved.Guard{proved.Complete}},
	guard.JobDigest:    {finds: "guard Complete is false"},
	guard.Provenance:   {finds: "guard Checks is false", but: []proved.Guard{proved.Complete}},
	guard.Landings:     {finds: "guard Reports is false"},
	guard.FenceFirst:   {why: "a second layer: the cell is that of a transport without a fence, whose transition is proved too"},
	guard.DeferRelease: {finds: "dst of"},
	guard.FencePeer:    {finds: "dst of"},
	guard.Epochs:       {finds: "guard Epochs is false"},
	guard.FreshID:      {finds: "guard FreshID is false"},
	guard.KernelStop:   {finds: "guard SourceKernel is false"},
	guard.Silence:      {finds: "ws of"},
	guard.Drain:        {finds: "ws of"},
	guard.LostWrite:    {finds: "guard LostWrite is false"},
	guard.Tombstone:    {finds: "guard Tombstone is false"},
	guard.Replay:       {why: "who is told what again is not in the proof"},
	guard.SourceHold:   {finds: "guard SourceHold is false"},
	guard.LowMark:      {finds: "guard LowMark is false"},
	guard.Holders:      {why: "a second layer: what it stands behind, KernelStop, is found first"},
	guard.Gate:         {finds: "guard Gate is false"},
	guard.TagVerify:    {finds: "guard Checks is false"},
	guard.SumVerify:    {finds: "guard Checks is false"},
	guard.TagStep:      {why: "a detector: the proof has no transition for it, and needs none"},
	guard.Tenant:       {apart: true, why: "prefix caches are proved, and not followed"},
	guard.Readers:      {apart: true, why: "prefix caches are proved, and not followed"},
	guard.Pins:         {apart: true, why: "prefix caches are proved, and not followed"},
	guard.Rank:         {apart: true, why: "ranks are not in the proof"},
	guard.AllVerified:  {apart: true, why: "ranks are not in the proof"},
	guard.OneEnds:      {apart: true, why: "ranks are not in the proof"},
}

// Without a guard that the proof has, the shipped machines do what is no run of
// proved transitions, in the worlds of docs/guards.md; with it they don't.
func TestTheProvedMachineParts(t *testing.T) {
	for _, p := range Proofs() {
		want, known := partings[p.Guard]
		if !known || (want.finds == "") == (want.why == "") {
			t.Errorf("%v: it is not said how the proved machine parts, or why it does not", p.Guard)
			continue
		}
		if want.apart {
			if with := lockstep(p.With(), proved.NewTally()); with.Violation == nil || !strings.Contains(with.Violation.Err.Error(), "are not followed") {
				t.Errorf("with %v: %v, want it said that its world is not followed", p.Guard, with.Violation)
			}
			continue
		}
		if p.Guard == guard.Holders {
			p.Behind = nil
		}
		if with := lockstep(p.With(), proved.NewTally(), want.but...); with.Violation != nil || !with.Complete {
			t.Errorf("with %v: %v, complete is %v\n\t%s", p.Guard, with.Violation, with.Complete, strings.Join(with.Violation.Trace, "\n\t"))
		}
		without := lockstep(p.Without(), proved.NewTally(), want.but...)
		switch {
		case want.finds == "" && (without.Violation != nil || !without.Complete):
			t.Errorf("without %v: %v, complete is %v", p.Guard, without.Violation, without.Complete)
		case want.finds == "":
			t.Logf("without %-12v nothing: %s", p.Guard, want.why)
		case without.Violation == nil || !strings.Contains(without.Violation.Err.Error(), want.finds):
			t.Errorf("without %v: %v, want %q", p.Guard, without.Violation, want.finds)
		default:
			t.Logf("without %-12v %2d steps: %v", p.Guard, len(without.Violation.Trace), without.Violation.Err)
		}
	}
}
