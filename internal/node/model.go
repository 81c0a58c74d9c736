package node

import (
	"errors"
	"fmt"
	"os"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/store"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

// Loaded is a model file, and its weights where they were asked for.
type Loaded struct {
	Name  string
	File  *gguf.File
	Model *model.Model // nil in a gateway
}

// Close releases weights and file.
func (l *Loaded) Close() error {
	var err error
	if l.Model != nil {
		err = l.Model.Close()
	}
	return errors.Join(err, l.File.Close())
}

// OpenFile opens a model's file by a name of the store, a path, or as the built-in one.
// One that is not there is an error of kind NotFound, one that is no model of kind Invalid.
func OpenFile(home, name string) (*Loaded, error) {
	if name == tracer.Name {
		return &Loaded{Name: name, File: tracer.File()}, nil
	}
	s, err := store.Open(home)
	if err != nil {
		return nil, err
	}
	path, known, err := s.Resolve(name)
	if err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "model %s: %w", known, err)
	}
	return &Loaded{Name: known, File: f}, nil
}

// OpenModel opens file and weights: shared ones, or, when weights is nil, its own copy.
func OpenModel(home, name string, weights *os.File) (*Loaded, error) {
	l, err := OpenFile(home, name)
	if err != nil {
		return nil, err
	}
	if weights != nil {
		l.Model, err = model.FromShared(l.File, weights)
	} else {
		l.Model, err = model.Load(l.File)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model %s: %w", l.Name, err), l.File.Close())
	}
	return l, nil
}
