package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// hubEndpoint is where the hub is unless HF_ENDPOINT says otherwise.
const hubEndpoint = "https://huggingface.co"

const (
	hubAnswerBytesMax = 32 << 20
	hubRevision       = "main"
	tokenBytesMax     = 4096
)

// quantPreference is the order in which a repository's files are taken when the
// user names none.
func quantPreference() []string { return []string{"Q4_K_M", "Q8_0", "Q4_0", "F16"} }

// hub is what the environment says of the Hugging Face hub. The variables are
// those of its own Python client.
type hub struct {
	endpoint string
	token    string
	cache    string // that client's download cache, read but never written
	offline  bool
}

func hubFrom(getenv func(string) string) (hub, error) {
	h := hub{endpoint: strings.TrimRight(getenv("HF_ENDPOINT"), "/"), cache: getenv("HF_HUB_CACHE")}
	if h.endpoint == "" {
		h.endpoint = hubEndpoint
	}
	if u, err := url.Parse(h.endpoint); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return hub{}, fault.New(fault.Invalid, "HF_ENDPOINT is not an http or https address")
	}
	home := getenv("HF_HOME")
	if home == "" {
		home = filepath.Join(cacheHome(getenv), "huggingface")
	}
	if h.cache == "" {
		h.cache = filepath.Join(home, "hub")
	}
	h.offline = slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(getenv("HF_HUB_OFFLINE")))
	h.token = getenv("HF_TOKEN")
	if h.token == "" {
		tokenPath := getenv("HF_TOKEN_PATH")
		if tokenPath == "" {
			tokenPath = filepath.Join(home, "token")
		}
		if text, err := os.ReadFile(tokenPath); err == nil && len(text) <= tokenBytesMax {
			h.token = strings.TrimSpace(string(text))
		}
	}
	return h, nil
}

func cacheHome(getenv func(string) string) string {
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(getenv("HOME"), ".cache")
}

// pullHub finds the file, looks for it in the store and in the hub client's
// cache, and downloads it when it is in neither.
func (p *pull) pullHub(ctx context.Context) error {
	h, err := hubFrom(p.getenv)
	if err != nil {
		return err
	}
	if h.offline {
		return p.pullHubOffline(ctx, h)
	}
	p.report(Progress{Phase: Resolving})
	repo, err := p.askHub(ctx, h)
	if err != nil {
		return err
	}
	file, err := repo.choose(p.ref)
	if err != nil {
		return err
	}
	p.model.Source, p.model.Version, p.model.Licence = "hf:"+p.ref.repo+"/"+file.Name, repo.Commit, repo.licence()
	if done, err := p.known(ctx, file.LFS.SHA256); done || err != nil {
		return err
	}
	if cached := h.cached(p.ref.repo, repo.Commit, file.Name); cached != "" {
		return p.copyFile(ctx, cached, file.LFS.SHA256)
	}
	p.key = shortDigest(fmt.Sprintf("hub %s %s %s %s", h.endpoint, p.ref.repo, file.Name, cmp.Or(file.LFS.SHA256, repo.Commit)))
	return p.download(ctx, artifact{
		key:     p.key,
		address: h.endpoint + "/" + p.ref.repo + "/resolve/" + repo.Commit + "/" + escapePath(file.Name),
		token:   h.token,
		sha256:  file.LFS.SHA256,
		size:    file.Size,
	})
}

// hubRepo is the answer to /api/models/OWNER/REPO/revision/REVISION?blobs=true.
type hubRepo struct {
	Commit   string    `json:"sha"`
	Files    []hubFile `json:"siblings"`
	CardData struct {
		License any `json:"license"` // a text or a list of texts
	} `json:"cardData"`
}

type hubFile struct {
	Name string `json:"rfilename"`
	Size int64  `json:"size"`
	LFS  struct {
		SHA256 string `json:"sha256"`
	} `json:"lfs"`
}

func (p *pull) askHub(ctx context.Context, h hub) (hubRepo, error) {
	address := h.endpoint + "/api/models/" + p.ref.repo + "/revision/" + hubRevision + "?blobs=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return hubRepo{}, err
	}
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	client := p.fetcher(p.store.path("partial"), p.report).client
	defer client.CloseIdleConnections()
	response, err := client.Do(req)
	if err != nil {
		if wrapped := new(url.Error); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return hubRepo{}, fault.New(fault.Unavailable, "ask the hub for %s: %w", p.ref.repo, err)
	}
	defer response.Body.Close()
	if err := hubStatus(p.ref.repo, response.StatusCode, h.token != ""); err != nil {
		return hubRepo{}, err
	}
	var repo hubRepo
	if err := json.NewDecoder(io.LimitReader(response.Body, hubAnswerBytesMax)).Decode(&repo); err != nil {
		return hubRepo{}, fault.New(fault.Unavailable, "ask the hub for %s: its answer can't be read: %w", p.ref.repo, err)
	}
	return repo, repo.validate(p.ref.repo)
}

func hubStatus(repo string, status int, withToken bool) error {
	switch {
	case status == http.StatusOK:
		return nil
	case status == http.StatusNotFound:
		return fault.New(fault.NotFound, "the hub has no repository %s (404)", repo)
	case status == http.StatusUnauthorized && !withToken:
		return fault.New(fault.Unauthenticated, "the hub has no public repository %s (401): if it is private or gated, set HF_TOKEN", repo)
	case status == http.StatusUnauthorized:
		return fault.New(fault.Unauthenticated, "the hub refuses HF_TOKEN for %s (401)", repo)
	case status == http.StatusForbidden:
		return fault.New(fault.Forbidden, "the hub refuses %s (403): accept its conditions there first", repo)
	}
	return fault.New(fault.Unavailable, "ask the hub for %s: it answers %d %s", repo, status, http.StatusText(status))
}

