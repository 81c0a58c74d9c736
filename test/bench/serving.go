package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// readyMax and answersMax are when a check of a server gives up.
const (
	readyMax   = time.Minute
	answersMax = 5 * time.Minute
)

// serving is a server that was started for a check.
type serving struct {
	URL   string            `json:"url"`
	Keys  map[string]string `json:"keys"`
	Model string            `json:"model"`

	process *exec.Cmd
	ended   chan error
	home    string
}

// serve starts a server and waits until it is ready. The caller stops it.
func serve(binary, model string, args ...string) (s *serving, err error) {
	s = &serving{ended: make(chan error, 1)}
	if s.home, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	ready := filepath.Join(s.home, "ready")
	s.process = exec.Command(binary, append([]string{"serve", model, "--listen", "127.0.0.1:0", "--home", s.home, "--ready-file", ready}, args...)...)
	s.process.Stderr = os.Stderr
	if err := s.process.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.home))
	}
	go func() { s.ended <- s.process.Wait() }()
	if err := s.await(ready); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *serving) await(path string) error {
	deadline := time.After(readyMax)
	for {
		if text, err := os.ReadFile(path); err == nil {
			return json.Unmarshal(text, s)
		}
		select {
		case err := <-s.ended:
			s.ended <- err
			return errors.New("the server ended before it was ready")
		case <-deadline:
			return fmt.Errorf("the server is not ready after %v", readyMax)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the server and removes its data.
func (s *serving) stop() error {
	var err error
	if signalled := s.process.Process.Signal(syscall.SIGTERM); signalled != nil && !errors.Is(signalled, os.ErrProcessDone) {
		err = signalled
	}
	select {
	case ended := <-s.ended:
		err = errors.Join(err, ended)
	case <-time.After(readyMax):
		err = errors.Join(err, errors.New("the server did not end in time"), s.process.Process.Kill())
	}
	return errors.Join(err, os.RemoveAll(s.home))
}

// ask streams a completion for one of the tenants and calls piece for each piece of
// the answer. An answer that ctx has ended is no error.
func (s *serving) ask(ctx context.Context, tenant int, prompt string, maxTokens int, piece func()) error {
	body, err := json.Marshal(map[string]any{"model": s.Model, "prompt": prompt, "max_tokens": maxTokens, "temperature": 0, "stream": true})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(s.Keys))
	request.Header.Set("Authorization", "Bearer "+s.Keys[names[tenant%len(names)]])
	client := http.Client{Timeout: answersMax}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("an answer: status %d: %s", response.StatusCode, text)
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case data == "[DONE]":
			return nil
		case isData && strings.Contains(data, `"error"`):
			return fmt.Errorf("an answer: %s", data)
		case isData:
			piece()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("an answer ended before its end")
}
