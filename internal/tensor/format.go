package tensor

import "fmt"

// Format is the encoding of a weight matrix in a GGUF file. The block formats are those of ggml-quants.
type Format uint8

// The formats. The zero Format is none of them.
const (
	F32 Format = iota + 1
	F16
	BF16
	Q8_0
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q4_K
	Q5_K
	Q6_K
)

// formatSpec is what is fixed about a format.
type formatSpec struct {
	name       string
	gguf       uint32 // tensor type number in a GGUF file
	blockCols  int    // columns of one block in the file
	blockBytes int    // bytes of one block in the file
	layout     layout // how the packed matrix holds it
}

// spec returns f's row of the table of formats; ok is false for an unknown one.
func (f Format) spec() (s formatSpec, ok bool) {
	switch f {
	case F32:
		return formatSpec{"F32", 0, 1, 4, layoutF32}, true
	case F16:
		return formatSpec{"F16", 1, 1, 2, layoutF16}, true
	case BF16:
		return formatSpec{"BF16", 30, 1, 2, layoutBF16}, true
	case Q8_0:
		return formatSpec{"Q8_0", 8, 32, 34, layoutI8}, true
	case Q4_0:
		return formatSpec{"Q4_0", 2, 32, 18, layoutS4}, true
	case Q4_1:
		return formatSpec{"Q4_1", 3, 32, 20, layoutU4Min}, true
	case Q5_0:
		return formatSpec{"Q5_0", 6, 32, 22, layoutI8}, true
	case Q5_1:
		return formatSpec{"Q5_1", 7, 32, 24, layoutI8Min}, true
	case Q4_K:
		return formatSpec{"Q4_K", 12, 256, 144, layoutU4K}, true
	case Q5_K:
		return formatSpec{"Q5_K", 13, 256, 176, layoutI8Min}, true
	case Q6_K:
		return formatSpec{"Q6_K", 14, 256, 210, layoutS6K}, true
	}
	return formatSpec{}, false
}

// Formats lists every format this package multiplies.
func Formats() []Format {
	return []Format{F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K}
}

// FromGGUF returns the format of a GGUF tensor type number; ok is false for one that this package does not multiply.
func FromGGUF(typ uint32) (f Format, ok bool) {
	for _, f := range Formats() {
		if s, _ := f.spec(); s.gguf == typ {
			return f, true
		}
	}
	return 0, false
}

// GGUF returns the tensor type number of f in a GGUF file.
func (f Format) GGUF() uint32 {
	s, _ := f.spec()
	return s.gguf
}

// String returns the name that GGUF tools print.
func (f Format) String() string {
	if s, ok := f.spec(); ok {
		return s.name
	}
	return fmt.Sprintf("format %d", uint8(f))
}

// RawBytes returns the size in bytes of a rows x cols matrix of format f in a GGUF file. It is an error if the shape is
// empty, too large, or if cols is not a whole number of blocks.
func (f Format) RawBytes(rows, cols int) (int, error) {
	s, err := f.check(rows, cols)
	if err != nil {
		return 0, err
	}
	return rows * s.rowBytes(cols), nil
}

// dimMax bounds rows and columns, so that no size computed from them overflows.
const dimMax = 1 << 24

func (f Format) check(rows, cols int) (formatSpec, error) {
	s, ok := f.spec()
	if !ok {
		return s, fmt.Errorf("matrix format %d: unknown", uint8(f))
	}
	if rows < 1 || cols < 1 || rows > dimMax || cols > dimMax {
		return s, fmt.Errorf("%v matrix of %d x %d: each side must be in 1..%d", f, rows, cols, dimMax)
	}
	if cols%s.blockCols != 0 {
		return s, fmt.Errorf("%v matrix of %d x %d: columns must be a multiple of %d", f, rows, cols, s.blockCols)
	}
	return s, nil
}

// rowBytes returns the size of one row in the file. Requires: cols is a whole number of blocks.
func (s formatSpec) rowBytes(cols int) int { return cols / s.blockCols * s.blockBytes }
