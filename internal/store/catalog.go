package store

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

//go:embed catalog.yaml
var catalogText []byte

// CatalogEntry is a model that has a name without being in any store.
type CatalogEntry struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	Title   string   `json:"title"`
	Licence string   `json:"licence"`
	Size    int64    `json:"size"`   // bytes of the GGUF file
	SHA256  string   `json:"sha256"` // of the GGUF file
	Wheel   Wheel    `json:"wheel"`
}

// Wheel is a Python package that carries a GGUF file.
type Wheel struct {
	Project string `json:"project"`
	Version string `json:"version"`
	File    string `json:"file"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Member  string `json:"member"` // path of the GGUF file in the archive
}

// Catalog lists the models that are known by name.
func Catalog() []CatalogEntry {
	entries, err := parseCatalog(catalogText)
	if err != nil {
		panic(err) // the file is part of the program, and a test reads it
	}
	return entries
}

func parseCatalog(text []byte) ([]CatalogEntry, error) {
	var entries []CatalogEntry
	if err := yaml.UnmarshalStrict(text, &entries); err != nil {
		return nil, fmt.Errorf("model catalog: %w", err)
	}
	for _, e := range entries {
		if checkName(e.Name) != nil || !isDigest(e.SHA256) || !isDigest(e.Wheel.SHA256) || e.Size <= 0 || e.Wheel.Size <= 0 {
			return nil, fmt.Errorf("model catalog: entry %q lacks a name, a digest or a size", e.Name)
		}
	}
	return entries, nil
}

// FullName is the full name of a catalog entry's alias, and any other name as it is.
func FullName(name string) string {
	for _, e := range Catalog() {
		if slices.Contains(e.Aliases, name) {
			return e.Name
		}
	}
	return name
}

func findEntry(entries []CatalogEntry, name string) (CatalogEntry, error) {
	names := make([]string, len(entries))
	for i, e := range entries {
		if e.Name == name || slices.Contains(e.Aliases, name) {
			return e, nil
		}
		names[i] = e.Name
	}
	return CatalogEntry{}, fault.New(fault.NotFound,
		"model %q is not in the catalog (%s); give a file, an address, or owner/repo:quantization of the hub", name, strings.Join(names, ", "))
}
