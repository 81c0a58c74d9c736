//go:build !amd64 || purego

package tensor

import "runtime"

// The kernels of machines without assembly are the portable ones.

// Accelerated reports whether the assembly kernels run on this machine.
func Accelerated() bool { return false }

func (m *Matrix) expand(g int, p *panel) { m.expandGo(g, p) }

func (p *panel) mul(a *actTile, c []float32, ld int) { p.mulGo(a, c, ld) }

func (m *Matrix) direct(g int, a *actTile, c []float32, ld int, t *Thread) {
	m.directGo(g, a, c, ld, t)
}

func quant16(x []float32, q []int16, scales, sums []float32, step int) {
	quant16Go(x, q, scales, sums, step)
}

func interleave(dst, src []uint32, width int) { interleaveGo(dst, src, width) }

func addTo(dst, src []float32) { addToGo(dst, src) }

func siluMul(dst, g, u []float32) { siluMulGo(dst, g, u) }

func rmsNorm(dst, x, w []float32, eps float32) { rmsNormGo(dst, x, w, eps) }

func softmax(s []float32, n int, scale float32) { softmaxGo(s, n, scale) }

func ropeNorm(x, cos, sin []float32) { ropeNormGo(x, cos, sin) }

func ropeNeox(a, b, cos, sin []float32) { ropeNeoxGo(a, b, cos, sin) }

func f32toF16(dst []uint16, src []float32) { f32toF16Go(dst, src) }

func f16toF32(dst []float32, src []uint16) { f16toF32Go(dst, src) }

func storeLane(dst []uint16, src []float32) { storeLaneGo(dst, src) }

func attnQK(k []uint16, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	attnQKGo(k, q, ldQ, cols, s, ldS, dim)
}

func attnQKPages(pages [][]uint16, at int, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	qkEach(pages, at, q, ldQ, cols, s, ldS, dim)
}

func attnAV(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, dims, n int) {
	attnAVGo(pages, at, ldV, p, ldP, cols, out, ldOut, dims, n)
}

func pause() { runtime.Gosched() }
