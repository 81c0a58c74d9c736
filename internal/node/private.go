package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// A run's private folder holds its certificates with their keys, so none may stay
// when a run is killed: each run holds a lock in its folder, and the next one
// removes the folders of this user whose lock nobody holds.
const (
	privatePrefix = "bulkhead-"
	privateLock   = "lock"
)

// errLocked is that another process holds a lock.
var errLocked = errors.New("another process holds the lock")

// makePrivate makes the folder, of mode 0700; remove ends it.
func makePrivate(log *slog.Logger) (dir string, remove func() error, err error) {
	sweepPrivate(os.TempDir(), log)
	dir, err = os.MkdirTemp("", privatePrefix)
	if err != nil {
		return "", nil, fmt.Errorf("private folder: %w", err)
	}
	// The lock appears under its name when it is held, so that no sweep comes between.
	fresh := filepath.Join(dir, privateLock+".new")
	lock, err := holdLock(fresh, os.O_CREATE)
	if err == nil {
		err = os.Rename(fresh, filepath.Join(dir, privateLock))
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("private folder: %w", err), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// sweepPrivate removes what killed runs of this user left in the folder. What it
// can't remove stays: it is not needed for anything.
func sweepPrivate(folder string, log *slog.Logger) {
	left, err := filepath.Glob(filepath.Join(folder, privatePrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		if !ownFolder(dir) {
			continue
		}
		lock, err := holdLock(filepath.Join(dir, privateLock), 0)
		if err != nil {
			continue // in use, or not of this kind
		}
		err = errors.Join(os.RemoveAll(dir), lock.Close())
		log.Info("what a killed server left is removed", "folder", dir, "error", err)
	}
}

// ownFolder says whether path is a folder, not a link to one, that belongs to this
// user alone.
func ownFolder(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeDir || info.Mode().Perm() != 0o700 {
		return false
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	return known && int(stat.Uid) == os.Getuid()
}

// holdLock locks a file until it is closed or the process ends; errLocked if
// another process holds it.
func holdLock(path string, create int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|create, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockLedgers makes the folder of the ledgers this run's own, before any child
// finds that its ledger is another's.
func lockLedgers(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the ledgers: %w", err)
	}
	lock, err := holdLock(filepath.Join(dir, "serve.lock"), os.O_CREATE)
	if errors.Is(err, errLocked) {
		return nil, permanent{fmt.Errorf("another server uses the ledgers in %s: stop it, or give --ledger or --home", dir)}
	}
	if err != nil {
		return nil, fmt.Errorf("folder of the ledgers: %w", err)
	}
	return lock, nil
}
