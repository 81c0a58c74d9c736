package tcp_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
	"github.com/bulkhead-kv/bulkhead/kv/transport/transporttest"
)

// certificatesVariable gives the peer process the certificates of a test that
// runs over TLS.
const certificatesVariable = "BULKHEAD_TCP_CERTIFICATES"

func TestMain(m *testing.M) {
	security := tcp.Plaintext()
	if text := os.Getenv(certificatesVariable); text != "" {
		var err error
		if security, err = mutual(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(transporttest.Main(m, over(security)))
}

func mutual(text string) (tcp.Security, error) {
	config, err := transporttest.MutualTLS(text)
	if err != nil {
		return tcp.Security{}, err
	}
	return tcp.MutualTLS(config, byHostname)
}

// byHostname takes a node's name for a host name of its certificate.
func byHostname(peer tls.ConnectionState, node string) error {
	return peer.PeerCertificates[0].VerifyHostname(node)
}

func TestPlaintext(t *testing.T) { transporttest.Run(t, over(tcp.Plaintext())) }

func TestMutualTLS(t *testing.T) {
	text := transporttest.Certificates(t)
	security, err := mutual(text)
	if err != nil {
		t.Fatal(err)
	}
	secured := over(security)
	secured.Environment = []string{certificatesVariable + "=" + text}
	transporttest.Run(t, secured)
}

func over(security tcp.Security) transporttest.Transport {
	return transporttest.Transport{
		Listen: func(config transport.Config) (transporttest.Listener, error) {
			l, err := tcp.Listen("127.0.0.1:0", config, security)
			if err != nil {
				return nil, err
			}
			return listener{l}, nil
		},
		Dial: func(ctx context.Context, addr string, config transport.Config, _ *os.File) (transport.Link, error) {
			return tcp.Dial(ctx, addr, config, security)
		},
		DialDoor: func(ctx context.Context, addr string, config transport.Config, _ *os.File, newDoor func(func()) transporttest.Door) (transport.Link, error) {
			return tcp.DialDoor(ctx, addr, config, security, newDoor)
		},
	}
}

type listener struct{ *tcp.Listener }

func (l listener) Addr() string { return l.Listener.Addr().String() }

var layout = kv.Layout{Layers: 1, KVHeads: 1, KeyDim: 64, ValueDim: 64}

func source(events chan transport.Event) transport.Config {
	config := transport.Default()
	config.Hello = transfer.Hello{Version: kv.WireVersion, Role: transfer.RolePrefill, Epoch: 1, Node: "p", Fingerprint: kv.Fingerprint{1},
		Layout: layout, PoolPages: 1, ContextTokens: 16}
	config.Events = events
	return config
}

func target(events chan transport.Event) transport.Config {
	config := source(events)
	config.Hello.Role, config.Hello.Epoch, config.Hello.Node = transfer.RoleDecode, 2, "d"
	config.Gate = transport.NewGate(layout, 1, func(kv.Slot) []byte { return make([]byte, layout.FrameBytes()) })
	return config
}

func TestSecurityMustBeChosen(t *testing.T) {
	var none tcp.Security
	events := make(chan transport.Event, 1)
	if _, err := tcp.Listen("127.0.0.1:0", source(events), none); err == nil {
		t.Error("a listener without security started")
	}
	if _, err := tcp.Dial(context.Background(), "127.0.0.1:1", target(events), none); err == nil || !strings.Contains(err.Error(), "plaintext") {
		t.Errorf("dialling without security gives %v", err)
	}
}

func TestMutualTLSNeedsBothSides(t *testing.T) {
	whole, err := transporttest.MutualTLS(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*tls.Config){
		"no certificate":            func(c *tls.Config) { c.Certificates = nil },
		"no authority for sources":  func(c *tls.Config) { c.RootCAs = nil },
		"no authority for targets":  func(c *tls.Config) { c.ClientCAs = nil },
		"verification switched off": func(c *tls.Config) { c.InsecureSkipVerify = true },
	} {
		part := whole.Clone()
		change(part)
		if _, err := tcp.MutualTLS(part, byHostname); err == nil {
			t.Errorf("mutual TLS with %s is accepted", name)
		}
	}
	if _, err := tcp.MutualTLS(nil, byHostname); err == nil {
		t.Error("mutual TLS without a configuration is accepted")
	}
	if _, err := tcp.MutualTLS(whole, nil); err == nil {
		t.Error("mutual TLS that takes a peer's name from its word is accepted")
	}
}

// Each kind of stranger is turned away by the listener before it says HELLO.
func TestStrangersAreTurnedAway(t *testing.T) {
	ours, err := mutual(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := mutual(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan transport.Event, 8)
	l, err := tcp.Listen("127.0.0.1:0", source(events), ours)
	if err != nil {
		t.Fatal(err)
	}
	for name, security := range map[string]tcp.Security{"another authority": theirs, "plaintext": tcp.Plaintext()} {
		if _, err := tcp.Dial(context.Background(), l.Addr().String(), target(make(chan transport.Event, 8)), security); err == nil {
			t.Errorf("a target with %s is let in", name)
		}
		if e := <-events; e.Kind != transport.Rejected || e.Err == nil {
			t.Errorf("a target with %s gives %v (%v), want rejected", name, e.Kind, e.Err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A node with a good certificate says that it is another one: neither side takes it.
func TestANameIsHeldAgainstTheCertificate(t *testing.T) {
	security, err := mutual(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, target string }{{"p", "d"}, {"p", "stranger"}, {"stranger", "d"}} {
		listening, dialling := make(chan transport.Event, 8), make(chan transport.Event, 8)
		from, to := source(listening), target(dialling)
		from.Hello.Node, to.Hello.Node = c.source, c.target
		l, err := tcp.Listen("127.0.0.1:0", from, security)
		if err != nil {
			t.Fatal(err)
		}
		link, err := tcp.Dial(context.Background(), l.Addr().String(), to, security)
		switch {
		case c.target == "stranger": // the listener turns it away, which the dialling side learns from the link's end
			if e := <-listening; e.Kind != transport.Rejected || !strings.Contains(fmt.Sprint(e.Err), "stranger") {
				t.Errorf("a target that says it is a stranger gives %v (%v), want rejected with its name", e.Kind, e.Err)
			}
		case c.source == "stranger":
			if err == nil || !strings.Contains(err.Error(), "stranger") {
				t.Errorf("dialling a source that says it is a stranger gives %v, want an error with its name", err)
			}
		case err != nil:
			t.Errorf("dialling a source of the certificate's name: %v", err)
		}
		if link != nil {
			if err := link.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a configuration makes for each connection is as strict as the rest.
func TestAConfigurationForEachConnectionIsHardened(t *testing.T) {
	whole, err := transporttest.MutualTLS(transporttest.Certificates(t))
	if err != nil {
		t.Fatal(err)
	}
	each := whole.Clone()
	whole.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return each, nil }
	security, err := tcp.MutualTLS(whole, byHostname)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan transport.Event, 8)
	l, err := tcp.Listen("127.0.0.1:0", source(events), security)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: whole.RootCAs})
	if err == nil { // the certificate is missed after the client's part of the handshake
		err = conn.Close()
	}
	if err != nil {
		t.Error(err)
	}
	if e := <-events; e.Kind != transport.Rejected || !strings.Contains(fmt.Sprint(e.Err), "certificate") {
		t.Errorf("a target without a certificate gives %v (%v), want rejected", e.Kind, e.Err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A connection that says nothing holds a listener neither for ever nor when it
// closes.
func TestAMuteConnectionEndsWithTheListener(t *testing.T) {
	events := make(chan transport.Event, 8)
	config := source(events)
	config.HelloTimeout = time.Minute
	l, err := tcp.Listen("127.0.0.1:0", config, tcp.Plaintext())
	if err != nil {
		t.Fatal(err)
	}
	mute, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := mute.Close(); err != nil {
		t.Error(err)
	}
	config.HelloTimeout = 100 * time.Millisecond
	if l, err = tcp.Listen("127.0.0.1:0", config, tcp.Plaintext()); err != nil {
		t.Fatal(err)
	}
	if mute, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != transport.Rejected {
		t.Errorf("a mute connection gives %v, want rejected", e.Kind)
	}
	if err := mute.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	dialled := make(chan error, 1)
	go func() {
		_, err := tcp.Dial(ctx, l.Addr().String(), target(make(chan transport.Event, 8)), tcp.Plaintext())
		dialled <- err
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-dialled; err == nil {
		t.Error("dialling a mute peer succeeded")
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkGuards(b *testing.B) { transporttest.Benchmark(b, over(tcp.Plaintext())) }

func BenchmarkIdle(b *testing.B) { transporttest.BenchmarkIdle(b, over(tcp.Plaintext())) }
