package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/store"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
	"github.com/bulkhead-kv/bulkhead/kv"
)

const pullLong = `Fetch a model into the data folder. MODEL is one of

  smollm2:135m               a name of the catalog (see "bulkhead list --catalog")
  ./model.gguf               a file, which is copied
  https://host/model.gguf    an address
  hf:owner/repo/file.gguf    a file of the Hugging Face hub
  owner/repo:Q4_K_M          the hub's file of that quantization

A model that is here already is read again and not fetched, unless its sha256 is no
longer right. A download that was interrupted goes on where it stopped, but for one
by pip. The hub is used with HF_ENDPOINT,
HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE as its own client does; the
catalog's Python packages come from the index that pip's settings name, or else
through pip.`

func newPull() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pull MODEL",
		Short: "fetch a model",
		Long:  pullLong,
		Example: `  bulkhead pull smollm2:135m
  bulkhead pull https://example.com/models/tiny.gguf --as tiny`,
		Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, e := range store.Catalog() {
				names = append(names, e.Name)
			}
			return names, cobra.ShellCompDirectiveDefault
		},
	}
	name := cmd.Flags().String("as", "", "name to give the model (default: one made of MODEL)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == tracer.Name {
			return usageError{fmt.Errorf("model %s is built in, there is nothing to pull", tracer.Name)}
		}
		if err := store.CheckReference(args[0], *name); err != nil {
			return usageError{err}
		}
		s, err := openStore(cmd)
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		view := &pullView{model: args[0], terminal: terminal.New(os.Stderr, os.Getenv), out: cmd.ErrOrStderr()}
		m, err := store.NewPuller(s, os.Getenv).Pull(ctx, args[0], *name, view.report)
		view.end()
		if err == nil && view.last.Phase == store.Rereading {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: already here, and its sha256 is right\n", args[0])
		}
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("pull %s: %w%s", args[0], context.Canceled, view.advice())
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  sha256:%s\n", m.Name, size(m.Size), m.SHA256)
		return err
	}
	return cmd
}

// pullView shows a pull: a bar to a person, a line a phase to everybody else.
type pullView struct {
	model    string
	terminal *terminal.Terminal
	out      io.Writer
	begun    bool
	last     store.Progress
	bar      *terminal.Bar
}

func (v *pullView) report(p store.Progress) {
	if p.Phase != v.last.Phase || !v.begun {
		v.end()
		if v.last.Phase == store.Rereading {
			fmt.Fprintf(v.out, "%s: here, but its sha256 is not right: fetching it anew\n", v.model)
		}
		if !v.terminal.IsTerminal() || p.Total == 0 {
			fmt.Fprintf(v.out, "%s: %s\n", v.model, p.Phase)
		}
	}
	v.begun, v.last = true, p
	if !slices.Contains([]store.Phase{store.Downloading, store.Copying, store.Unpacking, store.Rereading}, p.Phase) {
		return
	}
	if v.bar == nil {
		v.bar = v.terminal.Bar(p.Phase.String(), p.Total)
	}
	v.bar.Set(p.Done)
}

// advice is what an interrupted pull can promise.
func (v *pullView) advice() string {
	if v.last.Fleeting {
		return "; the same command begins anew"
	}
	return "; run the same command to go on"
}

func (v *pullView) end() {
	if v.bar != nil {
		v.bar.End()
		v.bar = nil
	}
}

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the models that are here",
		Example: "  bulkhead list\n  bulkhead list --catalog\n  bulkhead list --json",
		Args:    args(cobra.NoArgs),
	}
	catalog := cmd.Flags().Bool("catalog", false, "list the models that can be pulled by name")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *catalog {
			return listCatalog(cmd.OutOrStdout(), *asJSON)
		}
		s, err := openStore(cmd)
		if err != nil {
			return err
		}
		models, err := s.List()
		if err != nil {
			return err
		}
		if *asJSON {
			return writeJSON(cmd.OutOrStdout(), append([]store.Model{}, models...))
		}
		rows := [][]string{{"NAME", "SIZE", "SHA256", "PULLED", "SOURCE"}}
		for _, m := range models {
			rows = append(rows, []string{m.Name, size(m.Size), m.SHA256[:12], m.Pulled.Local().Format("2006-01-02 15:04"), m.Source})
		}
		return writeTable(cmd.OutOrStdout(), rows)
	}
	return cmd
}

func listCatalog(out io.Writer, asJSON bool) error {
	if asJSON {
		return writeJSON(out, store.Catalog())
	}
	rows := [][]string{{"NAME", "SIZE", "LICENCE", "WHAT"}}
	for _, e := range store.Catalog() {
		rows = append(rows, []string{e.Name, size(e.Size), e.Licence, e.Title})
	}
	return writeTable(out, rows)
}

