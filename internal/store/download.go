package store

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

const (
	attemptsMax    = 1000             // of one download
	failuresMax    = 5                // in a row, without a byte between them
	stallTimeout   = 60 * time.Second // without a byte, then the attempt is over
	copyBytes      = 256 << 10
	stateBytesMax  = 64 << 10
	syncInterval   = 64 << 20 // bytes received between two syncs
	backoffFirst   = 500 * time.Millisecond
	backoffMax     = 8 * time.Second
	redirectsMax   = 10
	responseWindow = 30 * time.Second // from request to response headers
)

// errUnchanged says that the source still has the version that the store has.
var errUnchanged = errors.New("unchanged at the source")

// artifact is a file to download.
type artifact struct {
	key     string // names its partial file
	address string
	token   string // bearer token for the address's host alone, or empty
	sha256  string // what the file must have, empty if nobody states it
	size    int64  // bytes that it must have, 0 if nobody states them
	etag    string // version that the store has, to be told that it still is the one
	extra   int64  // bytes that the sink will write
}

// sink looks at a file's bytes while they arrive, in order from the first.
type sink interface {
	io.Writer
	Finish() error // after the last byte
	Abort()        // instead of Finish
}

// fetcher downloads files into a folder of partial ones.
type fetcher struct {
	client *http.Client
	dir    string
	stall  time.Duration
	wait   func(ctx context.Context, failures int) error // before another attempt
	free   func(dir string) (int64, error)
	report func(Progress)
}

func newFetcher(dir string, report func(Progress)) *fetcher {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.ResponseHeaderTimeout = responseWindow
	return &fetcher{
		client: &http.Client{Transport: transport, CheckRedirect: checkRedirect},
		dir:    dir,
		stall:  stallTimeout,
		wait:   backoff,
		free:   freeBytes,
		report: report,
	}
}

// checkRedirect keeps the token from every host but the first one.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= redirectsMax {
		return fmt.Errorf("more than %d redirects", redirectsMax)
	}
	first := via[0].URL
	if first.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("redirect from https to %s", req.URL.Scheme)
	}
	if req.URL.Host != first.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

func backoff(ctx context.Context, failures int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(backoffFirst<<(failures-1), backoffMax)):
		return nil
	}
}

// fetched is a complete, verified download.
type fetched struct {
	path   string
	sha256 string
	size   int64
	etag   string
}

// transient marks an error after which another attempt may succeed.
type transient struct{ err error }

func (t transient) Error() string { return t.err.Error() }
func (t transient) Unwrap() error { return t.err }

// fetch downloads a and goes on where an earlier process stopped. A cancelled
// fetch leaves what it has; the caller holds the key's lock.
func (f *fetcher) fetch(ctx context.Context, a artifact, newSink func() (sink, error)) (fetched, error) {
	d, err := f.open(a, newSink)
	if err != nil {
		return fetched{}, err
	}
	defer d.close()
	if total := max(a.size, d.state.Size); total > 0 {
		f.report(Progress{Phase: Downloading, Done: d.have, Total: total}) // what is shown begins now, not with the first bytes
	}
	for attempt, failures := 0, 0; ; attempt++ {
		before := d.have
		err := d.attempt(ctx)
		if err == nil {
			return d.finish()
		}
		if ctx.Err() != nil {
			return fetched{}, fmt.Errorf("download %s: %w", d.where, ctx.Err())
		}
		if d.have > before {
			failures = 0
		}
		failures++
		if again := new(transient); !errors.As(err, again) || failures >= failuresMax || attempt >= attemptsMax {
			return fetched{}, err
		}
		if err := f.wait(ctx, failures); err != nil {
			return fetched{}, fmt.Errorf("download %s: %w", d.where, err)
		}
	}
}

// download is one fetch's state.
//
// Invariant: seen <= have; sum and sink have seen exactly the first seen bytes.
type download struct {
	*fetcher
	a       artifact
	where   string // the address, fit to be shown
	newSink func() (sink, error)
	part    *os.File
	have    int64 // bytes in part
	seen    int64
	sum     hash.Hash
	sink    sink
	state   partState
}

