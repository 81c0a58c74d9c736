// Package tcp carries transfer messages and pages over TCP.
//
// Pages travel in the stream, behind their header, and the receiver decides by
// the header whether and where the rest is placed. A fence is therefore local: it
// takes the grant back, wakes the reader if it is parked in the middle of a page
// of that grant, and is done when the reader has let go.
//
// Links are secured by TLS 1.3 with certificates on both sides, unless the caller
// asks for Plaintext by name. What a peer calls itself in HELLO must be the name in
// its certificate.
package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/internal/session"
)

// Security says how a connection is protected. The zero value is refused.
type Security struct {
	tls    *tls.Config
	isNode IsNode
	plain  bool
}

// IsNode reports why the certificate of a peer is not one of the node that the peer
// says it is in its HELLO, or nil.
type IsNode func(peer tls.ConnectionState, node string) error

// Plaintext protects nothing: anybody on the way can read and change the pages.
func Plaintext() Security { return Security{plain: true} }

// MutualTLS protects with TLS 1.3 and demands a certificate from both sides, of the
// node that the peer says it is. It takes Certificates, RootCAs, ClientCAs and
// ServerName from the configuration; an empty ServerName stands for the host that
// is dialled.
func MutualTLS(config *tls.Config, isNode IsNode) (Security, error) {
	switch {
	case config == nil:
		return Security{}, errors.New("mutual TLS: no configuration")
	case isNode == nil:
		return Security{}, errors.New("mutual TLS: nothing holds a peer's name against its certificate")
	case len(config.Certificates) == 0 && (config.GetCertificate == nil || config.GetClientCertificate == nil):
		return Security{}, errors.New("mutual TLS: no certificate of our own")
	case config.RootCAs == nil || config.ClientCAs == nil:
		return Security{}, errors.New("mutual TLS: no authorities to hold the peer's certificate against, RootCAs and ClientCAs are both needed")
	case config.InsecureSkipVerify:
		return Security{}, errors.New("mutual TLS: verification is switched off")
	}
	return Security{tls: hardened(config), isNode: isNode}, nil
}

// hardened is a copy with what no link goes without, also where the configuration
// makes another one for each connection.
func hardened(config *tls.Config) *tls.Config {
	own := config.Clone()
	own.MinVersion = tls.VersionTLS13
	own.ClientAuth = tls.RequireAndVerifyClientCert
	own.DynamicRecordSizingDisabled = true
	if each := config.GetConfigForClient; each != nil {
		own.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			fresh, err := each(hello)
			if fresh == nil || err != nil {
				return nil, err
			}
			return hardened(fresh), nil
		}
	}
	return own
}

func (s Security) validate() error {
	if s.tls == nil && !s.plain {
		return errors.New("tcp: neither TLS nor plaintext was chosen")
	}
	return nil
}

// doorMaker makes the door of one link; tests put unguarded ones in its place.
type doorMaker func(kick func()) session.Door

func doors(gate *transport.Gate) doorMaker {
	if gate == nil {
		return nil
	}
	return func(kick func()) session.Door { return gate.Door(kick) }
}

// Dial connects to a listening peer and returns once both sides know and suit
// each other. The context bounds that, not the link. The event Up comes as well.
func Dial(ctx context.Context, addr string, config transport.Config, security Security) (transport.Link, error) {
	return dial(ctx, addr, config, security, doors(config.Gate))
}

func dial(ctx context.Context, addr string, config transport.Config, security Security, newDoor doorMaker) (transport.Link, error) {
	if err := errors.Join(config.Validate(), security.validate()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, config.HelloTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	link, err := security.greet(ctx, security.client(conn, addr), config, newDoor)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return link, nil
}

func (s Security) client(conn net.Conn, addr string) net.Conn {
	if s.tls == nil {
		return conn
	}
	own := s.tls.Clone()
	if own.ServerName == "" {
		// What can't be split has been dialled all the same, so it is a host.
		if host, _, err := net.SplitHostPort(addr); err == nil {
			own.ServerName = host
		}
	}
	return tls.Client(conn, own)
}

// greet secures a connection, exchanges HELLO, holds it against the certificate and
// starts the link.
func (s Security) greet(ctx context.Context, conn net.Conn, config transport.Config, newDoor doorMaker) (*session.Session, error) {
	if secured, ok := conn.(*tls.Conn); ok {
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("secure %v: %w", conn.RemoteAddr(), err)
		}
	}
	greeted, err := session.Greet(ctx, conn, config)
	if err == nil {
		err = s.identify(conn, greeted.Peer().Node)
	}
	if err != nil {
		return nil, err
	}
	return greeted.Start(newDoor, func(s *session.Session) session.Carrier { return session.NewInline(s) }), nil
}

// identify compares what a peer calls itself with its certificate.
func (s Security) identify(conn net.Conn, node string) error {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	if err := s.isNode(secured.ConnectionState(), node); err != nil {
		return fmt.Errorf("identify %v: %w", conn.RemoteAddr(), err)
	}
	return nil
}

// Listener takes links from dialling peers. They appear as the event Up, and
// what doesn't become a link as Rejected.
type Listener struct{ inner *session.Listener }

// Listen waits for peers on an address of the form host:port.
func Listen(addr string, config transport.Config, security Security) (*Listener, error) {
	if err := errors.Join(config.Validate(), security.validate()); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Listener{session.Listen(listener, config, func(ctx context.Context, conn net.Conn) error {
		if security.tls != nil {
			conn = tls.Server(conn, security.tls)
		}
		_, err := security.greet(ctx, conn, config, doors(config.Gate))
		return err
	})}, nil
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Close stops taking links and returns when no connection is being greeted any
// more. Links that exist stay.
func (l *Listener) Close() error { return l.inner.Close() }
