package proved

import (
	"cmp"
	"fmt"
	"slices"
)

// Cell is a cell of the shipped machines' tables and the transitions that it is a
// run of, in order. A transition of pages stands for one of each page.
type Cell struct {
	State, Input string
	Run          []string
	Silent       []string // in place of Run where CLOSED is not sent; nil: Run
}

// What several cells are runs of.
var (
	closes  = []string{"HearClosed", "FreePage"}
	drops   = []string{"Fence", "DropFenced", "FreePage"}
	proves  = []string{"Fence", "FenceProved"}
	revokes = []string{"Revoke"}
	frees   = []string{"Release", "FreePage"}
	ends    = []string{"EndKernel", "Release", "FreePage"}
	stopsP  = []string{"StopP"}
	passes  = []string{"Pass"}
)

// DecodeCells are the cells of the target's table.
var DecodeCells = []Cell{
	{State: "-", Input: "open", Run: []string{"Submit", "Grow"}},
	{State: "granted", Input: "page refused", Run: revokes},
	{State: "granted", Input: "closed done", Run: []string{"HearDone"}},
	{State: "granted", Input: "closed done, no fence", Run: []string{"HearDrained"}},
	{State: "granted", Input: "closed done, pages missing"},
	{State: "granted", Input: "closed done, not as granted", Run: revokes},
	{State: "granted", Input: "closed failed", Run: closes},
	{State: "granted", Input: "peer doubted", Run: revokes},
	{State: "granted", Input: "peer lost", Run: drops},
	{State: "granted", Input: "cancel", Run: revokes},
	{State: "landing", Input: "all landed", Run: []string{"HearDone"}},
	{State: "landing", Input: "all landed, no fence", Run: []string{"HearDrained"}},
	{State: "landing", Input: "page refused", Run: revokes},
	{State: "landing", Input: "peer doubted", Run: revokes},
	{State: "landing", Input: "peer lost", Run: drops},
	{State: "landing", Input: "cancel", Run: revokes},
	{State: "landing", Input: "overdue", Run: revokes},
	{State: "fencing", Input: "fenced", Run: proves},
	{State: "fencing", Input: "peer lost", Run: proves},
	{State: "fencing", Input: "cancel", Run: closes},
	{State: "verifying", Input: "verified", Run: []string{"VerifyOK", "StartKernel"}},
	{State: "verifying", Input: "verified bad", Run: []string{"VerifyBad", "FreePage"}},
	{State: "verifying", Input: "cancel", Run: []string{"StopVerify"}},
	{State: "decoding", Input: "finished", Run: ends},
	{State: "decoding", Input: "fault", Run: []string{"Stop"}},
	{State: "decoding", Input: "cancel", Run: []string{"Stop"}},
	{State: "stopping", Input: "verified", Run: frees},
	{State: "stopping", Input: "verified bad", Run: frees},
	{State: "stopping", Input: "finished", Run: ends},
	{State: "stopping", Input: "kernel stopped", Run: ends},
	{State: "revoking", Input: "closed done", Run: closes},
	{State: "revoking", Input: "closed done, no fence", Run: closes},
	{State: "revoking", Input: "closed done, pages missing", Run: closes},
	{State: "revoking", Input: "closed done, not as granted", Run: closes},
	{State: "revoking", Input: "closed failed", Run: closes},
	{State: "revoking", Input: "fenced", Run: drops},
	{State: "revoking", Input: "peer lost", Run: drops},
	{State: "revoking", Input: "overdue", Run: []string{"Quarantine"}},
	{State: "quarantined", Input: "closed done", Run: closes},
	{State: "quarantined", Input: "closed done, no fence", Run: closes},
	{State: "quarantined", Input: "closed done, pages missing", Run: closes},
	{State: "quarantined", Input: "closed done, not as granted", Run: closes},
	{State: "quarantined", Input: "closed failed", Run: closes},
	{State: "quarantined", Input: "fenced", Run: drops},
	{State: "quarantined", Input: "peer lost", Run: drops},
}

