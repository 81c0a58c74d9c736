package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/store"
)

// homeOf is the data folder: --home, or what the environment says.
func homeOf(cmd *cobra.Command) (string, error) {
	if home := cmd.Flag("home").Value.String(); home != "" {
		return home, nil
	}
	return store.DefaultHome(os.Getenv)
}

func openStore(cmd *cobra.Command) (*store.Store, error) {
	home, err := homeOf(cmd)
	if err != nil {
		return nil, err
	}
	return store.Open(home)
}

// tenantsFile is --tenants, or tenants.json in the data folder.
func tenantsFile(cmd *cobra.Command) (string, error) {
	if path := cmd.Flag("tenants").Value.String(); path != "" {
		return path, nil
	}
	home, err := homeOf(cmd)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("make data folder: %w", err)
	}
	return filepath.Join(home, "tenants.json"), nil
}

// modelNames completes the name of a model in the store.
func modelNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	s, err := openStore(cmd)
	if len(args) > 0 || err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	models, err := s.List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.Name
	}
	return names, cobra.ShellCompDirectiveDefault // or a file
}

// size writes bytes for a person.
func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
