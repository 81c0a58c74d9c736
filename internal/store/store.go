// Package store keeps model files and fetches them.
//
// A store is a folder:
//
//	index.json          names, each with the digest of its content
//	blobs/sha256-HEX    content, read-only, complete and verified
//	partial/KEY.part    an unfinished download, with what it needs to go on in KEY.json
//	partial/KEY.copy    other unfinished things of a pull: .member, .pip
//	partial/KEY.lock    held by the one process that pulls KEY
//	lock                held while index.json and blobs change
//
// A blob appears by rename after it was verified and synced, and a name after
// its blob. So whoever finds a name finds the whole file, and a file that is
// open or mapped stays as it is when its name is removed.
//
// Lock order: KEY.lock, then lock.
package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

const (
	indexVersion  = 1
	indexBytesMax = 16 << 20
)

// Store is a folder of models. Several processes may use one at once.
type Store struct {
	dir string
}

// Model is one name in a store.
type Model struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // of the GGUF file, hexadecimal
	Size   int64  `json:"size"`   // bytes
	// Source says where the file came from, without any credentials.
	Source  string    `json:"source"`
	Version string    `json:"version,omitempty"` // commit or entity tag at the source, if it had one
	Licence string    `json:"licence,omitempty"` // as the source states it
	Pulled  time.Time `json:"pulled"`
}

type index struct {
	Version int     `json:"version"`
	Models  []Model `json:"models"` // sorted by name, names are unique
}

// DefaultHome is the data folder of this user: BULKHEAD_HOME, or bulkhead in
// XDG_DATA_HOME, or ~/.local/share/bulkhead.
func DefaultHome(getenv func(string) string) (string, error) {
	if home := getenv("BULKHEAD_HOME"); home != "" {
		return home, nil
	}
	if data := getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "bulkhead"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", fault.New(fault.Invalid, "find the data folder: neither BULKHEAD_HOME, XDG_DATA_HOME nor HOME is set")
	}
	return filepath.Join(home, ".local", "share", "bulkhead"), nil
}

