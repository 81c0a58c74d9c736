package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

const rootLong = `Bulkhead serves large language models to many tenants. Prefill and decode run
on separate workers, and one tenant's KV cache can't reach another's answer.

Every flag can also be set by an environment variable (--listen is
BULKHEAD_LISTEN) or in the YAML file that --config or BULKHEAD_CONFIG names. A
flag wins over the environment, the environment over the file. A variable of that
kind that no command reads is warned of.`

const rootExample = `  bulkhead pull smollm2:135m             fetch a small model
  bulkhead run smollm2:135m "Say hello"  ask it once
  bulkhead chat smollm2:135m             talk with it
  bulkhead serve smollm2:135m            serve it to several tenants`

// newRoot builds the whole command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "bulkhead",
		Short:         "serve language models to many tenants, each in its own compartment",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          args(knownCommand),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version(),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			warnUnknownVariables(cmd)
			return applySettings(cmd)
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().String("config", "", "YAML file with settings, one key a flag")
	root.PersistentFlags().String("home", "", "data folder (default: bulkhead in XDG_DATA_HOME or ~/.local/share)")
	root.AddCommand(
		newPull(), newList(), newShow(), newRemove(), newCapacity(),
		newServe(), newRun(), newChat(),
		newGateway(), newWorker(cluster.Prefill), newWorker(cluster.Decode),
		newTenant(), newCerts(), newLedger(), newCheck(), newSim(),
		newCompletion(), newVersion(),
	)
	root.SetHelpCommand(newHelp())
	root.InitDefaultHelpCmd() // or else nobody knows it before a command line is run
	return root
}

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:               "help [COMMAND...]",
		Short:             "show the help of a command",
		Example:           "  bulkhead help tenant add",
		Args:              args(cobra.ArbitraryArgs),
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // whatever the settings say
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err == nil {
				err = knownCommand(found, rest)
			}
			if err != nil {
				return verdictError{fmt.Errorf("%w (see %q)", err, found.CommandPath()+" --help"), exitUsage} // the help of help would not help
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// knownCommand refuses words that name no command and suggests the nearest.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 {
		return fmt.Errorf("unknown command %q", args[0])
	}
	return fmt.Errorf("unknown command %q, did you mean %s?", args[0], strings.Join(near, " or "))
}

// group is a command that only holds others.
func group(use, short, long, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:     use,
		Short:   short,
		Long:    long,
		Example: example,
		Args:    args(knownCommand),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "print the version, the Go version and the platform",
		Example: "  bulkhead version",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "bulkhead %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// version is the module's version as the build recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "print a script that completes commands in your shell",
		Example: `  source <(bulkhead completion bash)
  bulkhead completion zsh > "${fpath[1]}/_bulkhead"
  bulkhead completion fish > ~/.config/fish/completions/bulkhead.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      args(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return root.GenBashCompletionV2(out, true)
		},
	}
}
