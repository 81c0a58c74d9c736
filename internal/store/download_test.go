package store

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

func TestDownloadGoesOnAfterCuts(t *testing.T) {
	content, other := tinyModel(t, 1), tinyModel(t, 2)
	const a, b = `"a"`, `"b"`
	lying := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", b)
		w.Header().Set("Content-Range", "bytes 1000-200127/200128")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(other[1000:])
	}
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-9/10")
		w.WriteHeader(http.StatusPartialContent)
	}
	tests := []struct {
		name  string
		rules []rule
		want  []byte
		asked []string
	}{
		{"nothing happens", []rule{whole(content, a)}, content, []string{""}},
		{"the connection is cut twice", []rule{cut(content, a, 1000), cut(content, a, 5000), whole(content, a)}, content,
			[]string{"", bytesRange(1000) + " " + a, bytesRange(6000) + " " + a}},
		{"the file changes between two requests", []rule{cut(content, a, 1000), whole(other, b)}, other,
			[]string{"", bytesRange(1000) + " " + a}},
		{"the file changes and the server ignores If-Range", []rule{cut(content, a, 1000), lying, whole(other, b)}, other,
			[]string{"", bytesRange(1000) + " " + a, ""}},
		{"the server ignores Range", []rule{cut(content, a, 1000), plain(content)}, content,
			[]string{"", bytesRange(1000) + " " + a}},
		{"the server sends another range", []rule{cut(content, a, 1000), elsewhere, whole(content, a)}, content,
			[]string{"", bytesRange(1000) + " " + a, ""}},
		{"the server has no validators", []rule{cut(content, "", 1000), whole(content, "")}, content, []string{"", bytesRange(1000)}},
		{"the server is busy at first", []rule{status(503), status(429), whole(content, a)}, content, []string{"", "", ""}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := serve(t, test.rules...)
			p := testPuller(t, environment(t))
			if _, err := p.Pull(t.Context(), o.URL+"/tiny.gguf", "", nil); err != nil {
				t.Fatal(err)
			}
			mustHold(t, p.store, "tiny", test.want)
			if diff := cmp.Diff(test.asked, o.requests()); diff != "" {
				t.Errorf("ranges asked for (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDownloadFailsClearly(t *testing.T) {
	content := tinyModel(t, 1)
	short := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "500")
		_, _ = w.Write(content[:400])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	tests := []struct {
		name string
		rule rule
		kind fault.Kind
		want string
	}{
		{"absent", status(404), fault.NotFound, "404 Not Found"},
		{"unauthorized", status(401), fault.Unauthenticated, "401 Unauthorized, it wants other credentials"},
		{"forbidden", status(403), fault.Forbidden, "403 Forbidden, these credentials may not have it"},
		{"always failing", status(500), fault.Unavailable, "500 Internal Server Error"},
		{"a web page", plain([]byte("<!DOCTYPE html>")), fault.Invalid, `not a GGUF file: it begins with "<!DO", want "GGUF"`},
		{"an empty file", plain(nil), fault.Invalid, `not a GGUF file: it begins with "", want "GGUF"`},
		{"a truncated model", plain(content[:1000]), fault.Invalid, "not a usable GGUF file"},
		{"a length that never comes", short, fault.Unavailable, "the answer ended after 400 of 500 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := serve(t, test.rule)
			p := testPuller(t, environment(t))
			_, err := p.Pull(t.Context(), strings.Replace(o.URL, "//", "//user:hunter2@", 1)+"/tiny.gguf?sig=hunter3", "", nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || fault.Of(err) != test.kind {
				t.Errorf("error is %v (%s), want %q (%s)", err, fault.Of(err), test.want, test.kind)
			}
			if err != nil && strings.Contains(err.Error(), "hunter") {
				t.Errorf("the error shows the address's secrets: %v", err)
			}
			mustLackAll(t, p.store)
		})
	}
}

// fetchWith downloads with a changed fetcher, as an entry with known digest and size.
func fetchWith(t *testing.T, change func(*fetcher), a artifact) (fetched, error) {
	t.Helper()
	f := newFetcher(t.TempDir(), func(Progress) {})
	f.wait = func(ctx context.Context, _ int) error { return ctx.Err() }
	t.Cleanup(f.client.CloseIdleConnections)
	change(f)
	a.key = "k"
	return f.fetch(t.Context(), a, func() (sink, error) { return &magicSink{}, nil })
}

func TestDownloadHoldsTheFileToWhatIsKnown(t *testing.T) {
	content := tinyModel(t, 1)
	o := serve(t, whole(content, `"a"`))
	asIs := func(*fetcher) {}
	tight := func(f *fetcher) { f.free = func(string) (int64, error) { return 1000, nil } }
	tests := []struct {
		name   string
		change func(*fetcher)
		a      artifact
		kind   fault.Kind
		want   string
	}{
		{"another digest", asIs, artifact{sha256: digestOf(nil)}, fault.Corrupt, "has sha256 " + digestOf(content) + ", want " + digestOf(nil)},
		{"another size", asIs, artifact{size: 7}, fault.Corrupt, "the server has 200128 bytes, want 7"},
		{"no space", tight, artifact{extra: 5}, fault.Unavailable, "200133 more bytes are needed, 1000 are free"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.a.address = o.URL
			_, err := fetchWith(t, test.change, test.a)
			if err == nil || !strings.Contains(err.Error(), test.want) || fault.Of(err) != test.kind {
				t.Errorf("error is %v (%s), want %q (%s)", err, fault.Of(err), test.want, test.kind)
			}
		})
	}
}

func TestDownloadLeavesAStalledConnection(t *testing.T) {
	content := tinyModel(t, 1)
	released := make(chan struct{})
	stall := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"a"`)
		w.Header().Set("Content-Length", "200128")
		_, _ = w.Write(content[:1000])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(released)
	}
	o := serve(t, stall, whole(content, `"a"`))
	got, err := fetchWith(t, func(f *fetcher) { f.stall = 20 * time.Millisecond }, artifact{address: o.URL})
	if err != nil || got.sha256 != digestOf(content) {
		t.Fatalf("got %+v, error %v", got, err)
	}
	<-released
}

func TestInterruptedPullGoesOnInTheNextOne(t *testing.T) {
	content := tinyModel(t, 1)
	hold := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"a"`)
		w.Header().Set("Content-Length", "200128")
		_, _ = w.Write(content[:3000])
		_ = http.NewResponseController(w).Flush()
		<-hold
	}
	o := serve(t, slow, whole(content, `"a"`))
	p := testPuller(t, environment(t))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.Pull(ctx, o.URL+"/tiny.gguf", "", func(now Progress) {
		if now.Done == 3000 {
			cancel()
		}
	})
	close(hold)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v, want context.Canceled", err)
	}
	mustLackAll(t, p.store)
	if _, err := p.Pull(t.Context(), o.URL+"/tiny.gguf", "", nil); err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "tiny", content)
	if got := o.requests()[1]; got != bytesRange(3000)+` "a"` {
		t.Errorf("the second pull asked for %q, want the rest from byte 3000", got)
	}
}

