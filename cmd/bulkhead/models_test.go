package main

import (
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/store"
)

func TestLicencesOfSourceAndFile(t *testing.T) {
	for _, test := range []struct{ source, file, want string }{
		{"", "", "unknown"},
		{"MIT", "", "MIT"},
		{"", "mit", "mit"},
		{"MIT", "mit", "MIT"},
		{"Apache-2.0", "llama3", "Apache-2.0 by its source, llama3 by the file"},
	} {
		m := named{entry: store.Model{Licence: test.source}, Description: store.Description{Licence: test.file}}
		if got := licences(m); got != test.want {
			t.Errorf("a source that states %q and a file that states %q give %q, want %q", test.source, test.file, got, test.want)
		}
	}
}
