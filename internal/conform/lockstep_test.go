package conform_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// duo is a decode and a prefill worker that do what a test says, and what they record.
type duo struct {
	entries []ledger.Entry
	target  *transfer.Target
	source  *transfer.Source
	decode  *conform.Journal
	prefill *conform.Journal
	letters []transfer.Message // sent, by either
}

func newDuo() *duo { return newDuoOver(true, 2) }

// newDuoOver says whether the transport can fence one transfer, and after how many
// ticks without its proof its peer is doubted.
func newDuoOver(fences bool, ticks int) *duo {
	d := &duo{}
	put := func(node string, epoch kv.Epoch) func(ledger.Entry) {
		return func(e ledger.Entry) {
			e.Node, e.Epoch = node, epoch
			d.entries = append(d.entries, e)
		}
	}
	target, source := transfer.TargetConfig{Epoch: 0xd, FenceTicks: ticks, QuarantineTicks: 3}, transfer.SourceConfig{Epoch: 0xa, PagesMax: 4, TokensMax: 64}
	d.target, d.source = transfer.NewTarget(target), transfer.NewSource(source)
	d.decode = conform.NewTargetJournal(target, "test", transfer.NewVeil(kv.Key{1}), put("d0", 0xd))
	d.prefill = conform.NewSourceJournal(source, "test", transfer.NewVeil(kv.Key{2}), put("p0", 0xa))
	d.at(transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "p0", Epoch: 0xa}, Places: true, Fences: fences})
	d.from(transfer.PeerUp{Peer: 7, Hello: transfer.Hello{Node: "d0", Epoch: 0xd}})
	return d
}

// at is an event at decode.
func (d *duo) at(event transfer.TargetEvent) {
	effects := d.target.Step(event)
	d.decode.Target(event, effects)
	d.note(effects)
}

// from is an event at prefill.
func (d *duo) from(event transfer.SourceEvent) {
	effects := d.source.Step(event)
	d.prefill.Source(event, effects)
	d.note(effects)
}

func (d *duo) note(effects []transfer.Effect) {
	for _, e := range effects {
		if e.Kind == transfer.DoSend {
			d.letters = append(d.letters, e.Message)
		}
	}
}

// last is the last message that was sent.
func (d *duo) last() transfer.Message { return d.letters[len(d.letters)-1] }

// open opens a transfer into pages.
func (d *duo) open(slots ...kv.Slot) kv.TransferID {
	x := d.target.Next()
	open := transfer.Open{X: x, Peer: 1, Request: 1, Attempt: 1, GatewayBoot: 1, Tenant: 1, Tokens: uint32(16 * len(slots)), TokenDigest: kv.Sum{1}, Key: kv.Key{1}}
	for _, slot := range slots {
		open.Pages = append(open.Pages, kv.PageRef{Slot: slot, Generation: 1})
	}
	d.at(open)
	return x
}

// take is that a worker takes a page for its own part of a transfer.
func (d *duo) take(node string, epoch kv.Epoch, sequence uint64, slot kv.Slot) {
	d.entries = append(d.entries, ledger.Entry{Node: node, Epoch: epoch, Kind: ledger.Pool, Event: "taken", X: kv.TransferID{Epoch: 0xd, Sequence: sequence},
		Pages: []kv.PageRef{{Slot: slot, Generation: 1}}})
}

// grant opens a transfer into a page and lets prefill post it.
func (d *duo) grant(slot kv.Slot) kv.TransferID {
	x := d.open(slot)
	d.from(transfer.Received{Peer: 7, Message: d.last()})
	d.from(transfer.Admitted{X: x, Tokens: 16, TokenDigest: kv.Sum{1}})
	d.from(transfer.Computed{X: x, Root: kv.Digest{1}})
	return x
}

// finish lets it arrive, decode and end.
func (d *duo) finish(x kv.TransferID) {
	d.at(transfer.Landed{X: x})
	d.from(transfer.Written{X: x, OK: true})
	d.at(transfer.Received{Peer: 1, Message: d.last()})
	d.at(transfer.Fenced{X: x})
	d.at(transfer.Verified{X: x, OK: true})
	d.at(transfer.Finished{X: x})
}

