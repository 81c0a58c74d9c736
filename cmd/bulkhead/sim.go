package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/sim"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
)

const simLong = `Run the workers that serve in a simulated world: one goroutine, a simulated
clock, a network that loses and delays, processes that are killed, stopped and
started anew, clients that go away. Each seed draws its own mix of all that, and
equal seeds give equal runs. Every run ends in a part without faults, in which
everything must come to rest: each request answered once, each page free.

A seed that fails is made smaller and printed as the command that replays it;
--trace prints the story of a run.`

// simFlags are the flags of one command line.
type simFlags struct {
	config sim.Config
	runs   int
	span   time.Duration
	trace  bool
}

func newSim() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "simulate many workers in a hostile world, by seed",
		Long:  simLong,
		Example: `  bulkhead sim --seed 7 --steps 20000         one run, faults in its first 20,000 events
  bulkhead sim --seed 1 --for 10m             seed after seed, for ten minutes
  bulkhead sim --seed 7 --requests 3 --trace  the story of a small run`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.runs < 1 || f.span < 0 || f.config.Steps < 0 || f.config.Requests < 0 {
				return usageError{errors.New("runs must be 1 or more, and time, steps and requests not negative")}
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			return simulate(ctx, cmd, f)
		},
	}
	cmd.Flags().Uint64Var(&f.config.Seed, "seed", 1, "seed of the first run")
	cmd.Flags().IntVar(&f.config.Steps, "steps", 0, "events of a run before faults end (default: as many as its requests take)")
	cmd.Flags().IntVar(&f.config.Requests, "requests", 0, "requests of a run (default: the seed's own number)")
	cmd.Flags().IntVar(&f.config.Faults, "faults", -1, "faults of a run at most (default: as many as come)")
	cmd.Flags().IntVar(&f.runs, "runs", 1, "runs, each with the next seed")
	cmd.Flags().DurationVar(&f.span, "for", 0, "start runs for so long, whatever --runs says")
	cmd.Flags().BoolVar(&f.trace, "trace", false, "print what happens")
	return cmd
}

func simulate(ctx context.Context, cmd *cobra.Command, f simFlags) (err error) {
	s, err := sim.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if f.trace {
		f.config.Trace = cmd.OutOrStdout()
	}
	progress := simProgress{terminal: terminal.New(os.Stderr, os.Getenv), begun: time.Now()}
	var sum sim.Sum
	first := f.config.Seed
	for ; f.more(sum.Runs, progress.begun); f.config.Seed++ {
		if ctx.Err() != nil {
			break // what was done until then is told all the same
		}
		r := s.Run(f.config)
		sum.Add(r)
		if r.Failure != "" {
			progress.clear()
			return tellFailure(cmd, s, r)
		}
		progress.show(r.Config.Seed, sum)
	}
	progress.clear()
	took := time.Since(progress.begun)
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "seeds %d to %d: nothing is wrong\n%v\n%.0f requests/s\n",
		first, f.config.Seed-1, sum, float64(sum.Requests)/took.Seconds()); err != nil {
		return err
	}
	return ctx.Err()
}

// more says whether another run is due; the first always is.
func (f simFlags) more(runs int, begun time.Time) bool {
	if f.span > 0 {
		return runs == 0 || time.Since(begun) < f.span
	}
	return runs < f.runs
}

// tellFailure prints what is wrong and how to see it again.
func tellFailure(cmd *cobra.Command, s *sim.Simulator, r sim.Report) error {
	r.Config.Trace = nil
	small := s.Shrink(r)
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "seed %d: %s\n\nmix:     %s\nreplay:  %s\nsmaller: %s --trace\n         %s\n",
		r.Config.Seed, r.Failure, r.Mix, r.Replay(), small.Replay(), small.Failure)
	return errors.Join(fmt.Errorf("seed %d failed", r.Config.Seed), err)
}

// simProgress is a line that a person sees while runs go on.
type simProgress struct {
	terminal *terminal.Terminal
	begun    time.Time
	shown    time.Time
}

func (p *simProgress) show(seed uint64, sum sim.Sum) {
	if now := time.Now(); p.terminal.IsTerminal() && now.Sub(p.shown) > 200*time.Millisecond {
		p.shown = now
		fmt.Fprintf(os.Stderr, "\r\x1b[Kseed %d, %d requests, %.0f/s", seed, sum.Requests, float64(sum.Requests)/now.Sub(p.begun).Seconds())
	}
}

func (p *simProgress) clear() {
	if p.terminal.IsTerminal() {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
