package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func issue(t *testing.T, dir string, id Identity, hosts ...string) *Material {
	t.Helper()
	a, _, err := OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatalf("open authority: %v", err)
	}
	f, err := a.Issue(id, hosts, time.Now())
	if err != nil {
		t.Fatalf("issue %v: %v", id, err)
	}
	m, err := Load(f)
	if err != nil {
		t.Fatalf("load %v: %v", id, err)
	}
	return m
}

// handshake joins two configurations and gives what each side thinks of it.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	done := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = conn.Close() }()
		s := tls.Server(conn, server)
		if err := s.Handshake(); err != nil {
			done <- err
			return
		}
		_, err = s.Write([]byte("x"))
		done <- err
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := tls.Client(conn, client)
	_, clientErr = io.ReadFull(c, make([]byte, 1)) // TLS 1.3: a refused client learns it at its first read
	if clientErr != nil {
		_ = conn.Close()
	}
	return <-done, clientErr
}

func TestHandshakeChecksChainHostAndRole(t *testing.T) {
	dir, otherDir := t.TempDir(), t.TempDir()
	gw := issue(t, dir, Identity{Gateway, "gateway"})
	p1 := issue(t, dir, Identity{Prefill, "p1"})
	d1 := issue(t, dir, Identity{Decode, "d1"}, "d1.example", "192.0.2.7")
	stranger := issue(t, otherDir, Identity{Gateway, "gateway"})
	for _, tc := range []struct {
		name           string
		server, client *tls.Config
		want           string // in either side's error; empty: both are content
	}{
		{"gateway to prefill", p1.Server(Gateway), gw.Client(Identity{Prefill, "p1"}, "127.0.0.1"), ""},
		{"by host name", d1.Server(Gateway), gw.Client(Identity{Decode, "d1"}, "d1.example"), ""},
		{"by further address", d1.Server(Gateway), gw.Client(Identity{Decode, "d1"}, "192.0.2.7"), ""},
		{"decode to prefill's pages", p1.Server(Decode), d1.Client(Identity{Prefill, "p1"}, "localhost"), ""},
		{"worker acts as gateway", p1.Server(Gateway), d1.Client(Identity{Prefill, "p1"}, "localhost"), "role must be one of [gateway]"},
		{"gateway reads pages", p1.Server(Decode), gw.Client(Identity{Prefill, "p1"}, "localhost"), "role must be one of [decode]"},
		{"another worker answers", d1.Server(Gateway), gw.Client(Identity{Prefill, "p1"}, "localhost"), "expected bulkhead://prefill/p1"},
		{"host not in certificate", p1.Server(Gateway), gw.Client(Identity{Prefill, "p1"}, "p1.example"), "p1.example"},
		{"client of another authority", p1.Server(Gateway), stranger.Client(Identity{Prefill, "p1"}, "localhost"), "unknown authority"},
		{"no client certificate", p1.Server(Gateway), &tls.Config{RootCAs: gw.now.Load().roots, ServerName: "localhost"}, "certificate"},
		{"old protocol", p1.Server(Gateway), &tls.Config{RootCAs: gw.now.Load().roots, ServerName: "localhost", MaxVersion: tls.VersionTLS12}, "version"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, tc.server, tc.client)
			if tc.want == "" {
				if serverErr != nil || clientErr != nil {
					t.Fatalf("handshake must work: server %v, client %v", serverErr, clientErr)
				}
				return
			}
			var all string
			for _, err := range []error{serverErr, clientErr} {
				if err != nil {
					all += err.Error() + "\n"
				}
			}
			if serverErr == nil && clientErr == nil || !strings.Contains(all, tc.want) {
				t.Fatalf("errors must say %q: server %v, client %v", tc.want, serverErr, clientErr)
			}
		})
	}
}

