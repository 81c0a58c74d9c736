package tenant

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Tenant is a tenant of a running gateway. It stays the same object while the
// file names the tenant with the same secret.
type Tenant struct {
	Name string       // immutable
	Tag  kv.TenantTag // immutable, never zero

	limits atomic.Pointer[Limits]
	gone   chan struct{}
}

// Limits is the tenant's limits as the file has them now.
func (t *Tenant) Limits() Limits { return *t.limits.Load() }

// Gone is closed once the tenant was removed. Its requests end then, with an
// error of kind fault.Unauthenticated.
func (t *Tenant) Gone() <-chan struct{} { return t.gone }

// Directory answers whose a key is, from a file that it follows.
type Directory struct {
	path string
	log  *slog.Logger

	mu      sync.RWMutex
	version fs.FileInfo // of the file that was loaded; protected by mu
	tenants map[string]*Tenant
	secrets map[string]hexBytes
	keys    map[[sha256.Size]byte]entry
	failure error // of the last Poll; protected by mu
}

type entry struct {
	hash   hexBytes
	key    keyRecord
	tenant *Tenant
}

// Open loads the file. One that doesn't exist is an error of kind fault.NotFound:
// taken for a file without tenants it would refuse every key.
func Open(path string, log *slog.Logger) (*Directory, error) {
	d := &Directory{path: path, log: log}
	return d, d.Reload()
}

// Run follows the file until ctx ends. A file that is gone or can't be read or
// parsed changes nothing: the tenants of the last good one stay. The log has a line
// for each new reason and one when the file is loaded again; meanwhile Err says why.
func (d *Directory) Run(ctx context.Context, interval time.Duration) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			d.look()
		}
	}
}

func (d *Directory) look() {
	before, err := d.Err(), d.Poll()
	switch {
	case err == nil && before != nil:
		d.log.Warn("tenants file is loaded again", "tenants", d.Count())
	case err != nil && (before == nil || err.Error() != before.Error()):
		d.log.Error("tenants file not loaded, the last good one stays", "error", err)
	}
}

// Err is why the file as Poll last found it isn't in use, nil if it is.
func (d *Directory) Err() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.failure
}

// Poll loads the file if it isn't the one that was loaded last.
func (d *Directory) Poll() error {
	err := d.poll()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = err
	return err
}

func (d *Directory) poll() error {
	info, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	d.mu.RLock()
	same := sameFile(d.version, info)
	d.mu.RUnlock()
	if same {
		return nil
	}
	return d.Reload()
}

// sameFile compares inode, time and size. Each edit makes a new inode.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Reload loads the file now.
func (d *Directory) Reload() error {
	f, info, err := read(d.path)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.install(f, info)
	return nil
}

func (d *Directory) install(f *file, info fs.FileInfo) {
	tenants, secrets := map[string]*Tenant{}, map[string]hexBytes{}
	keys := map[[sha256.Size]byte]entry{}
	for _, r := range f.Tenants {
		t := d.tenants[r.Name]
		if t == nil || d.secrets[r.Name] != r.Secret {
			t = &Tenant{Name: r.Name, Tag: r.tag(), gone: make(chan struct{})}
		}
		t.limits.Store(&r.Limits)
		tenants[r.Name], secrets[r.Name] = t, r.Secret
		for _, k := range r.Keys {
			keys[k.SHA256] = entry{k.SHA256, k, t}
		}
	}
	for name, t := range d.tenants {
		if tenants[name] != t {
			close(t.gone)
		}
	}
	d.version, d.tenants, d.secrets, d.keys = info, tenants, secrets, keys
}

// Authenticate says whose key it is. What is looked up is the key's SHA-256, so
// the time of the look-up tells a guesser nothing about any other key.
func (d *Directory) Authenticate(key string, now time.Time) (*Tenant, error) {
	if !strings.HasPrefix(key, keyPrefix) || len(key) > 256 {
		return nil, fault.New(fault.Unauthenticated, "the key is missing or not of this server")
	}
	hash := sha256.Sum256([]byte(key))
	d.mu.RLock()
	e, ok := d.keys[hash]
	d.mu.RUnlock()
	if !ok || subtle.ConstantTimeCompare(hash[:], e.hash[:]) != 1 || !e.key.validAt(now) {
		return nil, fault.New(fault.Unauthenticated, "the key is unknown or has ended")
	}
	return e.tenant, nil
}

// Count is the number of tenants.
func (d *Directory) Count() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.tenants)
}
