package worker

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// recordTransfer writes what went into the transfer machine and a hash of what came
// out of it. A tick that changed nothing is not worth an entry.
func (b *base) recordTransfer(event any, effects []transfer.Effect) {
	if b.omit.ledger {
		return
	}
	e := entryOf(event)
	if e.Event == "tick" && len(effects) == 0 {
		return
	}
	e.Kind, e.Output = ledger.Transfer, b.outputHash(effects)
	pages := e.Pages
	for len(pages) > ledger.PagesMax {
		e.Pages = pages[:ledger.PagesMax]
		b.record(e)
		pages = pages[ledger.PagesMax:]
	}
	e.Pages = pages
	b.record(e)
}

// outputHash is the front half of the SHA-256 over the effects, each of them 42 bytes,
// little-endian: kind 1, epoch 8, sequence 8, rank 1, peer 8, block 8, code 4, reason 4.
func (b *base) outputHash(effects []transfer.Effect) []byte {
	out, le := b.output[:0], binary.LittleEndian
	for i := range effects {
		f := &effects[i]
		out = le.AppendUint64(append(out, byte(f.Kind)), uint64(f.X.Epoch))
		out = append(le.AppendUint64(out, f.X.Sequence), f.X.Rank)
		out = le.AppendUint64(le.AppendUint64(out, uint64(f.Peer)), uint64(f.Block))
		out = le.AppendUint32(le.AppendUint32(out, uint32(f.Code)), uint32(f.Reason))
	}
	b.output = out
	sum := sha256.Sum256(out)
	return sum[:16]
}

// entryOf names an event with the ids and numbers that matter. Digests and keys
// stay out.
func entryOf(event any) ledger.Entry {
	switch e := event.(type) {
	case transfer.PeerUp:
		return ledger.Entry{Event: "peer-up", Detail: fmt.Sprintf("peer %d: %s %016x", e.Peer, e.Hello.Node, uint64(e.Hello.Epoch))}
	case transfer.PeerLost:
		return ledger.Entry{Event: "peer-lost", Detail: e.Peer.String()}
	case transfer.Suspect:
		return ledger.Entry{Event: "suspect", Detail: e.Peer.String()}
	case transfer.Received:
		return messageEntry(e)
	case transfer.Cancel:
		return ledger.Entry{Event: "cancel", X: e.X}
	case transfer.KernelStopped:
		return ledger.Entry{Event: "kernel-stopped", X: e.X}
	case transfer.Tick:
		return ledger.Entry{Event: "tick"}
	case transfer.Open:
		return ledger.Entry{Event: "open", X: e.X, GatewayBoot: e.GatewayBoot, Request: e.Request, Attempt: e.Attempt, Tenant: e.Tenant,
			Pages: e.Pages, Detail: fmt.Sprintf("%v, %d tokens", e.Peer, e.Tokens)}
	case transfer.Landed:
		return ledger.Entry{Event: "landed", X: e.X, Detail: blockDetail(e.Block)}
	case transfer.PageRefused:
		return ledger.Entry{Event: "page-refused", X: e.X, Detail: blockDetail(e.Block)}
	case transfer.Fenced:
		return ledger.Entry{Event: "fenced", X: e.X}
	case transfer.Verified:
		return ledger.Entry{Event: "verified", X: e.X, Detail: fmt.Sprint(e.OK)}
	case transfer.Finished:
		return ledger.Entry{Event: "finished", X: e.X}
	case transfer.Fault:
		return ledger.Entry{Event: "fault", X: e.X}
	case transfer.Admitted:
		return ledger.Entry{Event: "admitted", X: e.X, Detail: fmt.Sprintf("%d tokens", e.Tokens)}
	case transfer.Refused:
		return ledger.Entry{Event: "refused", X: e.X, Detail: e.Reason.String()}
	case transfer.Computed:
		return ledger.Entry{Event: "computed", X: e.X, Detail: blockDetail(e.Block)}
	case transfer.Written:
		return ledger.Entry{Event: "written", X: e.X, Detail: blockDetail(e.Block) + fate(e)}
	case transfer.Failed:
		return ledger.Entry{Event: "failed", X: e.X, Detail: e.Reason.String()}
	}
	return ledger.Entry{Event: "unknown", Detail: fmt.Sprintf("%T", event)}
}

func fate(w transfer.Written) string {
	switch {
	case w.OK:
		return ", true"
	case w.Refused:
		return ", dropped"
	}
	return ", false"
}

func blockDetail(block uint32) string { return "block " + strconv.FormatUint(uint64(block), 10) }

func messageEntry(e transfer.Received) ledger.Entry {
	switch m := e.Message.(type) {
	case transfer.Grant:
		return ledger.Entry{Event: "grant", X: m.X, GatewayBoot: m.GatewayBoot, Request: m.Request, Attempt: m.Attempt, Tenant: m.Tenant,
			Detail: fmt.Sprintf("%v, %d tokens, %d pages", e.Peer, m.Tokens, len(m.Pages))}
	case transfer.Abort:
		return ledger.Entry{Event: "abort", X: m.X, Detail: e.Peer.String()}
	case transfer.Closed:
		return ledger.Entry{Event: "closed", X: m.X, Detail: fmt.Sprintf("%v, %v, %v, %d tokens", e.Peer, m.Outcome, m.Reason, m.Tokens)}
	}
	return ledger.Entry{Event: "message", Detail: e.Peer.String()}
}

// recordPool writes what became of a transfer's pages.
func (b *base) recordPool(event string, x kv.TransferID) {
	b.record(ledger.Entry{Kind: ledger.Pool, Event: event, X: x})
}

// recordJob writes a step in a request's life.
func (b *base) recordJob(j *job, x kv.TransferID, event, detail string) {
	b.record(ledger.Entry{Kind: ledger.Request, Event: event, GatewayBoot: j.GatewayBoot, Request: j.Request, Attempt: j.Attempt,
		Tenant: j.Tenant, X: x, Detail: detail})
}

func (b *base) record(e ledger.Entry) {
	if b.omit.ledger {
		return
	}
	if err := b.Record.Append(e); err != nil {
		b.Log.Error("ledger entry is lost", "error", err)
	}
}
