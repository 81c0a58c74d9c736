package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// The scripts find ledgers of a gateway and a decode worker in home/ledger, in
// faulty/d0 one whose worker has freed pages that were still granted, in pair those
// of two workers, and in twice those of two of which one grants a page twice.
func TestLedgerScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/ledger",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("BULKHEAD_HOME", env.WorkDir+"/home")
			gateway := []ledger.Entry{{Kind: ledger.Request, Event: "accepted", Request: 17, Attempt: 1, GatewayBoot: 0xb, Detail: "1 choice, answer " + strings.Repeat("5a", 16)}, {Kind: ledger.Request, Event: "accepted", Request: 18, GatewayBoot: 0xb}}
			later := []ledger.Entry{{Kind: ledger.Request, Event: "accepted", Request: 17, Attempt: 1, GatewayBoot: 0xc, Detail: "another tenant's"}}
			decode := decodeEntries()
			freed := ledger.Entry{Kind: ledger.Pool, Event: "free", X: kv.TransferID{Epoch: 0xd, Sequence: 1}}
			return errors.Join(
				writeLedger(filepath.Join(env.WorkDir, "home", "ledger", "gateway"), "gateway", 0xb, gateway),
				writeLedger(filepath.Join(env.WorkDir, "home", "ledger", "d0"), "d0", 0xd, decode),
				writeLedger(filepath.Join(env.WorkDir, "later", "gateway"), "gateway", 0xc, later),
				writeLedger(filepath.Join(env.WorkDir, "faulty", "d0"), "d0", 0xd, append(decode, freed)),
				writePair(filepath.Join(env.WorkDir, "pair"), 3, 4),
				writePair(filepath.Join(env.WorkDir, "twice"), 3, 3),
				writeLedger(filepath.Join(env.WorkDir, "lossy", "d0"), "d0", 0xd, append(decode, ledger.Entry{Kind: ledger.Note, Event: "lost"})),
			)
		},
	})
}

// decodeEntries is what a worker records that opens a transfer for request 17.
func decodeEntries() (entries []ledger.Entry) {
	c := transfer.TargetConfig{Epoch: 0xd}
	m := transfer.NewTarget(c)
	j := conform.NewTargetJournal(c, "v0", transfer.NewVeil(kv.Key{1}), func(e ledger.Entry) { entries = append(entries, e) })
	for _, event := range []transfer.TargetEvent{
		transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "p0", Epoch: 0xa}, Places: true, Fences: true},
		transfer.Tick{},
		transfer.Open{X: m.Next(), Peer: 1, Request: 17, Attempt: 1, GatewayBoot: 0xb, Tenant: 5, Tokens: 16, TokenDigest: kv.Sum{1}, Key: kv.Key{1},
			Pages: []kv.PageRef{{Slot: 3, Generation: 1}}},
		transfer.Landed{X: kv.TransferID{Epoch: 0xd, Sequence: 1}},
	} {
		j.Target(event, m.Step(event))
	}
	output := ledger.Entry{Kind: ledger.Pool, Event: "taken", Request: 17, Attempt: 1, GatewayBoot: 0xb, Tenant: 5, X: kv.TransferID{Epoch: 0xd, Sequence: 1},
		Pages: []kv.PageRef{{Slot: 4, Generation: 1}, {Slot: 5, Generation: 2}}, Detail: "output pages"}
	return append(entries, output)
}

