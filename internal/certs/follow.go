package certs

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
)

// FollowInterval is how often files of certificates are looked at.
const FollowInterval = 2 * time.Second

// Follower reads the files of a certificate again when they have changed.
type Follower struct {
	paths  []string
	reload func() error
	tried  []fs.FileInfo // as they were when they were read last
	seen   []fs.FileInfo // as they were at the last look
	reason string        // why what was read last is not in use; empty if it is
}

// NewFollower takes the files as they are now for read: it is to be made before they
// are. reload reads them and puts what they hold in use; when it gives an error, what
// was in use must stay.
func NewFollower(paths []string, reload func() error) *Follower {
	now := look(paths)
	return &Follower{paths: paths, reload: reload, tried: now, seen: now}
}

// Run looks at the files until ctx ends. What reload refuses is read again at each
// look: a certificate may only have to become valid. failed is called once for each
// change that is refused, and the log has a line for each new reason.
func (f *Follower) Run(ctx context.Context, log *slog.Logger, failed func()) {
	ticker := time.NewTicker(FollowInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.poll(log, failed)
		}
	}
}

// poll reads files that have changed and then stayed as they are from one look to the
// next: a certificate and its key are replaced one after the other.
func (f *Follower) poll(log *slog.Logger, failed func()) {
	now := look(f.paths)
	settled, changed := slices.EqualFunc(now, f.seen, sameFile), !slices.EqualFunc(now, f.tried, sameFile)
	f.seen = now
	if !settled || !changed && f.reason == "" {
		return
	}
	f.tried = now
	err := f.reload()
	if err == nil {
		f.reason = ""
		log.Info("certificate is loaded again", "files", f.paths)
		return
	}
	news := err.Error() != f.reason
	f.reason = err.Error()
	if changed || news {
		failed()
	}
	if news {
		log.Error("certificate not loaded, the last good one stays", "error", err)
	}
}

// look gives the state of files, nil for one that isn't there.
func look(paths []string) []fs.FileInfo {
	all := make([]fs.FileInfo, len(paths))
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil {
			all[i] = info
		}
	}
	return all
}

// sameFile compares inode, time, size and mode.
func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}
