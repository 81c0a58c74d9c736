package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

const tenantLong = `Change who may use the server, and how much. Tenants stand in a file that a
running gateway follows: a change counts within a second.

The file holds hashes of the keys, never the keys. It also holds each tenant's
"secret", from which the tag is made that keeps its pages apart from everybody
else's. Whoever knows it can forge that tag: guard the file like a key. It is
made with mode 0600 and is refused with any other.`

func newTenant() *cobra.Command {
	cmd := group("tenant", "add, list, rotate and remove tenants", tenantLong,
		"  bulkhead tenant add acme --tokens-per-minute 100000\n  bulkhead tenant list",
		newTenantAdd(), newTenantList(), newTenantRotate(), newTenantRemove())
	cmd.PersistentFlags().String("tenants", "", "tenants file (default: tenants.json in the data folder)")
	return cmd
}

func newTenantAdd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "add NAME",
		Short:   "add a tenant and print its key, this one time",
		Example: "  bulkhead tenant add acme --requests-per-minute 600 --concurrency 8",
		Args:    args(cobra.ExactArgs(1)),
	}
	var limits tenant.Limits
	cmd.Flags().IntVar(&limits.RequestsPerMinute, "requests-per-minute", 0, "most requests a minute, 0 for no limit")
	cmd.Flags().IntVar(&limits.TokensPerMinute, "tokens-per-minute", 0, "most tokens a minute, prompt and output, 0 for no limit")
	cmd.Flags().IntVar(&limits.Concurrency, "concurrency", 0, "most requests at one time, 0 for no limit")
	cmd.Flags().IntVar(&limits.ReservedTokens, "reserved-tokens", 0, "most tokens reserved at one time, 0 for no limit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := tenant.Check(args[0], limits); err != nil {
			return usageError{err}
		}
		path, err := tenantsFile(cmd)
		if err != nil {
			return err
		}
		key, err := tenant.Add(path, args[0], limits, time.Now())
		if err != nil {
			return err
		}
		return printKey(cmd, args[0], key)
	}
	return cmd
}

// printKey puts the key on a line of its own on standard output, and what it is
// on standard error: so the output can be piped.
func printKey(cmd *cobra.Command, name, key string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "key of tenant %s, shown this one time:\n", name)
	_, err := fmt.Fprintln(cmd.OutOrStdout(), key)
	return err
}

func newTenantList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list tenants, their limits and the beginnings of their keys' hashes",
		Example: "  bulkhead tenant list --json",
		Args:    args(cobra.NoArgs),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path, err := tenantsFile(cmd)
		if err != nil {
			return err
		}
		infos, err := tenant.List(path)
		if err != nil {
			return err
		}
		if *asJSON {
			return writeJSON(cmd.OutOrStdout(), append([]tenant.Info{}, infos...))
		}
		rows := [][]string{{"NAME", "CREATED", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENCY", "RESERVED", "KEYS"}}
		for _, t := range infos {
			rows = append(rows, []string{t.Name, t.Created.Local().Format("2006-01-02 15:04"), limit(t.Limits.RequestsPerMinute),
				limit(t.Limits.TokensPerMinute), limit(t.Limits.Concurrency), limit(t.Limits.ReservedTokens), keyList(t.Keys, time.Now())})
		}
		return writeTable(cmd.OutOrStdout(), rows)
	}
	return cmd
}

func limit(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func keyList(keys []tenant.KeyInfo, now time.Time) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = k.ID
		switch end := k.Expires.Local().Format("2006-01-02 15:04"); {
		case k.Expires.IsZero():
		case now.Before(k.Expires):
			parts[i] += " until " + end
		default:
			parts[i] += " expired " + end
		}
	}
	return strings.Join(parts, ", ")
}

func newTenantRotate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rotate NAME",
		Short:   "give a tenant a new key and print it, this one time",
		Long:    "Give a tenant a new key. The old keys end after --grace; without it they end at a\nrunning gateway within a second. Requests that run go on.",
		Example: "  bulkhead tenant rotate acme --grace 24h",
		Args:    args(cobra.ExactArgs(1)),
	}
	grace := cmd.Flags().Duration("grace", 0, "how long the old keys stay valid")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := notNegative(cmd, "grace"); err != nil {
			return err
		}
		path, err := tenantsFile(cmd)
		if err != nil {
			return err
		}
		key, err := tenant.Rotate(path, args[0], *grace, time.Now())
		if err != nil {
			return err
		}
		return printKey(cmd, args[0], key)
	}
	return cmd
}

func newTenantRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME",
		Short:   "remove a tenant; its running requests end within a second",
		Example: "  bulkhead tenant rm acme",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := tenantsFile(cmd)
			if err != nil {
				return err
			}
			if err := tenant.Remove(path, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed tenant %s\n", args[0])
			return err
		},
	}
}