func TestAPairIsARunOfWhatIsProved(t *testing.T) {
	d := newDuo()
	d.finish(d.grant(3))
	d.finish(d.grant(3))
	l := conform.InOrder(d.entries, nil)
	if l.Verdict != conform.Conforms || l.Steps != 2+2+20 || l.Tally.Sum() < 40 {
		t.Errorf("got %v: %v", l.Verdict, l)
	}
}

// Faults of shells, transports and pools: each machine conforms by itself.
func TestLockstepFindsWhatNoMachineSees(t *testing.T) {
	for name, k := range map[string]struct {
		want string
		do   func(d *duo)
	}{
		"a page is granted twice":                 {"guard Alloc", func(d *duo) { d.grant(3); d.grant(3) }},
		"an output page is another's prompt page": {"guard Alloc", func(d *duo) { d.grant(3); d.take("d0", 0xd, 2, 3); d.grant(4) }},
		"a source page is taken twice": {"hold h = None is false", func(d *duo) {
			d.take("p0", 0xa, 1, 8)
			d.grant(3)
			d.take("p0", 0xa, 2, 8)
			d.grant(4)
		}},
		"a page lands behind its fence": {"guard FenceHolds", func(d *duo) {
			x := d.grant(3)
			d.at(transfer.Cancel{X: x})
			d.at(transfer.Fenced{X: x})
			d.at(transfer.Landed{X: x})
		}},
		"a page lands twice": {"way x g v", func(d *duo) {
			x := d.grant(3)
			d.at(transfer.Landed{X: x})
			d.from(transfer.Written{X: x, OK: true})
			d.at(transfer.Received{Peer: 1, Message: d.last()})
			d.at(transfer.Fenced{X: x})
			d.at(transfer.Landed{X: x})
		}},
		"a page is reported done and is on its way when CLOSED arrives": {"guard Ordered", func(d *duo) {
			x := d.grant(3)
			d.at(transfer.Cancel{X: x})
			d.from(transfer.Written{X: x, OK: true})
			d.at(transfer.Received{Peer: 1, Message: d.last()})
		}},
		"a page lands that all have forgotten": {"way x g v", func(d *duo) {
			x := d.grant(3)
			d.finish(x)
			d.grant(4) // raises the low mark
			d.at(transfer.Landed{X: x})
		}},
		"a page that was taken back lands": {"way x g v", func(d *duo) {
			x := d.grant(3)
			d.from(transfer.Written{X: x, Refused: true})
			d.at(transfer.Landed{X: x})
		}},
		"a message arrives that nobody has sent": {"it needs CLOSED", func(d *duo) {
			x := d.grant(3)
			d.at(transfer.Received{Peer: 1, Message: transfer.Closed{X: x, SourceEpoch: 0xa, Outcome: transfer.OutcomeFailed, Reason: transfer.ReasonBusy}})
		}},
		"a page lands that nobody has posted": {"it needs page 1", func(d *duo) {
			x := d.grant(3)
			d.at(transfer.Landed{X: x, Block: 1})
		}},
	} {
		d := newDuo()
		k.do(d)
		if l := conform.InOrder(d.entries, nil); l.Verdict != conform.Differs || l.Finding == nil || !strings.Contains(l.Finding.Why, k.want) {
			t.Errorf("%s: got %v, %v, want %q", name, l.Verdict, l, k.want)
		} else {
			t.Logf("%s: %v", name, l.Finding)
		}
	}
}

// ticks lets time pass at decode.
func (d *duo) ticks(n int) {
	for range n {
		d.at(transfer.Tick{})
	}
}

// closed grants a page and ends its transfer at prefill, which says CLOSED(done).
func (d *duo) closed() (x kv.TransferID, c transfer.Closed) {
	x = d.grant(3)
	d.from(transfer.Written{X: x, OK: true})
	c, _ = d.last().(transfer.Closed)
	return x, c
}

