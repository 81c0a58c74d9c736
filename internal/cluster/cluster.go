// Package cluster knows the nodes and carries jobs between them.
//
// A static file names a gateway and its workers. Each worker runs a Server; the
// gateway's Client keeps one connection to each of them, on which it watches the
// worker's Status and runs Jobs. What a job says comes back as Events.
//
// Who notices what, and when:
//
//   - A worker speaks at least once a second. A client that hears nothing for
//     Options.Silence closes the connection: every stream of that worker fails.
//   - A server pings; a gateway that does not answer within about 3 s, or whose
//     connection ends, has all its jobs cancelled.
//   - A gateway that reads too slowly fills a job's bounded queue of events: that
//     job is cancelled.
//
// Pages never travel here, and generated types do not leave the package.
package cluster

import (
	"fmt"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Role is what a worker does.
type Role uint8

// The roles of workers. Zero is no role.
const (
	Prefill Role = iota + 1
	Decode
)

// String is the role's name in files, logs and metrics.
func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// MarshalText gives the role's name.
func (r Role) MarshalText() ([]byte, error) {
	if r != Prefill && r != Decode {
		return nil, fmt.Errorf("role %d has no name", uint8(r))
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads "prefill" or "decode".
func (r *Role) UnmarshalText(text []byte) error {
	switch string(text) {
	case "prefill":
		*r = Prefill
	case "decode":
		*r = Decode
	default:
		return fmt.Errorf("role %.40q: must be prefill or decode", text)
	}
	return nil
}

func (r Role) certificate() certs.Role {
	if r == Prefill {
		return certs.Prefill
	}
	return certs.Decode
}

// Limits are what one worker can hold. All counts are >= 0.
type Limits struct {
	ContextTokens int // longest sequence of the model at this worker
	ServedTokens  int // longest sequence the operator asked for; 0: as many as fit
	PoolPages     int // pages of the pool
	UsablePages   int // pool less quarantined and reserved pages
	ReservedPages int // pages kept for probes
	PageTokens    int // tokens of a page
}

// PeerStatus is how one worker sees another on the transfer plane.
type PeerStatus struct {
	Node string
	Up   bool
	Err  string // why it is not up; empty if it is
}

// Status is what a worker says about itself.
type Status struct {
	Node             string
	Role             Role
	Epoch            kv.Epoch
	Model            string
	Fingerprint      kv.Fingerprint
	Vocab            int
	Limits           Limits
	Running          int // jobs
	Waiting          int // jobs
	FreePages        int
	QuarantinedPages int
	QueuedTokens     int       // prompt tokens not yet computed
	LastTransfer     time.Time // end of the last real transfer; zero if there was none
	Peers            []PeerStatus
	Draining         bool
	LedgerFailed     bool // jobs are refused until the ledger can be written
	// CertificateFailures counts new files of its certificate, since its start, that
	// the worker could not use: it goes on with the old one.
	CertificateFailures int
	// Refused counts pages, since its start, that the worker's gate refused, by reason;
	// nil at a prefill worker, which has no gate. At most reasonsMax reasons.
	Refused map[string]int
	Build   string
}

// Member is a worker as the client last saw it. Node and Role are set even if
// the worker was never reached.
type Member struct {
	Status
	Up   bool      // the connection stands and the worker speaks
	Seen time.Time // when the last status came; zero if none did
	Err  string    // why it is not up; empty if it is
}
