package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/regular"
)

// Phase is what a pull is doing.
type Phase uint8

// The phases. A pull may go through some of them, in this order, but for Rereading,
// which comes where a digest is known.
const (
	Waiting     Phase = iota // another process pulls the same model
	Resolving                // asking the source what it has
	Downloading              // Done of Total bytes are here
	Copying                  // Done of Total bytes of a local file are copied
	Unpacking                // Done of Total bytes of a package are unpacked
	Verifying                // reading what has arrived
	Rereading                // Done of Total bytes of what the store has are checked; the last phase where they are right
)

// String is the phase in a line for the user.
func (p Phase) String() string {
	return [...]string{"waiting for another pull", "resolving", "downloading", "copying", "unpacking", "verifying", "checking what is here"}[p]
}

// Progress is how far a pull is. Total is 0 where nobody knows.
type Progress struct {
	Phase       Phase
	Done, Total int64 // bytes
	// Fleeting says that a pull which ends now leaves nothing to go on with.
	Fleeting bool
}

// Puller fetches models into a store.
type Puller struct {
	store  *Store
	getenv func(string) string
	now    func() time.Time
	// fetcher makes the downloader of one pull; a test changes its patience.
	fetcher func(dir string, report func(Progress)) *fetcher
	python  python
}

// NewPuller makes a puller that takes its settings from the environment: HF_* for
// the hub, PIP_* and pip's files for the catalog's Python packages.
func NewPuller(s *Store, getenv func(string) string) *Puller {
	return &Puller{store: s, getenv: getenv, now: time.Now, fetcher: newFetcher, python: systemPython()}
}

// CheckReference refuses what Pull can give no meaning: a reference, or a name that is
// not empty, of no known form.
func CheckReference(reference, name string) error {
	r, err := parseRef(reference)
	if err == nil {
		err = checkName(cmp.Or(name, r.name()))
	}
	return err
}

// Pull fetches the model that reference leads to and gives it a name, by default
// one made of the reference. A local file is copied: what a store holds is
// named by its content, so it can't be a file that others may change.
//
// When another process pulls the same reference, Pull waits and then finds most
// of its work done. A cancelled Pull leaves a partial file, where the next one
// goes on. Content that the store has is read again and not fetched, unless its digest
// is no longer right. report may be nil.
func (p *Puller) Pull(ctx context.Context, reference, name string, report func(Progress)) (Model, error) {
	r, err := parseRef(reference)
	if err != nil {
		return Model{}, err
	}
	if name == "" {
		name = r.name()
	}
	if err := checkName(name); err != nil {
		return Model{}, err
	}
	if report == nil {
		report = func(Progress) {}
	}
	job := &pull{Puller: p, ref: r, report: report, model: Model{Name: name}}
	job.key = shortDigest(fmt.Sprintf("%d %s", r.kind, r.text))
	path := p.store.path("partial", job.key+".lock")
	unlock, err := lock(ctx, path, func() { report(Progress{Phase: Waiting}) })
	if err != nil {
		return Model{}, err
	}
	defer unlock()
	defer func() { _ = os.Remove(path) }() // who waits for it sees that and takes a new one
	if err := job.run(ctx); err != nil {
		return Model{}, err
	}
	return job.model, nil
}

func shortDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// pull is one run of Pull.
type pull struct {
	*Puller
	ref    ref
	key    string
	report func(Progress)
	model  Model // filled on the way
}

func (p *pull) run(ctx context.Context) error {
	switch p.ref.kind {
	case refFile:
		p.model.Source = p.ref.text
		return p.copyFile(ctx, p.ref.text, "")
	case refURL:
		return p.pullURL(ctx)
	case refHub:
		return p.pullHub(ctx)
	case refCatalog:
	}
	entry, err := findEntry(Catalog(), p.ref.text)
	if err != nil {
		return err
	}
	return p.pullEntry(ctx, entry)
}

func (p *pull) partial(suffix string) string { return p.store.path("partial", p.key+suffix) }

// pullURL asks for the file on condition that it is not the one the store has.
func (p *pull) pullURL(ctx context.Context) error {
	p.model.Source = plainURL(p.ref.url)
	a := artifact{key: p.key, address: p.ref.text}
	have, err := p.store.Find(p.model.Name)
	if err == nil && have.Source == p.model.Source && p.store.complete(have) {
		a.etag = have.Version
	}
	err = p.download(ctx, a)
	if !errors.Is(err, errUnchanged) {
		return err
	}
	right, err := p.intact(ctx, have)
	if err != nil {
		return err
	}
	if right {
		p.model = have
		return nil
	}
	a.etag = ""
	return p.download(ctx, a)
}

// download fetches a GGUF file and publishes it.
func (p *pull) download(ctx context.Context, a artifact) error {
	f := p.fetcher(p.store.path("partial"), p.report)
	defer f.client.CloseIdleConnections()
	got, err := f.fetch(ctx, a, func() (sink, error) { return &magicSink{}, nil })
	if err != nil {
		return err
	}
	p.model.SHA256, p.model.Size = got.sha256, got.size
	if p.model.Version == "" {
		p.model.Version = got.etag
	}
	if err := p.publish(ctx, got.path); err != nil {
		return err
	}
	return ignoreAbsent(os.Remove(p.store.path("partial", a.key+".json")))
}