func (r hubRepo) validate(repo string) error {
	if r.Commit == "" || !validPart(r.Commit) || strings.Contains(r.Commit, "/") {
		return fault.New(fault.Unavailable, "ask the hub for %s: its answer names no commit", repo)
	}
	for _, f := range r.Files {
		if f.LFS.SHA256 != "" && !isDigest(f.LFS.SHA256) || f.Size < 0 {
			return fault.New(fault.Unavailable, "ask the hub for %s: file %q has no valid sha256 or size", repo, f.Name)
		}
	}
	return nil
}

func (r hubRepo) licence() string {
	switch l := r.CardData.License.(type) {
	case string:
		return l
	case []any:
		return fmt.Sprint(l...)
	}
	return ""
}

// choose picks the file that the reference means.
func (r hubRepo) choose(want ref) (hubFile, error) {
	names := make([]string, len(r.Files))
	for i, f := range r.Files {
		names[i] = f.Name
	}
	name, err := chooseFile(want, names)
	if err != nil {
		return hubFile{}, err
	}
	return r.Files[slices.Index(names, name)], nil
}

// chooseFile picks among the names of a repository's files.
func chooseFile(want ref, names []string) (string, error) {
	if want.file != "" {
		if !slices.Contains(names, want.file) {
			return "", fault.New(fault.NotFound, "repository %s has no file %s; its GGUF files: %s", want.repo, want.file, listed(ggufFiles(names)))
		}
		if isSplit(want.file) {
			return "", fault.New(fault.Invalid, "file %s is one part of several: join the parts first", want.file)
		}
		return want.file, nil
	}
	files := ggufFiles(names)
	quants := []string{want.quant}
	if want.quant == "" {
		if len(files) == 1 {
			return files[0], nil
		}
		quants = quantPreference()
	}
	for _, quant := range quants {
		found := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return !hasQuant(f, quant) })
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return "", fault.New(fault.Invalid, "repository %s has %d files of %s, name one: %s", want.repo, len(found), quant, listed(found))
		}
	}
	return "", fault.New(fault.NotFound, "repository %s has no file of %s; its GGUF files: %s", want.repo, strings.Join(quants, " or "), listed(files))
}

// ggufFiles are the files that are whole language models.
func ggufFiles(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		base := strings.ToLower(path.Base(name))
		return !strings.HasSuffix(base, ".gguf") || strings.HasPrefix(base, "mmproj") || strings.Contains(base, "imatrix") || isSplit(name)
	})
}

func isSplit(name string) bool {
	ok, _ := path.Match("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", strings.ToLower(path.Base(name)))
	return ok
}

// hasQuant looks for the quantization as a word of the file's name.
func hasQuant(name, quant string) bool {
	ok, err := regexp.MatchString(`(?i)(^|[-._/])`+regexp.QuoteMeta(quant)+`([-.]|$)`, name)
	return ok && err == nil
}

func listed(names []string) string {
	const shown = 12
	if len(names) == 0 {
		return "none"
	}
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

func escapePath(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// snapshot is the folder in which the hub's client keeps a commit's files.
func (h hub) snapshot(repo, commit string) string {
	return filepath.Join(h.cache, "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", commit)
}

// cached is the path of a file in the hub client's cache, or empty.
func (h hub) cached(repo, commit, file string) string {
	if !filepath.IsLocal(file) {
		return ""
	}
	p := filepath.Join(h.snapshot(repo, commit), filepath.FromSlash(file))
	if _, err := os.Stat(p); err != nil {
		return ""
	}
	return p
}

// pullHubOffline takes what the store or the hub client's cache has.
func (p *pull) pullHubOffline(ctx context.Context, h hub) error {
	if m, err := p.store.Find(p.model.Name); err == nil && strings.HasPrefix(m.Source, "hf:"+p.ref.repo+"/") && p.store.complete(m) {
		p.model = m
		return nil
	}
	refs := filepath.Join(h.cache, "models--"+strings.ReplaceAll(p.ref.repo, "/", "--"), "refs", hubRevision)
	text, err := os.ReadFile(refs)
	commit := strings.TrimSpace(string(text))
	if err != nil || !validPart(commit) || strings.Contains(commit, "/") {
		return fault.New(fault.Unavailable, "HF_HUB_OFFLINE is set, and %s is neither in the store nor in %s", p.ref.repo, h.cache)
	}
	names, err := filesUnder(h.snapshot(p.ref.repo, commit))
	if err != nil {
		return fault.New(fault.Unavailable, "HF_HUB_OFFLINE is set, and the cache of %s can't be read: %w", p.ref.repo, err)
	}
	name, err := chooseFile(p.ref, names)
	if err != nil {
		return fmt.Errorf("HF_HUB_OFFLINE is set: %w", err)
	}
	p.model.Source, p.model.Version = "hf:"+p.ref.repo+"/"+name, commit
	return p.copyFile(ctx, h.cached(p.ref.repo, commit, name), "")
}

func filesUnder(dir string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	return names, err
}
