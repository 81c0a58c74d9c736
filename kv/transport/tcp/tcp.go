// Package tcp carries transfer messages and pages over TCP.
//
// Pages travel in the stream, behind their header, and the receiver decides by
// the header whether and where the rest is placed. A fence is therefore local: it
// takes the grant back, wakes the reader if it is parked in the middle of a page
// of that grant, and is done when the reader has let go.
//
// Links are secured by TLS 1.3 with certificates on both sides, unless the caller
// asks for Plaintext by name.
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
	tls   *tls.Config
	plain bool
}

// Plaintext protects nothing: anybody on the way can read and change the pages.
func Plaintext() Security { return Security{plain: true} }

// MutualTLS protects with TLS 1.3 and demands a certificate from both sides. It
// takes Certificates, RootCAs, ClientCAs and ServerName from the configuration;
// an empty ServerName stands for the host that is dialled.
func MutualTLS(config *tls.Config) (Security, error) {
	switch {
	case config == nil:
		return Security{}, errors.New("mutual TLS: no configuration")
	case len(config.Certificates) == 0 && (config.GetCertificate == nil || config.GetClientCertificate == nil):
		return Security{}, errors.New("mutual TLS: no certificate of our own")
	case config.RootCAs == nil || config.ClientCAs == nil:
		return Security{}, errors.New("mutual TLS: no authorities to hold the peer's certificate against, RootCAs and ClientCAs are both needed")
	case config.InsecureSkipVerify:
		return Security{}, errors.New("mutual TLS: verification is switched off")
	}
	own := config.Clone()
	own.MinVersion = tls.VersionTLS13
	own.ClientAuth = tls.RequireAndVerifyClientCert
	own.DynamicRecordSizingDisabled = true
	return Security{tls: own}, nil
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
	link, err := greet(ctx, security.client(conn, addr), config, newDoor)
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

// greet secures a connection, exchanges HELLO and starts the link.
func greet(ctx context.Context, conn net.Conn, config transport.Config, newDoor doorMaker) (*session.Session, error) {
	if secured, ok := conn.(*tls.Conn); ok {
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("secure %v: %w", conn.RemoteAddr(), err)
		}
	}
	greeted, err := session.Greet(ctx, conn, config)
	if err != nil {
		return nil, err
	}
	return greeted.Start(newDoor, func(s *session.Session) session.Carrier { return session.NewInline(s) }), nil
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
		_, err := greet(ctx, conn, config, doors(config.Gate))
		return err
	})}, nil
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

// Close stops taking links and returns when no connection is being greeted any
// more. Links that exist stay.
func (l *Listener) Close() error { return l.inner.Close() }
