package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/kv"
	"golang.org/x/sys/unix"
)

// The header of shared weights, little-endian, in front of the slab:
//
//	0 magic 8 | 8 slab bytes 8 | 16 file bytes 8 | 24 content 32 | 56 head 32 | zeros
//
// content is the SHA-256 of the whole GGUF file, taken once by the process that
// packs; head is that of the bytes before its tensor data, which a process that
// maps the weights takes again, to know that it reads the same file.
const (
	shareMagic       = "BKWEIGH1"
	shareHeaderBytes = 4096 // the slab behind it stays page-aligned
)

// seals are what the shared memory must carry: its bytes and size are final.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// arithmeticVersion changes whenever the same weights and tokens would give
// other KV bytes than before: another quantization of activations or another
// order of accumulation.
const arithmeticVersion = 2

type shareHeader struct {
	slabBytes, fileBytes uint64
	content, head        [sha256.Size]byte
}

func (h shareHeader) append(b []byte) []byte {
	b = append(b, shareMagic...)
	b = binary.LittleEndian.AppendUint64(b, h.slabBytes)
	b = binary.LittleEndian.AppendUint64(b, h.fileBytes)
	b = append(b, h.content[:]...)
	return append(b, h.head[:]...)
}

func parseShareHeader(b []byte) (h shareHeader, err error) {
	if !bytes.HasPrefix(b, []byte(shareMagic)) {
		return h, fmt.Errorf("magic is not %q", shareMagic)
	}
	h.slabBytes = binary.LittleEndian.Uint64(b[8:])
	h.fileBytes = binary.LittleEndian.Uint64(b[16:])
	copy(h.content[:], b[24:])
	copy(h.head[:], b[56:])
	return h, nil
}

// Share packs the file's weights into a memfd and seals it, for FromShared in
// this process and in those that inherit the descriptor.
func Share(f *gguf.File) (*os.File, error) {
	size, err := PackedBytes(f)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("bulkhead-weights", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("share weights: create memfd: %w", err)
	}
	memfd := os.NewFile(uintptr(fd), "bulkhead-weights")
	if err := fillShared(memfd, f, size); err != nil {
		memfd.Close()
		return nil, fmt.Errorf("share weights: %w", err)
	}
	return memfd, nil
}

func fillShared(memfd *os.File, f *gguf.File, size int) error {
	total := shareHeaderBytes + size
	if err := memfd.Truncate(int64(total)); err != nil {
		return fmt.Errorf("reserve %d bytes: %w", total, err)
	}
	mapping, err := unix.Mmap(int(memfd.Fd()), 0, total, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", total, err)
	}
	adviseHuge(mapping)
	_, err = build(f, &slab{bytes: mapping[shareHeaderBytes:], pack: true})
	h := shareHeader{slabBytes: uint64(size), fileBytes: uint64(len(f.Bytes())), content: contentDigest(f), head: headDigest(f)}
	copy(mapping, h.append(nil))
	if unmapErr := unix.Munmap(mapping); err == nil {
		err = unmapErr
	}
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(memfd.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// FromShared maps the weights that Share packed from the same file. The
// descriptor may be closed afterwards.
func FromShared(f *gguf.File, memfd *os.File) (*Model, error) {
	mapping, err := mapShared(memfd)
	if err != nil {
		return nil, fmt.Errorf("map shared weights: %w", err)
	}
	m, err := viewShared(f, mapping.bytes)
	if err != nil {
		return nil, fmt.Errorf("map shared weights: %w", closing(err, mapping))
	}
	m.release = mapping.close
	return m, nil
}

func mapShared(memfd *os.File) (*mapping, error) {
	got, err := unix.FcntlInt(memfd.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read seals: %w", err)
	}
	if got&seals != seals {
		return nil, fmt.Errorf("seals are %#x, want all of %#x", got, seals)
	}
	info, err := memfd.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < shareHeaderBytes {
		return nil, fmt.Errorf("%d bytes, the header alone has %d", info.Size(), shareHeaderBytes)
	}
	return mapFile(int(memfd.Fd()), int(info.Size()))
}

func viewShared(f *gguf.File, mapping []byte) (*Model, error) {
	h, err := parseShareHeader(mapping)
	if err != nil {
		return nil, err
	}
	if h.fileBytes != uint64(len(f.Bytes())) || h.head != headDigest(f) {
		return nil, fmt.Errorf("packed from another file: of %d bytes, ours has %d", h.fileBytes, len(f.Bytes()))
	}
	m, err := build(f, &slab{bytes: mapping[shareHeaderBytes:]})
	if err != nil {
		return nil, err
	}
	if uint64(m.paramBytes) != h.slabBytes || len(mapping) != shareHeaderBytes+m.paramBytes {
		return nil, fmt.Errorf("slab of %d bytes in %d, this file packs to %d", h.slabBytes, len(mapping), m.paramBytes)
	}
	m.fingerprint = fingerprint(h.content, m.Config)
	return m, nil
}

// FingerprintOf is the fingerprint that a model loaded from the file has. It reads
// the whole file and packs nothing.
func FingerprintOf(f *gguf.File) (kv.Fingerprint, error) {
	m, err := build(f, new(slab))
	if err != nil {
		return kv.Fingerprint{}, err
	}
	return fingerprint(contentDigest(f), m.Config), nil
}

// contentDigest covers weights, tokenizer and template alike.
func contentDigest(f *gguf.File) [sha256.Size]byte { return sha256.Sum256(f.Bytes()) }

// headDigest covers what says where and how the weights lie in the file.
func headDigest(f *gguf.File) [sha256.Size]byte { return sha256.Sum256(f.Head()) }

func fingerprint(content [sha256.Size]byte, c Config) kv.Fingerprint {
	b, err := json.Marshal(struct {
		Content    []byte
		Config     Config
		Layout     kv.Layout
		PageTokens int
		Wire       int
		Arithmetic int
	}{content[:], c, c.Layout(), kv.PageTokens, kv.WireVersion, arithmeticVersion})
	if err != nil {
		panic("model: a config has no JSON form: " + err.Error()) // only numbers and text, all finite
	}
	return sha256.Sum256(b)
}
