package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"sigs.k8s.io/yaml"
)

// Bounds of a cluster file.
const (
	fileBytesMax = 1 << 20
	workersMax   = 256
	threadsMax   = 1024
	// socketPathMax is what fits into a sockaddr_un.
	socketPathMax = 107
)

// File is the static cluster file: YAML, in which unknown keys are errors.
//
//	model: smollm2:135m
//	context: auto                 # or a number of tokens
//	tls:
//	  ca: certs/ca.pem            # relative paths start at the file's folder
//	  cert: certs/{name}.pem      # {name} is the node's own name
//	  key: certs/{name}-key.pem
//	gateway:
//	  listen: 127.0.0.1:8080
//	workers:
//	- name: p1
//	  role: prefill
//	  control: 10.0.0.1:7001      # or unix:///path
//	  transfer: tcp://10.0.0.1:7101
//	- name: d1
//	  role: decode
//	  control: 10.0.0.2:7001
//	  pool: 65536                 # tokens; or bytes: 512MiB
//	  threads: 8
type File struct {
	Model   string   `json:"model"`
	Context Context  `json:"context,omitzero"`
	TLS     TLS      `json:"tls"`
	Gateway Gateway  `json:"gateway"`
	Workers []Worker `json:"workers"`
}

// TLS says how nodes authenticate each other: with files, or, by name, not at all.
type TLS struct {
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
	// Plaintext turns authentication off. Whoever reaches a worker's port can
	// then act as the gateway, so only loopback addresses and sockets are accepted.
	Plaintext bool `json:"plaintext,omitempty"`
	// PlaintextRemote accepts any address with Plaintext.
	PlaintextRemote bool `json:"plaintextRemote,omitempty"`
}

// Gateway is the node that serves the API.
type Gateway struct {
	Name   string     `json:"name,omitempty"` // default "gateway"
	Listen string     `json:"listen"`         // host:port of the API
	TLS    *PublicTLS `json:"tls,omitempty"`  // nil: plain HTTP, on loopback addresses only
	// PlaintextRemote accepts plain HTTP at any address: keys and texts can then be
	// read on their way, unless something in front of the gateway ends TLS.
	PlaintextRemote bool `json:"plaintextRemote,omitempty"`
}

// PublicTLS is the certificate of the API's listener.
type PublicTLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Worker is one prefill or decode node.
type Worker struct {
	Name     string `json:"name"`
	Role     Role   `json:"role"`
	Control  string `json:"control"`            // host:port or unix:///path, where the gateway reaches it
	Transfer string `json:"transfer,omitempty"` // tcp://host:port or shm:///path, where decode reaches prefill
	Pool     Pool   `json:"pool,omitzero"`      // zero: as much as fits
	Threads  int    `json:"threads,omitempty"`  // 0: all cores
}

// Context is a served context in tokens; zero, written "auto", is the longest
// that all workers can hold.
type Context int

// Pool is the size of a worker's pool, in tokens or in bytes; at most one is set.
type Pool struct {
	Tokens int
	Bytes  int64
}

// ReadFile reads and validates a cluster file.
func ReadFile(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster file: %w", err)
	}
	if info.Size() > fileBytesMax {
		return nil, fmt.Errorf("read cluster file %s: %d bytes, must be at most %d", path, info.Size(), fileBytesMax)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster file: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read cluster file %s: %w", path, err)
	}
	f, err := ParseFile(data, dir)
	if err != nil {
		return nil, fmt.Errorf("cluster file %s: %w", path, err)
	}
	return f, nil
}

// ParseFile reads a cluster file whose relative paths start at dir, fills in
// defaults and validates it. The error lists all mistakes.
func ParseFile(data []byte, dir string) (*File, error) {
	if documents(data) > 1 {
		return nil, errors.New("more than one YAML document, must be 1")
	}
	f := new(File)
	if err := Unmarshal(data, f); err != nil {
		return nil, err
	}
	if f.Gateway.Name == "" {
		f.Gateway.Name = "gateway"
	}
	f.resolve(dir)
	return f, f.Validate()
}

// Marshal is the inverse of ParseFile.
func (f *File) Marshal() ([]byte, error) { return yaml.Marshal(f) }

// documents counts the YAML documents: those that "---" begins, and content
// before the first of them.
func documents(data []byte) int {
	count, content := 0, false
	for line := range bytes.Lines(data) {
		text := bytes.TrimSpace(line)
		switch {
		case bytes.HasPrefix(line, []byte("---")) && (len(text) == 3 || line[3] == ' '):
			count++
			content = true
		case !content && len(text) > 0 && text[0] != '#' && text[0] != '%':
			count++
			content = true
		}
	}
	return count
}

