package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"bulkhead": func() { os.Exit(execute(os.Args[1:], os.Stderr)) },
	})
}

// The scripts run the real command in an empty home directory. There stands
// tiny.gguf, a model in form; $FILES is the address of a server of the script's
// own folder, $PARROT that of a model server.
func TestScript(t *testing.T) {
	model := tinyModel(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"await": awaitFile},
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("BULKHEAD_HOME", env.WorkDir+"/home")
			files := httptest.NewServer(http.FileServer(http.Dir(env.WorkDir)))
			env.Defer(files.Close)
			env.Setenv("FILES", files.URL)
			parrot := httptest.NewServer(http.HandlerFunc(serveParrot))
			env.Defer(parrot.Close)
			env.Setenv("PARROT", parrot.URL)
			return os.WriteFile(filepath.Join(env.WorkDir, "tiny.gguf"), model, 0o644)
		},
	})
}

// awaitFile waits until a file is there: await FILE.
func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not appear", args[0])
		}
	}
}

// serveParrot is an OpenAI endpoint whose model, "parrot", says what it heard. Its
// key is "good".
func serveParrot(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Model       string
		Messages    []struct{ Role, Content string }
		MaxTokens   int `json:"max_completion_tokens"`
		Temperature *float64
		Seed        *int64
	}
	switch err := json.NewDecoder(r.Body).Decode(&request); {
	case r.Header.Get("Authorization") != "Bearer good":
		refuse(w, http.StatusUnauthorized, "wrong key", "invalid_api_key")
	case err != nil:
		refuse(w, http.StatusBadRequest, err.Error(), "invalid")
	case request.Model != "parrot":
		refuse(w, http.StatusNotFound, "no model "+request.Model, "model_not_found")
	default:
		heard := fmt.Sprintf("%v max %d", request.Messages, request.MaxTokens)
		if request.Temperature != nil && request.Seed != nil {
			heard += fmt.Sprintf(" temperature %v seed %d", *request.Temperature, *request.Seed)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\ndata: [DONE]\n\n", heard)
	}
}

func refuse(w http.ResponseWriter, status int, message, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":%q,"code":%q}}`, message, code)
}

// tinyModel is a GGUF file of a small llama whose weights are zero.
func tinyModel(t *testing.T) []byte {
	t.Helper()
	var tensors []gguf.Source
	add := func(name string, kind gguf.Type, valueBytes int, dims ...int) {
		values := 1
		for _, d := range dims {
			values *= d
		}
		tensors = append(tensors, gguf.Source{Name: name + ".weight", Type: kind, Dims: dims, Data: make([]byte, values*valueBytes)})
	}
	matrix := func(name string, cols, rows int) { add(name, gguf.F16, 2, cols, rows) }
	norm := func(name string) { add(name, gguf.F32, 4, 64) }
	matrix("token_embd", 64, 100)
	norm("output_norm")
	for _, layer := range []string{"blk.0.", "blk.1."} {
		norm(layer + "attn_norm")
		norm(layer + "ffn_norm")
		matrix(layer+"attn_q", 64, 64)
		matrix(layer+"attn_k", 64, 32)
		matrix(layer+"attn_v", 64, 32)
		matrix(layer+"attn_output", 64, 64)
		matrix(layer+"ffn_gate", 64, 128)
		matrix(layer+"ffn_up", 64, 128)
		matrix(layer+"ffn_down", 128, 64)
	}
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"}, {Key: "general.name", Value: "Tiny"},
		{Key: "llama.context_length", Value: uint32(2048)}, {Key: "llama.block_count", Value: uint32(2)},
		{Key: "llama.embedding_length", Value: uint32(64)}, {Key: "llama.feed_forward_length", Value: uint32(128)},
		{Key: "llama.attention.head_count", Value: uint32(4)}, {Key: "llama.attention.head_count_kv", Value: uint32(2)},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
	}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
