package tenant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func mustAdd(t *testing.T, path, name string) string {
	t.Helper()
	key, err := Add(path, name, Limits{Concurrency: 3}, noon)
	if err != nil {
		t.Fatalf("add %s: %v", name, err)
	}
	return key
}

func mustOpen(t *testing.T, path string) *Directory {
	t.Helper()
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestKeyNamesItsTenant(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	a, b := mustAdd(t, path, "ada"), mustAdd(t, path, "bob")
	d := mustOpen(t, path)
	ada, err := d.Authenticate(a, noon)
	if err != nil || ada.Name != "ada" || ada.Tag == 0 || ada.Limits().Concurrency != 3 {
		t.Fatalf("ada's key gives %+v, %v", ada, err)
	}
	bob, err := d.Authenticate(b, noon)
	if err != nil || bob.Name != "bob" || bob.Tag == ada.Tag {
		t.Fatalf("bob's key gives %+v, %v", bob, err)
	}
	for _, key := range []string{"", "bh_", a + "x", strings.ToUpper(a), "sk-" + a, "bh_" + strings.Repeat("A", 1000)} {
		if _, err := d.Authenticate(key, noon); fault.Of(err) != fault.Unauthenticated {
			t.Errorf("a wrong key of %d bytes gives %v, want unauthenticated", len(key), err)
		}
	}
}

func TestFileHoldsNoKeyAndIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	key := mustAdd(t, path, "ada")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), key) || strings.Contains(string(data), key[3:]) {
		t.Error("the file holds the key itself")
	}
	info, _ := os.Stat(path)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %04o, want 0600", info.Mode().Perm())
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, quiet()); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Errorf("a file that the group may read is accepted: %v", err)
	}
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	first := mustAdd(t, path, "ada")
	second, err := Rotate(path, "ada", time.Hour, noon)
	if err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, path)
	for _, c := range []struct {
		name, key string
		at        time.Time
		want      bool
	}{
		{"old key in its grace", first, noon.Add(59 * time.Minute), true},
		{"old key after its grace", first, noon.Add(time.Hour), false},
		{"new key", second, noon.Add(1000 * time.Hour), true},
	} {
		if _, err := d.Authenticate(c.key, c.at); (err == nil) != c.want {
			t.Errorf("%s: %v, want accepted %v", c.name, err, c.want)
		}
	}
	if _, err := Rotate(path, "ada", 0, noon); err != nil {
		t.Fatal(err)
	}
	if err := d.Poll(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Authenticate(second, noon); err == nil {
		t.Error("the old key is accepted after a rotation without grace")
	}
}

func TestRotationsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	mustAdd(t, path, "ada")
	var err error
	for range keysMax {
		_, err = Rotate(path, "ada", time.Hour, noon)
	}
	if fault.Of(err) != fault.Invalid {
		t.Fatalf("rotation %d gives %v, want a refusal", keysMax, err)
	}
}

// A removed tenant's requests are told, another's are not; limits change in place.
func TestLiveReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	a, b := mustAdd(t, path, "ada"), mustAdd(t, path, "bob")
	d := mustOpen(t, path)
	ada, _ := d.Authenticate(a, noon)
	bob, _ := d.Authenticate(b, noon)
	if err := Remove(path, "ada"); err != nil {
		t.Fatal(err)
	}
	if err := SetLimits(path, "bob", Limits{RequestsPerMinute: 7}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx, time.Millisecond) }()
	<-ada.Gone()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v", err)
	}
	select {
	case <-bob.Gone():
		t.Error("bob, who was not removed, is told that he is gone")
	default:
	}
	if diff := cmp.Diff(Limits{RequestsPerMinute: 7}, bob.Limits()); diff != "" {
		t.Errorf("bob's limits differ (-want +got):\n%s", diff)
	}
	if _, err := d.Authenticate(a, noon); fault.Of(err) != fault.Unauthenticated {
		t.Errorf("a removed tenant's key gives %v", err)
	}
	again, err := Add(path, "ada", Limits{}, noon)
	if err != nil || d.Poll() != nil {
		t.Fatal("ada can't be added again")
	}
	if newer, _ := d.Authenticate(again, noon); newer.Tag == ada.Tag {
		t.Error("a tenant of the same name made anew has the old one's tag")
	}
}

func TestBadFileLeavesTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	key := mustAdd(t, path, "ada")
	d := mustOpen(t, path)
	if err := os.WriteFile(path, []byte(`{"version":1,"tenants":[{"name":"ada","secret":"s3cr3t"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Poll(); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("a broken file is accepted, or its error repeats a secret: %v", err)
	}
	if _, err := d.Authenticate(key, noon); err != nil {
		t.Errorf("the tenants of the last good file are lost: %v", err)
	}
}

// A file that vanishes under a running gateway is like a broken one: every key
// goes on, and the log says so once. One that isn't there at the start is an error.
func TestVanishedFileLeavesTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	if _, err := Open(path, quiet()); fault.Of(err) != fault.NotFound || !strings.Contains(err.Error(), path) {
		t.Errorf("opening a file that isn't there gives %v, want an error of kind not_found with its path", err)
	}
	key := mustAdd(t, path, "ada")
	lines := make(logLines, 16)
	d, err := Open(path, slog.New(slog.NewTextHandler(lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.Run(ctx, time.Millisecond) }()
	if line := <-lines; !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "last good one stays") {
		t.Errorf("the log says %q, want an error", line)
	}
	if _, err := d.Authenticate(key, noon); err != nil {
		t.Errorf("the key is refused while the file is away: %v", err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; !strings.Contains(line, "loaded again") {
		t.Errorf("the log says %q, want that the file is loaded again", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What is no file has no end, or no writer: it is said, counted and not waited for.
func TestWhatIsNoFileLeavesTenants(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a FIFO":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tenants.json")
			key := mustAdd(t, path, "ada")
			var log strings.Builder
			d, err := Open(path, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(path, path+".away"), put(path)); err != nil {
				t.Fatal(err)
			}
			within(t, d.look)
			within(t, d.look)
			if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, path+" is no regular file, its mode is ") || fault.Of(d.Err()) != fault.Invalid {
				t.Errorf("the log says %q and the directory's error is %v, want one line and the same error", said, d.Err())
			}
			if _, err := d.Authenticate(key, noon); err != nil {
				t.Errorf("the tenants of the last good file are lost: %v", err)
			}
			if err := errors.Join(os.Remove(path), os.Rename(path+".away", path)); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, path, "bob")
			within(t, d.look)
			if d.Err() != nil || d.Count() != 2 {
				t.Errorf("with a file again there are %d tenants and the error %v, want 2 and none", d.Count(), d.Err())
			}
		})
	}
}

// within fails the test when f does not end.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
	}
}

// Each mistake that is made in a running server's file is said, and said once.
func TestEachNewMistakeIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	mustAdd(t, path, "ada")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	d, err := Open(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name   string
		data   string
		want   string // in the one new line; empty: there is none
		failed bool
	}{
		{"nothing", string(good), "", false},
		{"no JSON", "x", "not a tenants file (at byte 0 of 1)", true},
		{"still no JSON", "y", "", true},
		{"another version", `{"version":7,"tenants":[]}`, "has version 7, this program reads 1", true},
		{"no JSON again", "z", "not a tenants file (at byte 0 of 1)", true},
		{"it is mended", string(good), "tenants file is loaded again", false},
		{"no JSON once more", "x", "not a tenants file (at byte 0 of 1)", true},
	} {
		next := path + ".next"
		if err := os.WriteFile(next, []byte(step.data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
		before := log.Len()
		d.look()
		d.look()
		said := log.String()[before:]
		lines := 1
		if step.want == "" {
			lines = 0
		}
		if strings.Count(said, "\n") != lines || !strings.Contains(said, step.want) {
			t.Errorf("%s: the log says %q, want %d lines with %q", step.name, said, lines, step.want)
		}
		if failed := d.Err() != nil; failed != step.failed {
			t.Errorf("%s: the directory's error is %v, want one: %v", step.name, d.Err(), step.failed)
		}
	}
}

// logLines receives a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestManyWritersLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			if _, err := Add(path, fmt.Sprintf("tenant-%d", i), Limits{}, noon); err != nil {
				t.Errorf("add tenant-%d: %v", i, err)
			}
		})
	}
	all.Wait()
	infos, err := List(path)
	if err != nil || len(infos) != 24 {
		t.Fatalf("%d tenants after 24 writers (%v), want 24", len(infos), err)
	}
	left, _ := filepath.Glob(path + ".new-*")
	if len(left) > 0 {
		t.Errorf("files left behind: %v", left)
	}
}

func TestRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.json")
	mustAdd(t, path, "ada")
	for _, c := range []struct {
		name string
		err  func() error
		want fault.Kind
	}{
		{"same name", func() error { _, err := Add(path, "ada", Limits{}, noon); return err }, fault.Invalid},
		{"bad name", func() error { _, err := Add(path, "../x", Limits{}, noon); return err }, fault.Invalid},
		{"negative limit", func() error { _, err := Add(path, "bob", Limits{Concurrency: -1}, noon); return err }, fault.Invalid},
		{"rotate unknown", func() error { _, err := Rotate(path, "eve", 0, noon); return err }, fault.NotFound},
		{"negative grace", func() error { _, err := Rotate(path, "ada", -1, noon); return err }, fault.Invalid},
		{"remove unknown", func() error { return Remove(path, "eve") }, fault.NotFound},
		{"limits of unknown", func() error { return SetLimits(path, "eve", Limits{}) }, fault.NotFound},
		{"list of no file", func() error { _, err := List(path + "x"); return err }, fault.NotFound},
		{"remove from no file", func() error { return Remove(path+"x", "ada") }, fault.NotFound},
	} {
		if err := c.err(); fault.Of(err) != c.want || err == nil {
			t.Errorf("%s gives %v, want kind %s", c.name, err, c.want)
		}
	}
	if left, _ := filepath.Glob(path + "x*"); len(left) > 0 {
		t.Errorf("files were made for a refused change: %v", left)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"tenants":[]}`))
	f.Add([]byte(`{"version":1,"tenants":[{"name":"a","secret":"` + strings.Repeat("ab", 32) + `","created":"2026-12-01T00:00:00Z","limits":{},"keys":[]}]}`))
	f.Add([]byte(`{"version":2}{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parse(data)
		if err == nil && got.validate() != nil {
			t.Fatal("an accepted file is not valid")
		}
	})
}
