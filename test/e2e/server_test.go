// Package e2e runs the real binary: servers, clients, kills and cuts.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "bulkhead-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "bulkhead")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/bulkhead")
	build.Stderr = os.Stderr
	code := 1
	if build.Run() == nil {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// smollm2 is the real model, or the end of a test that has none.
func smollm2(t *testing.T) string {
	t.Helper()
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 names no model file")
	}
	return path
}

// server is a running `bulkhead serve`.
type server struct {
	URL   string
	Keys  map[string]string
	Model string

	client *http.Client // nil: the one of all servers without TLS
	cmd    *exec.Cmd
	home   string
	log    *bytes.Buffer
	logMu  *sync.Mutex
	exited chan struct{}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// serve starts a server on a free port and waits until it says that it is ready.
// At the end of the test it must drain and leave nothing behind.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{home: t.TempDir(), log: new(bytes.Buffer), logMu: new(sync.Mutex), exited: make(chan struct{})}
	ready := filepath.Join(s.home, "ready.json")
	tmp, err := os.MkdirTemp("", "bh") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	s.cmd = exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--home", s.home, "--ready-file", ready}, args...)...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	s.cmd.Stdout, s.cmd.Stderr = lockedWriter{s.logMu, s.log}, lockedWriter{s.logMu, s.log}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.exited) }()
	t.Cleanup(func() {
		s.stop(t)
		s.conforms(t)
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("server left %v behind", left)
		}
		if err := syscall.Kill(-s.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("processes of the server's group are left: %v", err)
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	deadline := time.Now().Add(60 * time.Second)
	for {
		text, err := os.ReadFile(ready)
		if err == nil {
			if err := json.Unmarshal(text, s); err != nil {
				t.Fatal(err)
			}
			return s
		}
		select {
		case <-s.exited:
			t.Fatalf("server ended before it was ready:\n%s", s.output())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("server is not ready after 60 s:\n%s", s.output())
		}
	}
}

func (s *server) output() string {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return s.log.String()
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(60 * time.Second):
		t.Errorf("server does not end 60 s after SIGTERM:\n%s", s.output())
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.exited
	}
}

// key is the key of tenant i.
func (s *server) key(i int) string { return s.Keys[[]string{"tenant-a", "tenant-b"}[i%2]] }

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// reply is an answer or an error of the API.
type reply struct {
	Status  int
	ID      string `json:"id"`
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Message      struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage usage `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"`
	} `json:"error"`
}

func (r reply) text() string {
	if len(r.Choices) == 0 {
		return ""
	}
	return r.Choices[0].Text + r.Choices[0].Message.Content
}

type object map[string]any

var client = &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (s *server) http() *http.Client {
	if s.client != nil {
		return s.client
	}
	return client
}

// post sends one request and reads the whole answer.
func (s *server) post(ctx context.Context, key, path string, body object) (reply, error) {
	body["model"] = s.Model
	text, err := json.Marshal(body)
	if err != nil {
		return reply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(text))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := s.http().Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{Status: resp.StatusCode}
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// complete asks for a greedy continuation and demands an answer.
func (s *server) complete(t *testing.T, tenant int, prompt string, maxTokens int) reply {
	t.Helper()
	r, err := s.post(t.Context(), s.key(tenant), "/v1/completions", object{"prompt": prompt, "max_tokens": maxTokens, "temperature": 0})
	if err != nil || r.Status != 200 {
		t.Fatalf("completion of %d bytes: status %d, %v, %+v", len(prompt), r.Status, err, r.Error)
	}
	return r
}

func (s *server) get(t *testing.T, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key(0))
	resp, err := s.http().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// planted is a long text with a fact in it, and a question that the tracer answers
// by going on where the fact stands.
func planted(tenant, i, filler int) (prompt, want string) {
	want = fmt.Sprintf("%04d-%s-%04d", (i*7919+tenant*104729)%10000, []string{"amber", "cobalt"}[tenant%2], (i*31337+tenant)%10000)
	fact := fmt.Sprintf("The seal of room %03d-%d reads %s. ", i%1000, tenant, want)
	var b strings.Builder
	for k := 0; b.Len() < filler; k++ {
		if k == i%7 {
			b.WriteString(fact)
		}
		fmt.Fprintf(&b, "Line %d of %d speaks of tenant %d only. ", k*13+i, i, tenant)
	}
	if !strings.Contains(b.String(), fact) {
		b.WriteString(fact)
	}
	fmt.Fprintf(&b, "Now: The seal of room %03d-%d reads ", i%1000, tenant)
	return b.String(), want
}
