// Package gguf reads and writes GGUF files.
//
// It follows the GGUF specification, versions 2 and 3, little-endian. A file
// is untrusted: whatever its bytes are, reading ends in a File or in one error
// that names an offset, and never takes more memory than the file has bytes of
// metadata. Values are decoded when asked for; tensor bytes are never copied.
package gguf

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/regular"
)

// AlignmentDefault is the alignment of tensor data where a file states none.
const AlignmentDefault = 32

// File is a parsed GGUF file. It is immutable and safe for concurrent use
// until Close.
type File struct {
	// Version of the format: 2 or 3.
	Version uint32
	// Alignment of every tensor's data, in bytes: a power of two.
	Alignment uint64
	// Metadata holds the file's key-value pairs.
	Metadata Metadata

	data    []byte
	mapped  bool
	base    uint64 // offset of the tensor data section
	tensors []Tensor
	byName  map[string]int
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name string
	Type Type
	// Dims are the extents, fastest varying first: a matrix of R rows and C
	// columns has Dims {C, R}.
	Dims []int
	// Offset of the first byte from the start of the file.
	Offset uint64
	// Data are the tensor's bytes, read-only, valid until the file is closed.
	Data []byte
}

// Open maps the file at path read-only and parses it.
func Open(path string) (*File, error) {
	data, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(data)
	if err != nil {
		_ = unix.Munmap(data) // the parse error is the one to report
		return nil, fmt.Errorf("gguf file %s: %w", path, err)
	}
	f.mapped = true
	return f, nil
}

func mapFile(path string) ([]byte, error) {
	file, info, err := regular.Open(path)
	if errors.As(err, new(*regular.NotRegular)) {
		return nil, fmt.Errorf("gguf file %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info.Size() < headerSize {
		return nil, fmt.Errorf("gguf file %s: %d bytes, a header has %d", path, info.Size(), headerSize)
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("gguf file %s: map %d bytes: %w", path, info.Size(), err)
	}
	return data, nil
}

// Close releases the mapping of a file that Open returned. No Tensor's Data
// may be used afterwards.
func (f *File) Close() error {
	if !f.mapped {
		return nil
	}
	f.mapped = false
	return unix.Munmap(f.data)
}

// Tensors lists the tensors in the file's order.
func (f *File) Tensors() iter.Seq[Tensor] { return slices.Values(f.tensors) }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Bytes are the whole file, read-only, valid until the file is closed.
func (f *File) Bytes() []byte { return f.data }

// Head are the bytes before the tensor data: header, metadata and tensor table.
func (f *File) Head() []byte { return f.data[:f.base] }

// Elements is the number of values in the tensor.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Dims {
		n *= d
	}
	return n
}
