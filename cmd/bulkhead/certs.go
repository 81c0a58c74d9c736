package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
)

const certsLong = `Make certificates with which the nodes of a cluster know each other. The first
use makes a development authority in the folder; later ones add nodes to it or
renew them. Each certificate names its node's role and works as no other. In
production let your own authority issue them, with the same URI names
(bulkhead://ROLE/NAME).`

func newCerts() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "certs DIR ROLE/NAME...",
		Short:   "make development certificates for a cluster's nodes",
		Long:    certsLong,
		Example: "  bulkhead certs ./certs gateway/gateway prefill/p1 decode/d1 --host 10.0.0.5",
		Args:    args(cobra.MinimumNArgs(2)),
	}
	hosts := cmd.Flags().StringSlice("host", nil, "name or address under which the nodes are reached, beside loopback")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := identities(args[1:])
		if err != nil {
			return err
		}
		now := time.Now()
		authority, made, err := certs.OpenAuthority(args[0], now)
		if err != nil && hasAuthority(args[0]) {
			err = configError{err}
		}
		if err != nil {
			return err
		}
		if made {
			fmt.Fprintf(cmd.ErrOrStderr(), "made a development authority in %s\n", args[0])
		}
		for _, id := range ids {
			how := "made"
			if _, err := os.Stat(certs.NodeFiles(args[0], id.Name).Key); err == nil {
				how = "replaced"
			}
			files, err := authority.Issue(id, *hosts, now)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s certificate and key of %s, valid until %s\n", how, id, now.Add(certs.NodeLife).Format(time.DateOnly))
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  ca=%s cert=%s key=%s\n", id, files.CA, files.Cert, files.Key); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// hasAuthority says whether there is an authority in the folder, of use or not.
func hasAuthority(dir string) bool {
	_, err := os.Stat(certs.NodeFiles(dir, "").CA)
	return err == nil
}

func identities(texts []string) ([]certs.Identity, error) {
	ids := make([]certs.Identity, len(texts))
	for i, text := range texts {
		role, name, found := strings.Cut(text, "/")
		ids[i] = certs.Identity{Role: certs.Role(role), Name: name}
		if err := ids[i].Validate(); err != nil || !found {
			return nil, usageError{fmt.Errorf("node %q: want gateway/NAME, prefill/NAME or decode/NAME", text)}
		}
	}
	return ids, nil
}
