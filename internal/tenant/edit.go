package tenant

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/regular"
)

// fileBytesMax bounds the tenants file: about 20,000 tenants.
const fileBytesMax = 16 << 20

// keysMax bounds the keys of one tenant that are valid at one time.
const keysMax = 8

// Check refuses what Add can't take.
func Check(name string, limits Limits) error {
	if err := errors.Join(checkName(name), limits.Validate()); err != nil {
		return fault.New(fault.Invalid, "add tenant: %w", err)
	}
	return nil
}

// Add makes a tenant and its first key, which is returned this one time. The
// file is made when it doesn't exist.
func Add(path, name string, limits Limits, now time.Time) (key string, err error) {
	if err := Check(name, limits); err != nil {
		return "", err
	}
	err = edit(path, readOrBegin, func(f *file) error {
		if _, err := f.find(name); err == nil {
			return fault.New(fault.Invalid, "tenant %s exists", name)
		}
		var k keyRecord
		key, k = newKey(now)
		f.Tenants = append(f.Tenants, record{Name: name, Secret: random32(), Created: k.Created, Limits: limits, Keys: []keyRecord{k}})
		return nil
	})
	return key, err
}

// SetLimits replaces a tenant's limits.
func SetLimits(path, name string, limits Limits) error {
	if err := limits.Validate(); err != nil {
		return err
	}
	return edit(path, read, func(f *file) error {
		r, err := f.find(name)
		if err != nil {
			return err
		}
		r.Limits = limits
		return nil
	})
}

// Rotate gives a tenant a new key. The old keys stay valid for grace; with none
// they end at once. Requests that run under an old key go on.
func Rotate(path, name string, grace time.Duration, now time.Time) (key string, err error) {
	if grace < 0 {
		return "", fault.New(fault.Invalid, "grace is %s, it must be 0 or more", grace)
	}
	err = edit(path, read, func(f *file) error {
		r, err := f.find(name)
		if err != nil {
			return err
		}
		var k keyRecord
		key, k = newKey(now)
		r.Keys = append(aging(r.Keys, now, grace), k)
		if len(r.Keys) > keysMax {
			return fault.New(fault.Invalid, "tenant %s would have %d valid keys, the most is %d: rotate with grace 0", name, len(r.Keys), keysMax)
		}
		return nil
	})
	return key, err
}

// aging keeps the keys that are valid at now and lets them end after grace.
func aging(keys []keyRecord, now time.Time, grace time.Duration) (kept []keyRecord) {
	end := now.Add(grace).UTC()
	for _, k := range keys {
		if grace == 0 || !k.validAt(now) {
			continue
		}
		if k.Expires.IsZero() || end.Before(k.Expires) {
			k.Expires = end
		}
		kept = append(kept, k)
	}
	return kept
}

// Remove deletes a tenant. A gateway that follows the file ends its running
// requests at once.
func Remove(path, name string) error {
	return edit(path, read, func(f *file) error {
		if _, err := f.find(name); err != nil {
			return err
		}
		f.Tenants = slices.DeleteFunc(f.Tenants, func(r record) bool { return r.Name == name })
		return nil
	})
}

// List describes the tenants in the file's order.
func List(path string) ([]Info, error) {
	f, _, err := read(path)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, len(f.Tenants))
	for i, r := range f.Tenants {
		infos[i] = r.info()
	}
	return infos, nil
}

// edit changes the file under the lock PATH.lock: read, change, write beside it,
// sync, rename, sync the folder. Readers see the old file or the new one.
func edit(path string, read func(string) (*file, fs.FileInfo, error), change func(*file) error) error {
	if _, _, err := read(path); err != nil {
		return err // before a lock file is made beside it
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return fmt.Errorf("lock the tenants file: %w", err)
	}
	defer unlock()
	f, _, err := read(path)
	if err != nil {
		return err
	}
	if err := change(f); err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return err
	}
	return replace(path, f)
}

func lock(path string) (unlock func(), err error) {
	l, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(l.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	// Closing the descriptor ends the lock; the file stays, so that all lock one inode.
	return func() { _ = l.Close() }, nil
}

// readOrBegin is read, but a file that doesn't exist yet is an empty one.
func readOrBegin(path string) (*file, fs.FileInfo, error) {
	f, info, err := read(path)
	if fault.Of(err) == fault.NotFound {
		return &file{Version: fileVersion}, nil, nil
	}
	return f, info, err
}

// read parses the file strictly and says which version of it was read. A file
// that isn't there is an error of kind fault.NotFound.
func read(path string) (*file, fs.FileInfo, error) {
	in, info, err := regular.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fault.New(fault.NotFound, "there is no tenants file %s (\"bulkhead tenant add NAME --tenants %s\" makes one)", path, path)
	}
	if errors.As(err, new(*regular.NotRegular)) {
		return nil, nil, fault.New(fault.Invalid, "tenants file %w", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the tenants file: %w", err)
	}
	defer func() { _ = in.Close() }() // it was only read
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, nil, fault.New(fault.Invalid, "tenants file %s has mode %04o, it holds secrets and must have 0600", path, perm)
	}
	data, err := io.ReadAll(io.LimitReader(in, fileBytesMax+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read the tenants file: %w", err)
	}
	f, err := parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("tenants file %s: %w", path, err)
	}
	return f, info, nil
}

func parse(data []byte) (*file, error) {
	if len(data) > fileBytesMax {
		return nil, fault.New(fault.Invalid, "over %d bytes", fileBytesMax)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	f := &file{}
	if err := decoder.Decode(f); err != nil {
		// The decoder's own text may quote a value, and values here are secrets.
		return nil, fault.New(fault.Invalid, "not a tenants file (at byte %d of %d)", decoder.InputOffset(), len(data))
	}
	if rest := bytes.TrimSpace(data[decoder.InputOffset():]); len(rest) > 0 {
		return nil, fault.New(fault.Invalid, "%d bytes follow the JSON object", len(rest))
	}
	return f, f.validate()
}

func replace(path string, f *file) (err error) {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	folder := filepath.Dir(path)
	out, err := os.CreateTemp(folder, filepath.Base(path)+".new-") // mode 0600
	if err != nil {
		return fmt.Errorf("write the tenants file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	_, err = out.Write(append(data, '\n'))
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("write the tenants file: %w", err)
	}
	if err = os.Rename(out.Name(), path); err != nil {
		return err
	}
	return syncFolder(folder)
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
