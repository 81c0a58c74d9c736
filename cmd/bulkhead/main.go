// Command bulkhead is the command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(execute(os.Args[1:], os.Stderr)) }

// execute runs one command line and returns its exit code. An error is one line.
func execute(args []string, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	if cmd, err := unknownBeforeHelp(root, args); err != nil {
		fmt.Fprintf(stderr, "bulkhead: %s (see %q)\n", oneLine(err), cmd.CommandPath()+" --help")
		return exitUsage
	}
	cmd, err := root.ExecuteContextC(context.Background())
	switch {
	case err == nil:
	case errors.As(err, new(usageError)):
		fmt.Fprintf(stderr, "bulkhead: %s (see %q)\n", oneLine(err), cmd.CommandPath()+" --help")
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "bulkhead: %s\n", strings.ReplaceAll(oneLine(err), context.Canceled.Error(), "interrupted"))
	default:
		fmt.Fprintf(stderr, "bulkhead: %s\n", oneLine(err))
	}
	return exitCode(err)
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// args makes a mistake in a command's arguments a usage error, which names what is
// missing as the command's use does.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		wanted, most := arguments(cmd.Use)
		switch {
		case cmd.HasSubCommands(): // the check speaks of commands
		case len(args) < len(wanted):
			err = fmt.Errorf("%s: missing", strings.Join(wanted[len(args):], " and "))
			if len(args)+1 == len(wanted) {
				err = fmt.Errorf("%s is missing", wanted[len(args)])
			}
		case most >= 0 && len(args) > most:
			err = fmt.Errorf("%s takes %s, found %d", cmd.CommandPath(), plural(most, "argument"), len(args))
		}
		return usageError{err}
	}
}

// arguments reads a command's use: the arguments that it must have, and the most
// that it takes, -1 for any number.
func arguments(use string) (wanted []string, most int) {
	words := strings.Fields(use)[1:]
	for i := 0; i < len(words); i++ {
		name := strings.TrimSuffix(words[i], "...")
		switch {
		case strings.HasPrefix(name, "--"):
			i++ // a flag and its value
			continue
		case most < 0:
		case name != words[i]:
			most = -1
		default:
			most++
		}
		if !strings.HasPrefix(name, "[") {
			wanted = append(wanted, name)
		}
	}
	return wanted, most
}

func plural(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// unknownBeforeHelp refuses the help of a command that there is not; cmd is the one
// that does not have it.
func unknownBeforeHelp(root *cobra.Command, args []string) (cmd *cobra.Command, err error) {
	if !slices.Contains(args, "--help") && !slices.Contains(args, "-h") {
		return nil, nil
	}
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil, nil
	}
	return cmd, knownCommand(cmd, rest)
}

// interruptible is the command's context, cancelled by Ctrl-C and SIGTERM. A
// second signal ends the process at once.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
