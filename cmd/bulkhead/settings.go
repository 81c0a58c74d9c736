package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

const settingsBytesMax = 1 << 20

// applySettings gives every flag that the command line left alone its value
// from the environment, or else from the settings file.
func applySettings(cmd *cobra.Command) error {
	path, named := settingsPath(cmd)
	file, err := readSettings(cmd.Root(), path, named)
	if err != nil {
		return err
	}
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || failed != nil || !settable(f.Name) {
			return
		}
		variable := flagVariable(f.Name)
		if value, ok := os.LookupEnv(variable); ok {
			if failed = setFlag(cmd, f, value, variable); failed != nil {
				failed = usageError{failed}
			}
		} else if value, ok := file.lookup(cmd, f.Name); ok {
			if failed = setFlag(cmd, f, value, path); failed != nil {
				failed = configError{failed}
			}
		}
	})
	return failed
}

// settable tells the flags that have a value elsewhere from those that say where, and
// from those that say what to do instead.
func settable(flag string) bool { return flag != "help" && flag != "version" && flag != "config" }

// flagVariable is the environment variable of a flag.
func flagVariable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// setFlag never quotes the value: it may be a key.
func setFlag(cmd *cobra.Command, f *pflag.Flag, value, origin string) error {
	if err := cmd.Flags().Set(f.Name, value); err != nil {
		return fmt.Errorf("%s: %q wants a value of type %s", origin, f.Name, f.Value.Type())
	}
	return nil
}

// settingsPath is the file to read, and whether somebody named it: only a file
// that nobody named may be absent.
func settingsPath(cmd *cobra.Command) (path string, named bool) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), true
	}
	if path := os.Getenv("BULKHEAD_CONFIG"); path != "" {
		return path, true
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", false
	}
	return filepath.Join(dir, "bulkhead", "config.yaml"), false
}

// settings are values of flags, by flag name. Under a command's name stands a
// map of values for that command alone:
//
//	url: http://127.0.0.1:8080
//	serve:
//	  listen: 127.0.0.1:9000
type settings map[string]any

func readSettings(root *cobra.Command, path string, named bool) (settings, error) {
	if path == "" {
		return nil, nil
	}
	s, err := parseSettings(root, path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return nil, nil
	case err != nil:
		return nil, configError{fmt.Errorf("read settings: %w", err)}
	}
	return s, nil
}

func parseSettings(root *cobra.Command, path string) (settings, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > settingsBytesMax {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), settingsBytesMax)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s settings
	if err := cluster.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if unknown := s.unknown(root); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: no flag is called %s", path, strings.Join(unknown, ", "))
	}
	return s, nil
}

// lookup finds the value for one command's flag. What stands under the
// command's own name wins.
func (s settings) lookup(cmd *cobra.Command, flag string) (string, bool) {
	if section, ok := s[sectionName(cmd)].(map[string]any); ok {
		if value, ok := section[flag]; ok {
			return scalar(value), true
		}
	}
	value, ok := s[flag]
	if _, nested := value.(map[string]any); !ok || nested {
		return "", false
	}
	return scalar(value), true
}

// sectionName is the command's name without the program's: "tenant add".
func sectionName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// scalar writes a value, or a list of them, as a flag takes it.
func scalar(value any) string {
	if list, ok := value.([]any); ok {
		parts := make([]string, len(list))
		for i, v := range list {
			parts[i] = scalar(v)
		}
		return strings.Join(parts, ",")
	}
	if number, ok := value.(float64); ok && number == float64(int64(number)) {
		return fmt.Sprintf("%d", int64(number))
	}
	return fmt.Sprint(value)
}

// unknown lists the keys that name neither a flag nor a command.
func (s settings) unknown(root *cobra.Command) []string {
	flags, sections := map[string]bool{}, map[string]*cobra.Command{}
	eachCommand(root, func(cmd *cobra.Command) {
		sections[sectionName(cmd)] = cmd
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	})
	var out []string
	for key, value := range s {
		section, nested := value.(map[string]any)
		if !nested && !flags[key] || nested && sections[key] == nil {
			out = append(out, fmt.Sprintf("%q", key))
			continue
		}
		for name := range section {
			cmd := sections[key]
			if cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
				out = append(out, fmt.Sprintf("%q", key+"."+name))
			}
		}
	}
	slices.Sort(out)
	return out
}

func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, child := range cmd.Commands() {
		eachCommand(child, visit)
	}
}
