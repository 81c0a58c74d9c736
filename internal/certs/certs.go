// Package certs says which node is at the other end of a connection.
//
// Each node has one certificate whose URI name is bulkhead://ROLE/NAME. A
// connection between nodes is TLS 1.3 with certificates on both sides; after the
// usual checks (chain, host, dates) the role of the peer is compared with what
// that side of that connection may be, so that a worker's certificate can't act
// as a gateway, nor one worker's as another's.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/regular"
)

// Role is what a node may do. It is part of the certificate's name.
type Role string

// The roles.
const (
	Gateway Role = "gateway"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

const scheme = "bulkhead"

var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$`)

// CheckName reports whether a node may have this name: 1 to 64 of a-z, 0-9, dot
// and dash, with a letter or digit at both ends.
func CheckName(name string) error {
	if !nodeName.MatchString(name) {
		return fmt.Errorf("node name %.80q: must be 1 to 64 of a-z, 0-9, '.' and '-', with a letter or digit at both ends", name)
	}
	return nil
}

// Identity is a role and a name: who a node is.
type Identity struct {
	Role Role
	Name string // unique in the cluster
}

// String is the identity's URI.
func (id Identity) String() string { return scheme + "://" + string(id.Role) + "/" + id.Name }

// Validate reports an unknown role or an impossible name.
func (id Identity) Validate() error {
	if id.Role != Gateway && id.Role != Prefill && id.Role != Decode {
		return fmt.Errorf("role %.80q: must be gateway, prefill or decode", string(id.Role))
	}
	return CheckName(id.Name)
}

// Of reads the identity of a certificate. It must have exactly one.
func Of(c *x509.Certificate) (Identity, error) {
	var found []Identity
	for _, u := range c.URIs {
		if u.Scheme == scheme {
			found = append(found, Identity{Role(u.Host), strings.TrimPrefix(u.Path, "/")})
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("certificate has %d names of the form bulkhead://ROLE/NAME, must have 1", len(found))
	}
	return found[0], found[0].Validate()
}

// IsNode reports why the other end of a finished handshake is not the node that it
// says it is, with both names, or nil.
func IsNode(s tls.ConnectionState, node string) error {
	peer, err := PeerOf(s)
	if err != nil {
		return err
	}
	if peer.Name != node {
		return fmt.Errorf("refuse a peer that says it is node %q: its certificate is of %v", node, peer)
	}
	return nil
}

// PeerOf is the identity at the other end of a finished handshake.
func PeerOf(s tls.ConnectionState) (Identity, error) {
	if len(s.PeerCertificates) == 0 {
		return Identity{}, errors.New("peer shows no certificate")
	}
	return Of(s.PeerCertificates[0])
}

// Files are the paths of one node's PEM files.
type Files struct {
	CA   string // certificates of the authorities that are trusted
	Cert string // the node's chain
	Key  string // the node's private key; readable by its owner only
}

// Material is one node's certificate and whom it trusts, as its files have them: see
// Follow. Safe for concurrent use.
type Material struct {
	files    Files
	identity Identity // immutable
	follower *Follower
	now      atomic.Pointer[loaded]
}

// loaded is what a node's files hold. Immutable.
type loaded struct {
	identity Identity
	pair     tls.Certificate
	roots    *x509.CertPool
}

// Load reads a node's files and checks that they belong together: that the key is the
// certificate's, that an authority in the files has signed it, that it is for both ends of
// a connection, and that all dates hold now. The error names the file.
func Load(f Files) (*Material, error) {
	m := &Material{files: f}
	m.follower = NewFollower([]string{f.CA, f.Cert, f.Key}, m.Reload)
	first, err := f.load()
	if err != nil {
		return nil, err
	}
	m.identity = first.identity
	m.now.Store(first)
	return m, nil
}

// Follow reads the files again whenever they have changed, until ctx ends.
// Connections are made with what they hold then; those that stand stay. Files that
// Load would refuse, or that are another node's, change nothing: see Follower.Run.
func (m *Material) Follow(ctx context.Context, log *slog.Logger, failed func()) {
	m.follower.Run(ctx, log, failed)
}

// Reload reads the files now, for connections that are made from now on. On an error
// nothing changes.
func (m *Material) Reload() error {
	fresh, err := m.files.load()
	if err != nil {
		return err
	}
	if fresh.identity != m.identity {
		return fmt.Errorf("load certificate %s: it is of %v, this node is %v", m.files.Cert, fresh.identity, m.identity)
	}
	m.now.Store(fresh)
	return nil
}

func (f Files) load() (*loaded, error) {
	roots, err := loadRoots(f.CA)
	if err != nil {
		return nil, err
	}
	if err := privateFile(f.Key); err != nil {
		return nil, err
	}
	pair, err := loadPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	id, err := Of(pair.Leaf)
	if err == nil {
		err = checkChain(pair, roots, f.CA, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", f.Cert, err)
	}
	return &loaded{id, *pair, roots}, nil
}

// Identity is the node that the material belongs to.
func (m *Material) Identity() Identity { return m.identity }

// Server is the configuration of a listener that only nodes of the given roles
// may use.
func (m *Material) Server(allowed ...Role) *tls.Config {
	config := m.server(allowed)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return m.server(allowed), nil }
	return config
}

// server is the configuration of one connection to a listener. Without tickets each
// is held against the authorities of its day.
func (m *Material) server(allowed []Role) *tls.Config {
	now := m.now.Load()
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{now.pair},
		RootCAs:                now.roots,
		ClientCAs:              now.roots,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			peer, err := PeerOf(s)
			if err != nil {
				return err
			}
			if !slices.Contains(allowed, peer.Role) {
				return fmt.Errorf("refuse %v: the peer's role must be one of %v", peer, allowed)
			}
			return nil
		},
	}
}

// Client is the configuration of one connection, made now, to the one node want,
// under the host name or address that is dialled.
func (m *Material) Client(want Identity, host string) *tls.Config {
	now := m.now.Load()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{now.pair},
		ClientCAs:    now.roots,
		RootCAs:      now.roots,
		ServerName:   host,
		VerifyConnection: func(s tls.ConnectionState) error {
			peer, err := PeerOf(s)
			if err != nil {
				return err
			}
			if peer != want {
				return fmt.Errorf("refuse %v: expected %v", peer, want)
			}
			return nil
		},
	}
}

func loadRoots(path string) (*x509.CertPool, error) {
	pem, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("load authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load authorities %s: no certificate in it", path)
	}
	return roots, nil
}

// readFile is os.ReadFile for a regular file; anything else is a *regular.NotRegular.
func readFile(path string) ([]byte, error) {
	in, _, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // it was only read
	return io.ReadAll(in)
}

// privateFile refuses a key that others can read.
func privateFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("load key: %w", err)
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return fmt.Errorf("load key %s: mode %04o lets others at it, must be 0600", path, info.Mode().Perm())
	}
	return nil
}
