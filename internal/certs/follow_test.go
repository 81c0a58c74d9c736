package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// followed is a node whose files a test changes.
type followed struct {
	t        *testing.T
	dir      string
	material *Material
	log      bytes.Buffer
	failures int
}

func follow(t *testing.T, dir string, id Identity) *followed {
	t.Helper()
	return &followed{t: t, dir: dir, material: issue(t, dir, id)}
}

// polls looks often enough for any change to be taken in.
func (f *followed) polls() {
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	for range 4 {
		f.material.follower.poll(log, func() { f.failures++ })
	}
}

// issueAt replaces the node's files by those that would be made at another time.
func (f *followed) issueAt(now time.Time) {
	f.t.Helper()
	a, _, err := OpenAuthority(f.dir, time.Now())
	if err == nil {
		_, err = a.Issue(f.material.Identity(), nil, now)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// serial tells one certificate from another.
func serial(m *Material) string { return m.now.Load().pair.Leaf.SerialNumber.String() }

func TestAChangedCertificateIsInUse(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, dir, Identity{Prefill, "p1"})
	gw := issue(t, dir, Identity{Gateway, "gateway"})
	server, before := f.material.Server(Gateway), serial(f.material)
	f.polls()
	if serial(f.material) != before || f.log.Len() != 0 {
		t.Fatalf("files that have not changed are loaded again: %s", &f.log)
	}
	renewed := issue(t, dir, f.material.Identity())
	f.polls()
	if got := serial(f.material); got == before || got != serial(renewed) || f.failures != 0 {
		t.Errorf("certificate %s is in use, %s was before, %s is in the file; log: %s", got, before, serial(renewed), &f.log)
	}
	// A listener that was there before shows the new one.
	var shown string
	client := gw.Client(f.material.Identity(), "localhost")
	check := client.VerifyConnection
	client.VerifyConnection = func(s tls.ConnectionState) error {
		shown = s.PeerCertificates[0].SerialNumber.String()
		return check(s)
	}
	if serverErr, clientErr := handshake(t, server, client); serverErr != nil || clientErr != nil || shown != serial(renewed) {
		t.Errorf("a listener shows certificate %s, want %s; errors %v, %v", shown, serial(renewed), serverErr, clientErr)
	}
}

// Whom a node trusts is read again too, and a listener goes by it.
func TestAChangedAuthorityIsInUse(t *testing.T) {
	dir, otherDir := t.TempDir(), t.TempDir()
	f := follow(t, dir, Identity{Prefill, "p1"})
	stranger := issue(t, otherDir, Identity{Gateway, "gateway"})
	server := f.material.Server(Gateway)
	client := func() *tls.Config {
		c := stranger.Client(f.material.Identity(), "localhost")
		c.RootCAs = f.material.now.Load().roots
		return c
	}
	if err, _ := handshake(t, server, client()); err == nil {
		t.Fatal("a client of an authority that is not trusted is let in")
	}
	own, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(filepath.Join(otherDir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), append(own, other...), 0o600); err != nil {
		t.Fatal(err)
	}
	f.polls()
	if serverErr, clientErr := handshake(t, server, client()); serverErr != nil || clientErr != nil {
		t.Errorf("a client of an authority that was added is refused: %v, %v; log: %s", serverErr, clientErr, &f.log)
	}
}

func TestAFileThatCannotBeReadChangesNothing(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *followed){
		"no certificate": func(t *testing.T, f *followed) {
			if err := os.WriteFile(f.material.files.Cert, []byte("garbage"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"it is gone": func(t *testing.T, f *followed) {
			if err := os.Remove(f.material.files.Cert); err != nil {
				t.Fatal(err)
			}
		},
		"the key is another's": func(t *testing.T, f *followed) {
			other := issue(t, f.dir, Identity{Prefill, "p2"})
			if err := os.Rename(other.files.Key, f.material.files.Key); err != nil {
				t.Fatal(err)
			}
		},
		"it has ended":        func(t *testing.T, f *followed) { f.issueAt(time.Now().Add(-2 * NodeLife)) },
		"it is not valid yet": func(t *testing.T, f *followed) { f.issueAt(time.Now().Add(NodeLife)) },
		"it is of another authority": func(t *testing.T, f *followed) {
			other := issue(t, t.TempDir(), f.material.Identity())
			for from, to := range map[string]string{other.files.Key: f.material.files.Key, other.files.Cert: f.material.files.Cert} {
				if err := os.Rename(from, to); err != nil {
					t.Fatal(err)
				}
			}
		},
		"the certificate is a FIFO": func(t *testing.T, f *followed) { replaceBy(t, f.material.files.Cert, fifo) },
		"the key is a FIFO":         func(t *testing.T, f *followed) { replaceBy(t, f.material.files.Key, fifo) },
		"the certificate is a device": func(t *testing.T, f *followed) {
			replaceBy(t, f.material.files.Cert, func(path string) error { return os.Symlink("/dev/zero", path) })
		},
		"others can read the key": func(t *testing.T, f *followed) {
			if err := os.Chmod(f.material.files.Key, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"it is another node's": func(t *testing.T, f *followed) {
			other := issue(t, f.dir, Identity{Prefill, "p2"})
			for from, to := range map[string]string{other.files.Key: f.material.files.Key, other.files.Cert: f.material.files.Cert} {
				if err := os.Rename(from, to); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, t.TempDir(), Identity{Prefill, "p1"})
			before := serial(f.material)
			spoil(t, f)
			f.polls()
			f.polls()
			if got := serial(f.material); got != before {
				t.Errorf("certificate %s is in use, want %s as before", got, before)
			}
			if lines := strings.Count(f.log.String(), "level=ERROR"); f.failures != 1 || lines != 1 {
				t.Errorf("%d failures are counted and %d logged, want one of each: %s", f.failures, lines, &f.log)
			}
			renewed := issue(t, f.dir, f.material.Identity())
			f.polls()
			if got := serial(f.material); got != serial(renewed) || f.failures != 1 {
				t.Errorf("after a good file certificate %s is in use, want %s; %d failures", got, serial(renewed), f.failures)
			}
		})
	}
}

func replaceBy(t *testing.T, path string, put func(path string) error) {
	t.Helper()
	if err := errors.Join(os.Remove(path), put(path)); err != nil {
		t.Fatal(err)
	}
}

func fifo(path string) error { return unix.Mkfifo(path, 0o600) }

// Neither is the authorities' file waited for, nor those of an authority of ours.
func TestAnAuthorityThatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, dir, Identity{Prefill, "p1"})
	replaceBy(t, f.material.files.CA, fifo)
	f.polls()
	if f.failures != 1 || !strings.Contains(f.log.String(), f.material.files.CA+" is no regular file, its mode is p") {
		t.Errorf("%d failures are counted, want 1: %s", f.failures, &f.log)
	}
	if _, _, err := OpenAuthority(dir, time.Now()); err == nil || !strings.Contains(err.Error(), "is no regular file, its mode is p") {
		t.Errorf("an authority whose certificate is a FIFO is opened with %v", err)
	}
}

// Between the replacing of a key and of its certificate nothing is read.
func TestHalfAChangeIsNotRead(t *testing.T) {
	f := follow(t, t.TempDir(), Identity{Prefill, "p1"})
	other := issue(t, f.dir, Identity{Prefill, "p2"})
	if err := os.Rename(other.files.Key, f.material.files.Key); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	f.material.follower.poll(log, func() { f.failures++ })
	renewed := issue(t, f.dir, f.material.Identity())
	f.polls()
	if f.failures != 0 || serial(f.material) != serial(renewed) {
		t.Errorf("%d failures while the files were being replaced, log: %s", f.failures, &f.log)
	}
}

// A change that is refused for the same reason is counted and not said again.
func TestAReasonIsSaidOnce(t *testing.T) {
	f := follow(t, t.TempDir(), Identity{Prefill, "p1"})
	for i, spoilt := range []string{"garbage", "more of it", "and more"} {
		if err := os.WriteFile(f.material.files.Cert, []byte(spoilt), 0o600); err != nil {
			t.Fatal(err)
		}
		f.polls()
		if lines := strings.Count(f.log.String(), "level=ERROR"); lines != 1 || f.failures != i+1 {
			t.Errorf("%d changes for one reason give %d lines and %d failures, want 1 line: %s", i+1, lines, f.failures, &f.log)
		}
	}
	if err := os.Remove(f.material.files.Cert); err != nil {
		t.Fatal(err)
	}
	f.polls()
	if lines := strings.Count(f.log.String(), "level=ERROR"); lines != 2 {
		t.Errorf("a second reason gives %d lines in all, want 2: %s", lines, &f.log)
	}
}

// A certificate for tomorrow is taken tomorrow, though its file does not change.
func TestACertificateBecomesValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, t.TempDir(), Identity{Prefill, "p1"})
		before := serial(f.material)
		f.issueAt(time.Now().Add(24 * time.Hour))
		f.polls()
		if serial(f.material) != before || f.failures != 1 {
			t.Fatalf("a certificate for tomorrow is in use: %v, %d failures", serial(f.material) != before, f.failures)
		}
		time.Sleep(24 * time.Hour)
		f.polls()
		if serial(f.material) == before || f.failures != 1 || !strings.Contains(f.log.String(), "level=INFO") {
			t.Errorf("the next day it is in use: %v, %d failures: %s", serial(f.material) != before, f.failures, &f.log)
		}
	})
}

// Nobody has to ask for it: a running node takes its new certificate.
func TestAFollowerLooksByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, t.TempDir(), Identity{Prefill, "p1"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.material.Follow(ctx, slog.New(slog.DiscardHandler), func() { t.Error("a good certificate can't be read") })
		}()
		renewed := issue(t, f.dir, f.material.Identity())
		time.Sleep(3 * FollowInterval)
		if got := serial(f.material); got != serial(renewed) {
			t.Errorf("certificate %s is in use, want %s", got, serial(renewed))
		}
		cancel()
		<-done
	})
}
