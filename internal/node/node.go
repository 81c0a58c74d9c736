// Package node builds one process from its configuration.
//
// It is the only place where packages are wired together: a gateway, a prefill or
// decode worker, or the supervisor that runs them as children.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/machine"
)

// permanent marks an error that no new start would cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent reports whether a process failed for a reason that a restart does not
// change, such as its configuration.
func Permanent(err error) bool {
	var p permanent
	return errors.As(err, &p)
}

// A process that was killed holds its ledger until the kernel has taken it apart;
// one that holds it for longer than ledgerWait lives.
const (
	ledgerWait  = 2 * time.Second
	ledgerRetry = 50 * time.Millisecond
)

// openLedger opens a ledger. That another process has it open is permanent: as long
// as that one runs no new start of this one would succeed. So is a chain that was
// tampered with: the next start must not seal it. A full disk is waited for:
// the process takes no work meanwhile, and ending it would not make room. A drain ends
// the wait: there is nothing to drain.
func openLedger(ctx context.Context, drain <-chan struct{}, c ledger.Config) (*ledger.Ledger, error) {
	return awaitLedger(ctx, drain, c, ledger.Open)
}

// awaitLedger opens until it has an answer. That it waits for room it says once.
func awaitLedger(ctx context.Context, drain <-chan struct{}, c ledger.Config, open func(ledger.Config) (*ledger.Ledger, error)) (*ledger.Ledger, error) {
	full := false
	for locked := time.Duration(0); ; {
		l, err := open(c)
		wait := ledgerRetry
		switch {
		case errors.As(err, new(*ledger.BadEntry)):
			return nil, permanent{fmt.Errorf("%w (--ledger or --home names another)", err)}
		case errors.Is(err, unix.EWOULDBLOCK):
			if locked += wait; locked > ledgerWait {
				return nil, permanent{fmt.Errorf("%w: stop it, or give --ledger or --home", err)}
			}
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			wait = time.Second
			if !full {
				c.Log.Error("no room for the ledger: waiting", "dir", c.Dir, "error", err)
			}
			full = true
		default:
			if full && err == nil {
				c.Log.Info("there is room for the ledger again", "dir", c.Dir)
			}
			return l, err
		}
		select {
		case <-time.After(wait):
		case <-drain:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// memoryBytes is the memory that this process may use, control groups included.
func memoryBytes() (int64, error) {
	m, err := machine.ReadMemory(os.DirFS("/"))
	if err != nil {
		return 0, fmt.Errorf("size of memory: %w", err)
	}
	return m.Bytes, nil
}

// openFilesMax is how many files the process may have open.
func openFilesMax() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	return limit.Cur, nil
}

// closers closes in reverse order of opening and joins what went wrong.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c closers) close() error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i]())
	}
	return errors.Join(errs...)
}
