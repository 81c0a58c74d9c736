package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

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

// A process that waits for room on a full disk does not write a line for each look.
func TestAFullDiskIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		looks := 0
		_, err := awaitLedger(t.Context(), nil, ledger.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(ledger.Config) (*ledger.Ledger, error) {
			if looks++; looks < 100 {
				return nil, unix.ENOSPC
			}
			return nil, nil
		})
		if err != nil || looks != 100 || strings.Count(log.String(), "no room for the ledger") != 1 || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("after %d looks the error is %v and the log has %s, want a line of the wait and one of its end", looks, err, &log)
		}
	})
}
