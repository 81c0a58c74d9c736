package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize writes row r as float32 into dst, whose length must be m.Cols. Each value is the exact value of the weight,
// rounded once where float32 can't hold it.
func (m *Matrix) Dequantize(r int, dst []float32) {
	if r < 0 || r >= m.Rows || len(dst) != m.Cols {
		panic(fmt.Sprintf("tensor: dequantize row %d of %d into %d of %d columns", r, m.Rows, len(dst), m.Cols))
	}
	g, lane := r/groupRows, r%groupRows
	var v [blockCols]float32
	for b := range m.blocks {
		q, s, d := m.block(g, b)
		dequantizeLane(m.layout, lane, q, s, d, &v)
		copy(dst[b*blockCols:], v[:])
	}
}

// dequantizeLane decodes one lane of a packed block.
func dequantizeLane(l layout, lane int, quants, scales, supers []byte, dst *[blockCols]float32) {
	switch l {
	case layoutF32:
		for k := range dst {
			dst[k] = math.Float32frombits(binary.LittleEndian.Uint32(quants[(k*16+lane)*4:]))
		}
	case layoutF16:
		for k := range dst {
			dst[k] = half(quants, k*16+lane)
		}
	case layoutBF16:
		for k := range dst {
			dst[k] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(quants[(k*16+lane)*2:])) << 16)
		}
	case layoutI8, layoutI8Min:
		d, m := half(scales, lane), float32(0)
		if l == layoutI8Min {
			d, m = as[float32](scales)[lane], as[float32](scales)[16+lane]
		}
		for k := range dst {
			dst[k] = scaled(int(int8(quants[k/2*32+lane*2+k%2])), d, m)
		}
	case layoutS4, layoutU4Min, layoutU4K:
		dequantizeNibbles(l, lane, quants, scales, supers, dst)
	case layoutS6K:
		d := half(supers, lane)
		sub := [2]float32{d * float32(int8(scales[lane])), d * float32(int8(scales[16+lane]))}
		for k := range dst {
			dst[k] = scaled(six(quants, lane, k), sub[k/16], 0)
		}
	default:
		panic(fmt.Sprintf("tensor: layout %d has no values", l))
	}
}

func dequantizeNibbles(l layout, lane int, quants, scales, supers []byte, dst *[blockCols]float32) {
	var d, m float32
	switch l {
	case layoutS4:
		d = half(scales, lane)
	case layoutU4Min:
		d, m = half(scales, lane), half(scales, 16+lane)
	default:
		d, m = half(supers, lane)*float32(scales[lane]), -half(supers, 16+lane)*float32(scales[16+lane])
	}
	for k := range dst {
		dst[k] = scaled(nibble(l, quants, lane, k), d, m)
	}
}

// scaled returns q d + m rounded once.
func scaled(q int, d, m float32) float32 { return fma32(float32(q), d, m) }

// nibble returns the four bits of column k of a lane, signed if the layout has them so.
func nibble(l layout, quants []byte, lane, k int) int {
	place := [4]int{0, 2, 1, 3}[k%4]
	bits := quants[k%16/4*64+lane*4+place] >> (k / 16 * 4) << 4
	if l == layoutS4 {
		return int(int8(bits) >> 4)
	}
	return int(bits >> 4)
}

// six returns the signed six-bit value of column k of a lane.
func six(quants []byte, lane, k int) int {
	quad := quants[k/8*96+lane%8*4+2*(k%2)+lane/8:]
	pair := k / 2 % 4
	if pair < 3 {
		return int(int8(quad[pair*32]) >> 2)
	}
	return int(int8(quad[0]<<2&0x0c|quad[32]<<4&0x30|quad[64]<<6) >> 2)
}
