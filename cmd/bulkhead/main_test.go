package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"bulkhead": func() { os.Exit(execute(os.Args[1:], os.Stderr)) },
	})
}

// The scripts run the real command in an empty home directory. There stands
// tiny.gguf, a model in form, and $FILES is the address of a server of the
// script's own folder.
func TestScript(t *testing.T) {
	model := tinyModel(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("BULKHEAD_HOME", env.WorkDir+"/home")
			files := httptest.NewServer(http.FileServer(http.Dir(env.WorkDir)))
			env.Defer(files.Close)
			env.Setenv("FILES", files.URL)
			return os.WriteFile(filepath.Join(env.WorkDir, "tiny.gguf"), model, 0o644)
		},
	})
}

// tinyModel is a GGUF file with the metadata of a small llama.
func tinyModel(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"}, {Key: "general.name", Value: "Tiny"},
		{Key: "llama.context_length", Value: uint32(2048)}, {Key: "llama.block_count", Value: uint32(2)},
		{Key: "llama.embedding_length", Value: uint32(64)}, {Key: "llama.feed_forward_length", Value: uint32(128)},
		{Key: "llama.attention.head_count", Value: uint32(4)}, {Key: "llama.attention.head_count_kv", Value: uint32(2)},
	}, []gguf.Source{{Name: "token_embd.weight", Type: gguf.F16, Dims: []int{64, 100}, Data: make([]byte, 12800)}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
