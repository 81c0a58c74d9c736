package store

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

func writeFile(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPullCopiesALocalFile(t *testing.T) {
	p := testPuller(t, environment(t))
	content := tinyModel(t, 1)
	path := writeFile(t, filepath.Join(t.TempDir(), "Tiny.Q8_0.gguf"), content)
	m, err := p.Pull(t.Context(), path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "Tiny.Q8_0", content)
	if m.Source != path {
		t.Errorf("source is %q, want %q", m.Source, path)
	}
	info, err := os.Stat(p.store.Path(m))
	if err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("content has mode %v (error %v), want read-only", info.Mode(), err)
	}
}

func TestPullRefusesFilesThatAreNoModels(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.gguf")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ path, want string }{
		{filepath.Join(dir, "absent.gguf"), "no such file"},
		{dir, "no regular file"},
		{fifo, "no regular file"},
		{writeFile(t, filepath.Join(dir, "text.gguf"), []byte("hello")), `begins with "hell", want "GGUF"`},
		{writeFile(t, filepath.Join(dir, "empty.gguf"), nil), `begins with "", want "GGUF"`},
		{writeFile(t, filepath.Join(dir, "short.gguf"), tinyModel(t, 1)[:500]), "not a usable GGUF file"},
	}
	for _, test := range tests {
		p := testPuller(t, environment(t))
		_, err := p.Pull(t.Context(), test.path, "m", nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("pull %s: error is %v, want %q", test.path, err, test.want)
		}
		mustLackAll(t, p.store)
		mustBeClean(t, p.store)
	}
}