// Bytes that were never synced may be anything after a power failure: they count
// only where a digest will tell.
func TestUnsyncedBytesCountOnlyWithADigest(t *testing.T) {
	content := tinyModel(t, 1)
	for _, digest := range []string{"", digestOf(content)} {
		o := serve(t, whole(content, `"a"`))
		f := newFetcher(t.TempDir(), func(Progress) {})
		t.Cleanup(f.client.CloseIdleConnections)
		writeFile(t, f.dir+"/k.part", append(bytes.Clone(content[:1000]), make([]byte, 500)...))
		writeFile(t, f.dir+"/k.json", []byte(`{"etag":"\"a\"","size":200128,"synced":1000}`))
		got, err := f.fetch(t.Context(), artifact{key: "k", address: o.URL, sha256: digest}, func() (sink, error) { return &magicSink{}, nil })
		if digest == "" && (err != nil || got.sha256 != digestOf(content) || o.requests()[0] != bytesRange(1000)+` "a"`) {
			t.Errorf("without a digest: got %+v, error %v, asked for %v; want the rest from byte 1000", got, err, o.requests())
		}
		if digest != "" && fault.Of(err) != fault.Corrupt {
			t.Errorf("with a digest: error is %v, want that the zeros show", err)
		}
	}
}

func TestPullOfAnUnchangedAddressTransfersNothing(t *testing.T) {
	content := tinyModel(t, 1)
	o := serve(t, whole(content, `"a"`))
	p := testPuller(t, environment(t))
	first, err := p.Pull(t.Context(), o.URL+"/tiny.gguf", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.Pull(t.Context(), o.URL+"/tiny.gguf", "", func(now Progress) {
		if now.Phase == Downloading {
			t.Errorf("downloaded %d bytes again", now.Done)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the model changed (-first +again):\n%s", diff)
	}
}

// What is here is read again, whatever leads to it, and fetched anew where its digest
// is no longer right.
func TestPullReadsWhatIsHereAgain(t *testing.T) {
	content := tinyModel(t, 1)
	o := serve(t, whole(content, `"a"`))
	for _, reference := range []string{o.URL + "/tiny.gguf", writeFile(t, filepath.Join(t.TempDir(), "tiny.gguf"), content)} {
		p := testPuller(t, environment(t))
		var last Phase
		pull := func() {
			t.Helper()
			if _, err := p.Pull(t.Context(), reference, "", func(now Progress) { last = now.Phase }); err != nil {
				t.Fatal(err)
			}
			mustHold(t, p.store, "tiny", content)
		}
		pull()
		if last == Rereading {
			t.Errorf("%s: the first pull ends with what is here", reference)
		}
		pull()
		if last != Rereading {
			t.Errorf("%s: the second pull ends with %v, want that it reads what is here", reference, last)
		}
		m, err := p.store.Find("tiny")
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(content)
		bad[len(bad)-1] ^= 1
		if err := errors.Join(os.Remove(p.store.Path(m)), os.WriteFile(p.store.Path(m), bad, 0o444)); err != nil {
			t.Fatal(err)
		}
		pull()
		if last == Rereading {
			t.Errorf("%s: a pull ends with what is here and is not right", reference)
		}
	}
}

func TestTokenStaysWithItsHost(t *testing.T) {
	content := tinyModel(t, 1)
	var leaked []string
	far := serve(t, func(w http.ResponseWriter, r *http.Request) {
		leaked = append(leaked, r.Header.Get("Authorization"))
		whole(content, `"a"`)(w, r)
	})
	near := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, far.URL, http.StatusFound)
	})
	if _, err := fetchWith(t, func(*fetcher) {}, artifact{address: near.URL, token: "secret"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{""}, leaked); diff != "" {
		t.Errorf("the second host saw credentials (-want +got):\n%s", diff)
	}
}

func TestParseContentRange(t *testing.T) {
	for text, want := range map[string][3]int64{
		"bytes 5-9/10": {5, 10, 1}, "bytes 5-9/*": {5, -1, 1}, "bytes */10": {-1, 10, 1},
		"": {-1, -1, 0}, "bytes 5-9": {-1, -1, 0}, "lines 5-9/10": {-1, -1, 0}, "bytes x-9/10": {-1, -1, 0}, "bytes -9/-10": {-1, -1, 0},
	} {
		first, total, ok := parseContentRange(text)
		if first != want[0] || total != want[1] || ok != (want[2] == 1) {
			t.Errorf("%q gives %d, %d, %v; want %v", text, first, total, ok, want)
		}
	}
}
