package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// A killed run's folder goes with the next start; a living run's, a stranger's and
// one that others may read stay.
func TestLeftoversAreSwept(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dead := filepath.Join(temp, privatePrefix+"dead")
	open := filepath.Join(temp, privatePrefix+"open")
	other := filepath.Join(temp, privatePrefix+"other")
	for _, f := range []struct {
		dir, file string
		mode      os.FileMode
	}{{dead, privateLock, 0o700}, {open, privateLock, 0o755}, {other, "lock.new", 0o700}} {
		if err := os.Mkdir(f.dir, f.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.dir, f.file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(temp, privatePrefix+"link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	first, removeFirst, err := makePrivate(quiet())
	if err != nil {
		t.Fatal(err)
	}
	second, removeSecond, err := makePrivate(quiet())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the killed run's folder is still there (%v)", err)
	}
	for _, dir := range []string{open, other, link, first, second} {
		if _, err := os.Stat(filepath.Join(dir)); err != nil {
			t.Errorf("%s must stay: %v", filepath.Base(dir), err)
		}
	}
	info, err := os.Stat(first)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v (%v), want 0700", info.Mode(), err)
	}
	for _, remove := range []func() error{removeFirst, removeSecond} {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"*")); len(left) != 3 {
		t.Errorf("%v is left, want the three that are not ours", left)
	}
}

// A ledger that another process has open is not worth a restart.
func TestOpenLedgerIsPermanentlyRefused(t *testing.T) {
	config := ledger.Config{Dir: t.TempDir(), Node: "p0", Epoch: 1, Log: quiet()}
	l, err := openLedger(t.Context(), nil, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the second one's refusal is looked at
	drain := make(chan struct{})
	close(drain)
	if _, err := openLedger(t.Context(), drain, config); err == nil || Permanent(err) {
		t.Errorf("a process that is to end gets %v, want that it waits no longer", err)
	}
	if _, err := openLedger(t.Context(), nil, config); !Permanent(err) || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("a ledger that is open gives %v, want a permanent error", err)
	}
}

func TestOneServerALedgerFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	lock, err := lockLedgers(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockLedgers(dir); !Permanent(err) || !strings.Contains(err.Error(), "another server uses the ledgers in "+dir) {
		t.Errorf("a second server gets %v, want a permanent error that names the folder", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockLedgers(dir)
	if err != nil {
		t.Fatalf("after the first one's end: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
