package tensor

import (
	"math"
	"strings"
	"testing"
)

func TestWrongShapesAreErrors(t *testing.T) {
	buffer := AlignedBytes(1 << 16)
	row := func(n int) func(int) []byte { return func(int) []byte { return make([]byte, n) } }
	for _, c := range []struct {
		name string
		err  func() error
		want string
	}{
		{"no rows", func() error { _, err := View(buffer, Q8_0, 0, 32); return err }, "Q8_0 matrix of 0 x 32: each side must be in 1..16777216"},
		{"huge", func() error { _, err := F32.RawBytes(1<<40, 1<<40); return err }, "each side must be in 1..16777216"},
		{"part of a block", func() error { _, err := Q4_K.RawBytes(1, 288); return err }, "Q4_K matrix of 1 x 288: columns must be a multiple of 256"},
		{"unknown format", func() error { _, err := Format(99).RawBytes(1, 1); return err }, "matrix format 99: unknown"},
		{"too little memory", func() error { _, err := View(buffer[:1000], Q8_0, 16, 64); return err }, "1000 packed bytes, need 1088"},
		{"unaligned memory", func() error { _, err := View(buffer[8:], Q8_0, 16, 64); return err }, "packed bytes start 8 past a multiple of 64"},
		{"short row", func() error { _, err := Pack(buffer, Q8_0, 16, 64, row(67)); return err }, "row 0 has 67 bytes, want 68"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if n := PackedBytes(Q8_0, 16, 33); n != 0 {
		t.Errorf("a shape that does not suit takes %d packed bytes, want 0", n)
	}
}

func TestFormatsAreFoundByNumber(t *testing.T) {
	for _, f := range Formats() {
		if got, ok := FromGGUF(f.GGUF()); !ok || got != f {
			t.Errorf("type %d is %v, want %v", f.GGUF(), got, f)
		}
	}
	if f, ok := FromGGUF(9999); ok {
		t.Errorf("type 9999 is %v, want none", f)
	}
}

func TestPackedBytesAreTheWholeMatrix(t *testing.T) {
	// What View needs is all there is: packed bytes copied elsewhere are the same matrix, in any process.
	for _, f := range Formats() {
		raw := randomMatrix(newRNG(1), f, 21, colsFor(f))
		size := PackedBytes(f, raw.rows, raw.cols)
		buffer, moved := AlignedBytes(size), AlignedBytes(size)
		if _, err := Pack(buffer, f, raw.rows, raw.cols, raw.row); err != nil {
			t.Fatal(err)
		}
		copy(moved, buffer)
		clear(buffer)
		m, err := View(moved, f, raw.rows, raw.cols)
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float32, raw.cols)
		m.Dequantize(20, row)
		for c, want := range raw.exactRow(20) {
			if row[c] != float32(want) {
				t.Fatalf("%v: column %d is %v after a move, want %v", f, c, row[c], want)
			}
		}
	}
}

func TestWhatIsNotFiniteStaysSo(t *testing.T) {
	// A NaN or an infinity among the activations makes every product of its token NaN or infinite, and no other token's.
	for _, f := range Formats() {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, tokens := range []int{1, 5, 20} {
				raw := randomMatrix(newRNG(1), f, 16, colsFor(f))
				m := packed(raw)
				x := randomFloats(newRNG(2), tokens*raw.cols)
				clean := mulOn(1, m, x, tokens)
				victim := tokens / 2
				x[victim*raw.cols+57] = float32(bad)
				got := mulOn(1, m, x, tokens)
				for i, v := range got {
					finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
					if i/16 == victim && finite {
						t.Fatalf("%v: %v in token %d leaves its row %d at %v", f, bad, victim, i%16, v)
					}
					if i/16 != victim && v != clean[i] {
						t.Fatalf("%v: %v in token %d changes token %d", f, bad, victim, i/16)
					}
				}
			}
		}
	}
}

// FuzzDequantize holds the packed form of arbitrary blocks to the reference decoder.
func FuzzDequantize(f *testing.F) {
	for i := range Formats() {
		f.Add(uint8(i), []byte("\x00\x3c\x00\x38 any bytes are a block of some weights"))
	}
	f.Fuzz(func(t *testing.T, index uint8, data []byte) {
		format := Formats()[int(index)%len(Formats())]
		spec, _ := format.spec()
		raw := make([]byte, spec.blockBytes)
		copy(raw, data)
		m, err := Pack(AlignedBytes(PackedBytes(format, 1, spec.blockCols)), format, 1, spec.blockCols, func(int) []byte { return raw })
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, spec.blockCols)
		m.Dequantize(0, got)
		for c, want := range dequantizeReference(format, raw) {
			if w := float32(want); got[c] != w && !(got[c] != got[c] && w != w) {
				t.Fatalf("%v column %d is %v, want %v", format, c, got[c], w)
			}
		}
	})
}
