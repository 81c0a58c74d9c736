package e2e

import (
	"fmt"
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

// requestNumber is the number in a response's id, behind the gateway's boot nonce.
func requestNumber(id string) (uint64, error) {
	_, hex, _ := strings.Cut(id, "-")
	if len(hex) < 17 {
		return 0, fmt.Errorf("response id %q has no request number", id)
	}
	return strconv.ParseUint(hex[16:], 16, 64)
}

func requestOf(t *testing.T, id string) uint64 {
	t.Helper()
	n, err := requestNumber(id)
	if err != nil {
		t.Fatal(err)
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