// The cells that small worlds and simulations hardly come to are runs of proved
// transitions too.
func TestRareCellsAreFollowed(t *testing.T) {
	hear := func(d *duo, c transfer.Closed) { d.at(transfer.Received{Peer: 1, Message: c}) }
	landing := func(d *duo) kv.TransferID {
		x, c := d.closed()
		hear(d, c)
		return x
	}
	quarantined := func(d *duo, landed bool) (kv.TransferID, transfer.Closed) {
		x, c := d.closed()
		if landed {
			d.at(transfer.Landed{X: x})
		} else {
			d.at(transfer.PageRefused{X: x})
		}
		d.at(transfer.Cancel{X: x})
		d.ticks(3)
		return x, c
	}
	wrong := func(c transfer.Closed) transfer.Closed { c.Tokens = 15; return c }
	decoding := func(d *duo) kv.TransferID {
		x, c := d.closed()
		d.at(transfer.Landed{X: x})
		hear(d, c)
		d.at(transfer.Fenced{X: x})
		d.at(transfer.Verified{X: x, OK: true})
		return x
	}
	grant := func(d *duo) transfer.Grant { g, _ := d.last().(transfer.Grant); return g }
	malformed := func(g transfer.Grant) transfer.Grant { g.Pages = nil; return g }
	for name, do := range map[string]func(d *duo){
		"granted, page refused":                func(d *duo) { d.at(transfer.PageRefused{X: d.grant(3)}) },
		"granted, closed done, not as granted": func(d *duo) { _, c := d.closed(); hear(d, wrong(c)) },
		"landing, all landed":                  func(d *duo) { d.at(transfer.Landed{X: landing(d)}) },
		"landing, page refused":                func(d *duo) { d.at(transfer.PageRefused{X: landing(d)}) },
		"landing, peer doubted":                func(d *duo) { landing(d); d.at(transfer.Suspect{Peer: 1}) },
		"landing, peer lost":                   func(d *duo) { landing(d); d.at(transfer.PeerLost{Peer: 1}) },
		"decoding, fault":                      func(d *duo) { d.at(transfer.Fault{X: decoding(d)}) },
		"stopping, finished":                   func(d *duo) { x := decoding(d); d.at(transfer.Fault{X: x}); d.at(transfer.Finished{X: x}) },
		"revoking, closed done, not as granted": func(d *duo) {
			x, c := d.closed()
			d.at(transfer.Landed{X: x})
			d.at(transfer.Cancel{X: x})
			hear(d, wrong(c))
		},
		"revoking, overdue":                        func(d *duo) { quarantined(d, true) },
		"quarantined, closed done":                 func(d *duo) { _, c := quarantined(d, true); hear(d, c) },
		"quarantined, closed done, pages missing":  func(d *duo) { _, c := quarantined(d, false); hear(d, c) },
		"quarantined, closed done, not as granted": func(d *duo) { _, c := quarantined(d, true); hear(d, wrong(c)) },
		"quarantined, closed failed": func(d *duo) {
			_, c := quarantined(d, true)
			hear(d, transfer.Closed{X: c.X, SourceEpoch: c.SourceEpoch, Outcome: transfer.OutcomeFailed, Reason: transfer.ReasonBusy})
		},
		"quarantined, fenced":    func(d *duo) { x, _ := quarantined(d, true); d.at(transfer.Fenced{X: x}) },
		"quarantined, peer lost": func(d *duo) { quarantined(d, true); d.at(transfer.PeerLost{Peer: 1}) },
		"unknown, GRANT, too large": func(d *duo) {
			d.open(3, 4, 5, 6, 7)
			d.from(transfer.Received{Peer: 7, Message: grant(d)})
		},
		"closed, GRANT, too large": func(d *duo) {
			d.open(3, 4, 5, 6, 7)
			g := grant(d)
			d.from(transfer.Received{Peer: 7, Message: g})
			d.from(transfer.Received{Peer: 7, Message: g})
		},
		"unknown, GRANT, malformed": func(d *duo) { d.open(3); d.from(transfer.Received{Peer: 7, Message: malformed(grant(d))}) },
		"closed, GRANT, malformed": func(d *duo) {
			d.open(3)
			g := malformed(grant(d))
			d.from(transfer.Received{Peer: 7, Message: g})
			d.from(transfer.Received{Peer: 7, Message: g})
		},
		"joining, admitted, other tokens": func(d *duo) {
			x := d.open(3)
			d.from(transfer.Received{Peer: 7, Message: grant(d)})
			d.from(transfer.Admitted{X: x, Tokens: 16, TokenDigest: kv.Sum{2}})
		},
		"joining, cancel": func(d *duo) {
			x := d.open(3)
			d.from(transfer.Received{Peer: 7, Message: grant(d)})
			d.from(transfer.Cancel{X: x})
		},
		"joining, failed": func(d *duo) {
			x := d.open(3)
			d.from(transfer.Received{Peer: 7, Message: grant(d)})
			d.from(transfer.Failed{X: x, Reason: transfer.ReasonCompute})
		},
		"active, failed":      func(d *duo) { d.from(transfer.Failed{X: d.grant(3), Reason: transfer.ReasonCompute}) },
		"draining, failed":    func(d *duo) { x := d.grant(3); d.from(transfer.Cancel{X: x}); d.from(transfer.Failed{X: x}) },
		"draining, peer lost": func(d *duo) { d.from(transfer.Cancel{X: d.grant(3)}); d.from(transfer.PeerLost{Peer: 7}) },
		"closed, failed":      func(d *duo) { x, _ := d.closed(); d.from(transfer.Failed{X: x}) },
	} {
		d := newDuo()
		do(d)
		follows(t, name, d)
	}
	for name, do := range map[string]func(d *duo){
		"landing, overdue":                   func(d *duo) { landing(d); d.ticks(3) },
		"landing, all landed, no fence":      func(d *duo) { d.at(transfer.Landed{X: landing(d)}) },
		"quarantined, closed done, no fence": func(d *duo) { _, c := quarantined(d, true); hear(d, c) },
	} {
		d := newDuoOver(false, 0)
		do(d)
		follows(t, name, d)
	}
}

