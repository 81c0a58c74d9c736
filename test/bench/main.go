// Command bench compares the engine with llama.cpp, side by side, and holds a server's memory and pace to their bounds.
//
// scripts/bench builds what it needs and calls it. Each engine runs in a process of
// its own that waits for tasks; the tasks are given to them by turns, so that what
// else the machine does meets both, and each pair of runs gives one ratio.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
)

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	if errors.Is(err, errInconclusive) {
		os.Exit(exitInconclusive)
	}
	os.Exit(1)
}

// exitInconclusive is the status when a bound could not be judged, which is no pass.
const exitInconclusive = 3

var errInconclusive = errors.New("inconclusive")

const usage = "usage: bench compare [flags] | bench memory [flags] | bench pace [flags] | bench engine MODEL THREADS"

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "compare":
		return runCompare(args[1:])
	case "memory":
		return runMemory(args[1:])
	case "pace":
		return runPace(args[1:])
	case "engine":
		if len(args) != 3 {
			return errors.New(usage)
		}
		threads, err := strconv.Atoi(args[2])
		if err != nil || threads < 1 {
			return fmt.Errorf("%q is no number of threads", args[2])
		}
		return serveEngine(args[1], threads, os.Stdin, os.Stdout)
	}
	return errors.New(usage)
}

func runCompare(args []string) error {
	var c comparison
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.StringVar(&c.peer, "peer", "", "program built from testdata/peer.c")
	flags.StringVar(&c.library, "library", "", "folder of libllama")
	flags.StringVar(&c.q4, "q4", "", "model file in Q4_1")
	flags.StringVar(&c.q8, "q8", "", "the same model in Q8_0")
	flags.IntVar(&c.pairs, "pairs", 9, "pairs of runs of each task")
	only := flags.String("only", "", "regular expression of the rows to run, such as \"Q8_0 1 decode\"")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if c.only, err = regexp.Compile(*only); err != nil {
		return err
	}
	if c.pairs < 1 {
		return fmt.Errorf("%d pairs, want at least 1", c.pairs)
	}
	return c.run(os.Stdout)
}

func runMemory(args []string) error {
	var m memory
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	flags.StringVar(&m.binary, "bulkhead", "bin/bulkhead", "the program that serves")
	flags.StringVar(&m.model, "model", "", "model file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return m.run(os.Stdout)
}

func runPace(args []string) error {
	var p pace
	flags := flag.NewFlagSet("pace", flag.ContinueOnError)
	flags.StringVar(&p.binary, "bulkhead", "bin/bulkhead", "the program that serves")
	flags.StringVar(&p.model, "model", "", "model file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return p.run(os.Stdout)
}
