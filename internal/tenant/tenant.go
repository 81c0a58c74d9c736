// Package tenant knows tenants, their keys, quotas and shares.
//
// Tenants stand in one JSON file of mode 0600 that commands change under a lock
// (edit.go) and that a gateway follows while it runs (directory.go). A key is
// "bh_" and 256 random bits in base64url; the file holds its SHA-256, which is
// enough for a key of that entropy. A tenant's secret is 256 random bits; its
// tag, and later the keys of its cache, are derived from it, so that nothing a
// client sends chooses them.
package tenant

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Limits bounds what one tenant may use. Zero means no limit.
type Limits struct {
	RequestsPerMinute int `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int `json:"tokens_per_minute,omitempty"` // prompt and output
	Concurrency       int `json:"concurrency,omitempty"`       // choices queued or running
	ReservedTokens    int `json:"reserved_tokens,omitempty"`   // prompt and granted output of those
}

// Validate refuses negative limits.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"requests per minute", l.RequestsPerMinute}, {"tokens per minute", l.TokensPerMinute},
		{"concurrency", l.Concurrency}, {"reserved tokens", l.ReservedTokens}} {
		if f.value < 0 {
			return fault.New(fault.Invalid, "limit of %s is %d, it must be 0 (no limit) or more", f.name, f.value)
		}
	}
	return nil
}

// Info describes a tenant without its secrets.
type Info struct {
	Name    string    `json:"name"`
	Tag     string    `json:"tag"` // its tag in pages and records, 16 hex digits
	Limits  Limits    `json:"limits"`
	Created time.Time `json:"created"`
	Keys    []KeyInfo `json:"keys"`
}

// KeyInfo describes a key without the key.
type KeyInfo struct {
	ID      string    `json:"id"` // the first 8 hex digits of the key's hash
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
}

const keyPrefix = "bh_"

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)

func checkName(name string) error {
	if !nameForm.MatchString(name) {
		return fault.New(fault.Invalid, "tenant name must have 1 to 64 of a-z 0-9 . _ -, and begin and end with a letter or digit")
	}
	return nil
}

// file is the form of the tenants file.
type file struct {
	Version int      `json:"version"`
	Tenants []record `json:"tenants"`
}

const fileVersion = 1

type record struct {
	Name    string      `json:"name"`
	Secret  hexBytes    `json:"secret"`
	Created time.Time   `json:"created"`
	Limits  Limits      `json:"limits"`
	Keys    []keyRecord `json:"keys"`
}

type keyRecord struct {
	SHA256  hexBytes  `json:"sha256"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
}

// hexBytes is 32 bytes, hexadecimal in the file.
type hexBytes [32]byte

func (h hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

func (h *hexBytes) UnmarshalText(text []byte) error {
	if len(text) != 2*len(h) {
		return fmt.Errorf("want %d hexadecimal digits, found %d characters", 2*len(h), len(text))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// random32 is fresh key material; crypto/rand never fails.
func random32() (b hexBytes) {
	_, _ = rand.Read(b[:])
	return b
}

func newKey(now time.Time) (key string, r keyRecord) {
	raw := random32()
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(raw[:])
	return key, keyRecord{SHA256: sha256.Sum256([]byte(key)), Created: now.UTC().Truncate(time.Second)}
}

func (k keyRecord) validAt(now time.Time) bool { return k.Expires.IsZero() || now.Before(k.Expires) }

// tag is the first 64 bits of HMAC-SHA256(secret, label), little-endian.
func (r record) tag() kv.TenantTag {
	mac := hmac.New(sha256.New, r.Secret[:])
	mac.Write([]byte("bulkhead tenant tag 1"))
	return kv.TenantTag(binary.LittleEndian.Uint64(mac.Sum(nil)))
}

func (r record) info() Info {
	i := Info{Name: r.Name, Tag: fmt.Sprintf("%016x", uint64(r.tag())), Limits: r.Limits, Created: r.Created, Keys: []KeyInfo{}}
	for _, k := range r.Keys {
		i.Keys = append(i.Keys, KeyInfo{ID: hex.EncodeToString(k.SHA256[:4]), Created: k.Created, Expires: k.Expires})
	}
	return i
}

// validate checks what every reader relies on: names, secrets, tags and keys are
// set, and no two tenants share one.
func (f *file) validate() error {
	if f.Version != fileVersion {
		return fault.New(fault.Invalid, "tenants file has version %d, this program reads %d", f.Version, fileVersion)
	}
	names, tags, keys := map[string]bool{}, map[kv.TenantTag]bool{0: true}, map[hexBytes]bool{{}: true}
	for _, r := range f.Tenants {
		if err := checkName(r.Name); err != nil {
			return err
		}
		if err := r.Limits.Validate(); err != nil {
			return fmt.Errorf("tenant %s: %w", r.Name, err)
		}
		if names[r.Name] || r.Secret == (hexBytes{}) || tags[r.tag()] {
			return fault.New(fault.Invalid, "tenant %s: name or secret is missing or another tenant's", r.Name)
		}
		names[r.Name], tags[r.tag()] = true, true
		for _, k := range r.Keys {
			if keys[k.SHA256] {
				return fault.New(fault.Invalid, "tenant %s: a key is missing or another one's", r.Name)
			}
			keys[k.SHA256] = true
		}
	}
	return nil
}

func (f *file) find(name string) (*record, error) {
	for i := range f.Tenants {
		if f.Tenants[i].Name == name {
			return &f.Tenants[i], nil
		}
	}
	return nil, fault.New(fault.NotFound, "no tenant named %q", name)
}