// copyFile copies a local GGUF file and publishes the copy.
func (p *pull) copyFile(ctx context.Context, path, want string) error {
	in, info, err := regular.Open(path)
	if errors.As(err, new(*regular.NotRegular)) {
		return fault.New(fault.Invalid, "pull: %w", err)
	}
	if err != nil {
		return fault.New(fault.NotFound, "pull: %w", err)
	}
	defer in.Close()
	if err := checkSpace(freeBytes, p.store.path("partial"), info.Size()); err != nil {
		return err
	}
	copied := p.partial(".copy")
	out, err := os.Create(copied)
	if err != nil {
		return fmt.Errorf("pull %s: %w", path, err)
	}
	defer func() { _ = os.Remove(copied) }() // absent once it is published
	sum, head := sha256.New(), &magicSink{}
	n, err := p.copy(ctx, io.MultiWriter(head, sum, out), in, Progress{Phase: Copying, Total: info.Size(), Fleeting: true})
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = head.Finish()
	}
	if err != nil {
		return fmt.Errorf("pull %s: %w", path, p.spaceError(err, info.Size()-n))
	}
	p.model.SHA256, p.model.Size = hex.EncodeToString(sum.Sum(nil)), n
	if err := checkDigest(path, p.model.SHA256, want); err != nil {
		return err
	}
	if done, err := p.known(ctx, p.model.SHA256); done || err != nil {
		return err
	}
	return p.publish(ctx, copied)
}

// copy is io.Copy with progress, which ends early when ctx does.
func (p *pull) copy(ctx context.Context, out io.Writer, in io.Reader, progress Progress) (n int64, err error) {
	buf := make([]byte, copyBytes)
	for {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		k, readErr := in.Read(buf)
		if _, err := out.Write(buf[:k]); err != nil {
			return n, err
		}
		n += int64(k)
		progress.Done = n
		p.report(progress)
		if readErr == io.EOF {
			return n, nil
		}
		if readErr != nil {
			return n, readErr
		}
	}
}

// spaceError gives a full disk's error both its numbers.
func (p *pull) spaceError(err error, need int64) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	dir := p.store.path("partial")
	if full := checkSpace(freeBytes, dir, need); full != nil {
		return full
	}
	return fault.New(fault.Unavailable, "no space in %s: %d more bytes are needed: %w", dir, need, err)
}

// publish reads the whole file's structure before anybody may find it.
func (p *pull) publish(ctx context.Context, path string) error {
	p.report(Progress{Phase: Verifying, Done: p.model.Size, Total: p.model.Size})
	f, err := gguf.Open(path)
	if err != nil {
		_ = os.Remove(path) // it will never become a model
		return fault.New(fault.Invalid, "model %s is not a usable GGUF file: %w", p.model.Name, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	p.model.Pulled = p.now().UTC().Truncate(time.Second)
	return p.store.publish(ctx, path, p.model)
}

// known gives the content of that digest the model's name, if the store has it whole.
func (p *pull) known(ctx context.Context, digest string) (bool, error) {
	if digest == "" {
		return false, nil
	}
	models, err := p.store.List()
	if err != nil {
		return false, err
	}
	ours := slices.IndexFunc(models, func(m Model) bool { return m.SHA256 == digest && m.Name == p.model.Name })
	some := slices.IndexFunc(models, func(m Model) bool { return m.SHA256 == digest })
	if some < 0 {
		return false, nil
	}
	if right, err := p.intact(ctx, models[some]); !right || err != nil {
		return false, err
	}
	if ours >= 0 {
		p.model = models[ours]
		return true, nil
	}
	return p.store.adopt(ctx, &p.model, models[some], p.now().UTC().Truncate(time.Second))
}

// intact reads the file of a model of the store, and tells whether it has the digest
// that it was published with.
func (p *pull) intact(ctx context.Context, m Model) (bool, error) {
	if !p.store.complete(m) {
		return false, nil
	}
	in, err := os.Open(p.store.Path(m))
	if err != nil {
		return false, ignoreAbsent(err)
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := p.copy(ctx, sum, in, Progress{Phase: Rereading, Total: m.Size, Fleeting: true}); err != nil {
		return false, fmt.Errorf("check model %s: %w", m.Name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)) == m.SHA256, nil
}

// adopt names content that the store has under another name. It reports false
// when that name went away meanwhile.
func (s *Store) adopt(ctx context.Context, m *Model, other Model, now time.Time) (done bool, err error) {
	m.SHA256, m.Size, m.Pulled = other.SHA256, other.Size, now
	err = s.change(ctx, func(x *index) error {
		if !s.complete(other) {
			return nil
		}
		done = true
		return s.name(x, *m)
	})
	return done, err
}

// complete reports whether the model's file is there in full length.
func (s *Store) complete(m Model) bool {
	info, err := os.Stat(s.Path(m))
	return err == nil && info.Size() == m.Size
}
