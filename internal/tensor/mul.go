package tensor

import "fmt"

// panelTokens is how many tokens share one expansion of a group of rows.
const panelTokens = 16 * tileTokens

// directTokens is the number of tokens up to which the packed weights are read in place, once a tile, and not expanded.
const directTokens = 2 * tileTokens

// chunkBytes is about how many bytes of weights a thread takes at a time: small enough to share the rows evenly and to keep an
// assembly call, which the scheduler can't interrupt, below 100 microseconds.
const chunkBytes = 32 << 10

// Mul computes out[token*ldOut + row] = sum over columns of m[row, column] times the token's activation, for all rows of m and
// all tokens of a. It is called by every thread of a phase, and shares the rows among them; the phase's end is when out is
// complete. ldOut is at least m.Rows.
func (m *Matrix) Mul(t *Thread, a *Acts, out []float32, ldOut int) {
	m.checkMul(a, out, ldOut, m.Rows)
	m.mul(t, a, sink{kind: sinkStore, out: out, ld: ldOut})
}

// MulAdd adds the product to out instead of storing it; each sum is rounded once more.
func (m *Matrix) MulAdd(t *Thread, a *Acts, out []float32, ldOut int) {
	m.checkMul(a, out, ldOut, m.Rows)
	m.mul(t, a, sink{kind: sinkAdd, out: out, ld: ldOut})
}

// MulGated is for a matrix whose rows were packed in the order of ZipRows(gate, up): it computes
// out[token*ldOut + i] = silu(gate row i . x) * (up row i . x) for i below m.Rows/2.
func (m *Matrix) MulGated(t *Thread, a *Acts, out []float32, ldOut int) {
	if m.Rows%groupRows != 0 {
		panic(fmt.Sprintf("tensor: gated product of %d rows, want a multiple of %d", m.Rows, groupRows))
	}
	m.checkMul(a, out, ldOut, m.Rows/2)
	m.mul(t, a, sink{kind: sinkGate, out: out, ld: ldOut})
}

func (m *Matrix) checkMul(a *Acts, out []float32, ldOut, rows int) {
	if !a.Suits(m) {
		panic(fmt.Sprintf("tensor: activations of class %d in %d blocks for a %v matrix of %d columns", a.class, a.blocks, m.Format, m.Cols))
	}
	if ldOut < rows || len(out) < (a.tokens-1)*ldOut+rows {
		panic(fmt.Sprintf("tensor: product of %d rows and %d tokens into %d values, %d apart", rows, a.tokens, len(out), ldOut))
	}
}

func (m *Matrix) mul(t *Thread, a *Acts, s sink) {
	if a.tokens <= directTokens {
		m.mulDirect(t, a, s)
	} else {
		m.mulPanels(t, a, s)
	}
}

// mulDirect streams the packed weights, once a tile.
func (m *Matrix) mulDirect(t *Thread, a *Acts, s sink) {
	var tiles [directTokens / tileTokens]actTile
	for i := range a.Tiles() {
		tiles[i] = a.tile(i)
	}
	groupBytes := m.PackedBytes() / m.groups
	t.Each(m.groups, max(1, chunkBytes/groupBytes), func(lo, hi int) {
		for g := lo; g < hi; g++ {
			for i := range a.Tiles() {
				c, ld := s.place(t, m, g, i)
				m.direct(g, &tiles[i], c, ld, t)
				s.finish(c, m, g, i, tiles[i].width)
			}
		}
	})
}

// mulPanels expands each group of rows once for up to panelTokens tokens, and multiplies tile by tile.
func (m *Matrix) mulPanels(t *Thread, a *Acts, s sink) {
	const tiles = panelTokens / tileTokens
	bands := ceilDiv(a.Tiles(), tiles)
	p := m.newPanel(t)
	t.Each(bands*m.groups, 2, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			band, g := i/m.groups, i%m.groups
			m.expand(g, &p)
			for tile := band * tiles; tile < min(band*tiles+tiles, a.Tiles()); tile++ {
				at := a.tile(tile)
				c, ld := s.place(t, m, g, tile)
				if at.width == tileTokens {
					p.mul(&at, c, ld)
				} else {
					m.direct(g, &at, c, ld, t)
				}
				s.finish(c, m, g, tile, at.width)
			}
		}
	})
}

// sink is where a product goes.
type sink struct {
	kind sinkKind
	out  []float32
	ld   int
}

type sinkKind uint8

const (
	sinkStore sinkKind = iota
	sinkAdd
	sinkGate
)

// place is where a kernel writes the products of group g and a tile, [width][16] values, rows ld apart: where they belong if
// that is possible, otherwise scratch memory, from where finish takes them.
func (s *sink) place(t *Thread, m *Matrix, g, tile int) (c []float32, ld int) {
	if s.direct(m, g) {
		return s.out[tile*tileTokens*s.ld+g*groupRows:], s.ld
	}
	return grow(&t.scratch.out, tileTokens*groupRows), groupRows
}

// direct reports whether the kernel itself can write the products of group g.
func (s *sink) direct(m *Matrix, g int) bool {
	return s.kind == sinkStore && (g+1)*groupRows <= m.Rows
}

// finish stores, adds or gates what a kernel wrote to scratch memory.
func (s *sink) finish(c []float32, m *Matrix, g, tile, width int) {
	if s.direct(m, g) {
		return
	}
	row, token := g*groupRows, tile*tileTokens
	rows := min(groupRows, m.Rows-row)
	for i := range width {
		v := c[i*groupRows:][:rows]
		switch s.kind {
		case sinkStore:
			copy(s.out[(token+i)*s.ld+row:], v)
		case sinkAdd:
			addTo(s.out[(token+i)*s.ld+row:][:rows], v)
		case sinkGate:
			gate(s.out[(token+i)*s.ld+row/2:][:8], v)
		}
	}
}

// gate writes dst[i] = silu(src[i]) * src[8+i] for i below 8.
func gate(dst, src []float32) { siluMul(dst[:8], src[:8], src[8:16]) }

// panel is a group of rows in the form of the product kernels, for all blocks of columns.
type panel struct {
	kind  panelKind
	words []uint32  // [block][words of a block][16 rows]
	d, m  []float32 // [block][16] scale, minimum
	cols  int
}

type panelKind uint8

const (
	panelFloat    panelKind = iota // f32 elements
	panelInt16                     // pairs of int16
	panelInt16Min                  // and a minimum
)

func (l layout) panel() panelKind {
	switch l {
	case layoutF32, layoutF16, layoutBF16:
		return panelFloat
	case layoutI8, layoutS4, layoutS6K:
		return panelInt16
	case layoutI8Min, layoutU4Min, layoutU4K:
		return panelInt16Min
	}
	panic(fmt.Sprintf("tensor: layout %d has no panel", l))
}

// newPanel returns a panel for m in the thread's scratch memory.
func (m *Matrix) newPanel(t *Thread) panel {
	words := m.blocks * groupRows * (blockCols / m.Class().perWord())
	return panel{
		kind: m.layout.panel(), words: grow(&t.panelWords, words),
		d: grow(&t.panelD, m.blocks*groupRows), m: grow(&t.panelM, m.blocks*groupRows), cols: m.blocks * blockCols,
	}
}
