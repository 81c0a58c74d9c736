package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// comparison is one run of the table of speeds.
type comparison struct {
	peer, library, q4, q8 string
	pairs                 int
	only                  *regexp.Regexp
}

// task is what both engines are timed on. A ratio below its bound is a failure;
// Q4_1 has to be ahead, by whatever.
type task struct {
	name    string
	what    string
	tokens  int
	boundQ8 float64
	boundQ4 float64
}

func tasks() []task {
	return []task{
		{"prefill", "prefill 512", promptTokens, 1.4, 1},
		{"decode", "decode 128", decodeTokens, 1.25, 1},
		{"batch", "decode 128, batch 4", decodeTokens * sequences, 1.25, 1},
		{"deep", "decode 32 behind 2048", deepTokens, 1.25, 1},
	}
}

// pair is one run of a task by each engine, one after the other.
type pair struct{ ours, theirs timing }

type timing struct{ wall, cpu float64 } // seconds

func (c *comparison) run(out io.Writer) error {
	describeMachine(out, c)
	missed := 0
	for _, m := range []struct {
		name, path string
		bound      func(task) float64
	}{{"Q8_0", c.q8, func(t task) float64 { return t.boundQ8 }}, {"Q4_1", c.q4, func(t task) float64 { return t.boundQ4 }}} {
		for _, threads := range []int{1, 2} {
			chosen := slices.DeleteFunc(tasks(), func(t task) bool {
				return !c.only.MatchString(fmt.Sprintf("%s %d %s", m.name, threads, t.name))
			})
			if len(chosen) == 0 {
				continue
			}
			all, err := c.measure(m.path, threads, chosen)
			if err != nil {
				return fmt.Errorf("%s, %d threads: %w", m.name, threads, err)
			}
			for _, t := range chosen {
				row := newRow(t, all[t.name])
				fmt.Fprintf(out, "%-5s %d  %s  %s\n", m.name, threads, row, row.verdict(m.bound(t)))
				if row.ratio.median < m.bound(t) {
					missed++
				}
			}
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d ratios are below what is demanded", missed)
	}
	return nil
}

func describeMachine(out io.Writer, c *comparison) {
	fmt.Fprintf(out, "machine   %s, %d cores, %s/%s, %s\n", processorName(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(out, "ours      bench engine MODEL THREADS: weights in shared memory, KV in shuffled pages of a slab\n")
	fmt.Fprintf(out, "peer      llama.cpp v0.4.0 (%s), default context but for kv_unified, one pool of threads\n", filepath.Base(c.library))
	fmt.Fprintf(out, "models    %s and %s\n", filepath.Base(c.q8), filepath.Base(c.q4))
	fmt.Fprintf(out, "load      %s when it began\n", load())
	fmt.Fprintf(out, "runs      %d pairs of each row, by turns; tokens/s are medians; a ratio is ours to the peer's: median of pairs [quartiles]\n\n", c.pairs)
	fmt.Fprintf(out, "%-5s %s  %-22s %9s %9s   %-20s %-20s\n", "model", "t", "task", "ours", "peer", "ratio of wall time", "of processor time")
}

func processorName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// measure runs the chosen tasks by turns, and the engine that goes first changes too.
func (c *comparison) measure(path string, threads int, chosen []task) (all map[string][]pair, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ours, err := startEngine(self, "engine", path, strconv.Itoa(threads))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	theirs, err := startEngine(c.peer, "measure", c.library, path, strconv.Itoa(threads))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	all = map[string][]pair{}
	for i := range c.pairs + 1 {
		for _, t := range chosen {
			p, err := runPair(ours, theirs, t.name, i%2 == 1)
			if err != nil {
				return nil, err
			}
			if i > 0 { // the first one warms up
				all[t.name] = append(all[t.name], p)
			}
		}
	}
	return all, nil
}

func runPair(ours, theirs *process, task string, theirsFirst bool) (p pair, err error) {
	if theirsFirst {
		if p.theirs, err = theirs.time(task); err != nil {
			return p, err
		}
	}
	if p.ours, err = ours.time(task); err != nil || theirsFirst {
		return p, err
	}
	p.theirs, err = theirs.time(task)
	return p, err
}

// process is an engine that waits for tasks.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	killer  *time.Timer
}

// taskMax is how long a task may take before its engine counts as hung.
const taskMax = 5 * time.Minute

func startEngine(name string, args ...string) (*process, error) {
	p := &process{command: exec.Command(name, args...)}
	p.command.Stderr = os.Stderr
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	p.killer = time.AfterFunc(taskMax, func() { _ = p.command.Process.Kill() })
	return p, nil
}

func (p *process) time(task string) (t timing, err error) {
	p.killer.Reset(taskMax)
	if _, err := fmt.Fprintln(p.in, task); err != nil {
		return t, err
	}
	if _, err := fmt.Fscanln(p.out, &t.wall, &t.cpu); err != nil {
		return t, fmt.Errorf("task %s: %s ended: %w", task, filepath.Base(p.command.Path), err)
	}
	return t, nil
}

func (p *process) close() error {
	defer p.killer.Stop()
	return errors.Join(p.in.Close(), p.command.Wait())
}

// row is a line of the table.
type row struct {
	task         task
	ours, theirs float64 // tokens a second
	ratio, cpu   spread
}

// spread is a median and the quartiles around it.
type spread struct{ low, median, high float64 }

func newRow(t task, pairs []pair) row {
	tokens := float64(t.tokens)
	values := func(f func(p pair) float64) spread {
		var all []float64
		for _, p := range pairs {
			all = append(all, f(p))
		}
		return spreadOf(all)
	}
	return row{
		task:   t,
		ours:   values(func(p pair) float64 { return tokens / p.ours.wall }).median,
		theirs: values(func(p pair) float64 { return tokens / p.theirs.wall }).median,
		ratio:  values(func(p pair) float64 { return p.theirs.wall / p.ours.wall }),
		cpu:    values(func(p pair) float64 { return p.theirs.cpu / p.ours.cpu }),
	}
}

func (r row) String() string {
	return fmt.Sprintf("%-22s %9.1f %9.1f   %-20s %-20s", r.task.what, r.ours, r.theirs, r.ratio, r.cpu)
}

func (r row) verdict(bound float64) string {
	if r.ratio.median < bound {
		return fmt.Sprintf("MISSED: want %.2f", bound)
	}
	return fmt.Sprintf("ok, want %.2f", bound)
}

func (s spread) String() string { return fmt.Sprintf("%.2f [%.2f, %.2f]", s.median, s.low, s.high) }

// spreadOf interpolates between the two values next to each quartile.
func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 {
		x := q * float64(len(sorted)-1)
		i := min(int(x), len(sorted)-1)
		j := min(i+1, len(sorted)-1)
		return sorted[i] + (x-float64(i))*(sorted[j]-sorted[i])
	}
	return spread{at(0.25), at(0.5), at(0.75)}
}
