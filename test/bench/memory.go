package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/model"
)

// What the server of the memory check is started with: small pools, which a few
// long prompts fill, so that every page of them is resident.
const (
	memoryContext     = 2048
	memoryPrefillPool = 4096
	memoryDecodePool  = 8192
	memoryRequests    = 5
	memoryOutput      = 16
	// memorySlack is what all processes together may have beyond weights and pools.
	memorySlack = 200 << 20
	// readyMax and answersMax are when the check gives up.
	readyMax   = time.Minute
	answersMax = 5 * time.Minute
)

// memory is a check of what a running server has in memory.
type memory struct{ binary, model string }

func (m *memory) run(out io.Writer) (err error) {
	weights, pools, err := m.budget()
	if err != nil {
		return err
	}
	home, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	args := []string{"serve", m.model, "--listen", "127.0.0.1:0", "--home", home, "--ready-file", filepath.Join(home, "ready"),
		"--context", strconv.Itoa(memoryContext), "--queue-timeout", answersMax.String(), "--prefill-pool", strconv.Itoa(memoryPrefillPool), "--decode-pool", strconv.Itoa(memoryDecodePool)}
	server := exec.Command(m.binary, args...)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() { err = errors.Join(err, stop(server, ended)) }()
	if err := askAll(filepath.Join(home, "ready"), ended); err != nil {
		return err
	}
	return report(out, server.Process.Pid, weights, pools)
}

// budget is the bytes of weights and of both pools.
func (m *memory) budget() (weights, pools int, err error) {
	f, err := gguf.Open(m.model)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Close() }()
	loaded, err := model.Load(f)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = loaded.Close() }()
	tokens := memoryPrefillPool + memoryDecodePool
	pages := tokens/16 + 2*capacity.ReservedPages
	return loaded.ParamBytes(), pages * loaded.Layout().StrideBytes(), nil
}

func stop(server *exec.Cmd, ended <-chan error) error {
	if err := server.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(readyMax):
		return errors.Join(errors.New("the server did not end in time"), server.Process.Kill())
	}
}

// ready is what the server says of itself.
type ready struct {
	URL   string            `json:"url"`
	Keys  map[string]string `json:"keys"`
	Model string            `json:"model"`
}

// askAll fills the pools with long prompts, all at once.
func askAll(readyPath string, ended <-chan error) error {
	r, err := awaitReady(readyPath, ended)
	if err != nil {
		return err
	}
	errs := make([]error, memoryRequests)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = r.ask(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func awaitReady(path string, ended <-chan error) (r ready, err error) {
	deadline := time.After(readyMax)
	for {
		if text, err := os.ReadFile(path); err == nil {
			return r, json.Unmarshal(text, &r)
		}
		select {
		case err := <-ended:
			return r, fmt.Errorf("the server ended before it was ready: %w", err)
		case <-deadline:
			return r, fmt.Errorf("the server is not ready after %v", readyMax)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r ready) ask(i int) error {
	var prompt strings.Builder
	for n := 0; n < memoryContext/8; n++ {
		fmt.Fprintf(&prompt, "Row %d%d. ", i, n%10)
	}
	body, err := json.Marshal(map[string]any{"model": r.Model, "prompt": prompt.String(), "max_tokens": memoryOutput, "temperature": 0})
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, r.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	for _, key := range r.Keys {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	client := http.Client{Timeout: answersMax}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %d: status %d: %s", i, response.StatusCode, text)
	}
	return nil
}

// report adds up the processes' proportional set sizes: what several share counts once.
func report(out io.Writer, pid, weights, pools int) error {
	sum := 0
	fmt.Fprintf(out, "memory    of `bulkhead serve` after long prompts (proportional set size of each process)\n\n")
	for _, p := range tree(pid) {
		pss, err := proportional(p)
		if err != nil {
			return err
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if err != nil {
			return err
		}
		args := strings.Split(string(name), "\x00")
		fmt.Fprintf(out, "%10.1f MiB  %s\n", mebi(pss), strings.Join(args[:min(2, len(args))], " "))
		sum += pss
	}
	budget := weights + pools + memorySlack
	fmt.Fprintf(out, "%10.1f MiB  together; the budget is %.1f = weights %.1f + pools %.1f + %.1f; beyond weights and pools %.1f\n",
		mebi(sum), mebi(budget), mebi(weights), mebi(pools), mebi(memorySlack), mebi(sum-weights-pools))
	if sum > budget {
		return fmt.Errorf("the processes have %.1f MiB, the budget is %.1f MiB", mebi(sum), mebi(budget))
	}
	return nil
}

func mebi(n int) float64 { return float64(n) / (1 << 20) }

// tree is a process and its descendants.
func tree(pid int) []int {
	all := []int{pid}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return all
	}
	for _, path := range children {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread is gone
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, tree(child)...)
			}
		}
	}
	return all
}

// proportional is a process's Pss in bytes.
func proportional(pid int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "Pss:" {
			kib, err := strconv.Atoi(fields[1])
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no proportional set size", pid)
}