// PrefillCells are the cells of the source's table.
var PrefillCells = []Cell{
	{State: "unknown", Input: "GRANT", Run: []string{"HearGrant"}},
	{State: "unknown", Input: "GRANT, too large", Run: []string{"CloseNew"}},
	{State: "unknown", Input: "GRANT, malformed", Run: []string{"CloseNew"}},
	{State: "unknown", Input: "ABORT", Run: []string{"CloseNew"}},
	{State: "joining", Input: "ABORT", Run: []string{"CloseFailed"}},
	{State: "joining", Input: "admitted", Run: []string{"TakeSource", "Admit"}},
	{State: "joining", Input: "admitted, other tokens", Run: []string{"TakeSource", "StopP", "CloseFailed"}},
	{State: "joining", Input: "refused", Run: []string{"CloseFailed"}},
	{State: "joining", Input: "cancel", Run: []string{"CloseFailed"}},
	{State: "joining", Input: "failed", Run: []string{"CloseFailed"}},
	{State: "joining", Input: "low mark passed", Run: []string{"Pass", "CloseFailed"}},
	{State: "joining", Input: "peer lost", Run: []string{"Pass", "CloseSilent"}},
	{State: "active", Input: "ABORT", Run: []string{"EndP"}},
	{State: "active", Input: "computed", Run: []string{"KernelP", "Post"}},
	{State: "active", Input: "written, last", Run: []string{"ReportOK", "CloseDone"}},
	{State: "active", Input: "write refused", Run: []string{"ReportRefused", "EndP"}},
	{State: "active", Input: "write lost", Run: []string{"ReportLost", "EndP"}},
	{State: "active", Input: "cancel", Run: []string{"EndP"}},
	{State: "active", Input: "failed", Run: []string{"StopP", "EndP"}},
	{State: "active", Input: "low mark passed", Run: []string{"Pass", "EndP"}},
	{State: "active", Input: "peer lost", Run: []string{"Pass", "EndP"}},
	{State: "draining", Input: "write lost", Run: []string{"ReportLost"}},
	{State: "draining", Input: "drained", Run: []string{"CloseFailed"}, Silent: []string{"CloseSilent"}},
	{State: "draining", Input: "idle", Run: []string{"FreeSource"}},
	{State: "closed", Input: "GRANT"},
	{State: "closed", Input: "GRANT, too large"},
	{State: "closed", Input: "GRANT, malformed"},
	{State: "closed", Input: "ABORT"},
	{State: "closed", Input: "idle", Run: []string{"FreeSource"}},
}

// BesideCells are cells in which the source's table has nothing to do, and the proof has.
var BesideCells = []Cell{
	{State: "active", Input: "written", Run: []string{"ReportOK"}},
	{State: "draining", Input: "written", Run: []string{"ReportOK"}},
	{State: "draining", Input: "written, last", Run: []string{"ReportOK"}},
	{State: "draining", Input: "write refused", Run: []string{"ReportRefused"}},
	{State: "draining", Input: "failed", Run: stopsP},
	{State: "draining", Input: "kernel stopped", Run: stopsP},
	{State: "draining", Input: "low mark passed", Run: passes},
	{State: "draining", Input: "peer lost", Run: passes},
	{State: "closed", Input: "failed", Run: stopsP},
	{State: "closed", Input: "kernel stopped", Run: stopsP},
	{State: "closed", Input: "low mark passed", Run: passes},
	{State: "closed", Input: "peer lost", Run: passes},
	{State: "closed", Input: "forgotten", Run: []string{"Forget"}},
}

var (
	atDecode = map[string]DState{"": DClosed, "granted": DGranted, "landing": DGranted, "fencing": DFencing, "verifying": DVerifying,
		"decoding": DDecoding, "stopping": DStopping, "revoking": DRevoking, "quarantined": DQuarantined}
	atPrefill = map[string]PState{"": PNone, "joining": PJoining, "active": PActive, "draining": PDraining, "closed": PClosed}
)

// AtDecode is what the proof calls a target's stage of a transfer that was opened.
func AtDecode(stage string) DState { return atDecode[stage] }

// AtPrefill is what the proof calls a source's stage.
func AtPrefill(stage string) PState { return atPrefill[stage] }

// Args is what the transitions of a cell are about.
type Args struct {
	X      X
	Output []G   // open: pages taken for the output
	Source []H   // admitted: pages taken
	G      G     // computed, written: the page that the block was granted
	H      H     // computed: its source page
	Value  Bytes // computed: what it holds
	Silent bool  // CLOSED was not sent
}

