package tensor

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Matrix is a view of a packed weight matrix. It is immutable and safe for concurrent use; the packed bytes belong to the
// caller, may be mapped read-only, hold no pointers, and must stay mapped as long as the Matrix is used.
type Matrix struct {
	// Format is the encoding the weights came in, and Rows and Cols their shape.
	Format     Format
	Rows, Cols int

	shape
	layout layout
	quants []byte
	scales []byte
	supers []byte
}

// PackedBytes returns the size in bytes of a packed rows x cols matrix, a multiple of 64; 0 if the shape does not suit f.
func PackedBytes(f Format, rows, cols int) int {
	s, err := f.check(rows, cols)
	if err != nil {
		return 0
	}
	_, _, end := s.layout.parts(shapeOf(rows, cols))
	return end
}

// View returns the matrix that packed holds. Requires: packed was written by Pack with the same format and shape, starts
// at a multiple of 64 bytes, and is at least PackedBytes long.
func View(packed []byte, f Format, rows, cols int) (*Matrix, error) {
	s, err := f.check(rows, cols)
	if err != nil {
		return nil, err
	}
	sh := shapeOf(rows, cols)
	scales, supers, end := s.layout.parts(sh)
	if len(packed) < end {
		return nil, fmt.Errorf("%v matrix of %d x %d: %d packed bytes, need %d", f, rows, cols, len(packed), end)
	}
	if a := uintptr(unsafe.Pointer(&packed[0])) % partAlign; a != 0 {
		return nil, fmt.Errorf("%v matrix of %d x %d: packed bytes start %d past a multiple of %d", f, rows, cols, a, partAlign)
	}
	return &Matrix{
		Format: f, Rows: rows, Cols: cols, shape: sh, layout: s.layout,
		quants: packed[:scales:scales], scales: packed[scales:supers:supers], supers: packed[supers:end:end],
	}, nil
}

// Pack writes the matrix whose row r is row(r), in the GGUF encoding of format f, into dst and returns a view of it. row is
// called from several goroutines at once; it may take its rows from several tensors (see ZipRows). dst is as in View.
func Pack(dst []byte, f Format, rows, cols int, row func(r int) []byte) (*Matrix, error) {
	m, err := View(dst, f, rows, cols)
	if err != nil {
		return nil, err
	}
	var next atomic.Int64
	errs := make([]error, min(runtime.GOMAXPROCS(0), m.groups))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for g := int(next.Add(1)) - 1; g < m.groups && errs[i] == nil; g = int(next.Add(1)) - 1 {
				errs[i] = m.packGroup(g, row)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// ZipRows orders the rows of two equal tensors so that each group of 16 holds eight rows of a and the same eight of b: the
// order that MulGated wants. The number of rows of each must be a multiple of 8.
func ZipRows(a, b func(r int) []byte) func(r int) []byte {
	return func(r int) []byte {
		group, i := r/groupRows, r%groupRows
		if i < 8 {
			return a(group*8 + i)
		}
		return b(group*8 + i - 8)
	}
}

// Class returns the kind of activations that m is multiplied with.
func (m *Matrix) Class() Class { return m.layout.spec().class }

// PackedBytes returns the bytes that a product reads of m.
func (m *Matrix) PackedBytes() int { return len(m.quants) + len(m.scales) + len(m.supers) }

// block returns the quants, scales and super-scales of block b of group g.
func (m *Matrix) block(g, b int) (quants, scales, supers []byte) {
	s := m.layout.spec()
	i := g*m.blocks + b
	j := g*m.superCount + b/superBlocks
	return m.quants[i*s.quantBytes:][:s.quantBytes], m.scales[i*s.scaleBytes:][:s.scaleBytes], m.supers[j*s.superBytes:][:s.superBytes]
}

// AlignedBytes returns n zero bytes that start at a multiple of 64.
func AlignedBytes(n int) []byte {
	b := make([]byte, n+partAlign)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (partAlign - 1))
	return b[skip : skip+n : skip+n]
}

// aligned returns n zero elements that start at a multiple of 64 bytes.
func aligned[E number](n int) []E {
	var e E
	return as[E](AlignedBytes(n * int(unsafe.Sizeof(e))))
}

type number interface {
	int8 | uint8 | int16 | uint16 | uint32 | float32
}

// as views the bytes b as elements of another type.
func as[E number](b []byte) []E {
	var e E
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}