func TestNamesShareContent(t *testing.T) {
	p := testPuller(t, environment(t))
	content := tinyModel(t, 1)
	path := writeFile(t, filepath.Join(t.TempDir(), "m.gguf"), content)
	for _, name := range []string{"b", "a"} {
		if _, err := p.Pull(t.Context(), path, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if freed, err := p.store.Remove(t.Context(), "b"); freed != 0 || err != nil {
		t.Errorf("removing one of two names freed %d bytes, error %v", freed, err)
	}
	mustHold(t, p.store, "a", content)
	if freed, err := p.store.Remove(t.Context(), "a"); freed != int64(len(content)) || err != nil {
		t.Errorf("removing the last name freed %d bytes, error %v; want %d", freed, err, len(content))
	}
	mustLackAll(t, p.store)
}

func TestANameThatChangesLetsItsOldContentGo(t *testing.T) {
	p := testPuller(t, environment(t))
	path := filepath.Join(t.TempDir(), "m.gguf")
	for seed := range byte(3) {
		content := tinyModel(t, seed)
		writeFile(t, path, content)
		if _, err := p.Pull(t.Context(), path, "m", nil); err != nil {
			t.Fatal(err)
		}
		mustHold(t, p.store, "m", content)
	}
	if blobs, _ := filepath.Glob(p.store.path("blobs", "*")); len(blobs) != 1 {
		t.Errorf("one name has %d contents: %v", len(blobs), blobs)
	}
}

func TestUnknownModelsAreNamed(t *testing.T) {
	p := testPuller(t, environment(t))
	_, err := p.store.Find("x")
	if fault.Of(err) != fault.NotFound || !strings.Contains(err.Error(), "the store is empty") {
		t.Errorf("error is %v", err)
	}
	path := writeFile(t, filepath.Join(t.TempDir(), "m.gguf"), tinyModel(t, 1))
	if _, err := p.Pull(t.Context(), path, "known", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.store.Remove(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "there are: known") {
		t.Errorf("error is %v, want the known names", err)
	}
	want := `no model "x", there are: known, and tracer, which is built in; fetch more with "bulkhead pull", names are in "bulkhead list --catalog"`
	if _, err := p.store.Find("x"); fault.Of(err) != fault.NotFound || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if got, name, err := p.store.Resolve(path); got != path || name != "m" || err != nil {
		t.Errorf("a file resolves to %q, %q, %v", got, name, err)
	}
	m, _ := p.store.Find("known")
	if err := os.Remove(p.store.Path(m)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.store.Resolve("known"); err == nil || !strings.Contains(err.Error(), "has lost its file, pull it again") {
		t.Errorf("error is %v, want the advice to pull again", err)
	}
}

// Two stores on one folder stand for two processes: flock tells open files apart.
func TestManyPullsAtOnceLoseNothing(t *testing.T) {
	home := t.TempDir()
	const pulls = 8
	var all sync.WaitGroup
	for i := range byte(pulls) {
		path := writeFile(t, filepath.Join(t.TempDir(), string('a'+rune(i))+".gguf"), tinyModel(t, i))
		all.Go(func() {
			s, err := Open(home)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := NewPuller(s, environment(t)).Pull(t.Context(), path, "", nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s, err := Open(home)
	if err != nil {
		t.Fatal(err)
	}
	models, err := s.List()
	if len(models) != pulls || err != nil {
		t.Errorf("%d pulls left %d models, error %v", pulls, len(models), err)
	}
}

func TestASecondPullWaitsForTheFirst(t *testing.T) {
	content := tinyModel(t, 1)
	arrived, goOn := make(chan struct{}), make(chan struct{})
	o := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-goOn
		whole(content, `"a"`)(w, r)
	}, whole(content, `"a"`))
	first := testPuller(t, environment(t))
	second := &Puller{store: &Store{dir: first.store.dir}, getenv: first.getenv, now: first.now, fetcher: first.fetcher}
	address := o.URL + "/tiny.gguf"
	done := make(chan error, 1)
	go func() {
		_, err := first.Pull(t.Context(), address, "", nil)
		done <- err
	}()
	<-arrived
	waited := false
	_, err := second.Pull(t.Context(), address, "", func(now Progress) {
		switch now.Phase {
		case Waiting:
			waited = true
			close(goOn)
		case Downloading:
			t.Errorf("the second pull downloaded %d bytes", now.Done)
		case Resolving, Copying, Verifying:
		default:
		}
	})
	if err != nil || !waited {
		t.Errorf("second pull: waited %v, error %v", waited, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	mustHold(t, first.store, "tiny", content)
}

func TestAWaitingPullCanBeGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := lock(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}

func TestIndexIsReadStrictly(t *testing.T) {
	digest := digestOf(nil)
	tests := []struct{ text, want string }{
		{`{"version":2,"models":[]}`, "version 2, this build reads 1"},
		{`{"version":1,"models":[],"x":1}`, "unknown field"},
		{`{"version":1,"models":[]} {}`, "more than one value"},
		{`{"version":1,"models":[{"name":"a","sha256":"../../x","size":1}]}`, "no valid name, sha256 or size"},
		{`{"version":1,"models":[{"name":"a","sha256":"` + digest + `","size":-1}]}`, "no valid name, sha256 or size"},
		{`{"version":1,"models":[{"name":"../a","sha256":"` + digest + `","size":1}]}`, "no valid name, sha256 or size"},
		{`{"version":1,"models":[{"name":"b","sha256":"` + digest + `","size":1},{"name":"a","sha256":"` + digest + `","size":1}]}`, "out of order"},
		{`nonsense`, "invalid character"},
	}
	for _, test := range tests {
		if _, err := parseIndex([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want %q", test.text, err, test.want)
		}
	}
}

func TestReferencesLeadWhereTheyShould(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "here.gguf", nil)
	tests := []struct {
		text string
		want ref
		name string
	}{
		{"smollm2:135m", ref{kind: refCatalog}, "smollm2:135m"},
		{"smollm2", ref{kind: refCatalog}, "smollm2:135m"},
		{"./a/B.gguf", ref{kind: refFile}, "B"},
		{"/a/b.GGUF", ref{kind: refFile}, "b"},
		{"here.gguf", ref{kind: refFile}, "here"},
		{"https://h/x/y.Q8_0.gguf?download=true", ref{kind: refURL}, "y.Q8_0"},
		{"owner/repo:Q4_0", ref{kind: refHub, repo: "owner/repo", quant: "Q4_0"}, "owner/repo:Q4_0"},
		{"hf:owner/repo", ref{kind: refHub, repo: "owner/repo"}, "owner/repo"},
		{"hf:owner/repo/sub/f.gguf", ref{kind: refHub, repo: "owner/repo", file: "sub/f.gguf"}, "owner/repo/sub/f.gguf"},
	}
	for _, test := range tests {
		got, err := parseRef(test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		name := got.name()
		got.url, got.text = nil, ""
		if got != test.want || name != test.name {
			t.Errorf("%s leads to %+v as %q, want %+v as %q", test.text, got, name, test.want, test.name)
		}
	}
	for _, text := range []string{"", "a\nb", "ftp://h/x", "https://", "hf:owner", "hf:a/../b", "hf:a/b/../../c.gguf", "a/b/c.gguf", "hf:a/b@dev", "://"} {
		if got, err := parseRef(text); fault.Of(err) != fault.Invalid || err == nil {
			t.Errorf("%q leads to %+v, error %v; want an Invalid one", text, got, err)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, text := range []string{"smollm2:135m", "hf:a/b/c.gguf", "a/b:Q4_0", "https://u:p@h/x.gguf?q", "./x.gguf", "a//b", "-x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRef(text)
		if err != nil {
			return
		}
		if strings.Contains("/"+r.repo+"/"+r.file+"/", "/../") {
			t.Errorf("%q leaves its repository: %+v", text, r)
		}
		name := r.name()
		if checkName(name) == nil && strings.HasPrefix(name, "-") {
			t.Errorf("%q is called %q, which is a flag", text, name)
		}
	})
}

func TestCatalogIsPinned(t *testing.T) {
	entries, err := parseCatalog(catalogText)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d entries, error %v", len(entries), err)
	}
	if _, err := parseCatalog([]byte("- name: a\n  speed: 3\n")); err == nil {
		t.Error("an unknown field is accepted")
	}
	if _, err := parseCatalog([]byte("- name: a\n")); err == nil {
		t.Error("an entry without digests is accepted")
	}
	if _, err := findEntry(entries, "gpt-9"); fault.Of(err) != fault.NotFound || !strings.Contains(err.Error(), "smollm2:135m") {
		t.Errorf("error is %v, want the catalog's names", err)
	}
}

func TestHomeIsFoundInOrder(t *testing.T) {
	tests := []struct {
		env  []string
		want string
	}{
		{[]string{"BULKHEAD_HOME", "/b", "XDG_DATA_HOME", "/x"}, "/b"},
		{[]string{"XDG_DATA_HOME", "/x"}, "/x/bulkhead"},
		{[]string{"HOME", "/h"}, "/h/.local/share/bulkhead"},
	}
	for _, test := range tests {
		if got, err := DefaultHome(environment(t, test.env...)); got != test.want || err != nil {
			t.Errorf("%v: home is %q, error %v; want %q", test.env, got, err, test.want)
		}
	}
	if _, err := DefaultHome(func(string) string { return "" }); err == nil {
		t.Error("no variable at all should be an error")
	}
}

// What failed before a byte came leaves nothing behind, and a file that only lacks
// its ./ is named as it must be written.
func TestFailedPullsLeaveNothing(t *testing.T) {
	server := serve(t, status(404))
	p := testPuller(t, environment(t))
	if _, err := p.Pull(t.Context(), server.URL+"/absent.gguf", "", nil); err == nil {
		t.Fatal("a file that isn't there was pulled")
	}
	mustBeClean(t, p.store)
	t.Chdir(t.TempDir())
	writeFile(t, "README.md", []byte("hello"))
	if _, err := p.Pull(t.Context(), "README.md", "", nil); err == nil || !strings.Contains(err.Error(), "write ./README.md") {
		t.Errorf("pulling an existing file without ./ says %v", err)
	}
}

// A lock whose file was removed by its holder is taken anew on the new file.
func TestRemovedLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	unlock, err := lock(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	waits, got := make(chan struct{}), make(chan error)
	go func() {
		again, err := lock(context.Background(), path, func() { close(waits) })
		if err == nil {
			if _, statErr := os.Stat(path); statErr != nil {
				err = statErr
			}
			again()
		}
		got <- err
	}()
	<-waits
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("the one that waited has no lock on the file: %v", err)
	}
}
