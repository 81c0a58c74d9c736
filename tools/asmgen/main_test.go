package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCommittedKernelsAreTheGenerators runs the generator and compares, apart from the first line, which names the command.
func TestCommittedKernelsAreTheGenerators(t *testing.T) {
	const home = "../../internal/tensor"
	dir := t.TempDir()
	names := map[string]string{"-out": "kernels_amd64.s", "-stubs": "stubs_amd64.go"}
	args := []string{"run", ".", "-pkg", "tensor"}
	for flag, name := range names {
		args = append(args, flag, filepath.Join(dir, name))
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("the generator fails: %v\n%s", err, out)
	}
	for _, name := range names {
		got, want := body(t, filepath.Join(dir, name)), body(t, filepath.Join(home, name))
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes: run go generate ./internal/tensor", name)
		}
	}
}

// body is a file without its first line.
func body(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	return rest
}
