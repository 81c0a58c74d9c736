//go:build !linux

package slab

import (
	"errors"
	"os"
)

// allocate makes zeroed memory of this process only.
func allocate(n int) ([]byte, error) { return make([]byte, n), nil }

// allocateShared fails: there are no sealed memory files here.
func allocateShared(int) ([]byte, *os.File, error) {
	return nil, nil, errors.New("memory file: " + errors.ErrUnsupported.Error())
}

func release([]byte, *os.File) error { return nil }
