// Package certs says which node is at the other end of a connection.
//
// Each node has one certificate whose URI name is bulkhead://ROLE/NAME. A
// connection between nodes is TLS 1.3 with certificates on both sides; after the
// usual checks (chain, host, dates) the role of the peer is compared with what
// that side of that connection may be, so that a worker's certificate can't act
// as a gateway, nor one worker's as another's.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
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

// Material is one node's loaded certificate and whom it trusts. Immutable.
type Material struct {
	identity Identity
	pair     tls.Certificate
	roots    *x509.CertPool
}

// Load reads a node's files and checks that they belong together.
func Load(f Files) (*Material, error) {
	roots, err := loadRoots(f.CA)
	if err != nil {
		return nil, err
	}
	if err := privateFile(f.Key); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	if pair.Leaf == nil {
		return nil, fmt.Errorf("load certificate %s: no certificate in it", f.Cert)
	}
	id, err := Of(pair.Leaf)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", f.Cert, err)
	}
	return &Material{id, pair, roots}, nil
}

// Identity is the node that the material belongs to.
func (m *Material) Identity() Identity { return m.identity }

// Server is the configuration of a listener that only nodes of the given roles
// may use.
func (m *Material) Server(allowed ...Role) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.pair},
		RootCAs:      m.roots,
		ClientCAs:    m.roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
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

// Client is the configuration of a connection to the one node want, under the
// host name or address that is dialled.
func (m *Material) Client(want Identity, host string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.pair},
		ClientCAs:    m.roots,
		RootCAs:      m.roots,
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
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load authorities %s: no certificate in it", path)
	}
	return roots, nil
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
