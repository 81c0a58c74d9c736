package tensor

import (
	"encoding/binary"
	"math"
)

// This file is the portable form of the product kernels. They define the order and the roundings that the assembly follows:
// for each block in turn, with n the exact integer product of the block,
//
//	float      c = fma(w, x, c) for each column
//	int16      c = fma(n, d*dx, c)
//	...Min     c = fma(n, d*dx, c), then c = fma(sum x, m, c)

// expandGo fills the panel from group g.
func (m *Matrix) expandGo(g int, p *panel) {
	n := len(p.words) / m.blocks
	for b := range m.blocks {
		q, s, sup := m.block(g, b)
		expandBlockGo(m.layout, q, s, sup, p.words[b*n:][:n], p.d[b*groupRows:][:groupRows], p.m[b*groupRows:][:groupRows])
	}
}

func expandBlockGo(l layout, q, s, sup []byte, words []uint32, d, m []float32) {
	switch l {
	case layoutF32:
		copy(words, as[uint32](q))
	case layoutF16:
		for i := range words {
			words[i] = math.Float32bits(half(q, i))
		}
	case layoutBF16:
		for i := range words {
			words[i] = uint32(binary.LittleEndian.Uint16(q[2*i:])) << 16
		}
	case layoutI8, layoutI8Min:
		w := as[int16](bytesOf(words))
		for i, v := range q {
			w[i] = int16(int8(v))
		}
	case layoutS6K:
		expandSixGo(q, s, as[int16](bytesOf(words)))
	case layoutS4, layoutU4Min, layoutU4K:
		w := as[int16](bytesOf(words))
		for i := range w {
			pair, row := i/32, i%32/2
			w[i] = int16(nibble(l, q, row, 2*pair+i%2))
		}
	}
	for r := range groupRows {
		switch l {
		case layoutI8, layoutS4:
			d[r] = half(s, r)
		case layoutI8Min:
			d[r], m[r] = as[float32](s)[r], as[float32](s)[16+r]
		case layoutU4Min:
			d[r], m[r] = half(s, r), half(s, 16+r)
		case layoutU4K:
			d[r], m[r] = half(sup, r)*float32(s[r]), -half(sup, 16+r)*float32(s[16+r])
		case layoutS6K:
			d[r] = half(sup, r)
		default:
		}
	}
}

// expandSixGo writes quant times sub-scale, 14 bits.
func expandSixGo(q, s []byte, w []int16) {
	for r := range groupRows {
		for k := range blockCols {
			w[k/2*32+r*2+k%2] = int16(six(q, r, k)) * int16(int8(s[k/16*16+r]))
		}
	}
}

// mulGo multiplies the panel with a tile into [width][16] values of c, rows ld apart.
func (p *panel) mulGo(a *actTile, c []float32, ld int) {
	for i := range a.width {
		clear(c[i*ld:][:groupRows])
	}
	blocks := p.cols / blockCols
	words, actWords := len(p.words)/blocks/groupRows, len(a.words)/blocks/a.width
	for b := range blocks {
		w := p.words[b*words*groupRows:][:words*groupRows]
		x := a.words[b*actWords*a.width:][:actWords*a.width]
		for i := range a.width {
			row := c[i*ld:][:groupRows]
			if p.kind == panelFloat {
				mulFloatsGo(w, x, i, a.width, row)
				continue
			}
			n := dotsGo(w, x, i, a.width)
			at := b*a.width + i
			p.accumulateGo(b, &n, a.scales[at], a.sums[at], row)
		}
	}
}

func mulFloatsGo(w, x []uint32, i, width int, c []float32) {
	for k := range blockCols {
		v := math.Float32frombits(x[k*width+i])
		for r := range c {
			c[r] = fma32(math.Float32frombits(w[k*groupRows+r]), v, c[r])
		}
	}
}

// dotsGo returns the integer products of a block for 16 rows and token i.
func dotsGo(w, x []uint32, i, width int) (n [groupRows]int32) {
	for k := 0; k*groupRows < len(w); k++ {
		v := x[k*width+i]
		lo, hi := int32(int16(v)), int32(v)>>16
		for r, u := range w[k*groupRows:][:groupRows] {
			n[r] += int32(int16(u))*lo + int32(u)>>16*hi
		}
	}
	return n
}

func (p *panel) accumulateGo(b int, n *[groupRows]int32, dx, sum float32, c []float32) {
	d, m := p.d[b*groupRows:][:groupRows], p.m[b*groupRows:][:groupRows]
	for r := range c {
		c[r] = fma32(float32(n[r]), float32(d[r]*dx), c[r])
		if p.kind == panelInt16Min {
			c[r] = fma32(sum, m[r], c[r])
		}
	}
}

// directGo multiplies group g with a tile by way of a panel.
func (m *Matrix) directGo(g int, a *actTile, c []float32, ld int, t *Thread) {
	p := m.newPanel(t)
	m.expandGo(g, &p)
	p.mulGo(a, c, ld)
}