// partState is what is known of the bytes in a partial file.
type partState struct {
	ETag         string `json:"etag"`
	LastModified string `json:"last_modified"`
	Size         int64  `json:"size"` // of the whole file, -1 if unknown
	// Synced is how many bytes survive a power failure. Only a digest could tell
	// whether those behind them did.
	Synced int64 `json:"synced"`
}

func (f *fetcher) open(a artifact, newSink func() (sink, error)) (*download, error) {
	u, err := url.Parse(a.address)
	if err != nil {
		return nil, fault.New(fault.Invalid, "download: the address can't be read as a URL")
	}
	part, err := os.OpenFile(filepath.Join(f.dir, a.key+".part"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	d := &download{fetcher: f, a: a, where: plainURL(u), newSink: newSink, part: part, sum: sha256.New()}
	if d.sink, err = newSink(); err != nil {
		_ = part.Close()
		return nil, err
	}
	if err := d.recall(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// close leaves what has arrived for the next fetch, unless it was taken away.
func (d *download) close() {
	d.sink.Abort()
	if _, err := os.Stat(d.statePath()); err == nil && d.have > d.state.Synced {
		_ = d.sync() // without it the next fetch has less to go on with
	}
	if d.have == 0 {
		_ = os.Remove(d.part.Name()) // nothing is no help to the next one
	}
	_ = d.part.Close()
}

// sync makes the bytes so far survive, and then the fact that they do.
func (d *download) sync() error {
	if err := d.part.Sync(); err != nil {
		return err
	}
	d.state.Synced = d.have
	text, err := json.Marshal(d.state)
	if err != nil {
		return err
	}
	return replaceFile(d.statePath(), text)
}

func (d *download) statePath() string { return filepath.Join(d.dir, d.a.key+".json") }

// recall finds what an earlier process left. Bytes of unknown origin are of no use.
func (d *download) recall() error {
	text, err := os.ReadFile(d.statePath())
	if err != nil || len(text) > stateBytesMax || json.Unmarshal(text, &d.state) != nil {
		return d.drop()
	}
	info, err := d.part.Stat()
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	d.have = info.Size()
	if d.a.sha256 != "" {
		return nil
	}
	if d.ifRange() == "" {
		return d.drop()
	}
	d.have = min(d.have, d.state.Synced)
	if err := d.part.Truncate(d.have); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	return nil
}

// ifRange is the validator under which a server may send just the rest.
func (d *download) ifRange() string {
	if strings.HasPrefix(d.state.ETag, `"`) {
		return d.state.ETag
	}
	return d.state.LastModified
}

// drop forgets all bytes and starts anew.
func (d *download) drop() error {
	d.state = partState{}
	d.have = 0
	if err := d.part.Truncate(0); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	return d.restart()
}

// restart makes sum and sink see the file from its first byte again.
func (d *download) restart() (err error) {
	if d.seen == 0 {
		return nil
	}
	d.seen = 0
	d.sum.Reset()
	d.sink.Abort()
	d.sink, err = d.newSink()
	return err
}

// discard removes the partial file: its bytes can never become the file.
func (d *download) discard() {
	_ = os.Remove(d.part.Name())
	_ = os.Remove(d.statePath())
}

// attempt makes one request and takes what it yields. nil means that the file is complete.
func (d *download) attempt(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(d.stall, func() { cancel(fmt.Errorf("no byte in %s", d.stall)) })
	defer stalled.Stop()

	response, err := d.request(ctx)
	if err != nil {
		return d.networkError(ctx, err)
	}
	defer response.Body.Close()
	complete, err := d.accept(response)
	if err != nil {
		return err
	}
	if err := d.replay(); err != nil || complete {
		return err
	}
	return d.receive(ctx, response.Body, stalled)
}

func (d *download) request(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.a.address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if d.a.token != "" {
		req.Header.Set("Authorization", "Bearer "+d.a.token)
	}
	if d.have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.have))
		if validator := d.ifRange(); validator != "" {
			req.Header.Set("If-Range", validator)
		}
	} else if d.a.etag != "" {
		req.Header.Set("If-None-Match", d.a.etag)
	}
	return d.client.Do(req)
}

// networkError says what went wrong on the way, without the address's secrets.
func (d *download) networkError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if wrapped := new(url.Error); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection without an answer")
	}
	failed := fault.New(fault.Unavailable, "download %s: %w", d.where, err)
	var noHost *net.DNSError
	var badCertificate *tls.CertificateVerificationError
	if errors.As(err, &noHost) && noHost.IsNotFound || errors.As(err, &badCertificate) {
		return failed
	}
	return transient{failed}
}