// writePair writes what two workers record of a transfer into each of these pages.
// Prefill has no room for the second one.
func writePair(dir string, slots ...kv.Slot) error {
	target, source := transfer.TargetConfig{Epoch: 0xd}, transfer.SourceConfig{Epoch: 0xa, PagesMax: 1, TokensMax: 16}
	t, s := transfer.NewTarget(target), transfer.NewSource(source)
	var decode, prefill []ledger.Entry
	d := conform.NewTargetJournal(target, "v0", transfer.NewVeil(kv.Key{1}), func(e ledger.Entry) { decode = append(decode, e) })
	p := conform.NewSourceJournal(source, "v0", transfer.NewVeil(kv.Key{2}), func(e ledger.Entry) { prefill = append(prefill, e) })
	var sent transfer.Message
	at := func(event transfer.TargetEvent) {
		effects := t.Step(event)
		d.Target(event, effects)
		sent = lastSent(effects, sent)
	}
	from := func(event transfer.SourceEvent) {
		effects := s.Step(event)
		p.Source(event, effects)
		sent = lastSent(effects, sent)
	}
	at(transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "p0", Epoch: 0xa}, Places: true, Fences: true})
	from(transfer.PeerUp{Peer: 1, Hello: transfer.Hello{Node: "d0", Epoch: 0xd}})
	for i, slot := range slots {
		at(transfer.Open{X: t.Next(), Peer: 1, Request: uint64(i + 1), Attempt: 1, GatewayBoot: 0xb, Tenant: 5, Tokens: 16, TokenDigest: kv.Sum{1},
			Key: kv.Key{1}, Pages: []kv.PageRef{{Slot: slot, Generation: 1}}})
		from(transfer.Received{Peer: 1, Message: sent})
	}
	from(transfer.Refused{X: kv.TransferID{Epoch: 0xd, Sequence: uint64(len(slots))}, Reason: transfer.ReasonBusy})
	at(transfer.Received{Peer: 1, Message: sent})
	return errors.Join(writeLedger(filepath.Join(dir, "d0"), "d0", 0xd, decode), writeLedger(filepath.Join(dir, "p0"), "p0", 0xa, prefill))
}

// lastSent is the last message that was sent.
func lastSent(effects []transfer.Effect, before transfer.Message) transfer.Message {
	for _, e := range effects {
		if e.Kind == transfer.DoSend {
			before = e.Message
		}
	}
	return before
}

func writeLedger(dir, node string, epoch kv.Epoch, entries []ledger.Entry) error {
	l, err := ledger.Open(ledger.Config{Dir: dir, Node: node, Epoch: epoch})
	if err != nil {
		return err
	}
	for _, e := range entries {
		err = errors.Join(err, l.Append(e))
	}
	return errors.Join(err, l.Close())
}

func TestMergedLedgersAreInOrderOfTime(t *testing.T) {
	root := t.TempDir()
	var ledgers []*ledger.Ledger
	var folders []string
	for _, node := range []string{"a", "b", "c"} {
		folders = append(folders, filepath.Join(root, node))
		l, err := ledger.Open(ledger.Config{Dir: filepath.Join(root, node), Node: node, Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		ledgers = append(ledgers, l)
	}
	want := []int{0, 2, 1, 1, 0, 2, 2, 0}
	for i, k := range want {
		if err := ledgers[k].Append(ledger.Entry{Kind: ledger.Request, Event: "e", Request: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range ledgers {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	for e, err := range merged(folders) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, int(e.Node[0]-'a'))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries come from other ledgers than in the order of their times (-want +got):\n%s", diff)
	}
}

func TestTransfersAndRequestsAreReadAsTheyAreShown(t *testing.T) {
	want := kv.TransferID{Epoch: 1<<63 + 5, Sequence: 12, Rank: 3}
	if got, err := parseTransfer(want.String()); err != nil || got != want {
		t.Errorf("%v is read as %v, error %v", want, got, err)
	}
	for _, bad := range []string{"", "1/2", "x/2/3", "1/x/3", "1/2/300", "1/2/3/4", "0/0/0"} {
		if got, err := parseTransfer(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
	random := strings.Repeat("5a", 16)
	for text, want := range map[string]struct {
		request uint64
		answer  string
	}{"17": {request: 17}, "chatcmpl-" + random: {answer: random}, "cmpl-" + random: {answer: random}} {
		request, answer, err := parseRequest(text)
		if err != nil || request != want.request || answer != want.answer {
			t.Errorf("request %q is read as %d, %q, error %v", text, request, answer, err)
		}
	}
	for _, bad := range []string{"", "0", "seventeen", "chatcmpl-", "chatcmpl-17", "cmpl-" + random + "0", "x-" + random, "cmpl-" + strings.ToUpper(random)} {
		if request, answer, err := parseRequest(bad); err == nil {
			t.Errorf("request %q is read as %d, %q", bad, request, answer)
		}
	}
}
