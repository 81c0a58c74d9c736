package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

// Every pull waits for what it started.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tinyModel is a valid GGUF file of about 200 kB that differs by seed.
func tinyModel(t *testing.T, seed byte) []byte {
	t.Helper()
	data := make([]byte, 4*50_000)
	for i := range data {
		data[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{{Key: "general.architecture", Value: "llama"}},
		[]gguf.Source{{Name: "w", Type: gguf.F32, Dims: []int{50_000}, Data: data}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// environment is a getenv with an empty home and none of this machine's pip settings.
func environment(t *testing.T, pairs ...string) func(string) string {
	env := map[string]string{"HOME": t.TempDir(), "PIP_CONFIG_FILE": os.DevNull}
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return env[name] }
}

// testPuller has no Python and never waits between attempts.
func testPuller(t *testing.T, getenv func(string) string) *Puller {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := NewPuller(s, getenv)
	p.python = python{}
	p.now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	p.fetcher = func(dir string, report func(Progress)) *fetcher {
		f := newFetcher(dir, report)
		f.wait = func(ctx context.Context, _ int) error { return ctx.Err() }
		return f
	}
	return p
}

// origin is a file server that keeps a record of what it was asked for and
// answers each request by the next rule, the last one for ever.
type origin struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // "Range If-Range" of each request, protected by mu
	rules []rule   // protected by mu
}

type rule func(w http.ResponseWriter, r *http.Request)

func serve(t *testing.T, rules ...rule) *origin {
	t.Helper()
	o := &origin{rules: rules}
	o.Server = httptest.NewServer(http.HandlerFunc(o.handle))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) handle(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.asked = append(o.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
	next := o.rules[0]
	if len(o.rules) > 1 {
		o.rules = o.rules[1:]
	}
	o.mu.Unlock()
	next(w, r)
}

func (o *origin) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.asked...)
}

// whole serves content as a good server does, with ranges and validators.
func whole(content []byte, etag string) rule {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// cut serves what a good server does and ends the connection after n bytes.
func cut(content []byte, etag string, n int) rule {
	return func(w http.ResponseWriter, r *http.Request) {
		whole(content, etag)(&cutWriter{ResponseWriter: w, left: n}, r)
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	_, _ = c.ResponseWriter.Write(b[:n])
	c.left -= n
	if c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

// plain serves all of content whatever range was asked for, without validators.
func plain(content []byte) rule {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content)
	}
}

func status(code int) rule {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// mustHold fails unless the store has exactly this content under the name and
// nothing is left half done.
func mustHold(t *testing.T, s *Store, name string, content []byte) {
	t.Helper()
	m, err := s.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(s.Path(m))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, content) || m.SHA256 != digestOf(content) || m.Size != int64(len(content)) {
		t.Errorf("model %s is not the %d bytes served: it has %d bytes, entry %+v", name, len(content), len(got), m)
	}
	mustBeClean(t, s)
}

func mustBeClean(t *testing.T, s *Store) {
	t.Helper()
	for _, pattern := range []string{"*.part", "*.json", "*.copy", "*.member", "*.pip", "*.lock"} {
		if left, _ := filepath.Glob(s.path("partial", pattern)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// mustLackAll fails when the store has any name or content.
func mustLackAll(t *testing.T, s *Store) {
	t.Helper()
	models, err := s.List()
	blobs, globErr := filepath.Glob(s.path("blobs", "*"))
	if err != nil || globErr != nil || len(models) != 0 || len(blobs) != 0 {
		t.Errorf("the store should be empty: models %v, blobs %v, errors %v %v", models, blobs, err, globErr)
	}
}

func bytesRange(from int) string { return fmt.Sprintf("bytes=%d-", from) }
