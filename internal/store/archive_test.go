package store

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// zipOf makes an archive of alternating names and contents, with sizes in the
// local headers as Python writes them.
func zipOf(t *testing.T, method uint16, pairs ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i := 0; i < len(pairs); i += 2 {
		content := pairs[i+1].([]byte)
		packed := content
		if method == zip.Deflate {
			var b bytes.Buffer
			d, err := flate.NewWriter(&b, flate.BestSpeed)
			if err == nil {
				_, err = d.Write(content)
			}
			if err == nil {
				err = d.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			packed = b.Bytes()
		}
		m, err := w.CreateRaw(&zip.FileHeader{Name: pairs[i].(string), Method: method,
			CompressedSize64: uint64(len(packed)), UncompressedSize64: uint64(len(content))})
		if err == nil {
			_, err = m.Write(packed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// extractFrom writes the archive in pieces of the given size.
func extractFrom(t *testing.T, archive []byte, member string, want []byte, piece int) ([]byte, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	x, err := startExtractor(member, path, int64(len(want)), digestOf(want))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Abort()
	if _, err := io.CopyBuffer(struct{ io.Writer }{x}, struct{ io.Reader }{bytes.NewReader(archive)}, make([]byte, piece)); err != nil {
		return nil, err
	}
	if err := x.Finish(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func TestExtractWhileItArrives(t *testing.T) {
	content, other := tinyModel(t, 1), tinyModel(t, 2)
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		archive := zipOf(t, method, "a/other.gguf", other, "a/m.gguf", content, "z", []byte("behind"))
		for _, piece := range []int{1000, 65536, len(archive)} {
			got, err := extractFrom(t, archive, "a/m.gguf", content, piece)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("method %d in pieces of %d: got %d bytes, error %v", method, piece, len(got), err)
			}
		}
	}
	// A member that comes with a data descriptor has no size before its data.
	var streamed bytes.Buffer
	w := zip.NewWriter(&streamed)
	m, err := w.Create("m.gguf")
	if err == nil {
		_, err = m.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := extractFrom(t, streamed.Bytes(), "m.gguf", content, 4096); err != nil || !bytes.Equal(got, content) {
		t.Errorf("data descriptor: got %d bytes, error %v", len(got), err)
	}
	if _, err := extractFrom(t, streamed.Bytes(), "other", content, 4096); err == nil || !strings.Contains(err.Error(), "does not state its size") {
		t.Errorf("error is %v, want that the size is not stated", err)
	}
}

func TestExtractRefusesBadArchives(t *testing.T) {
	content := tinyModel(t, 1)
	good := zipOf(t, zip.Deflate, "m", content)
	changed := bytes.Clone(good)
	changed[len(changed)/2] ^= 0x55
	encrypted := bytes.Clone(good)
	encrypted[6] |= flagEncrypted
	method := bytes.Clone(good)
	method[8] = 99
	tests := []struct {
		name    string
		archive []byte
		want    string
	}{
		{"no archive", []byte("hello, this is not an archive"), "has no member m"},
		{"empty", nil, "ends within a member"},
		{"truncated", good[:len(good)/2], "extract m after"},
		{"changed", changed, "m"},
		{"encrypted", encrypted, "is encrypted"},
		{"other method", method, "packed by method 99"},
		{"too short", zipOf(t, zip.Deflate, "m", content[:100]), "it has 100 bytes or more, want 200128"},
		{"too long", zipOf(t, zip.Deflate, "m", append(bytes.Clone(content), 1, 2)), "it has 200129 bytes or more, want 200128"},
		{"other content", zipOf(t, zip.Deflate, "m", tinyModel(t, 2)), "has sha256 " + digestOf(tinyModel(t, 2)) + ", want " + digestOf(content)},
		{"no 64-bit size", zip64(good, nil), "lacks its 64-bit size"},
		{"a huge 64-bit size", zip64(good, []byte{1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}), "lacks its 64-bit size"},
	}
	for _, test := range tests {
		_, err := extractFrom(t, test.archive, "m", content, 4096)
		if err == nil || fault.Of(err) != fault.Corrupt || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v (%s), want %q (corrupt)", test.name, err, fault.Of(err), test.want)
		}
	}
}

// zip64 gives the first member the sign of a 64-bit size, and an extra field.
func zip64(archive, extra []byte) []byte {
	out := bytes.Clone(archive[:localHeaderBytes])
	copy(out[18:], []byte{0xff, 0xff, 0xff, 0xff})
	out[28] = byte(len(extra))
	return append(append(append(out, "m"...), extra...), archive[localHeaderBytes+1:]...)
}

func FuzzFindMember(f *testing.F) {
	for _, name := range []string{"m", "other"} {
		var out bytes.Buffer
		w := zip.NewWriter(&out)
		m, err := w.Create(name)
		if err == nil {
			_, err = fmt.Fprint(m, "content")
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Add(zip64(bytes.Repeat([]byte("PK\x03\x04"), 20), []byte{1, 0, 16, 0}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		path := filepath.Join(t.TempDir(), "out")
		x, err := startExtractor("m", path, 7, "")
		if err != nil {
			t.Fatal(err)
		}
		defer x.Abort()
		_, err = x.Write(archive)
		if finished := x.Finish(); err == nil {
			err = finished
		}
		if info, statErr := os.Stat(path); statErr != nil || info.Size() > 8 || err == nil && info.Size() != 7 {
			t.Errorf("extracted %v with error %v, stat error %v; want 7 bytes or an error", info, err, statErr)
		}
	})
}
