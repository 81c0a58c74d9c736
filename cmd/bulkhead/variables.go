package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bulkhead-kv/bulkhead/internal/supervisor"
)

const (
	variablePrefix = "BULKHEAD_"
	// strangersNamedMax bounds the variables that the warning names.
	strangersNamedMax = 8
	nameShownMax      = 80 // bytes of a variable's name
)

// testVariables are set by scripts/test. A command that a test starts inherits them.
var testVariables = []string{"BULKHEAD_ORACLE", "BULKHEAD_PYTHON", "BULKHEAD_SDK_NODE", "BULKHEAD_SDK_PYTHON", "BULKHEAD_SMOLLM2"}

// warnUnknownVariables says on standard error, in one line, which variables of the
// environment no command reads. A supervisor's child leaves that to the supervisor.
func warnUnknownVariables(cmd *cobra.Command) {
	if supervisor.IsChild() {
		return
	}
	if strangers := unknownVariables(os.Environ(), flagVariables(cmd.Root())); len(strangers) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: no command reads %s\n", strings.Join(strangers, "; "))
	}
}

// flagVariables are the variables of all flags of all commands.
func flagVariables(root *cobra.Command) (all []string) {
	eachCommand(root, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if settable(f.Name) || f.Name == "config" {
				all = append(all, flagVariable(f.Name))
			}
		})
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// unknownVariables are those of our prefix that are not known, each with the known
// one that it may stand for. Values are never shown: they may be keys.
func unknownVariables(environment, known []string) (strangers []string) {
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, variablePrefix) || slices.Contains(known, name) || slices.Contains(testVariables, name) {
			continue
		}
		text := fmt.Sprintf("%.*q", nameShownMax, name)
		if near := nearest(name, known); near != "" {
			text += ", did you mean " + near + "?"
		}
		strangers = append(strangers, text)
	}
	slices.Sort(strangers)
	if over := len(strangers) - strangersNamedMax; over > 0 {
		strangers = append(strangers[:strangersNamedMax], fmt.Sprintf("and %d more", over))
	}
	return strangers
}

// nearest is the known name that the fewest edits make of this one, in capitals. Where
// that takes more than two edits and more than a third of the name, there is none.
func nearest(name string, known []string) (near string) {
	own := len(name) - len(variablePrefix)
	fewest := max(min(2, own/2), own/3) + 1
	for _, k := range known {
		if len(name) > 2*len(k) {
			continue
		}
		if n := edits(strings.ToUpper(name), k); n < fewest {
			near, fewest = k, n
		}
	}
	return near
}

// edits is the Levenshtein distance in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