// follows demands that what was done comes to a cell and is a run of proved transitions.
func follows(t *testing.T, cell string, d *duo) {
	t.Helper()
	l := conform.InOrder(d.entries, nil)
	came := false
	for c := range l.Tally.Cells {
		came = came || c.State+", "+c.Input == cell
	}
	if l.Verdict != conform.Conforms || !came {
		t.Errorf("%s: got %v, %v, came to it: %v", cell, l.Verdict, l, came)
	}
}

// From files the steps are put in order, and what is missing is said.
func TestLedgersAreFollowedTogether(t *testing.T) {
	d := newDuo()
	d.finish(d.grant(3))
	d.grant(3)
	root := t.TempDir()
	dirs := map[string]string{"d0": filepath.Join(root, "d0"), "p0": filepath.Join(root, "p0")}
	for node, epoch := range map[string]kv.Epoch{"d0": 0xd, "p0": 0xa} {
		l, err := ledger.Open(ledger.Config{Dir: dirs[node], Node: node, Epoch: epoch})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range d.entries {
			if e.Node == node {
				if err := l.Append(e); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []struct {
		nodes   []string
		verdict conform.Verdict
		why     string
	}{
		{[]string{"d0", "p0"}, conform.Conforms, ""},
		{[]string{"p0", "d0"}, conform.Conforms, ""},
		{[]string{"d0"}, conform.Inconclusive, "waits for page 0 of 000000000000000d/1/0 to be posted by 000000000000000a, whose ledger is missing"},
		{[]string{"p0"}, conform.Inconclusive, "waits for GRANT of 000000000000000d/1/0 to be sent by 000000000000000d, whose ledger is missing"},
	} {
		var list []string
		for _, node := range k.nodes {
			list = append(list, dirs[node])
		}
		l, err := conform.Together(list)
		if err != nil || l.Verdict != k.verdict || !strings.HasSuffix(l.Why, k.why) {
			t.Errorf("%v: got %v, %v, error %v, want %v, %q", k.nodes, l.Verdict, l, err, k.verdict, k.why)
		}
	}
}