func (f *File) resolve(dir string) {
	paths := []*string{&f.TLS.CA, &f.TLS.Cert, &f.TLS.Key}
	if f.Gateway.TLS != nil {
		paths = append(paths, &f.Gateway.TLS.Cert, &f.Gateway.TLS.Key)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// Find is the worker of that name.
func (f *File) Find(name string) (Worker, bool) {
	for _, w := range f.Workers {
		if w.Name == name {
			return w, true
		}
	}
	return Worker{}, false
}

// Identity is the named node's identity, gateway or worker.
func (f *File) Identity(name string) (certs.Identity, error) {
	if name == f.Gateway.Name {
		return certs.Identity{Role: certs.Gateway, Name: name}, nil
	}
	w, ok := f.Find(name)
	if !ok {
		return certs.Identity{}, fmt.Errorf("node %.80q is not in the cluster file", name)
	}
	return w.Identity(), nil
}

// Security loads how the named node proves who it is to the others.
func (f *File) Security(name string) (Security, error) {
	id, err := f.Identity(name)
	if err != nil {
		return Security{}, err
	}
	if f.TLS.Plaintext {
		if f.TLS.PlaintextRemote {
			return PlaintextRemote(), nil
		}
		return Plaintext(), nil
	}
	own := strings.NewReplacer("{name}", name)
	m, err := certs.Load(certs.Files{CA: f.TLS.CA, Cert: own.Replace(f.TLS.Cert), Key: own.Replace(f.TLS.Key)})
	if err != nil {
		return Security{}, err
	}
	if m.Identity() != id {
		return Security{}, fmt.Errorf("certificate is of %v, the cluster file makes this node %v", m.Identity(), id)
	}
	return Mutual(m), nil
}

// Identity is what the worker's certificate must say.
func (w Worker) Identity() certs.Identity {
	return certs.Identity{Role: w.Role.certificate(), Name: w.Name}
}

// ControlAddress is the network ("tcp" or "unix") and the address to listen on
// or to dial.
func (w Worker) ControlAddress() (network, address string) {
	if path, ok := strings.CutPrefix(w.Control, "unix://"); ok {
		return "unix", path
	}
	return "tcp", w.Control
}

// TransferAddress is the transport ("tcp" or "shm") and its address or path.
func (w Worker) TransferAddress() (transport, address string) {
	transport, address, _ = strings.Cut(w.Transfer, "://")
	return transport, address
}

// Validate lists all mistakes.
func (f *File) Validate() error {
	var mistakes []error
	add := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if f.Model == "" {
		add("model: is missing")
	}
	f.TLS.validate(add)
	f.Gateway.validate(add)
	if len(f.Workers) > workersMax {
		add("workers: %d, must be at most %d", len(f.Workers), workersMax)
		return errors.Join(mistakes...)
	}
	roles := map[Role]int{}
	taken := map[string]string{"name " + f.Gateway.Name: "gateway"}
	for i, w := range f.Workers {
		at := fmt.Sprintf("workers[%d] %.80q", i, w.Name)
		roles[w.Role]++
		w.validate(at, f.TLS, add)
		for _, what := range []string{"name " + w.Name, "control " + w.Control, "transfer " + w.Transfer} {
			if strings.HasSuffix(what, " ") {
				continue
			}
			if other := taken[what]; other != "" {
				add("%s: %s is already that of %s", at, what, other)
			}
			taken[what] = at
		}
	}
	for _, r := range []Role{Prefill, Decode} {
		if roles[r] == 0 {
			add("workers: no %v worker, must be at least 1", r)
		}
	}
	return errors.Join(mistakes...)
}

func (t TLS) validate(add func(string, ...any)) {
	files := t.CA != "" || t.Cert != "" || t.Key != ""
	switch {
	case t.Plaintext && files:
		add("tls: plaintext and files exclude each other")
	case !t.Plaintext && t.PlaintextRemote:
		add("tls: plaintextRemote needs plaintext")
	case !t.Plaintext && (t.CA == "" || t.Cert == "" || t.Key == ""):
		add("tls: ca, cert and key are needed, or plaintext: true")
	}
}

func (g Gateway) validate(add func(string, ...any)) {
	if err := certs.CheckName(g.Name); err != nil {
		add("gateway: %w", err)
	}
	host, err := splitHostPort(g.Listen, 0)
	switch {
	case err != nil:
		add("gateway: listen: %w", err)
	case g.TLS != nil && g.PlaintextRemote:
		add("gateway: tls and plaintextRemote exclude each other")
	case g.TLS == nil && !g.PlaintextRemote && !loopback(host):
		add("gateway: listen: %s: plain HTTP is for loopback addresses only: give tls, or plaintextRemote: true", g.Listen)
	}
	if g.TLS != nil && (g.TLS.Cert == "" || g.TLS.Key == "") {
		add("gateway: tls: cert and key are needed")
	}
}

func (w Worker) validate(at string, t TLS, add func(string, ...any)) {
	if err := certs.CheckName(w.Name); err != nil {
		add("%s: %w", at, err)
	}
	if w.Role != Prefill && w.Role != Decode {
		add("%s: role is missing", at)
	}
	if err := checkAddress(w.ControlAddress, "unix", t); err != nil {
		add("%s: control: %w", at, err)
	}
	if w.Transfer == "" {
		if w.Role == Prefill {
			add("%s: transfer is missing: decode workers connect there", at)
		}
	} else if err := checkAddress(w.TransferAddress, "shm", t); err != nil {
		add("%s: transfer: %w", at, err)
	}
	if w.Threads < 0 || w.Threads > threadsMax {
		add("%s: threads is %d, must be 0 to %d", at, w.Threads, threadsMax)
	}
}

// checkAddress holds an address to its form: tcp, or the local kind with a path.
func checkAddress(address func() (kind, address string), local string, t TLS) error {
	kind, a := address()
	switch kind {
	case local:
		if !filepath.IsAbs(a) {
			return fmt.Errorf("%.80q: must be an absolute path", a)
		}
		if len(a) > socketPathMax {
			return fmt.Errorf("%.40q...: path of %d bytes, must be at most %d", a, len(a), socketPathMax)
		}
		return nil
	case "tcp":
		host, err := splitHostPort(a, 1)
		if err != nil {
			return err
		}
		if t.Plaintext && !t.PlaintextRemote && !loopback(host) {
			return fmt.Errorf("%s: plaintext is for loopback addresses only, unless plaintextRemote: true", a)
		}
		return nil
	}
	return fmt.Errorf("%.40q: must be tcp or %s", kind, local)
}

func splitHostPort(address string, portMin int) (host string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%.80q: must be host:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < portMin || n > 65535 {
		return "", fmt.Errorf("%.80q: port must be %d to 65535", address, portMin)
	}
	if host == "" && portMin > 0 {
		return "", fmt.Errorf("%.80q: host is missing", address)
	}
	return host, nil
}

// Loopback reports whether the host of host:port can only be this one.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopback(host)
}

// loopback reports whether a host can only be this one.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// UnmarshalJSON reads "auto" or a number of tokens.
func (c *Context) UnmarshalJSON(b []byte) error {
	if string(b) == `"auto"` {
		*c = 0
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 || n > TokensMax {
		return fmt.Errorf("context %.40s: must be auto or 1 to %d", b, TokensMax)
	}
	*c = Context(n)
	return nil
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (c Context) MarshalJSON() ([]byte, error) {
	if c == 0 {
		return []byte(`"auto"`), nil
	}
	return json.Marshal(int(c))
}

var poolUnits = []struct {
	suffix string
	bytes  int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// UnmarshalJSON reads a number of tokens, or bytes as a text like "512MiB".
func (p *Pool) UnmarshalJSON(b []byte) error {
	refuse := fmt.Errorf("pool %.40s: must be a number of tokens, or bytes like 512MiB", b)
	if n, err := strconv.Atoi(string(b)); err == nil {
		if n < 1 {
			return refuse
		}
		*p = Pool{Tokens: n}
		return nil
	}
	var text string
	if json.Unmarshal(b, &text) != nil {
		return refuse
	}
	for _, u := range poolUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 1 || n > (1<<60)/u.bytes {
			return refuse
		}
		*p = Pool{Bytes: n * u.bytes}
		return nil
	}
	return refuse
}

// MarshalJSON is the inverse of UnmarshalJSON.
func (p Pool) MarshalJSON() ([]byte, error) {
	if p.Bytes == 0 {
		return json.Marshal(p.Tokens)
	}
	unit := poolUnits[0]
	for _, u := range poolUnits {
		if p.Bytes%u.bytes == 0 {
			unit = u
		}
	}
	return json.Marshal(strconv.FormatInt(p.Bytes/unit.bytes, 10) + unit.suffix)
}