func writeJSON(out io.Writer, value any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

func writeTable(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func newShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show MODEL",
		Short:             "show what a model is",
		Example:           "  bulkhead show smollm2:135m\n  bulkhead show ./model.gguf",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: modelNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := openNamed(cmd, args[0])
			if err != nil {
				return err
			}
			defer func() { _ = m.file.Close() }() // it was only read
			return writeTable(cmd.OutOrStdout(), showRows(m))
		},
	}
}

// named is a model file that a user named, and what the store knows of it.
type named struct {
	name  string
	path  string
	entry store.Model // zero for a file that is not in the store
	file  *gguf.File
	store.Description
}

// openNamed opens a model for reading about it; the caller closes its file.
func openNamed(cmd *cobra.Command, model string) (m named, err error) {
	if model == tracer.Name {
		m = named{name: model, path: "built in", file: tracer.File()}
		m.Description, err = store.Describe(m.file)
		m.Licence = "Apache-2.0, as this program"
		return m, err
	}
	s, err := openStore(cmd)
	if err != nil {
		return named{}, err
	}
	if m.path, m.name, err = s.Resolve(model); err != nil {
		return named{}, err
	}
	if entry, err := s.Find(m.name); err == nil && s.Path(entry) == m.path {
		m.entry = entry
	}
	if m.file, err = gguf.Open(m.path); err != nil {
		return named{}, configError{err}
	}
	if m.Description, err = store.Describe(m.file); err != nil {
		return named{}, errors.Join(configError{err}, m.file.Close())
	}
	return m, nil
}

// layout is the model's KV page, an error if the file does not say enough.
func (m named) layout() (kv.Layout, error) {
	l := kv.Layout{Layers: m.Layers, KVHeads: m.KVHeads, KeyDim: m.KeyDim, ValueDim: m.ValueDim}
	return l, l.Validate()
}

func showRows(m named) [][]string {
	rows := [][]string{
		{"name", m.name},
		{"title", cmp.Or(m.Title, "the file states none")},
		{"licence", licences(m)},
		{"architecture", m.Architecture},
		{"parameters", fmt.Sprintf("%.1f M", float64(m.Parameters)/1e6)},
		{"formats", formats(m)},
		{"context", fmt.Sprintf("%d tokens", m.ContextTokens)},
		{"vocabulary", fmt.Sprintf("%d tokens", m.Vocabulary)},
		{"layers", fmt.Sprint(m.Layers)},
		{"heads", fmt.Sprintf("%d query, %d key-value, %d and %d wide", m.Heads, m.KVHeads, m.KeyDim, m.ValueDim)},
	}
	if l, err := m.layout(); err == nil {
		rows = append(rows, []string{"KV", fmt.Sprintf("%d bytes a token, %d bytes a page of %d tokens", capacity.TokenBytes(l), l.StrideBytes(), kv.PageTokens)})
	}
	template := "none"
	if m.HasTemplate {
		template = "yes"
	}
	rows = append(rows, []string{"chat template", template}, []string{"file", m.path})
	if m.entry.SHA256 != "" {
		rows = append(rows, []string{"size", size(m.entry.Size)}, []string{"sha256", m.entry.SHA256}, []string{"source", m.entry.Source})
	}
	return rows
}

// licences is what the source and the file state, in that order where they differ.
func licences(m named) string {
	source, file := m.entry.Licence, m.Licence
	if source != "" && file != "" && !strings.EqualFold(source, file) {
		return fmt.Sprintf("%s by its source, %s by the file", source, file)
	}
	return cmp.Or(source, file, "unknown")
}

func formats(m named) string {
	parts := make([]string, len(m.Formats))
	for i, f := range m.Formats {
		parts[i] = fmt.Sprintf("%s %.1f %% (%s)", f.Format, 100*float64(f.Parameters)/float64(max(1, m.Parameters)), size(f.Bytes))
	}
	return strings.Join(parts, ", ")
}

func newRemove() *cobra.Command {
	return &cobra.Command{
		Use:               "rm MODEL...",
		Short:             "remove models",
		Long:              "Remove models. A server that runs one keeps it until it stops.",
		Example:           "  bulkhead rm smollm2:135m",
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: modelNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := openStore(cmd)
			if err != nil {
				return err
			}
			for _, name := range args {
				if name == tracer.Name {
					return usageError{fmt.Errorf("model %s is built in, there is nothing to remove", name)}
				}
				freed, err := s.Remove(cmd.Context(), name)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "removed %s, %s freed\n", name, size(freed)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
