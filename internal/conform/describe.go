package conform

import (
	"fmt"
	"strconv"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// describe is an entry's part for people: what identify says, with the numbers that
// matter. Digests and keys stay out.
func describe(event any) ledger.Entry {
	e := identify(event)
	e.Detail = detail(event)
	return e
}

// identify names an event and whom it is about. A check holds these fields against
// the entry's Input.
func identify(event any) ledger.Entry {
	switch e := event.(type) {
	case transfer.PeerUp:
		return ledger.Entry{Event: "peer-up"}
	case transfer.PeerLost:
		return ledger.Entry{Event: "peer-lost"}
	case transfer.Suspect:
		return ledger.Entry{Event: "suspect"}
	case transfer.Received:
		return identifyMessage(e.Message)
	case transfer.Cancel:
		return ledger.Entry{Event: "cancel", X: e.X}
	case transfer.KernelStopped:
		return ledger.Entry{Event: "kernel-stopped", X: e.X}
	case transfer.Tick:
		return ledger.Entry{Event: "tick"}
	case transfer.Open:
		return ledger.Entry{Event: "open", X: e.X, GatewayBoot: e.GatewayBoot, Request: e.Request, Attempt: e.Attempt, Tenant: e.Tenant, Pages: e.Pages}
	case transfer.Landed:
		return ledger.Entry{Event: "landed", X: e.X}
	case transfer.PageRefused:
		return ledger.Entry{Event: "page-refused", X: e.X}
	case transfer.Fenced:
		return ledger.Entry{Event: "fenced", X: e.X}
	case transfer.Verified:
		return ledger.Entry{Event: "verified", X: e.X}
	case transfer.Finished:
		return ledger.Entry{Event: "finished", X: e.X}
	case transfer.Fault:
		return ledger.Entry{Event: "fault", X: e.X}
	case transfer.Admitted:
		return ledger.Entry{Event: "admitted", X: e.X}
	case transfer.Refused:
		return ledger.Entry{Event: "refused", X: e.X}
	case transfer.Computed:
		return ledger.Entry{Event: "computed", X: e.X}
	case transfer.Written:
		return ledger.Entry{Event: "written", X: e.X}
	case transfer.Failed:
		return ledger.Entry{Event: "failed", X: e.X}
	}
	return ledger.Entry{Event: "unknown"}
}

func identifyMessage(m transfer.Message) ledger.Entry {
	switch m := m.(type) {
	case transfer.Grant:
		return ledger.Entry{Event: "grant", X: m.X, GatewayBoot: m.GatewayBoot, Request: m.Request, Attempt: m.Attempt, Tenant: m.Tenant}
	case transfer.Abort:
		return ledger.Entry{Event: "abort", X: m.X}
	case transfer.Closed:
		return ledger.Entry{Event: "closed", X: m.X}
	}
	return ledger.Entry{Event: "message"}
}

func detail(event any) string {
	switch e := event.(type) {
	case transfer.PeerUp:
		return fmt.Sprintf("%v: %s %016x", e.Peer, e.Hello.Node, uint64(e.Hello.Epoch))
	case transfer.PeerLost:
		return e.Peer.String()
	case transfer.Suspect:
		return e.Peer.String()
	case transfer.Received:
		return messageDetail(e)
	case transfer.Open:
		return fmt.Sprintf("%v, %d tokens", e.Peer, e.Tokens)
	case transfer.Landed:
		return blockDetail(e.Block)
	case transfer.PageRefused:
		return blockDetail(e.Block)
	case transfer.Verified:
		return strconv.FormatBool(e.OK)
	case transfer.Admitted:
		return fmt.Sprintf("%d tokens", e.Tokens)
	case transfer.Refused:
		return e.Reason.String()
	case transfer.Computed:
		return blockDetail(e.Block)
	case transfer.Written:
		return blockDetail(e.Block) + fate(e)
	case transfer.Failed:
		return e.Reason.String()
	}
	return ""
}

func messageDetail(e transfer.Received) string {
	switch m := e.Message.(type) {
	case transfer.Grant:
		return fmt.Sprintf("%v, %d tokens, %d pages", e.Peer, m.Tokens, len(m.Pages))
	case transfer.Closed:
		return fmt.Sprintf("%v, %v, %v, %d tokens", e.Peer, m.Outcome, m.Reason, m.Tokens)
	}
	return e.Peer.String()
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
