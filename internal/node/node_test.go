package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
)

// A process whose ledger was tampered with is not started again and again.
func TestTamperedLedgerIsPermanent(t *testing.T) {
	c := ledger.Config{Dir: t.TempDir(), Node: "d0", Epoch: 1, Log: quiet()}
	record, err := openLedger(t.Context(), nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Append(ledger.Entry{Kind: ledger.Request, Event: "accepted"}); err != nil {
		t.Fatal(err)
	}
	if err := record.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(c.Dir, "*.ledger"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	text, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segments[0], []byte(strings.Replace(string(text), "accepted", "finished", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := openLedger(t.Context(), nil, c); !Permanent(err) || !strings.Contains(err.Error(), "tampered") {
		t.Errorf("a changed ledger opens as %v with %v, want a permanent error that names tampering", l, err)
	}
}
