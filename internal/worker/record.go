package worker

import (
	"slices"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// recordStep writes what went into the transfer machine and a hash of what came
// out of it, before that is performed.
func (d *Decode) recordStep(event transfer.TargetEvent, effects []transfer.Effect) {
	if !d.omit.ledger {
		d.journal.Target(event, effects)
	}
}

// recordStep writes what went into the transfer machine and a hash of what came
// out of it, before that is performed.
func (p *Prefill) recordStep(event transfer.SourceEvent, effects []transfer.Effect) {
	if !p.omit.ledger {
		p.journal.Source(event, effects)
	}
}

// recordTaken writes which pages this worker took for its own part of a transfer. The
// ones that the other side may write stand in the machine's entries.
func (b *base) recordTaken(j *job, x kv.TransferID, pages []kv.PageRef, detail string) {
	for part := range slices.Chunk(pages, ledger.PagesMax) {
		b.record(ledger.Entry{Kind: ledger.Pool, Event: "taken", GatewayBoot: j.GatewayBoot, Request: j.Request, Attempt: j.Attempt,
			Tenant: j.Tenant, X: x, Pages: part, Detail: detail})
	}
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
	if err := b.Record.Append(e); fault.Of(err) == fault.Internal && err != nil {
		b.Log.Error("ledger entry is impossible", "error", err)
	}
}