// accept decides from the headers where the body's bytes belong. complete means
// that there is nothing more to receive.
func (d *download) accept(r *http.Response) (complete bool, err error) {
	switch r.StatusCode {
	case http.StatusOK:
		return false, d.acceptWhole(r)
	case http.StatusPartialContent:
		return false, d.acceptRest(r)
	case http.StatusNotModified:
		d.discard()
		return false, errUnchanged
	case http.StatusRequestedRangeNotSatisfiable:
		if _, total, ok := parseContentRange(r.Header.Get("Content-Range")); ok && total == d.have && d.have > 0 {
			return true, d.checkSize(total)
		}
		return false, d.startOver("the server has no bytes from %d on", d.have)
	}
	return false, d.statusError(r)
}

func (d *download) acceptWhole(r *http.Response) error {
	if err := d.drop(); err != nil {
		return err
	}
	d.state = partState{ETag: r.Header.Get("ETag"), LastModified: r.Header.Get("Last-Modified"), Size: r.ContentLength}
	if err := d.checkSize(r.ContentLength); err != nil {
		return err
	}
	if err := d.checkSpace(); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	return nil
}

func (d *download) acceptRest(r *http.Response) error {
	first, total, ok := parseContentRange(r.Header.Get("Content-Range"))
	etag := r.Header.Get("ETag")
	switch {
	case !ok || first != d.have:
		return d.startOver("asked for bytes from %d on, the server sent %q", d.have, r.Header.Get("Content-Range"))
	case etag != "" && d.state.ETag != "" && etag != d.state.ETag:
		return d.startOver("the file changed from %s to %s", d.state.ETag, etag)
	case total >= 0 && d.state.Size >= 0 && total != d.state.Size:
		return d.startOver("the file changed from %d to %d bytes", d.state.Size, total)
	}
	if d.state.Size < 0 {
		d.state.Size = total
	}
	if err := d.checkSize(total); err != nil {
		return err
	}
	return d.checkSpace()
}

func (d *download) startOver(format string, args ...any) error {
	err := fault.New(fault.Unavailable, "download %s: %s", d.where, fmt.Sprintf(format, args...))
	if dropErr := d.drop(); dropErr != nil {
		return dropErr
	}
	return transient{err}
}

// parseContentRange reads "bytes 5-9/10", "bytes 5-9/*" and "bytes */10".
// Unknown numbers are -1.
func parseContentRange(text string) (first, total int64, ok bool) {
	text, ok = strings.CutPrefix(text, "bytes ")
	span, whole, found := strings.Cut(text, "/")
	if !ok || !found {
		return -1, -1, false
	}
	first, total = -1, -1
	var err error
	if whole != "*" {
		if total, err = strconv.ParseInt(whole, 10, 64); err != nil || total < 0 {
			return -1, -1, false
		}
	}
	if span != "*" {
		from, _, _ := strings.Cut(span, "-")
		if first, err = strconv.ParseInt(from, 10, 64); err != nil || first < 0 {
			return -1, -1, false
		}
	}
	return first, total, true
}

func (d *download) checkSize(size int64) error {
	if d.a.size == 0 || size < 0 || size == d.a.size {
		return nil
	}
	d.discard()
	return fault.New(fault.Corrupt, "download %s: the server has %d bytes, want %d", d.where, size, d.a.size)
}

func (d *download) checkSpace() error {
	if d.state.Size < 0 {
		return nil
	}
	return checkSpace(d.free, d.dir, d.state.Size-d.have+d.a.extra)
}

