package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// packGroup packs rows 16 g to 16 g + 15.
func (m *Matrix) packGroup(g int, row func(r int) []byte) error {
	spec, _ := m.Format.spec()
	want := spec.rowBytes(m.Cols)
	for lane := range groupRows {
		r := g*groupRows + lane
		if r >= m.Rows {
			m.clearLane(g, lane)
			continue
		}
		raw := row(r)
		if len(raw) != want {
			return fmt.Errorf("%v matrix of %d x %d: row %d has %d bytes, want %d", m.Format, m.Rows, m.Cols, r, len(raw), want)
		}
		m.packRow(g, lane, raw)
	}
	return nil
}

// packRow packs one raw row as lane of group g.
func (m *Matrix) packRow(g, lane int, raw []byte) {
	switch m.layout {
	case layoutF32, layoutF16, layoutBF16:
		m.packFloats(g, lane, raw)
		return
	default:
	}
	var rb rawBlock
	for b := range m.blocks {
		rb.decode(m.Format, raw, b)
		q, s, d := m.block(g, b)
		rb.encode(m.layout, lane, q, s, d)
	}
}

// packFloats packs a row of elements of 4 or 2 bytes, and zeros to the end of the last block.
func (m *Matrix) packFloats(g, lane int, raw []byte) {
	cols := m.blocks * blockCols
	if m.layout == layoutF32 {
		dst := as[uint32](m.quants)[g*cols*groupRows:][:cols*groupRows]
		for c := range cols {
			v := uint32(0)
			if c < m.Cols {
				v = binary.LittleEndian.Uint32(raw[4*c:])
			}
			dst[c*groupRows+lane] = v
		}
		return
	}
	dst := as[uint16](m.quants)[g*cols*groupRows:][:cols*groupRows]
	for c := range cols {
		v := uint16(0)
		if c < m.Cols {
			v = binary.LittleEndian.Uint16(raw[2*c:])
		}
		dst[c*groupRows+lane] = v
	}
}

// clearLane packs a row of zeros: scales of zero for block formats, zero elements for the others.
func (m *Matrix) clearLane(g, lane int) {
	spec, _ := m.Format.spec()
	m.packRow(g, lane, make([]byte, spec.rowBytes(m.Cols)))
}

// rawBlock is 32 weights of a row, decoded as far as their integers: the value of q is d q + m, where the K formats
// have d = D sc (sc2 from column 16 on, for Q6_K) and m = -M mn.
type rawBlock struct {
	q        [blockCols]uint8 // formats of five and more bits
	nibbles  [16]uint8        // four-bit formats: columns 0 to 15 in the low halves, 16 to 31 in the high ones
	d, m     uint16           // f16; D and M of the K formats
	sc, sc2  uint8            // sub-scale; of columns 0 to 15 and 16 to 31 for Q6_K, as int8
	mn       uint8            // sub-minimum
	negative bool             // the minimum is subtracted
}

// decode reads block b of a raw row.
func (r *rawBlock) decode(f Format, raw []byte, b int) {
	switch f {
	case Q8_0:
		s := raw[b*34:][:34]
		r.d = binary.LittleEndian.Uint16(s)
		copy(r.q[:], s[2:])
	case Q4_0:
		s := raw[b*18:][:18]
		r.d = binary.LittleEndian.Uint16(s)
		for i, v := range s[2:] {
			r.nibbles[i] = v ^ 0x88 // less eight, in two's complement
		}
	case Q4_1:
		s := raw[b*20:][:20]
		r.d, r.m = binary.LittleEndian.Uint16(s), binary.LittleEndian.Uint16(s[2:])
		copy(r.nibbles[:], s[4:])
	case Q5_0:
		s := raw[b*22:][:22]
		r.d = binary.LittleEndian.Uint16(s)
		r.fiveBits(s[6:], binary.LittleEndian.Uint32(s[2:]))
		for i := range r.q {
			r.q[i] -= 16
		}
	case Q5_1:
		s := raw[b*24:][:24]
		r.d, r.m = binary.LittleEndian.Uint16(s), binary.LittleEndian.Uint16(s[2:])
		r.fiveBits(s[8:], binary.LittleEndian.Uint32(s[4:]))
	case Q4_K:
		s := raw[b/8*144:][:144]
		r.kScales(s, b%8)
		low, shift := s[16+b%8/2*32:][:32], b%2*4
		for i := range r.nibbles {
			r.nibbles[i] = low[i]>>shift&15 | low[16+i]>>shift<<4
		}
	case Q5_K:
		s := raw[b/8*176:][:176]
		r.kScales(s, b%8)
		low, shift, bit := s[48+b%8/2*32:][:32], b%2*4, b%8
		for i := range r.q {
			r.q[i] = low[i]>>shift&15 | s[16+i]>>bit&1<<4
		}
	case Q6_K:
		r.decode6K(raw[b/8*210:][:210], b%8)
	default:
		panic(fmt.Sprintf("tensor: %v has no blocks", f))
	}
}

