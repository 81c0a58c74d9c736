//go:build !purego

package tensor

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// accelerated is fixed at start: whether this processor has what the assembly needs.
var accelerated = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C

// Accelerated reports whether the assembly kernels run on this machine.
func Accelerated() bool { return accelerated }

// productKernel multiplies a group of 16 rows with a tile; see tools/asmgen, product.
type productKernel func(q, s, sup *byte, x *uint32, dx, sx, c *float32, blocks, ld int)

// directKernels are the product kernels of each layout for tiles of one to six tokens; immutable.
var directKernels = [...][tileTokens]productKernel{
	layoutF32:   {mulF32x1, mulF32x2, mulF32x3, mulF32x4, mulF32x5, mulF32x6},
	layoutF16:   {mulF16x1, mulF16x2, mulF16x3, mulF16x4, mulF16x5, mulF16x6},
	layoutBF16:  {mulBF16x1, mulBF16x2, mulBF16x3, mulBF16x4, mulBF16x5, mulBF16x6},
	layoutI8:    {mulI8x1, mulI8x2, mulI8x3, mulI8x4, mulI8x5, mulI8x6},
	layoutI8Min: {mulI8Minx1, mulI8Minx2, mulI8Minx3, mulI8Minx4, mulI8Minx5, mulI8Minx6},
	layoutS4:    {mulS4x1, mulS4x2, mulS4x3, mulS4x4, mulS4x5, mulS4x6},
	layoutU4Min: {mulU4Minx1, mulU4Minx2, mulU4Minx3, mulU4Minx4, mulU4Minx5, mulU4Minx6},
	layoutU4K:   {mulU4Kx1, mulU4Kx2, mulU4Kx3, mulU4Kx4, mulU4Kx5, mulU4Kx6},
	layoutS6K:   {mulS6Kx1, mulS6Kx2, mulS6Kx3, mulS6Kx4, mulS6Kx5, mulS6Kx6},
}

// panelKernels multiply an expanded group with six tokens; immutable.
var panelKernels = [...]productKernel{
	panelFloat:    mulF32x6,
	panelInt16:    mulPanelInt16x6,
	panelInt16Min: mulPanelInt16Minx6,
}

// expandKernels turn a packed group into a panel; immutable. An F32 group is one already.
var expandKernels = [...]func(q, s, sup *byte, words *uint32, d, m *float32, blocks int){
	layoutF16: expandF16, layoutBF16: expandBF16, layoutI8: expandI8, layoutI8Min: expandI8Min,
	layoutS4: expandS4, layoutU4Min: expandU4Min, layoutU4K: expandU4K, layoutS6K: expandS6K,
}

// first is the address of a slice's memory.
func first[E any](s []E) *E { return unsafe.SliceData(s) }

// group returns the parts of group g.
func (m *Matrix) group(g int) (q, s, sup []byte) {
	ls := m.layout.spec()
	nq, ns, nu := m.blocks*ls.quantBytes, m.blocks*ls.scaleBytes, m.superCount*ls.superBytes
	return m.quants[g*nq:][:nq], m.scales[g*ns:][:ns], m.supers[g*nu:][:nu]
}

// direct multiplies group g with a tile from the packed weights.
func (m *Matrix) direct(g int, a *actTile, c []float32, ld int, t *Thread) {
	if !accelerated {
		m.directGo(g, a, c, ld, t)
		return
	}
	q, s, sup := m.group(g)
	_ = c[(a.width-1)*ld+groupRows-1]
	directKernels[m.layout][a.width-1](first(q), first(s), first(sup), first(a.words), first(a.scales), first(a.sums), first(c), m.blocks, ld)
}

// expand fills the panel from group g.
func (m *Matrix) expand(g int, p *panel) {
	switch {
	case m.layout == layoutF32:
		q, _, _ := m.group(g)
		p.words = as[uint32](q)
	case !accelerated:
		m.expandGo(g, p)
	default:
		q, s, sup := m.group(g)
		expandKernels[m.layout](first(q), first(s), first(sup), first(p.words), first(p.d), first(p.m), m.blocks)
	}
}

// mul multiplies the panel with a full tile.
func (p *panel) mul(a *actTile, c []float32, ld int) {
	if !accelerated {
		p.mulGo(a, c, ld)
		return
	}
	_ = c[(a.width-1)*ld+groupRows-1]
	w, d, m := bytesOf(p.words), bytesOf(p.d), bytesOf(p.m)
	panelKernels[p.kind](first(w), first(d), first(m), first(a.words), first(a.scales), first(a.sums), first(c), p.cols/blockCols, ld)
}

func quant16(x []float32, q []int16, scales, sums []float32, step int) {
	if !accelerated {
		quant16Go(x, q, scales, sums, step)
		return
	}
	blocks := len(q) / blockCols
	_, _, _ = x[len(q)-1], scales[(blocks-1)*step], sums[(blocks-1)*step]
	quant16AVX2(first(x), first(q), first(scales), first(sums), blocks, step)
}

func interleave(dst, src []uint32, width int) {
	if n := len(src) / width; accelerated && width == tileTokens && n%vecWidth == 0 {
		interleave6AVX2(first(dst[:len(src)]), first(src), n)
		return
	}
	interleaveGo(dst, src, width)
}

// The vector kernels below have lengths that are multiples of 8 and not zero: their callers in vec.go see to it.

func addTo(dst, src []float32) {
	if n := len(src); accelerated && n%vecWidth == 0 {
		addToAVX2(first(dst), first(src), n)
		return
	}
	addToGo(dst, src)
}

