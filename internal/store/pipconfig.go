package store

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const pipConfigBytesMax = 1 << 20

// pipIndexes are the package indexes that pip's settings name, the main one
// first. As with pip, the environment wins over the files and a later file over
// an earlier one. It knows no index of its own.
func pipIndexes(paths []string, getenv func(string) string) ([]*url.URL, error) {
	found := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || len(text) > pipConfigBytesMax {
			return nil, fault.New(fault.Invalid, "pip settings %s can't be read", path)
		}
		readPipConfig(text, found)
	}
	for key, variable := range map[string]string{"index-url": "PIP_INDEX_URL", "extra-index-url": "PIP_EXTRA_INDEX_URL", "no-index": "PIP_NO_INDEX"} {
		if value := getenv(variable); value != "" {
			found[key] = value
		}
	}
	switch strings.ToLower(found["no-index"]) {
	case "1", "true", "yes", "on":
		return nil, nil
	}
	var out []*url.URL
	for _, text := range strings.Fields(found["index-url"] + " " + found["extra-index-url"]) {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fault.New(fault.Invalid, "pip settings: an index is not an http or https address")
		}
		out = append(out, u)
	}
	return out, nil
}

// pipConfigPaths are pip's files: the machine's, the user's, then the one named
// by PIP_CONFIG_FILE.
func pipConfigPaths(getenv func(string) string) []string {
	named := getenv("PIP_CONFIG_FILE")
	if named == os.DevNull {
		return nil
	}
	var paths []string
	for _, dir := range filepath.SplitList(getenv("XDG_CONFIG_DIRS")) {
		paths = append(paths, filepath.Join(dir, "pip", "pip.conf"))
	}
	paths = append(paths, "/etc/pip.conf")
	if home := getenv("HOME"); home != "" {
		config := getenv("XDG_CONFIG_HOME")
		if config == "" {
			config = filepath.Join(home, ".config")
		}
		paths = append(paths, filepath.Join(home, ".pip", "pip.conf"), filepath.Join(config, "pip", "pip.conf"))
	}
	if venv := getenv("VIRTUAL_ENV"); venv != "" {
		paths = append(paths, filepath.Join(venv, "pip.conf"))
	}
	if named != "" {
		paths = append(paths, named)
	}
	return paths
}

// readPipConfig reads the INI dialect of pip's files: sections, "key = value" and
// "key: value", values that go on in indented lines. The section of the command
// wins over [global].
func readPipConfig(text []byte, found map[string]string) {
	global, command := map[string]string{}, map[string]string{}
	var section map[string]string
	key := ""
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, ";"):
		case line != strings.TrimLeft(line, " \t"):
			if section != nil && key != "" {
				section[key] += " " + trimmed
			}
		case strings.HasPrefix(trimmed, "["):
			section, key = map[string]map[string]string{"[global]": global, "[download]": command}[trimmed], ""
		case section != nil:
			if i := strings.IndexAny(trimmed, "=:"); i > 0 {
				key = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(trimmed[:i])), "_", "-")
				section[key] = strings.TrimSpace(trimmed[i+1:])
			}
		}
	}
	for _, values := range []map[string]string{global, command} {
		for k, v := range values {
			found[k] = v
		}
	}
}
