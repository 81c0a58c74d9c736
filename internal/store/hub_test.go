package store

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// hubServer serves one repository as the hub does. With a token it is private.
func hubServer(t *testing.T, token string, files map[string][]byte) (server *httptest.Server, downloads *[]string) {
	t.Helper()
	downloads = new([]string)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/owner/repo/revision/main", func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{"sha": commit, "cardData": map[string]any{"license": "apache-2.0"}}
		var siblings []any
		for name, content := range files {
			siblings = append(siblings, map[string]any{"rfilename": name, "size": len(content), "lfs": map[string]any{"sha256": digestOf(content)}})
		}
		answer["siblings"] = siblings
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.HandleFunc("GET /owner/repo/resolve/"+commit+"/{file...}", func(w http.ResponseWriter, r *http.Request) {
		*downloads = append(*downloads, r.PathValue("file"))
		whole(files[r.PathValue("file")], `"e"`)(w, r)
	})
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server, downloads
}

func TestPullFromTheHub(t *testing.T) {
	content := tinyModel(t, 1)
	server, downloads := hubServer(t, "secret", map[string][]byte{"README.md": nil, "m-Q4_0.gguf": tinyModel(t, 2), "m-Q8_0.gguf": content})
	p := testPuller(t, environment(t, "HF_ENDPOINT", server.URL+"/", "HF_TOKEN", "secret"))
	m, err := p.Pull(t.Context(), "owner/repo:q8_0", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "owner/repo:q8_0", content)
	if m.Source != "hf:owner/repo/m-Q8_0.gguf" || m.Version != commit || m.Licence != "apache-2.0" {
		t.Errorf("the entry is %+v", m)
	}
	if _, err := p.Pull(t.Context(), "hf:owner/repo/m-Q8_0.gguf", "other", nil); err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "other", content)
	if len(*downloads) != 1 {
		t.Errorf("downloaded %v, want one file once: its digest was known", *downloads)
	}
}

func TestHubRefusals(t *testing.T) {
	private, _ := hubServer(t, "secret", nil)
	public, _ := hubServer(t, "", map[string][]byte{
		"m-Q4_0.gguf": nil, "m-Q8_0.gguf": nil, "big-00001-of-00002.gguf": nil, "mmproj-F16.gguf": nil, "x-Q5_0.gguf": nil, "y-Q5_0.gguf": nil,
	})
	tests := []struct {
		endpoint, token, model string
		kind                   fault.Kind
		want                   string
	}{
		{private.URL, "", "owner/repo", fault.Unauthenticated, "if it is private or gated, set HF_TOKEN"},
		{private.URL, "wrong", "owner/repo", fault.Unauthenticated, "the hub refuses HF_TOKEN"},
		{public.URL, "", "owner/absent", fault.NotFound, "the hub has no repository owner/absent (404)"},
		{public.URL, "", "owner/repo:Q6_K", fault.NotFound, "no file of Q6_K"},
		{public.URL, "", "owner/repo:F16", fault.NotFound, "no file of F16"},
		{public.URL, "", "owner/repo:Q5_0", fault.Invalid, "2 files of Q5_0, name one: "},
		{public.URL, "", "hf:owner/repo/z.gguf", fault.NotFound, "has no file z.gguf"},
		{public.URL, "", "hf:owner/repo/big-00001-of-00002.gguf", fault.Invalid, "one part of several"},
		{"ftp://h", "", "owner/repo", fault.Invalid, "HF_ENDPOINT is not an http or https address"},
	}
	for _, test := range tests {
		p := testPuller(t, environment(t, "HF_ENDPOINT", test.endpoint, "HF_TOKEN", test.token))
		_, err := p.Pull(t.Context(), test.model, "", nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || fault.Of(err) != test.kind {
			t.Errorf("%s: error is %v (%s), want %q (%s)", test.model, err, fault.Of(err), test.want, test.kind)
		}
		mustLackAll(t, p.store)
	}
}

func TestHubCacheIsUsed(t *testing.T) {
	content := tinyModel(t, 1)
	server, downloads := hubServer(t, "", map[string][]byte{"m-Q8_0.gguf": content})
	home := t.TempDir()
	repo := filepath.Join(home, "hub", "models--owner--repo")
	writeFile(t, filepath.Join(repo, "refs", "main"), []byte(commit))
	cached := writeFile(t, filepath.Join(repo, "snapshots", commit, "m-Q8_0.gguf"), content)

	p := testPuller(t, environment(t, "HF_ENDPOINT", server.URL, "HF_HOME", home))
	if _, err := p.Pull(t.Context(), "owner/repo", "", nil); err != nil {
		t.Fatal(err)
	}
	mustHold(t, p.store, "owner/repo", content)

	server.Close()
	offline := testPuller(t, environment(t, "HF_ENDPOINT", server.URL, "HF_HOME", home, "HF_HUB_OFFLINE", "1"))
	if _, err := offline.Pull(t.Context(), "owner/repo:Q8_0", "", nil); err != nil {
		t.Fatal(err)
	}
	mustHold(t, offline.store, "owner/repo:Q8_0", content)
	if len(*downloads) != 0 {
		t.Errorf("downloaded %v, though the cache has it", *downloads)
	}
	_, err := offline.Pull(t.Context(), "owner/absent", "", nil)
	if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "HF_HUB_OFFLINE is set") {
		t.Errorf("error is %v, want that HF_HUB_OFFLINE is set", err)
	}

	writeFile(t, cached, tinyModel(t, 9))
	server, _ = hubServer(t, "", map[string][]byte{"m-Q8_0.gguf": content})
	rotten := testPuller(t, environment(t, "HF_ENDPOINT", server.URL, "HF_HOME", home))
	if _, err := rotten.Pull(t.Context(), "owner/repo", "", nil); fault.Of(err) != fault.Corrupt {
		t.Errorf("error is %v, want a digest's mismatch", err)
	}
	mustLackAll(t, rotten.store)
}

func TestHubTokenFile(t *testing.T) {
	home := t.TempDir()
	writeFile(t, filepath.Join(home, "token"), []byte("from-file\n"))
	h, err := hubFrom(environment(t, "HF_HOME", home))
	if err != nil || h.token != "from-file" || h.endpoint != hubEndpoint {
		t.Errorf("hub settings are %+v, error %v", h, err)
	}
	h, err = hubFrom(environment(t, "HF_HOME", home, "HF_TOKEN", "from-env", "HF_HUB_CACHE", "/c"))
	if err != nil || h.token != "from-env" || h.cache != "/c" {
		t.Errorf("hub settings are %+v, error %v", h, err)
	}
}

func TestChooseFilePrefersCommonQuantizations(t *testing.T) {
	names := []string{"m.F16.gguf", "m.Q4_K_M.gguf", "m.Q4_K_S.gguf", "imatrix.gguf", "m.Q8_0.gguf"}
	got, err := chooseFile(ref{repo: "o/r"}, names)
	if got != "m.Q4_K_M.gguf" || err != nil {
		t.Errorf("chose %q, error %v", got, err)
	}
	if got, err := chooseFile(ref{repo: "o/r", quant: "Q4_K"}, names); err == nil {
		t.Errorf("Q4_K chose %q, want an error: it is no whole word of any name", got)
	}
}
