package store

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const nameBytesMax = 200

// refKind says where a reference leads.
type refKind uint8

const (
	refCatalog refKind = iota // a name of the built-in catalog
	refFile                   // a file of this machine
	refURL                    // an http or https address
	refHub                    // a file in a repository of the Hugging Face hub
)

// ref is a parsed reference to a model to pull.
type ref struct {
	kind refKind
	text string   // the path, address or catalog name
	url  *url.URL // of refURL
	// Of refHub: the repository, and the file's path in it or a quantization's
	// name or nothing.
	repo, file, quant string
}

// parseRef reads what a user calls a model:
//
//	smollm2:135m                   a name of the catalog
//	./model.gguf, /models/m.gguf   a file
//	https://host/path/model.gguf   an address
//	hf:owner/repo/file.gguf        a file on the hub
//	owner/repo:Q4_K_M              the file of that quantization, hf: is optional
func parseRef(text string) (ref, error) {
	rest, hub := strings.CutPrefix(text, "hf:")
	switch {
	case text == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return ref{}, fault.New(fault.Invalid, "model %q is empty or has control characters", text)
	case hub:
		return parseHubRef(text, rest)
	case strings.Contains(text, "://"):
		return parseURLRef(text)
	case isPath(text):
		return ref{kind: refFile, text: text}, nil
	case isFile(text) && !known(text):
		return ref{}, fault.New(fault.Invalid, "model %q is no name; to pull the file, write ./%s", text, text)
	case strings.Count(text, "/") == 1:
		return parseHubRef(text, text)
	case strings.Contains(text, "/"):
		return ref{}, fault.New(fault.Invalid, "model %q is not an existing file; a file on the hub is hf:owner/repo/file.gguf", text)
	}
	return ref{kind: refCatalog, text: text}, nil
}

// isPath tells a file's path from a name: it starts like one, or ends in .gguf
// and exists.
func isPath(text string) bool {
	if filepath.IsAbs(text) || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") {
		return true
	}
	if !strings.HasSuffix(strings.ToLower(text), ".gguf") || strings.Contains(text, "://") {
		return false
	}
	_, err := os.Stat(text)
	return err == nil
}

func isFile(text string) bool {
	info, err := os.Stat(text)
	return err == nil && info.Mode().IsRegular()
}

func parseURLRef(text string) (ref, error) {
	u, err := url.Parse(text)
	if err != nil {
		return ref{}, fault.New(fault.Invalid, "model address can't be read as a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return ref{}, fault.New(fault.Invalid, "model address %s: want http:// or https:// and a host", plainURL(u))
	}
	return ref{kind: refURL, text: text, url: u}, nil
}

func parseHubRef(text, rest string) (ref, error) {
	r := ref{kind: refHub, text: text}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) == 3 {
		r.file = parts[2]
	} else {
		rest, r.quant, _ = strings.Cut(rest, ":")
		parts = strings.SplitN(rest, "/", 3)
	}
	for _, p := range parts {
		if !validPart(p) {
			return ref{}, fault.New(fault.Invalid, "model %q: want hf:owner/repo/file.gguf or owner/repo:quantization", text)
		}
	}
	if len(parts) < 2 || strings.HasSuffix(rest, "/") {
		return ref{}, fault.New(fault.Invalid, "model %q: want hf:owner/repo/file.gguf or owner/repo:quantization", text)
	}
	r.repo = parts[0] + "/" + parts[1]
	return r, nil
}

// validPart keeps a part of a hub path from leaving its place in an address or a folder.
func validPart(p string) bool {
	for elem := range strings.SplitSeq(p, "/") {
		if elem == "" || elem == "." || elem == ".." || strings.ContainsAny(elem, `\?#%:@`) {
			return false
		}
	}
	return true
}

// name is what the model is called when the user does not choose.
func (r ref) name() string {
	switch r.kind {
	case refFile:
		return fileName(r.text)
	case refURL:
		return fileName(r.url.Path)
	case refHub:
		if r.file != "" {
			return r.repo + "/" + r.file
		}
		if r.quant != "" {
			return r.repo + ":" + r.quant
		}
		return r.repo
	case refCatalog:
	}
	return FullName(r.text)
}

// fileName makes a model's name of a file's: the last element, less ".gguf".
func fileName(p string) string {
	base := path.Base(filepath.ToSlash(p))
	if ext := path.Ext(base); strings.EqualFold(ext, ".gguf") {
		base = base[:len(base)-len(ext)]
	}
	return base
}

// checkName refuses names that could be taken for a path, an address or a flag.
func checkName(name string) error {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("._-:/", r)
	})
	if bad || name == "" || len(name) > nameBytesMax || strings.ContainsAny(name[:1], "._-:/") || strings.Contains(name, "//") {
		return fault.New(fault.Invalid, "model name %q: want 1 to %d letters, digits and . _ - : / and a letter or digit first", name, nameBytesMax)
	}
	return nil
}

// plainURL is an address without what may be secret: credentials and query.
func plainURL(u *url.URL) string {
	plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return plain.String()
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
