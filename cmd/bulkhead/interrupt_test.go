package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An interrupted pull says that it can go on and exits with 130; the same command
// then ends the work.
func TestInterruptedPull(t *testing.T) {
	model := tinyModel(t)
	arrived, over := make(chan struct{}), make(chan struct{})
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"x"`)
		if requests.Add(1) > 1 {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(model))
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(model)))
		_, _ = w.Write(model[:1000])
		_ = http.NewResponseController(w).Flush()
		close(arrived)
		<-over
	}))
	defer server.Close()
	cmd, stderr := pullCommand(t.TempDir(), server.URL)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its exit code is looked at below
	close(over)
	want := "bulkhead: pull " + server.URL + "/tiny.gguf: interrupted; run the same command to go on\n"
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.HasSuffix(stderr.String(), want) {
		t.Errorf("exit code %d, messages %q; want %d, %q", code, stderr, exitInterrupted, want)
	}
	again, stderr := pullCommand(cmd.Dir, server.URL)
	if err := again.Run(); err != nil {
		t.Errorf("the second pull failed: %v, %s", err, stderr)
	}
}

// pullCommand is the real command, with its home in dir.
func pullCommand(dir, address string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(os.Args[0], "pull", address+"/tiny.gguf")
	cmd.Args[0] = "bulkhead" // under this name the test binary is the command
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BULKHEAD_HOME="+dir, "HOME="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}
