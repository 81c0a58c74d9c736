// Command bulkhead is the command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/node"
	"github.com/bulkhead-kv/bulkhead/internal/supervisor"
)

// The exit codes that scripts may rely on, beside supervisor.ExitConfig for a
// configuration that can't work.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(execute(os.Args[1:], os.Stderr)) }

// execute runs one command line and returns its exit code. An error is one line.
func execute(args []string, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "bulkhead: %s (see %q)\n", oneLine(err), cmd.CommandPath()+" --help")
		return exitUsage
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "bulkhead: %s\n", strings.ReplaceAll(oneLine(err), context.Canceled.Error(), "interrupted"))
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "bulkhead: %s\n", oneLine(err))
	var verdict verdictError
	if errors.As(err, &verdict) {
		return verdict.code
	}
	if node.Permanent(err) || errors.As(err, new(configError)) {
		return supervisor.ExitConfig
	}
	return exitFailure
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// usageError is a mistake in the command line itself, which --help explains.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

// configError is a mistake in a configuration file.
type configError struct{ err error }

func (c configError) Error() string { return c.err.Error() }
func (c configError) Unwrap() error { return c.err }

// args makes a mistake in a command's arguments a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// interruptible is the command's context, cancelled by Ctrl-C and SIGTERM. A
// second signal ends the process at once.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
