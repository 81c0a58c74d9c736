package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A server that is interrupted while a request runs says once that it waits, how long
// at most, and what ends the wait; it ends when the request has.
func TestInterruptedServerSaysWhatItWaitsFor(t *testing.T) {
	home := t.TempDir()
	cmd := exec.Command(os.Args[0], "serve", "--listen", "127.0.0.1:0", "--context", "512", "--tenants=", "--ready-file", filepath.Join(home, "ready.json"))
	cmd.Args[0] = "bulkhead" // under this name the test binary is the command
	cmd.Env = append(os.Environ(), "BULKHEAD_HOME="+home, "HOME="+home)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // it has ended, unless the test failed
	conn := halfRequest(t, filepath.Join(home, "ready.json"))
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if said = append(said, lines.Text()); len(said) == 1 {
			_ = conn.Close() // the request ends
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "draining: ") || !strings.Contains(said[0], "a second Ctrl-C") || !strings.Contains(said[0], "requests=1 limit=30s") {
		t.Errorf("the server says %q, want one line with the number of requests, the limit and the way to end at once", said)
	}
}

// halfRequest begins a request at the server of the ready file, which waits for its
// body when this returns.
func halfRequest(t *testing.T, path string) net.Conn {
	t.Helper()
	var server struct {
		URL  string
		Keys map[string]string
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &server) == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not appear", path)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n", server.Keys["tenant-a"]); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("the server says %q, error %v, want that it waits for the body", line, err)
	}
	return conn
}