func siluMul(dst, g, u []float32) {
	if !accelerated {
		siluMulGo(dst, g, u)
		return
	}
	siluMulAVX2(first(dst), first(g), first(u), len(dst))
}

func rmsNorm(dst, x, w []float32, eps float32) {
	if !accelerated {
		rmsNormGo(dst, x, w, eps)
		return
	}
	rmsNormAVX2(first(dst), first(x), first(w), len(dst), eps, 1/float32(len(dst)))
}

func softmax(s []float32, n int, scale float32) {
	if !accelerated {
		softmaxGo(s, n, scale)
		return
	}
	softmaxAVX2(first(s), len(s), scale)
	clear(s[n:])
}

func ropeNorm(x, cos, sin []float32) {
	if !accelerated {
		ropeNormGo(x, cos, sin)
		return
	}
	ropeNormAVX2(first(x), first(cos), first(sin), len(cos))
}

func ropeNeox(a, b, cos, sin []float32) {
	if !accelerated {
		ropeNeoxGo(a, b, cos, sin)
		return
	}
	ropeNeoxAVX2(first(a), first(b), first(cos), first(sin), len(cos))
}

func f32toF16(dst []uint16, src []float32) {
	if !accelerated {
		f32toF16Go(dst, src)
		return
	}
	f32toF16AVX2(first(dst), first(src), len(src))
}

func f16toF32(dst []float32, src []uint16) {
	if !accelerated {
		f16toF32Go(dst, src)
		return
	}
	f16toF32AVX2(first(dst), first(src), len(src))
}

func storeLane(dst []uint16, src []float32) {
	if !accelerated {
		storeLaneGo(dst, src)
		return
	}
	_ = dst[(len(src)-1)*PageTokens]
	storeLaneAVX2(first(dst), first(src), len(src))
}

// kernelCols is how many columns an attention kernel takes; seven and eight go as four and the rest, which keeps the
// registers' chains of sums longer than six and one.
func kernelCols(cols int) int {
	if cols == 7 || cols == 8 {
		return 4
	}
	return min(cols, tileTokens)
}

func attnQK(k []uint16, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	if !accelerated {
		attnQKGo(k, q, ldQ, cols, s, ldS, dim)
		return
	}
	for cols > 0 {
		n := kernelCols(cols)
		switch n {
		case 1:
			attnQKx1(first(k), first(q), ldQ, first(s), ldS, dim)
		case 2:
			attnQKx2(first(k), first(q), ldQ, first(s), ldS, dim)
		case 3:
			attnQKx3(first(k), first(q), ldQ, first(s), ldS, dim)
		case 4:
			attnQKx4(first(k), first(q), ldQ, first(s), ldS, dim)
		case 5:
			attnQKx5(first(k), first(q), ldQ, first(s), ldS, dim)
		default:
			attnQKx6(first(k), first(q), ldQ, first(s), ldS, dim)
		}
		if cols -= n; cols > 0 {
			q, s = q[n*ldQ:], s[n*ldS:]
		}
	}
}

// attnQKPages takes several pages at a time where few columns would leave a page's sums waiting for each other.
func attnQKPages(pages [][]uint16, at int, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	if cols > 3 || !accelerated {
		qkEach(pages, at, q, ldQ, cols, s, ldS, dim)
		return
	}
	step := [...]int{1: 4, 2: 2, 3: 2}[cols]
	for ; len(pages) >= step; pages, s = pages[step:], s[step*PageTokens:] {
		ahead := step
		if len(pages) < 2*step {
			ahead = 0
		}
		switch cols {
		case 1:
			attnQKx1p4(first(pages), at, ahead, first(q), ldQ, first(s), ldS, dim)
		case 2:
			attnQKx2p2(first(pages), at, ahead, first(q), ldQ, first(s), ldS, dim)
		default:
			attnQKx3p2(first(pages), at, ahead, first(q), ldQ, first(s), ldS, dim)
		}
	}
	qkEach(pages, at, q, ldQ, cols, s, ldS, dim)
}

func attnAV(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, dims, n int) {
	if !accelerated {
		attnAVGo(pages, at, ldV, p, ldP, cols, out, ldOut, dims, n)
		return
	}
	for cols > 0 {
		c := kernelCols(cols)
		wide := dims
		if c < len(wideDims) {
			wide = dims / wideDims[c] * wideDims[c]
			wideAV(pages, at, ldV, p, ldP, c, out, ldOut, wide/wideDims[c], n)
		}
		if c >= len(wideDims) {
			narrowAV(pages, at, ldV, p, ldP, c, out, ldOut, dims/dimStep, n)
		} else if wide < dims {
			narrowAV(pages, at+wide, ldV, p, ldP, c, out[wide:], ldOut, (dims-wide)/dimStep, n)
		}
		if cols -= c; cols > 0 {
			p, out = p[c*ldP:], out[c*ldOut:]
		}
	}
}

// wideDims is how many dimensions at a time the kernels for one to three columns take; there are no wider ones for more.
var wideDims = [...]int{1: 64, 2: 32, 3: 32}

func wideAV(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, count, n int) {
	if count == 0 {
		return
	}
	switch cols {
	case 1:
		attnAVx1d64(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	case 2:
		attnAVx2d32(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	default:
		attnAVx3d32(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	}
}

func narrowAV(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, count, n int) {
	switch cols {
	case 1:
		attnAVx1d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	case 2:
		attnAVx2d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	case 3:
		attnAVx3d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	case 4:
		attnAVx4d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	case 5:
		attnAVx5d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	default:
		attnAVx6d16(first(pages), at, ldV, first(p), ldP, first(out), ldOut, count, n)
	}
}