// Decode takes the transitions of a cell of the target's table. One that is not in
// the table does nothing.
func (s *State) Decode(state, input string, a Args) error {
	return s.run(find(DecodeCells, state, input), a)
}

// Prefill takes the transitions of a cell of the source's table, and of those beside it.
func (s *State) Prefill(state, input string, a Args) error {
	c := find(PrefillCells, state, input)
	if c == nil {
		c = find(BesideCells, state, input)
	}
	return s.run(c, a)
}

func find(cells []Cell, state, input string) *Cell {
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.State == state && c.Input == input })
	if i < 0 {
		return nil
	}
	return &cells[i]
}

func (s *State) run(c *Cell, a Args) error {
	if c == nil {
		return nil
	}
	s.Tally.Cells[c]++
	list := c.Run
	if a.Silent && c.Silent != nil {
		list = c.Silent
	}
	for _, name := range list {
		if err := take[name](s, a); err != nil {
			return fmt.Errorf("%s, %s: %w", c.State, c.Input, err)
		}
	}
	return nil
}

// take is how a cell's transitions are taken.
var take = map[string]func(*State, Args) error{
	"Submit":        of((*State).Submit),
	"Revoke":        of((*State).Revoke),
	"Quarantine":    of((*State).Quarantine),
	"HearClosed":    of((*State).HearClosed),
	"HearDone":      of((*State).HearDone),
	"HearDrained":   of((*State).HearDrained),
	"FenceProved":   of((*State).FenceProved),
	"DropFenced":    of((*State).DropFenced),
	"VerifyOK":      of((*State).VerifyOK),
	"VerifyBad":     of((*State).VerifyBad),
	"StopVerify":    of((*State).StopVerify),
	"StartKernel":   of((*State).StartKernel),
	"EndKernel":     of((*State).EndKernel),
	"Stop":          of((*State).Stop),
	"Release":       of((*State).Release),
	"HearGrant":     of((*State).HearGrant),
	"CloseNew":      of((*State).CloseNew),
	"Admit":         of((*State).Admit),
	"EndP":          of((*State).EndP),
	"CloseFailed":   of((*State).CloseFailed),
	"CloseDone":     of((*State).CloseDone),
	"CloseSilent":   of((*State).CloseSilent),
	"Pass":          of((*State).Pass),
	"Forget":        of((*State).Forget),
	"StopP":         of((*State).StopP),
	"Fence":         func(s *State, a Args) error { return s.Fence(a.X) },
	"KernelP":       func(s *State, a Args) error { return s.KernelP(a.X, a.H, a.Value) },
	"Post":          func(s *State, a Args) error { return s.Post(a.X, a.G, a.H) },
	"ReportOK":      func(s *State, a Args) error { return s.ReportOK(a.X, a.G) },
	"ReportRefused": func(s *State, a Args) error { return s.ReportRefused(a.X, a.G) },
	"ReportLost":    func(s *State, a Args) error { return s.ReportLost(a.X, a.G) },
	"Grow": func(s *State, a Args) error {
		return each(a.Output, func(g G) error { return s.Grow(a.X, g, Zero) })
	},
	"TakeSource": func(s *State, a Args) error {
		return each(a.Source, func(h H) error { return s.TakeSource(a.X, h) })
	},
	"FreePage": func(s *State, a Args) error {
		return each(s.owned(a.X), func(g G) error { return s.FreePage(g, a.X) })
	},
	"FreeSource": func(s *State, a Args) error {
		return each(s.held(a.X), func(h H) error { return s.FreeSource(a.X, h) })
	},
}

func of(f func(*State, X) error) func(*State, Args) error {
	return func(s *State, a Args) error { return f(s, a.X) }
}

func each[P any](pages []P, f func(P) error) error {
	for _, p := range pages {
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// owned lists the pages of x at decode.
func (s *State) owned(x X) (pages []G) {
	for _, g := range slices.Concat(s.mine(x), s.Grn.Of(x)) {
		if slices.Contains(s.Own.Of(g), x) {
			pages = append(pages, g)
		}
	}
	return pages
}

// held lists the source pages of x.
func (s *State) held(x X) (pages []H) {
	for h, y := range s.Hold.All() {
		if y == x {
			pages = append(pages, h)
		}
	}
	slices.SortFunc(pages, func(a, b H) int { return cmp.Compare(a.Slot, b.Slot) })
	return pages
}
