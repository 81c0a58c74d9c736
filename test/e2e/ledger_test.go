package e2e

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// entries reads a node's ledger as far as it has been written; a server that runs
// may be in the middle of the last line.
func (s *server) entries(t *testing.T, node string) []ledger.Entry {
	t.Helper()
	time.Sleep(100 * time.Millisecond) // the ledger gathers entries for one fsync
	var all []ledger.Entry
	for e, err := range ledger.Read(filepath.Join(s.home, "ledger", node)) {
		if err != nil {
			break
		}
		all = append(all, e)
	}
	return all
}

// requests gives, for each answer's id, the number of its first choice's request.
// Ids are random; what they stand for is in the gateway's ledger only.
func (s *server) requests(t *testing.T) answers {
	t.Helper()
	all := answers{}
	for _, e := range s.entries(t, "gateway") {
		_, name, accepted := strings.Cut(e.Detail, ", answer ")
		if _, known := all[name]; accepted && !known {
			all[name] = e.Request
		}
	}
	return all
}

// answers are request numbers by the random part of an answer's id.
type answers map[string]uint64

func (a answers) of(t *testing.T, id string) uint64 {
	t.Helper()
	_, name, _ := strings.Cut(id, "-")
	n, known := a[name]
	if !known {
		t.Fatalf("the gateway's ledger knows no answer %q", id)
	}
	return n
}

// roots gives, for each request, the digest over the pages that decode adopted for
// it, from all decode workers' ledgers.
func (s *server) roots(t *testing.T, decodes int) map[uint64]string {
	t.Helper()
	roots := map[uint64]string{}
	for i := range decodes {
		request := map[kv.TransferID]uint64{}
		for _, e := range s.entries(t, "d"+strconv.Itoa(i)) {
			switch e.Event {
			case "open":
				request[e.X] = e.Request
			case "adopted":
				roots[request[e.X]] = string(e.Output)
			}
		}
	}
	return roots
}