// Open opens the store in home/models, and makes it if there is none.
func Open(home string) (*Store, error) {
	s := &Store{dir: filepath.Join(home, "models")}
	for _, dir := range []string{s.path("blobs"), s.path("partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("open model store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Path is where the model's file is.
func (s *Store) Path(m Model) string { return s.path("blobs", "sha256-"+m.SHA256) }

// List gives all models by name.
func (s *Store) List() ([]Model, error) {
	x, err := s.read()
	return x.Models, err
}

// Find gives the model of that name, or a NotFound error with the names there are.
func (s *Store) Find(name string) (Model, error) {
	x, err := s.read()
	if err != nil {
		return Model{}, err
	}
	for _, known := range []string{name, FullName(name)} {
		if i, ok := x.find(known); ok {
			return x.Models[i], nil
		}
	}
	return Model{}, x.unusable(name)
}

// unknown is the error of a name that the store has not, with those that it has.
func (x index) unknown(name string) error {
	if len(x.Models) == 0 {
		return fault.New(fault.NotFound, "no model %q: the store is empty", name)
	}
	return fault.New(fault.NotFound, "no model %q, there are: %s", name, x.names())
}

// unusable is unknown for whoever wants to use the model, and says how to get one.
func (x index) unusable(name string) error {
	if len(x.Models) == 0 {
		return fault.New(fault.NotFound, "no model %q: the store is empty, fetch one with \"bulkhead pull %s\"", name, pullable(name))
	}
	return fault.New(fault.NotFound, "no model %q, there are: %s, and %s, which is built in; fetch more with \"bulkhead pull\", names are in \"bulkhead list --catalog\"",
		name, x.names(), tracer.Name)
}

func (x index) names() string {
	names := make([]string, len(x.Models))
	for i, m := range x.Models {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}

// pullable is the name, if it can be pulled, or the catalog's first one.
func pullable(name string) string {
	if r, err := parseRef(name); err == nil && (r.kind != refCatalog || known(name)) {
		return name
	}
	return Catalog()[0].Name
}

func known(name string) bool {
	_, err := findEntry(Catalog(), name)
	return err == nil
}

// Resolve finds the file for what a user calls a model: the path of a GGUF file,
// which is used where it lies, or a name in the store. The returned name is the
// one to serve it under.
func (s *Store) Resolve(model string) (path, name string, err error) {
	if isPath(model) {
		if _, err := os.Stat(model); err != nil {
			return "", "", fault.New(fault.NotFound, "model file: %w", err)
		}
		return model, fileName(model), nil
	}
	m, err := s.Find(model)
	if err != nil {
		return "", "", err
	}
	if _, err := os.Stat(s.Path(m)); err != nil {
		return "", "", fault.New(fault.NotFound, "model %s has lost its file, pull it again: %w", m.Name, err)
	}
	return s.Path(m), m.Name, nil
}

// Remove takes a name away, and its content when no other name has it. It
// returns the bytes that became free.
func (s *Store) Remove(ctx context.Context, name string) (freed int64, err error) {
	err = s.change(ctx, func(x *index) error {
		i, ok := x.find(name)
		if !ok {
			if i, ok = x.find(FullName(name)); !ok {
				return x.unknown(name)
			}
		}
		m := x.Models[i]
		x.Models = slices.Delete(x.Models, i, i+1)
		shared := slices.ContainsFunc(x.Models, func(o Model) bool { return o.SHA256 == m.SHA256 })
		if err := s.write(*x); err != nil || shared {
			return err
		}
		freed = m.Size
		return ignoreAbsent(os.Remove(s.Path(m)))
	})
	return freed, err
}

// publish moves a verified file to its place and gives it its name.
func (s *Store) publish(ctx context.Context, file string, m Model) error {
	if err := os.Chmod(file, 0o444); err != nil {
		return fmt.Errorf("publish model %s: %w", m.Name, err)
	}
	if err := syncFile(file); err != nil {
		return fmt.Errorf("publish model %s: %w", m.Name, err)
	}
	return s.change(ctx, func(x *index) error {
		if err := os.Rename(file, s.Path(m)); err != nil {
			return fmt.Errorf("publish model %s: %w", m.Name, err)
		}
		if err := syncFile(s.path("blobs")); err != nil {
			return fmt.Errorf("publish model %s: %w", m.Name, err)
		}
		return s.name(x, m)
	})
}

// name enters m into the index. What the name stood for goes, unless another
// name has it too.
func (s *Store) name(x *index, m Model) error {
	old := ""
	if i, ok := x.find(m.Name); ok {
		old = x.Models[i].SHA256
		x.Models = slices.Delete(x.Models, i, i+1)
	}
	i, _ := x.find(m.Name)
	x.Models = slices.Insert(x.Models, i, m)
	if err := s.write(*x); err != nil {
		return err
	}
	if old == "" || slices.ContainsFunc(x.Models, func(o Model) bool { return o.SHA256 == old }) {
		return nil
	}
	return ignoreAbsent(os.Remove(s.Path(Model{SHA256: old})))
}

// change runs f on the index under the store's lock.
func (s *Store) change(ctx context.Context, f func(*index) error) error {
	unlock, err := lock(ctx, s.path("lock"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	x, err := s.read()
	if err != nil {
		return err
	}
	return f(&x)
}

func (x index) find(name string) (int, bool) {
	return slices.BinarySearchFunc(x.Models, name, func(m Model, name string) int { return cmp.Compare(m.Name, name) })
}

// read needs no lock: the index is replaced, never changed in place.
func (s *Store) read() (index, error) {
	file, err := os.Open(s.path("index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return index{Version: indexVersion}, nil
	}
	if err != nil {
		return index{}, fmt.Errorf("read model index: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, indexBytesMax+1))
	if err != nil {
		return index{}, fmt.Errorf("read model index: %w", err)
	}
	x, err := parseIndex(text)
	if err != nil {
		return index{}, fmt.Errorf("read model index %s: %w", file.Name(), err)
	}
	return x, nil
}

func parseIndex(text []byte) (index, error) {
	if len(text) > indexBytesMax {
		return index{}, fmt.Errorf("over the limit of %d bytes", indexBytesMax)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var x index
	if err := d.Decode(&x); err != nil {
		return index{}, err
	}
	if d.More() {
		return index{}, fmt.Errorf("more than one value")
	}
	if x.Version != indexVersion {
		return index{}, fmt.Errorf("version %d, this build reads %d", x.Version, indexVersion)
	}
	for i, m := range x.Models {
		if !isDigest(m.SHA256) || m.Size < 0 || checkName(m.Name) != nil {
			return index{}, fmt.Errorf("entry %d (%q) has no valid name, sha256 or size", i, m.Name)
		}
		if i > 0 && x.Models[i-1].Name >= m.Name {
			return index{}, fmt.Errorf("entry %d (%q) is out of order", i, m.Name)
		}
	}
	return x, nil
}

func (s *Store) write(x index) error {
	text, err := json.MarshalIndent(x, "", "  ")
	if err == nil {
		err = replaceFile(s.path("index.json"), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write model index: %w", err)
	}
	return nil
}