func checkSpace(free func(string) (int64, error), dir string, need int64) error {
	have, err := free(dir)
	if err != nil {
		return err
	}
	if need > have {
		return fault.New(fault.Unavailable, "no space in %s: %d more bytes are needed, %d are free", dir, need, have)
	}
	return nil
}

func (d *download) statusError(r *http.Response) error {
	kind, hint, again := fault.Invalid, "", false
	switch {
	case r.StatusCode == http.StatusNotFound || r.StatusCode == http.StatusGone:
		kind = fault.NotFound
	case r.StatusCode == http.StatusUnauthorized:
		kind, hint = fault.Unauthenticated, ", it wants other credentials"
	case r.StatusCode == http.StatusForbidden:
		kind, hint = fault.Forbidden, ", these credentials may not have it"
	case r.StatusCode >= 500 || r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusRequestTimeout:
		kind, again = fault.Unavailable, true
	}
	err := fault.New(kind, "download %s: the server answers %d %s%s", d.where, r.StatusCode, http.StatusText(r.StatusCode), hint)
	if again {
		return transient{err}
	}
	return err
}

// replay shows sum and sink the bytes that were there before.
func (d *download) replay() error {
	if d.seen == d.have {
		return nil
	}
	old := io.NewSectionReader(d.part, d.seen, d.have-d.seen)
	n, err := io.CopyBuffer(io.MultiWriter(d.sum, d.sink), struct{ io.Reader }{old}, make([]byte, copyBytes))
	d.seen += n
	if err != nil {
		return d.localError(err)
	}
	return nil
}

// receive appends the body to the partial file.
func (d *download) receive(ctx context.Context, body io.Reader, stalled *time.Timer) error {
	buf := make([]byte, copyBytes)
	for {
		n, readErr := body.Read(buf)
		if n > 0 {
			stalled.Reset(d.stall)
			if err := d.take(buf[:n]); err != nil {
				return d.localError(err)
			}
		}
		if readErr == io.EOF && (d.state.Size < 0 || d.have >= d.state.Size) {
			return d.checkSize(d.have)
		}
		if readErr != nil {
			return d.networkError(ctx, fmt.Errorf("the answer ended after %d of %d bytes: %w", d.have, d.state.Size, readErr))
		}
		if d.a.size > 0 && d.have > d.a.size {
			return d.checkSize(d.have)
		}
	}
}

func (d *download) take(b []byte) error {
	if _, err := d.part.WriteAt(b, d.have); err != nil {
		return err
	}
	d.have += int64(len(b))
	d.sum.Write(b)
	if _, err := d.sink.Write(b); err != nil {
		return err
	}
	d.seen = d.have
	if d.have-d.state.Synced >= syncInterval {
		if err := d.sync(); err != nil {
			return err
		}
	}
	d.report(Progress{Phase: Downloading, Done: d.have, Total: max(0, d.state.Size)})
	return nil
}

// localError is for what went wrong on this machine or in the bytes themselves.
func (d *download) localError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		left, _ := d.free(d.dir) // 0 is near enough when even asking fails
		return fault.New(fault.Unavailable, "no space in %s: %d more bytes are needed, %d are free", d.dir, d.state.Size-d.have+d.a.extra, left)
	}
	if fault.Of(err) != fault.Internal {
		d.discard() // the content is not what it should be
	}
	return fmt.Errorf("download %s: %w", d.where, err)
}

func (d *download) finish() (fetched, error) {
	if err := d.sync(); err != nil {
		return fetched{}, fmt.Errorf("download %s: %w", d.where, err)
	}
	got := hex.EncodeToString(d.sum.Sum(nil))
	if err := checkDigest(d.where, got, d.a.sha256); err != nil {
		d.discard()
		return fetched{}, err
	}
	if err := d.sink.Finish(); err != nil {
		return fetched{}, d.localError(err)
	}
	return fetched{path: d.part.Name(), sha256: got, size: d.have, etag: d.state.ETag}, nil
}

func checkDigest(what, got, want string) error {
	if want == "" || got == want {
		return nil
	}
	return fault.New(fault.Corrupt, "%s has sha256 %s, want %s", what, got, want)
}
