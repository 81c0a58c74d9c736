package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	err := Write(&out, []Pair{
		{"general.architecture", "llama"},
		{"a.u8", uint8(200)}, {"a.i8", int8(-3)}, {"a.u16", uint16(60000)}, {"a.i16", int16(-300)},
		{"a.u32", uint32(1 << 31)}, {"a.i32", int32(-1 << 31)}, {"a.u64", uint64(1 << 40)}, {"a.i64", int64(-1 << 40)},
		{"a.huge", uint64(math.MaxUint64)}, {"a.f32", float32(0.5)}, {"a.f64", 0.25}, {"a.bool", true},
		{"b.texts", []string{"x", "", "zz"}}, {"b.ints", []int32{1, -2}}, {"b.uints", []uint32{7}},
		{"b.floats", []float32{1.5}}, {"b.bools", []bool{true, false}},
	}, []Source{
		{"first", F32, []int{3}, make([]byte, 12)},
		{"second", Q8_0, []int{64, 2}, bytes.Repeat([]byte{7}, 136)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWriteThenParse(t *testing.T) {
	f, err := Parse(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	m := f.Metadata
	ints := map[string]int64{"a.u8": 200, "a.i8": -3, "a.u16": 60000, "a.i16": -300, "a.u32": 1 << 31, "a.i32": -1 << 31,
		"a.u64": 1 << 40, "a.i64": -1 << 40}
	for key, want := range ints {
		if got, ok := m.Int(key); !ok || got != want {
			t.Errorf("Int(%s) = %d, %v, want %d", key, got, ok, want)
		}
	}
	if _, ok := m.Int("a.huge"); ok {
		t.Error("an integer beyond int64 was returned as one")
	}
	if got, ok := m.Uint("a.huge"); !ok || got != math.MaxUint64 {
		t.Errorf("Uint(a.huge) = %d, %v, want %d", got, ok, uint64(math.MaxUint64))
	}
	if got, ok := m.Uint("a.u8"); !ok || got != 200 {
		t.Errorf("Uint(a.u8) = %d, %v, want 200", got, ok)
	}
	if _, ok := m.Uint("a.i8"); ok {
		t.Error("a negative integer was returned as an unsigned one")
	}
	if _, ok := m.Int("a.f32"); ok {
		t.Error("a float was returned as an integer")
	}
	f32, _ := m.Float("a.f32")
	f64, _ := m.Float("a.f64")
	b, _ := m.Bool("a.bool")
	text, _ := m.String("general.architecture")
	if f32 != 0.5 || f64 != 0.25 || !b || text != "llama" {
		t.Errorf("scalars are %v %v %v %q", f32, f64, b, text)
	}
	texts, _ := m.Strings("b.texts")
	i32, _ := m.Ints("b.ints")
	u32, _ := m.Ints("b.uints")
	floats, _ := m.Floats("b.floats")
	bools, _ := m.Bools("b.bools")
	got := []any{texts, i32, u32, floats, bools}
	want := []any{[]string{"x", "", "zz"}, []int64{1, -2}, []int64{7}, []float32{1.5}, []bool{true, false}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arrays differ (-want +got):\n%s", diff)
	}
	checkTensors(t, f)
}

func checkTensors(t *testing.T, f *File) {
	t.Helper()
	second, ok := f.Tensor("second")
	if !ok || second.Type != Q8_0 || second.Elements() != 128 || len(second.Data) != 136 || second.Data[0] != 7 {
		t.Errorf("second tensor is %v %v of %d bytes", second.Type, second.Dims, len(second.Data))
	}
	if second.Offset%f.Alignment != 0 {
		t.Errorf("second tensor at %d, not a multiple of %d", second.Offset, f.Alignment)
	}
	if _, ok := f.Tensor("third"); ok {
		t.Error("a tensor that isn't there was found")
	}
	if names := slices.Collect(f.Metadata.Keys()); len(names) != 18 || names[0] != "general.architecture" {
		t.Errorf("keys are %v", names)
	}
}

func TestOpenMapsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, sample(t), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	checkTensors(t, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("GGUF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil {
		t.Error("a file of four bytes was opened")
	}
}

// forge builds the start of a file by hand.
type forge struct{ bytes.Buffer }

func (f *forge) put(values ...any) *forge {
	for _, v := range values {
		if s, ok := v.(string); ok {
			f.put(uint64(len(s)))
			f.WriteString(s)
			continue
		}
		_ = binary.Write(&f.Buffer, binary.LittleEndian, v) // a Buffer takes every write
	}
	return f
}

func header(tensors, pairs uint64) *forge {
	f := new(forge)
	f.WriteString("GGUF")
	return f.put(uint32(3), tensors, pairs)
}

// oneTensor is a file whose only tensor has the given type, offset and dims.
func oneTensor(typ uint32, offset uint64, dims ...uint64) *forge {
	f := header(1, 0).put("t", uint32(len(dims)))
	for _, d := range dims {
		f.put(d)
	}
	f.put(typ, offset)
	f.Write(make([]byte, 256))
	return f
}

func hostile() map[string]struct {
	file *forge
	want string
} {
	str := func(s string) *forge { f := new(forge); f.WriteString(s); return f }
	two := func(offset uint64) *forge {
		f := header(2, 0).put("a", uint32(1), uint64(16), uint32(0), uint64(0)).put("b", uint32(1), uint64(16), uint32(0), offset)
		f.Write(make([]byte, 512))
		return f
	}
	pad := make([]byte, 64)
	return map[string]struct {
		file *forge
		want string
	}{
		"empty":                 {str(""), "magic needs 4 bytes, the file has 0 left"},
		"other magic":           {str("GGML0000000000000000000000"), `offset 0: magic "GGML"`},
		"big-endian":            {str("GGUF\x00\x00\x00\x03"), "offset 4: big-endian"},
		"version 9":             {str("GGUF\x09\x00\x00\x00"), "version 9, want 2 or 3"},
		"truncated header":      {str("GGUF\x03\x00\x00\x00\x01"), "tensor count needs 8 bytes, the file has 1 left"},
		"huge tensor count":     {header(math.MaxUint64, 0).put(pad), "tensor count 18446744073709551615, at most"},
		"large tensor count":    {header(60, 0).put(pad), "tensor count 60, at most"},
		"huge metadata count":   {header(0, 1<<60).put(pad), "metadata count 1152921504606846976, at most"},
		"huge key":              {header(0, 1).put(uint64(1<<50), pad), "metadata key of 1125899906842624 bytes"},
		"empty key":             {header(0, 1).put(uint64(0), pad), "metadata key of 0 bytes"},
		"huge string":           {header(0, 1).put("k", uint32(8), uint64(1<<63), pad), "string needs 9223372036854775808 bytes, the file has 64 left"},
		"unknown kind":          {header(0, 1).put("k", uint32(13), pad), "value kind 13"},
		"unknown array kind":    {header(0, 1).put("k", uint32(9), uint32(99), uint64(1), pad), "array kind 99"},
		"nested array":          {header(0, 1).put("k", uint32(9), uint32(9), uint64(1), pad), "array of arrays"},
		"huge array":            {header(0, 1).put("k", uint32(9), uint32(10), uint64(1<<61), pad), "array count 2305843009213693952, at most 8 fit into the 64 bytes left"},
		"huge string array":     {header(0, 1).put("k", uint32(9), uint32(8), uint64(9), pad), "array count 9, at most 8 fit"},
		"string beyond array":   {header(0, 1).put("k", uint32(9), uint32(8), uint64(1), uint64(65), pad), "string needs 65 bytes, the file has 64 left"},
		"key twice":             {header(0, 2).put("k", uint32(4), uint32(1), "k", uint32(4), uint32(1)), `metadata key "k" twice`},
		"alignment 0":           {header(0, 1).put("general.alignment", uint32(4), uint32(0)), "general.alignment 0, want a power of two"},
		"alignment 24":          {header(0, 1).put("general.alignment", uint32(4), uint32(24)), "general.alignment 24, want a power of two"},
		"alignment text":        {header(0, 1).put("general.alignment", uint32(8), "32"), "general.alignment 0, want a power of two"},
		"alignment huge":        {header(0, 1).put("general.alignment", uint32(10), uint64(1<<40)), "general.alignment 1099511627776"},
		"no dimensions":         {oneTensor(0, 0), `tensor "t" has 0 dimensions`},
		"five dimensions":       {oneTensor(0, 0, 1, 1, 1, 1, 1), `tensor "t" has 5 dimensions`},
		"zero dimension":        {oneTensor(0, 0, 4, 0), "dimension 1 of 0"},
		"dimensions overflow":   {oneTensor(0, 0, 1<<32, 1<<32), "dimension 1 of 4294967296, want 1 to 1073741824"},
		"bytes overflow":        {oneTensor(28, 0, 1<<62), "the file has"},
		"bytes beyond the file": {oneTensor(0, 0, 1<<40), `tensor "t" of 4398046511104 bytes, the file has`},
		"unknown type":          {oneTensor(77, 0, 32), "unknown type 77"},
		"removed type":          {oneTensor(4, 0, 32), "unknown type 4"},
		"row not whole blocks":  {oneTensor(8, 0, 33), "rows of 33 values, Q8_0 wants a multiple of 32"},
		"bad alignment":         {oneTensor(0, 8, 4), "data offset 8, want a multiple of 32"},
		"offset beyond file":    {oneTensor(0, 1<<40, 4), "ends at data offset 1099511627792, the section has"},
		"offset overflow":       {oneTensor(0, math.MaxUint64-31, 16), "the section has"},
		"overlap":               {two(32), `tensor "b" at data offset 32 overlaps "a", which ends at 64`},
		"same place":            {two(0), "overlaps"},
		"tensor twice": {func() *forge {
			f := header(2, 0).put("a", uint32(1), uint64(1), uint32(0), uint64(0)).put("a", uint32(1), uint64(1), uint32(0), uint64(32))
			f.Write(make([]byte, 64))
			return f
		}(), `tensor "a" twice`},
	}
}

func TestHostileFilesGetOneClearError(t *testing.T) {
	for name, c := range hostile() {
		_, err := Parse(c.file.Bytes())
		switch {
		case err == nil:
			t.Errorf("%s: accepted", name)
		case !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "offset "):
			t.Errorf("%s: error is %q, want an offset and %q", name, err, c.want)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	whole := sample(t)
	for n := range whole {
		if _, err := Parse(whole[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(whole))
		}
	}
}

// A count that the file can't hold must not be allocated for.
func TestHugeCountsAllocateNothing(t *testing.T) {
	files := [][]byte{
		header(math.MaxUint64, 0).put(make([]byte, 64)).Bytes(),
		header(0, 1).put("k", uint32(9), uint32(8), uint64(1<<50), make([]byte, 64)).Bytes(),
		header(0, 1).put("k", uint32(8), uint64(1<<50), make([]byte, 64)).Bytes(),
	}
	for i, data := range files {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(data)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 64<<10 {
			t.Errorf("file %d of %d bytes: error %v, took %d bytes of memory", i, len(data), err, took)
		}
	}
}

func TestWriteRefusesWrongShapes(t *testing.T) {
	for name, c := range map[string]struct {
		pair   []Pair
		source []Source
		want   string
	}{
		"value type":   {[]Pair{{"k", struct{}{}}}, nil, "unsupported type"},
		"alignment":    {[]Pair{{alignmentKey, uint32(3)}}, nil, "power of two"},
		"short data":   {nil, []Source{{"t", F32, []int{4}, make([]byte, 12)}}, "has 12 bytes, its shape [4] of F32 has 16"},
		"unknown type": {nil, []Source{{"t", 99, []int{4}, nil}}, "unknown type 99"},
		"row":          {nil, []Source{{"t", Q8_0, []int{4}, nil}}, "multiple of 32"},
		"dims":         {nil, []Source{{"t", F32, nil, nil}}, "0 dimensions"},
	} {
		err := Write(new(bytes.Buffer), c.pair, c.source)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

// FuzzParse demands that a file which is accepted holds together: tensors lie
// inside it, apart from each other, and every value can be decoded.
func FuzzParse(f *testing.F) {
	f.Add(sample(f))
	for _, c := range hostile() {
		f.Add(c.file.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		owner := make([]bool, len(data))
		for tensor := range file.Tensors() {
			if len(tensor.Data) == 0 {
				t.Fatalf("tensor %q is empty", tensor.Name)
			}
			for i := range tensor.Data {
				if owner[tensor.Offset+uint64(i)] {
					t.Fatalf("tensor %q shares byte %d", tensor.Name, i)
				}
				owner[tensor.Offset+uint64(i)] = true
			}
		}
		m := file.Metadata
		for key := range m.Keys() {
			m.String(key)
			m.Int(key)
			m.Uint(key)
			m.Float(key)
			m.Bool(key)
			m.Strings(key)
			m.Ints(key)
			m.Floats(key)
			m.Bools(key)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	data := sample(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
