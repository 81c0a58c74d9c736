package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

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
)

// memory is a check of what a running server has in memory.
type memory struct{ binary, model string }

func (m *memory) run(out io.Writer) (err error) {
	weights, pools, err := m.budget()
	if err != nil {
		return err
	}
	s, err := serve(m.binary, m.model, "--context", strconv.Itoa(memoryContext), "--queue-timeout", answersMax.String(),
		"--prefill-pool", strconv.Itoa(memoryPrefillPool), "--decode-pool", strconv.Itoa(memoryDecodePool))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.fillPools(); err != nil {
		return err
	}
	return report(out, s.process.Process.Pid, weights, pools)
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

// fillPools asks for long prompts, all at once.
func (s *serving) fillPools() error {
	errs := make([]error, memoryRequests)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			var prompt strings.Builder
			for n := 0; n < memoryContext/8; n++ {
				fmt.Fprintf(&prompt, "Row %d%d. ", i, n%10)
			}
			errs[i] = s.ask(context.Background(), i, prompt.String(), memoryOutput, func() {})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
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
