package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/terminal"
	"github.com/bulkhead-kv/bulkhead/kv/transfer/transfercheck"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

const checkLong = `Explore the transfer: the machines and the pool that serve, in small hostile
worlds whose every state is visited. Messages are lost, repeated and reordered,
writes land late and from dead senders, workers crash, links break. A world holds
if no state breaks a property of docs/SPEC.md, and if all pages come back and every
request is answered once faults stop.

Without flags the set of worlds is explored that every change is tested with.
--nightly has larger ones, for the better part of an hour on two cores.
"bulkhead check ledger" holds what ran against the same machines.

A transport is what it can do. Such are:

%s
Exit codes: 0 every world holds, 1 one does not, and its shortest story is told,
3 inconclusive: a world was cut off. A 3 is never a pass.`

// exploration is what one command line asks for.
type exploration struct {
	nightly, list    bool
	world, transport string
	workers          int
}

func newCheck() *cobra.Command {
	var e exploration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "explore every state of the transfer in small hostile worlds",
		Long:  fmt.Sprintf(checkLong, transportList()),
		Example: `  bulkhead check                              every world of the small set
  bulkhead check --transport one-sided        those with one kind of transport
  bulkhead check --world "crash of prefill"   one world, on each that has it
  bulkhead check --list                       what there is
  bulkhead check ledger                       hold what ran against the machines`,
		Args: args(knownCommand),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.workers < 0 {
				return usageError{errors.New("workers must be 0, for one a core, or more")}
			}
			worlds, err := e.worlds()
			if err != nil {
				return err
			}
			if e.list {
				return listWorlds(cmd.OutOrStdout(), worlds)
			}
			return explore(cmd.OutOrStdout(), worlds, e.workers)
		},
	}
	cmd.Flags().BoolVar(&e.nightly, "nightly", false, "explore the nightly set")
	cmd.Flags().StringVar(&e.world, "world", "", "explore only worlds of this name")
	cmd.Flags().StringVar(&e.transport, "transport", "", "explore only worlds with this transport, one of those above")
	cmd.Flags().IntVar(&e.workers, "workers", 0, "goroutines that search (default: one a core)")
	cmd.Flags().BoolVar(&e.list, "list", false, "list the worlds and explore none")
	cmd.AddCommand(newCheckLedger())
	addUnguarded(cmd, &e)
	return cmd
}

// transportList is a line and its examples for each transport, as in docs/guards.md.
func transportList() string {
	var b strings.Builder
	for _, t := range transfercheck.Transports() {
		fmt.Fprintf(&b, "  %-11s %s\n  %-11s (%s)\n", t.Name, t.About, "", t.Like)
	}
	return b.String()
}

// worlds are those that the flags choose.
func (e exploration) worlds() ([]transfercheck.Config, error) {
	all := transfercheck.Daily()
	if e.nightly {
		all = transfercheck.Nightly()
	}
	var names, transports []string
	for _, c := range all {
		names, transports = append(names, c.Name), append(transports, c.Transport.Name)
	}
	if err := known("world", e.world, names); err != nil {
		return nil, err
	}
	if err := known("transport", e.transport, transports); err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(all, func(c transfercheck.Config) bool {
		return e.world != "" && c.Name != e.world || e.transport != "" && c.Transport.Name != e.transport
	})
	if len(chosen) == 0 {
		return nil, usageError{fmt.Errorf("there is no world %q on transport %q", e.world, e.transport)}
	}
	return chosen, nil
}

// known refuses a name that is none of the known ones, and lists them. The empty
// name is any.
func known(what, name string, all []string) error {
	if name == "" || slices.Contains(all, name) {
		return nil
	}
	all = slices.Compact(slices.Sorted(slices.Values(all)))
	for i := range all {
		all[i] = strconv.Quote(all[i]) // worlds' names are several words, some with a comma
	}
	return usageError{fmt.Errorf("unknown %s %q, there are: %s", what, name, strings.Join(all, ", "))}
}

func listWorlds(out io.Writer, worlds []transfercheck.Config) error {
	rows := [][]string{{"TRANSPORT", "WORLD", "SIZE", "CHECKED"}}
	for _, c := range worlds {
		rows = append(rows, []string{c.Transport.Name, c.Name, c.Size(), checked(c)})
	}
	return writeTable(out, rows)
}

func checked(c transfercheck.Config) string {
	if c.SafetyOnly {
		return "safety"
	}
	return "all"
}

// exploreBytes is the memory that the largest worlds are explored in.
const exploreBytes = 10 << 30

// explore visits every state of each world and prints a line for each, as it comes.
func explore(out io.Writer, worlds []transfercheck.Config, workers int) error {
	debug.SetGCPercent(300) // little of what is made is kept
	debug.SetMemoryLimit(exploreBytes)
	format := worldFormat(worlds)
	if _, err := fmt.Fprintf(out, format, "TRANSPORT", "WORLD", "CHECKED", "STATES", "TRANSITIONS", "DEPTH", "SECONDS", "VERDICT"); err != nil {
		return err
	}
	var cut int
	for i, c := range worlds {
		watch := newWatch(fmt.Sprintf("%d of %d, %s, %s", i+1, len(worlds), c.Transport.Name, c.Name))
		r := transfercheck.Explore(c, modelcheck.Options{Workers: workers, Progress: watch.show})
		watch.clear()
		if _, err := fmt.Fprintf(out, format, c.Transport.Name, c.Name, checked(c), fmt.Sprint(r.States), fmt.Sprint(r.Transitions), fmt.Sprint(r.Depth),
			fmt.Sprintf("%.1f", time.Since(watch.begun).Seconds()), verdictOf(r)); err != nil {
			return err
		}
		if r.Violation != nil {
			_, err := fmt.Fprintf(out, "\n%s", transfercheck.Story(c, r.Violation))
			return errors.Join(verdictError{fmt.Errorf("%s breaks in world %q on transport %s", transfercheck.PropertyOf(r.Violation), c.Name, c.Transport.Name), exitFailure}, err)
		}
		if !r.Complete {
			cut++
		}
	}
	if cut > 0 {
		return inconclusive("%d of %d worlds were cut off", cut, len(worlds))
	}
	return nil
}

// worldFormat is a line as wide as the names are.
func worldFormat(worlds []transfercheck.Config) string {
	transport, world := len("TRANSPORT"), len("WORLD")
	for _, c := range worlds {
		transport, world = max(transport, len(c.Transport.Name)), max(world, len(c.Name))
	}
	return fmt.Sprintf("%%-%ds  %%-%ds  %%-7s  %%10s  %%11s  %%5s  %%7s  %%s\n", transport, world)
}

func verdictOf(r modelcheck.Result[transfercheck.Action]) string {
	switch {
	case r.Violation != nil:
		return "BROKEN: " + transfercheck.PropertyOf(r.Violation)
	case !r.Complete:
		return "CUT OFF"
	}
	return "holds"
}

// exploreWatch is a line that a person sees while a world is explored.
type exploreWatch struct {
	terminal *terminal.Terminal
	what     string
	begun    time.Time
}

func newWatch(what string) exploreWatch {
	return exploreWatch{terminal.New(os.Stderr, os.Getenv), what, time.Now()}
}

func (w exploreWatch) show(p modelcheck.Progress) {
	if w.terminal.IsTerminal() {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s: %d states, %d waiting, depth %d, %.0f/s", w.what, p.States, p.Waiting, p.Depth, float64(p.States)/time.Since(w.begun).Seconds())
	}
}

func (w exploreWatch) clear() {
	if w.terminal.IsTerminal() {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