func TestAPeerIsTheNodeOfItsCertificate(t *testing.T) {
	d1 := issue(t, t.TempDir(), Identity{Decode, "d1"})
	shown := tls.ConnectionState{PeerCertificates: []*x509.Certificate{d1.now.Load().pair.Leaf}}
	if err := IsNode(shown, "d1"); err != nil {
		t.Errorf("d1 is not taken for d1: %v", err)
	}
	if err := IsNode(shown, "d2"); err == nil || !strings.Contains(err.Error(), `"d2"`) || !strings.Contains(err.Error(), "bulkhead://decode/d1") {
		t.Errorf("d1 that says it is d2 gives %v, want an error with both names", err)
	}
	if IsNode(tls.ConnectionState{}, "d1") == nil {
		t.Error("a peer without a certificate is taken for d1")
	}
}

func TestFilesAreThereForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	issue(t, dir, Identity{Decode, "d1"})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]os.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = info.Mode().Perm()
	}
	want := map[string]os.FileMode{"ca.pem": 0o600, "ca-key.pem": 0o600, "d1.pem": 0o600, "d1-key.pem": 0o600}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestAuthorityIsKept(t *testing.T) {
	dir := t.TempDir()
	first, made, err := OpenAuthority(dir, time.Now())
	if err != nil || !made {
		t.Fatalf("first open: made %v, error %v", made, err)
	}
	second, made, err := OpenAuthority(dir, time.Now())
	if err != nil || made {
		t.Fatalf("second open: made %v, error %v", made, err)
	}
	if !first.cert.Equal(second.cert) {
		t.Error("the second open must give the first one's authority")
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	a, _, err := OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issued := func(name string) Files {
		f, err := a.Issue(Identity{Prefill, name}, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	open := issued("open")
	if err := os.Chmod(open.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	one, two := issued("one"), issued("two")
	at := func(name string, now time.Time) Files {
		f, err := a.Issue(Identity{Prefill, name}, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	issue(t, filepath.Join(dir, "other"), Identity{Prefill, "foreign"})
	foreign := NodeFiles(filepath.Join(dir, "other"), "foreign")
	for _, tc := range []struct {
		name  string
		files Files
		want  string
	}{
		{"readable key", open, "mode 0644"},
		{"key of another", Files{one.CA, one.Cert, two.Key}, "does not match"},
		{"missing certificate", Files{one.CA, filepath.Join(dir, "none.pem"), one.Key}, "no such file"},
		{"missing authority", Files{filepath.Join(dir, "none.pem"), one.Cert, one.Key}, "no such file"},
		{"authority's file is a key", Files{one.Key, one.Cert, one.Key}, "no certificate in it"},
		{"expired", at("old", time.Now().Add(-2*NodeLife)), "old.pem: it has ended: it was valid until "},
		{"not yet valid", at("new", time.Now().Add(NodeLife)), "new.pem: it is not valid before "},
		{"of another authority", Files{one.CA, foreign.Cert, foreign.Key}, "no authority in " + one.CA + " that is valid now has signed it"},
		{"no node name", Files{one.CA, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")}, "has 0 names"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Load(tc.files); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error must say %q: %v", tc.want, err)
			}
		})
	}
}

// The API's certificate may be of any authority.
func TestLoadPublicRefuses(t *testing.T) {
	dir := t.TempDir()
	a, _, err := OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue(Identity{Gateway, "public"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		key  string
		now  time.Time
		want string // empty: it is taken
	}{
		{"today", f.Key, time.Now(), ""},
		{"too late", f.Key, time.Now().Add(2 * NodeLife), "it has ended"},
		{"too early", f.Key, time.Now().Add(-time.Hour), "it is not valid before"},
		{"another key", filepath.Join(dir, "ca-key.pem"), time.Now(), "does not match"},
	} {
		pair, err := LoadPublic(f.Cert, tc.key, tc.now)
		if tc.want == "" && (err != nil || pair == nil) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
	}
}

// issueFor makes a certificate of a gateway that is for these uses alone.
func (a *Authority) issueFor(t *testing.T, uses []x509.ExtKeyUsage, unknown []asn1.ObjectIdentifier) Files {
	t.Helper()
	template, err := nodeTemplate(Identity{Gateway, "gateway"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	template.ExtKeyUsage, template.UnknownExtKeyUsage = uses, unknown
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	files := NodeFiles(a.dir, "gateway")
	if err := writePair(files.Cert, files.Key, der, key); err != nil {
		t.Fatal(err)
	}
	return files
}

// What peers refuse at each hand-shake is refused when it is loaded: a node is a server
// and a client, the API a server.
func TestLoadRefusesWhatIsForAnotherUse(t *testing.T) {
	const server, client, code = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageCodeSigning
	a, _, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	const notServer = "is not for serverAuth"
	for _, tc := range []struct {
		name         string
		uses         []x509.ExtKeyUsage
		unknown      []asn1.ObjectIdentifier
		node, public string // in the error; empty: it is taken
	}{
		{"both", []x509.ExtKeyUsage{server, client}, nil, "", ""},
		{"not said", nil, nil, "", ""},
		{"any", []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, nil, "", ""},
		{"serverAuth", []x509.ExtKeyUsage{server}, nil, "is not for clientAuth", ""},
		{"clientAuth", []x509.ExtKeyUsage{client}, nil, notServer, notServer},
		{"codeSigning", []x509.ExtKeyUsage{code}, nil, notServer, notServer},
		{"one that nobody knows", nil, []asn1.ObjectIdentifier{{1, 2, 3}}, notServer, notServer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := a.issueFor(t, tc.uses, tc.unknown)
			_, nodeErr := Load(f)
			_, publicErr := LoadPublic(f.Cert, f.Key, time.Now())
			for _, got := range []struct {
				as   string
				err  error
				want string
			}{{"a node's", nodeErr, tc.node}, {"the API's", publicErr, tc.public}} {
				if taken := got.err == nil; taken != (got.want == "") || !taken && !strings.Contains(got.err.Error(), got.want) {
					t.Errorf("as %s it gives the error %v, want %q", got.as, got.err, got.want)
				}
			}
		})
	}
}

// A chain is as good as its worst part, and an error is the same at each look.
func TestAnAuthorityThatHasEndedIsRefused(t *testing.T) {
	dir := t.TempDir()
	a, _, err := OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := issue(t, dir, Identity{Prefill, "p1"})
	now := m.now.Load()
	leaf := *now.pair.Leaf
	leaf.NotAfter = a.cert.NotAfter.Add(time.Hour) // only the copy that dates are read from
	pair := now.pair
	pair.Leaf = &leaf
	err = checkChain(&pair, now.roots, "ca.pem", a.cert.NotAfter.Add(time.Minute))
	again := checkChain(&pair, now.roots, "ca.pem", a.cert.NotAfter.Add(2*time.Minute))
	if err == nil || again == nil || err.Error() != again.Error() || !strings.Contains(err.Error(), "its chain to ca.pem: it has ended") {
		t.Errorf("under an authority that has ended the errors are %v and, later, %v", err, again)
	}
}

func TestIssueRefuses(t *testing.T) {
	a, _, err := OpenAuthority(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []Identity{
		{Prefill, ""}, {Prefill, "../x"}, {Prefill, "A"}, {Prefill, "-a"}, {Prefill, strings.Repeat("a", 65)},
		{"root", "a"}, {"", "a"}, {Gateway, "ca"}, {Prefill, "a/b"},
	} {
		if f, err := a.Issue(id, nil, time.Now()); err == nil {
			t.Errorf("issue of %q must be refused, wrote %v", id, f)
		}
	}
}

func TestHalfAnAuthorityIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := OpenAuthority(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Fatalf("an authority without its key must be refused, not replaced: %v", err)
	}
}
