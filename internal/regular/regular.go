// Package regular opens files that must be regular ones.
//
// In the place of a file that others may change there may stand anything: a FIFO, which
// an ordinary open waits for, or a device without an end.
package regular

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// NotRegular is the error about what is no regular file.
type NotRegular struct {
	Path string
	Mode fs.FileMode
}

func (e *NotRegular) Error() string {
	return fmt.Sprintf("%s is no regular file, its mode is %v", e.Path, e.Mode)
}

// Open opens a regular file to be read, and never waits. Anything else is a *NotRegular.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &NotRegular{path, info.Mode()}
	}
	if err != nil {
		_ = f.Close() // it was not read
		return nil, nil, err
	}
	return f, info, nil
}