// fiveBits joins nibbles, columns 0 to 15 in the low halves, with a fifth bit for each column.
func (r *rawBlock) fiveBits(s []byte, fifth uint32) {
	for i, v := range s[:16] {
		r.q[i] = v&15 | uint8(fifth>>i&1)<<4
		r.q[i+16] = v>>4 | uint8(fifth>>(i+16)&1)<<4
	}
}

// kScales reads D, M and the 6-bit scale and minimum of sub-block j.
func (r *rawBlock) kScales(s []byte, j int) {
	r.d, r.m = binary.LittleEndian.Uint16(s), binary.LittleEndian.Uint16(s[2:])
	r.negative = true
	p := s[4:16]
	if j < 4 {
		r.sc, r.mn = p[j]&63, p[j+4]&63
		return
	}
	r.sc = p[j+4]&15 | p[j-4]>>6<<4
	r.mn = p[j+4]>>4 | p[j]>>6<<4
}

// decode6K reads sub-block j of a Q6_K super-block.
func (r *rawBlock) decode6K(s []byte, j int) {
	half, quarter := j/4, j%4
	low, top := s[half*64+quarter%2*32:], s[128+half*32:]
	for i := range r.q {
		r.q[i] = low[i]>>(quarter/2*4)&15 | top[i]>>(2*quarter)&3<<4
	}
	r.sc, r.sc2 = s[192+2*j], s[192+2*j+1]
	r.d = binary.LittleEndian.Uint16(s[208:])
}

// encode writes the block as lane of a packed block of layout l.
func (r *rawBlock) encode(l layout, lane int, quants, scales, supers []byte) {
	switch l {
	case layoutI8:
		r.placePairs(quants, lane)
		putHalf(scales, lane, r.d)
	case layoutI8Min:
		r.placePairs(quants, lane)
		d, m := r.scaleMin()
		binary.LittleEndian.PutUint32(scales[lane*4:], math.Float32bits(d))
		binary.LittleEndian.PutUint32(scales[64+lane*4:], math.Float32bits(m))
	case layoutS4:
		r.placeNibbles(quants, lane)
		putHalf(scales, lane, r.d)
	case layoutU4Min:
		r.placeNibbles(quants, lane)
		putHalf(scales, lane, r.d)
		putHalf(scales, lane+16, r.m)
	case layoutU4K:
		r.placeNibbles(quants, lane)
		scales[lane], scales[16+lane] = r.sc, r.mn
		putHalf(supers, lane, r.d)
		putHalf(supers, lane+16, r.m)
	case layoutS6K:
		r.place6(quants, lane)
		scales[lane], scales[16+lane] = r.sc, r.sc2
		putHalf(supers, lane, r.d)
	default:
		panic(fmt.Sprintf("tensor: layout %d has no blocks", l))
	}
}

// scaleMin returns the scale and minimum of Q5_1 and Q5_K; both are exact in f32.
func (r *rawBlock) scaleMin() (d, m float32) {
	d, m = halfToFloat(r.d), halfToFloat(r.m)
	if r.negative {
		return d * float32(r.sc), -m * float32(r.mn)
	}
	return d, m
}

func putHalf(b []byte, i int, v uint16) { binary.LittleEndian.PutUint16(b[2*i:], v) }

func half(b []byte, i int) float32 { return halfToFloat(binary.LittleEndian.Uint16(b[2*i:])) }

func (r *rawBlock) placePairs(quants []byte, lane int) {
	dst := as[uint16](quants)[:16*groupRows]
	for p := range 16 {
		dst[p*groupRows+lane] = binary.LittleEndian.Uint16(r.q[2*p:])
	}
}

func (r *rawBlock) placeNibbles(quants []byte, lane int) {
	dst := as[uint32](quants)[:4*groupRows]
	for j := range 4 {
		v := binary.LittleEndian.Uint32(r.nibbles[4*j:])
		dst[j*groupRows+lane] = v&0xff0000ff | v&0xff00<<8 | v>>8&0xff00
	}
}

// place6 writes six-bit values. Other lanes' bytes stay; a byte belongs to one lane.
func (r *rawBlock) place6(quants []byte, lane int) {
	at := lane%8*4 + lane/8
	for quad := range 4 {
		for i := range 2 {
			q, dst := r.q[8*quad+i:], quants[quad*96+at+2*i:]
			last := q[6] ^ 32 // less 32, in six bits
			dst[0] = (q[0]^32)<<2 | last&3
			dst[32] = (q[2]^32)<<2 | last>>2&3
			dst[64] = (q[4]^32)<<2 | last>>4
		}
	}
}
