package tensor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// rawMatrix is a random matrix in the encoding of a GGUF file, and the exact values it stands for.
type rawMatrix struct {
	format     Format
	rows, cols int
	raw        []byte
	exact      []float64 // [rows][cols]
}

func (m *rawMatrix) row(r int) []byte {
	n := len(m.raw) / m.rows
	return m.raw[r*n : (r+1)*n]
}

func (m *rawMatrix) exactRow(r int) []float64 { return m.exact[r*m.cols : (r+1)*m.cols] }

func newRNG(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// randomMatrix fills a matrix with random quants and scales of about 1/100.
func randomMatrix(rng *rand.Rand, f Format, rows, cols int) *rawMatrix {
	n, err := f.RawBytes(rows, cols)
	if err != nil {
		panic(err)
	}
	m := &rawMatrix{format: f, rows: rows, cols: cols, raw: make([]byte, n)}
	for i := range m.raw {
		m.raw[i] = byte(rng.Uint32())
	}
	halfAt := func(b []byte) {
		binary.LittleEndian.PutUint16(b, floatToHalf(float32(rng.NormFloat64())*0.01))
	}
	spec, _ := f.spec()
	for b := 0; b < n; b += spec.blockBytes {
		blk := m.raw[b:][:spec.blockBytes]
		switch f {
		case F32:
			binary.LittleEndian.PutUint32(blk, math.Float32bits(float32(rng.NormFloat64())))
		case F16:
			binary.LittleEndian.PutUint16(blk, floatToHalf(float32(rng.NormFloat64())))
		case BF16:
			binary.LittleEndian.PutUint16(blk, uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
		case Q4_1, Q5_1, Q4_K, Q5_K:
			halfAt(blk)
			halfAt(blk[2:])
		case Q6_K:
			halfAt(blk[208:])
		default:
			halfAt(blk)
		}
	}
	m.exact = dequantizeReference(f, m.raw)
	return m
}

// dequantizeReference decodes raw blocks by the published definition of each format, value by value, in float64.
func dequantizeReference(f Format, raw []byte) []float64 {
	var out []float64
	spec, _ := f.spec()
	h := func(b []byte) float64 { return float64(halfToFloat(binary.LittleEndian.Uint16(b))) }
	for at := 0; at < len(raw); at += spec.blockBytes {
		s := raw[at:][:spec.blockBytes]
		v := make([]float64, spec.blockCols)
		for i := range v {
			switch f {
			case F32:
				v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(s)))
			case F16:
				v[i] = h(s)
			case BF16:
				v[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(s)) << 16))
			case Q8_0:
				v[i] = h(s) * float64(int8(s[2+i]))
			case Q4_0:
				v[i] = h(s) * (float64(s[2+i%16]>>(4*(i/16))&15) - 8)
			case Q4_1:
				v[i] = h(s)*float64(s[4+i%16]>>(4*(i/16))&15) + h(s[2:])
			case Q5_0, Q5_1:
				head := map[Format]int{Q5_0: 2, Q5_1: 4}[f]
				q := float64(s[head+4+i%16]>>(4*(i/16))&15 | s[head+i/8]>>(i%8)&1<<4)
				if f == Q5_0 {
					v[i] = h(s) * (q - 16)
				} else {
					v[i] = h(s)*q + h(s[2:])
				}
			case Q4_K, Q5_K:
				v[i] = referenceK(f, s, i, h(s), h(s[2:]))
			case Q6_K:
				n, l, quarter := i/128, i%32, i%128/32
				low := s[n*64+l+32*(quarter&1)] >> (4 * (quarter >> 1)) & 15
				top := s[128+n*32+l] >> (2 * quarter) & 3
				v[i] = h(s[208:]) * float64(int8(s[192+i/16])) * (float64(low|top<<4) - 32)
			}
		}
		out = append(out, v...)
	}
	return out
}

func referenceK(f Format, s []byte, i int, d, dmin float64) float64 {
	j, p := i/32, s[4:16]
	sc, mn := p[j%4]&63, p[4+j%4]&63
	if j >= 4 {
		sc, mn = p[j+4]&15|p[j-4]>>6<<4, p[j+4]>>4|p[j]>>6<<4
	}
	low := s[16:]
	if f == Q5_K {
		low = s[48:]
	}
	q := low[i/64*32+i%32] >> (i / 32 % 2 * 4) & 15
	if f == Q5_K {
		q |= s[16+i%32] >> j & 1 << 4
	}
	return d*float64(sc)*float64(q) - dmin*float64(mn)
}

func randomFloats(rng *rand.Rand, n int) []float32 {
	v := aligned[float32](n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// packed packs a raw matrix into memory of its own.
func packed(m *rawMatrix) *Matrix {
	p, err := Pack(AlignedBytes(PackedBytes(m.format, m.rows, m.cols)), m.format, m.rows, m.cols, m.row)
	if err != nil {
		panic(err)
	}
	return p
}

func randomHalves(seed uint64, n int) []uint16 {
	h := make([]uint16, n)
	f32toF16Go(h, randomFloats(newRNG(seed), n))
	return h
}
