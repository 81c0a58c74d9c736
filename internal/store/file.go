package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPollInterval is how often a waiting process looks whether a lock is free.
// A blocking flock could not be given up on Ctrl-C.
const lockPollInterval = 50 * time.Millisecond

// lock takes the lock of the file at path, calling waiting once if somebody else
// has it. The lock ends with unlock or with the process. Its holder may remove the
// file: a lock on a file that is no longer at path is none, and is taken anew.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		file, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if file != nil {
			return func() { _ = file.Close() }, nil // closing is what unlocks
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for lock %s: %w", path, ctx.Err())
		case <-time.After(lockPollInterval):
		}
	}
}

// tryLock gives the locked file, or nil if it has to be tried again.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		var mine, there fs.FileInfo
		if mine, err = file.Stat(); err == nil {
			there, err = os.Stat(path)
		}
		if err == nil && os.SameFile(mine, there) {
			return file, nil
		}
		err = ignoreAbsent(err)
	} else if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		err = nil
	}
	return nil, errors.Join(err, file.Close())
}

// replaceFile puts text at path so that a reader sees the old file or the new.
func replaceFile(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the first error is the one to report
		return err
	}
	return syncFile(filepath.Dir(path))
}

// syncFile makes a file's bytes, or a folder's names, survive a power failure.
func syncFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	err = file.Sync()
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// freeBytes is what an ordinary user may still write in dir's file system.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
