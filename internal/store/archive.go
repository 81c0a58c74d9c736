package store

import (
	"bufio"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// magicSink refuses a file that does not begin like GGUF before more of it comes.
type magicSink struct {
	head []byte
}

const magic = "GGUF"

func (m *magicSink) Write(b []byte) (int, error) {
	if missing := len(magic) - len(m.head); missing > 0 {
		m.head = append(m.head, b[:min(missing, len(b))]...)
		if !bytes.HasPrefix([]byte(magic), m.head) {
			return 0, notGGUF(m.head)
		}
	}
	return len(b), nil
}

func (m *magicSink) Finish() error {
	if len(m.head) < len(magic) {
		return notGGUF(m.head)
	}
	return nil
}

func (m *magicSink) Abort() {}

func notGGUF(head []byte) error {
	return fault.New(fault.Invalid, "not a GGUF file: it begins with %q, want %q", head, magic)
}

// extractor is a sink that takes one member out of a ZIP archive while the
// archive arrives (APPNOTE.TXT 6.3.10, sections 4.3.7 and 4.5.3). It reads the
// local headers, which come in the order of the bytes.
type extractor struct {
	member string
	path   string // where the member goes
	size   int64  // what the member must have, as the catalog states
	sha256 string

	pipe *io.PipeWriter
	done chan error // one value: how the reading side ended
}

// startExtractor starts the reading side, which ends with Finish or Abort.
func startExtractor(member, path string, size int64, digest string) (*extractor, error) {
	out, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("extract %s: %w", member, err)
	}
	r, w := io.Pipe()
	x := &extractor{member: member, path: path, size: size, sha256: digest, pipe: w, done: make(chan error, 1)}
	go func() {
		err := x.extract(bufio.NewReaderSize(r, copyBytes), out)
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			_, err = io.Copy(io.Discard, r) // what stands behind the member
		}
		r.CloseWithError(err)
		x.done <- err
	}()
	return x, nil
}

func (x *extractor) Write(b []byte) (int, error) { return x.pipe.Write(b) }

func (x *extractor) Finish() error {
	_ = x.pipe.Close() // never fails
	err := <-x.done
	x.done <- err
	return err
}

var errAborted = errors.New("extraction given up")

func (x *extractor) Abort() {
	x.pipe.CloseWithError(errAborted)
	x.done <- <-x.done
}

func (x *extractor) extract(r *bufio.Reader, out io.Writer) error {
	content, err := findMember(r, x.member)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(content, x.size+1))
	switch {
	case errors.Is(err, errAborted):
		return err
	case err != nil:
		return fault.New(fault.Corrupt, "extract %s after %d bytes: %w", x.member, n, err)
	case n != x.size:
		return fault.New(fault.Corrupt, "extract %s: it has %d bytes or more, want %d", x.member, n, x.size)
	}
	return checkDigest(x.member, hex.EncodeToString(sum.Sum(nil)), x.sha256)
}

const (
	localHeaderBytes     = 30
	localHeaderSignature = 0x04034b50
	flagEncrypted        = 1 << 0
	flagDescriptor       = 1 << 3 // sizes follow the data
	methodStored         = 0
	methodDeflated       = 8
	zip64Extra           = 1
	zip64Size            = 0xffffffff
)

// localHeader is what stands before a member's data.
type localHeader struct {
	name           string
	flags, method  uint16
	compressedSize uint64
}

// findMember skips to the named member and returns its content.
func findMember(r *bufio.Reader, member string) (io.Reader, error) {
	for {
		h, ok, err := readLocalHeader(r)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fault.New(fault.Corrupt, "the archive has no member %s", member)
		}
		if h.name == member {
			return h.open(r)
		}
		if h.flags&flagDescriptor != 0 {
			return nil, fault.New(fault.Corrupt, "the archive's member %q does not state its size", h.name)
		}
		if _, err := io.CopyN(io.Discard, r, int64(h.compressedSize)); err != nil {
			return nil, truncated(err)
		}
	}
}

func (h localHeader) open(r *bufio.Reader) (io.Reader, error) {
	switch {
	case h.flags&flagEncrypted != 0:
		return nil, fault.New(fault.Corrupt, "the archive's member %q is encrypted", h.name)
	case h.method == methodDeflated:
		return flate.NewReader(r), nil
	case h.method == methodStored && h.flags&flagDescriptor == 0:
		return io.LimitReader(r, int64(h.compressedSize)), nil
	}
	return nil, fault.New(fault.Corrupt, "the archive's member %q is packed by method %d, want %d or %d", h.name, h.method, methodStored, methodDeflated)
}

// readLocalHeader reads the next header; ok is false where the members end.
func readLocalHeader(r *bufio.Reader) (h localHeader, ok bool, err error) {
	var b [localHeaderBytes]byte
	if _, err := io.ReadFull(r, b[:4]); err != nil {
		return h, false, truncated(err)
	}
	if binary.LittleEndian.Uint32(b[:]) != localHeaderSignature {
		return h, false, nil
	}
	if _, err := io.ReadFull(r, b[4:]); err != nil {
		return h, false, truncated(err)
	}
	h.flags = binary.LittleEndian.Uint16(b[6:])
	h.method = binary.LittleEndian.Uint16(b[8:])
	h.compressedSize = uint64(binary.LittleEndian.Uint32(b[18:]))
	nameBytes, extraBytes := binary.LittleEndian.Uint16(b[26:]), binary.LittleEndian.Uint16(b[28:])
	rest := make([]byte, int(nameBytes)+int(extraBytes))
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, false, truncated(err)
	}
	h.name = string(rest[:nameBytes])
	if h.compressedSize == zip64Size {
		if h.compressedSize, ok = zip64CompressedSize(rest[nameBytes:]); !ok {
			return h, false, fault.New(fault.Corrupt, "the archive's member %q lacks its 64-bit size", h.name)
		}
	}
	return h, true, nil
}

// zip64CompressedSize finds the second number of the ZIP64 field; in a local
// header both sizes stand there.
func zip64CompressedSize(extra []byte) (uint64, bool) {
	for len(extra) >= 4 {
		id, n := binary.LittleEndian.Uint16(extra), int(binary.LittleEndian.Uint16(extra[2:]))
		extra = extra[4:]
		if n > len(extra) {
			return 0, false
		}
		if id == zip64Extra {
			if n < 16 {
				return 0, false
			}
			size := binary.LittleEndian.Uint64(extra[8:])
			return size, size < 1<<62
		}
		extra = extra[n:]
	}
	return 0, false
}

func truncated(err error) error {
	if errors.Is(err, errAborted) {
		return err
	}
	return fault.New(fault.Corrupt, "the archive ends within a member: %w", err)
}
