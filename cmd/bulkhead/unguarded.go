//go:build unguarded

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/kv/transfer/transfercheck"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// addUnguarded adds --without to a build for looking at guards: the shortest story
// of what happens when they are missing. No command that serves has it.
func addUnguarded(cmd *cobra.Command, e *exploration) {
	var without []string
	cmd.Flags().StringSliceVar(&without, "without", nil, "take these guards away, and tell the shortest leak")
	explored := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(without) == 0 {
			return explored(cmd, args)
		}
		for _, name := range without {
			if err := known("guard", name, transfercheck.Guards()); err != nil {
				return err
			}
		}
		return leak(cmd.OutOrStdout(), *e, without)
	}
}

// leak tells what breaks without some guards: a leak if there is one, or else what
// the guard holds up.
func leak(out io.Writer, e exploration, without []string) error {
	var transports []transfercheck.Transport
	var names []string
	for _, t := range transfercheck.Transports() {
		names = append(names, t.Name)
		if e.transport == "" || e.transport == t.Name {
			transports = append(transports, t)
		}
	}
	if err := known("transport", e.transport, names); err != nil {
		return err
	}
	c, v, complete := transfercheck.BreakWithout(without, transports, modelcheck.Options{Workers: e.workers})
	switch {
	case v != nil:
		behind := ""
		if transfercheck.PropertyOf(v) != "NoLeak" {
			behind = fmt.Sprintf("Nothing leaks without %s alone: other guards stand behind. It holds up another property.\n\n", without[0])
		}
		if _, err := fmt.Fprint(out, behind, transfercheck.Story(c, v)); err != nil {
			return err
		}
		return verdictError{fmt.Errorf("%s breaks without %s", transfercheck.PropertyOf(v), strings.Join(without, " ")), exitFailure}
	case !complete:
		return inconclusive("nothing leaks without %s, but a world was cut off", strings.Join(without, " "))
	}
	_, err := fmt.Fprintf(out, "nothing leaks without %s: other guards stand behind\n", strings.Join(without, " "))
	return err
}
