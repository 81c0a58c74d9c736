package cluster

import (
	"errors"
	"fmt"
	"net"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Security says how a node proves who it is. The zero value is refused: there is
// no way to leave it out by accident.
type Security struct {
	mode     securityMode
	material *certs.Material
}

type securityMode uint8

const (
	mutual securityMode = iota + 1
	plaintext
	plaintextRemote
)

// Mutual is TLS with certificates on both sides.
func Mutual(m *certs.Material) Security { return Security{mutual, m} }

// Plaintext is no authentication, accepted on loopback addresses and sockets.
func Plaintext() Security { return Security{mode: plaintext} }

// PlaintextRemote is no authentication on any address.
func PlaintextRemote() Security { return Security{mode: plaintextRemote} }

// Material is the node's certificate, nil in plaintext.
func (s Security) Material() *certs.Material { return s.material }

// server is for a worker that is listening on the address.
func (s Security) server(on net.Addr) (credentials.TransportCredentials, error) {
	if s.mode == mutual {
		return credentials.NewTLS(s.material.Server(certs.Gateway)), nil
	}
	host := "localhost" // a socket's path can't be reached from elsewhere
	if on.Network() != "unix" {
		var err error
		if host, _, err = net.SplitHostPort(on.String()); err != nil {
			return nil, fmt.Errorf("listener address %s: %w", on, err)
		}
	}
	return s.open(host)
}

// client is for a gateway that dials the worker.
func (s Security) client(w Worker) (credentials.TransportCredentials, error) {
	network, address := w.ControlAddress()
	host := "localhost"
	if network == "tcp" {
		var err error
		if host, _, err = net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("worker %s: address %s: %w", w.Name, address, err)
		}
	}
	if s.mode == mutual {
		return credentials.NewTLS(s.material.Client(w.Identity(), host)), nil
	}
	return s.open(host)
}

func (s Security) open(host string) (credentials.TransportCredentials, error) {
	switch {
	case s.mode == plaintextRemote, s.mode == plaintext && loopback(host):
		return insecure.NewCredentials(), nil
	case s.mode == plaintext:
		return nil, fmt.Errorf("plaintext at %s: only loopback addresses are accepted without certificates", host)
	}
	return nil, errors.New("no security is configured: certificates or, by name, plaintext")
}
