package node

import (
	"context"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// replace puts a new certificate into the public listener's files.
func replace(t *testing.T, dir string) *cluster.PublicTLS {
	t.Helper()
	authority, _, err := certs.OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Issue(certs.Identity{Role: certs.Gateway, Name: "public"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster.PublicTLS{Cert: files.Cert, Key: files.Key}
}

func TestThePublicListenerTakesItsNewCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		config, follow, err := publicTLS(replace(t, dir))
		if err != nil {
			t.Fatal(err)
		}
		shown := func() string {
			pair, err := config.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return pair.Leaf.SerialNumber.String()
		}
		var failures atomic.Int64
		stop := inBackground(t.Context(), func(ctx context.Context) {
			follow(ctx, slog.New(slog.DiscardHandler), func() { failures.Add(1) })
		})
		for _, step := range []struct {
			name     string
			change   func()
			failures int64
			renewed  bool
		}{
			{"nothing happens", func() {}, 0, false},
			{"it is renewed", func() { replace(t, dir) }, 0, true},
			{"it can't be read", func() {
				if err := os.WriteFile(filepath.Join(dir, "public.pem"), []byte("garbage"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, 1, false},
			{"it is renewed again", func() { replace(t, dir) }, 1, true},
		} {
			before := shown()
			step.change()
			time.Sleep(4 * certs.FollowInterval)
			if got := shown(); (got != before) != step.renewed || failures.Load() != step.failures {
				t.Errorf("%s: certificate %s after %s, %d failures, want another one: %v, and %d", step.name, got, before, failures.Load(), step.renewed, step.failures)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAPublicCertificateThatCannotBeReadIsRefusedAtTheStart(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.pem")
	if _, _, err := publicTLS(&cluster.PublicTLS{Cert: none, Key: none}); err == nil {
		t.Error("a gateway would start without its certificate")
	}
}

// What a node's security is made with, a worker follows.
func TestANodeFollowsItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		files := replace(t, dir)
		m, err := certs.Load(certs.Files{CA: filepath.Join(dir, "ca.pem"), Cert: files.Cert, Key: files.Key})
		if err != nil {
			t.Fatal(err)
		}
		serial := func() string {
			leaf, err := x509.ParseCertificate(m.Client(m.Identity(), "localhost").Certificates[0].Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			return leaf.SerialNumber.String()
		}
		before := serial()
		var failures atomic.Int64
		stop := followNode(t.Context(), cluster.Mutual(m), slog.New(slog.DiscardHandler), func() { failures.Add(1) })
		replace(t, dir)
		time.Sleep(4 * certs.FollowInterval)
		if got := serial(); got == before || failures.Load() != 0 {
			t.Errorf("certificate %s after %s is in use, %d failures; want the new one and none", got, before, failures.Load())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := followNode(t.Context(), cluster.Plaintext(), nil, nil)(); err != nil {
			t.Errorf("without certificates: %v", err)
		}
	})
}
