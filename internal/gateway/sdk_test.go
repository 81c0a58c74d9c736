package gateway

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The official clients against the echo model. The same scripts run against
// real models.
func TestPythonSDK(t *testing.T) {
	python := os.Getenv("BULKHEAD_SDK_PYTHON")
	if python == "" {
		t.Skip("BULKHEAD_SDK_PYTHON names no python with the packages of testdata/sdk/requirements.txt")
	}
	runSDK(t, "", python, "openai_sdk.py")
}

func TestNodeSDK(t *testing.T) {
	folder := os.Getenv("BULKHEAD_SDK_NODE")
	if folder == "" {
		t.Skip("BULKHEAD_SDK_NODE names no folder with node_modules/openai")
	}
	runSDK(t, folder, "node", "openai_sdk.mjs")
}

func runSDK(t *testing.T, folder, program, script string) {
	b := newBench(t, setup{})
	path, err := filepath.Abs(filepath.Join("testdata", "sdk", script))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, path)
	command.Dir = folder
	command.Env = append(os.Environ(), "URL="+b.url, "KEY="+b.keys["ada"], "MODEL=echo", "ECHO=1", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	out, err := command.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
