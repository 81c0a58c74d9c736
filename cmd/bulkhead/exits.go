package main

import (
	"context"
	"errors"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/node"
	"github.com/bulkhead-kv/bulkhead/internal/supervisor"
)

// The exit codes that scripts may rely on, beside those of verdicts. README.md has
// the same table.
const (
	exitFailure     = 1                     // another try may do better
	exitUsage       = 2                     // a mistake in the command line or the environment
	exitConfig      = supervisor.ExitConfig // no other try does better until what the error names is changed
	exitInterrupted = 130
)

// exitCode is what a command ends with. It depends on the error alone, so that a
// condition has one code whichever command meets it.
func exitCode(err error) int {
	var verdict verdictError
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &verdict):
		return verdict.code
	case passes(err):
		return exitFailure
	case node.Permanent(err) || errors.As(err, new(configError)) || refusedForGood(err):
		return exitConfig
	case slices.Contains([]fault.Kind{fault.Invalid, fault.NotFound, fault.Unauthenticated, fault.Forbidden}, fault.Of(err)):
		return exitConfig
	}
	return codeOfChild(err)
}

// passes tells the conditions that end by themselves, whatever they have stopped.
func passes(err error) bool {
	return slices.ContainsFunc([]error{unix.EADDRINUSE, unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM},
		func(passing error) bool { return errors.Is(err, passing) })
}

// refusedForGood tells a server's refusals of the request itself, such as an unknown
// model, and answers of what is no server for us, from refusals for the time being.
func refusedForGood(err error) bool {
	var refused *chatclient.APIError
	return errors.As(err, &refused) && refused.Status >= 200 && refused.Status < 500 && refused.Status != 408 && refused.Status != 429
}

// codeOfChild is what a process has said that was started for the command.
func codeOfChild(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == exitUsage || exit.ExitCode() == exitConfig) {
		return exit.ExitCode()
	}
	return exitFailure
}

// usageError is a mistake in the command line itself, which --help explains.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

// configError is a mistake in what a command works by, such as a file or a key.
type configError struct{ err error }

func (c configError) Error() string { return c.err.Error() }
func (c configError) Unwrap() error { return c.err }
