package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// quantizer writes the kernel that quantizes activations.
type quantizer struct {
	x, q, d, s, blocks, step Register
	v                        []VecVirtual
	scale                    VecVirtual
}

// begin starts the loop over blocks of 32: it loads a block, computes d = max|x| / top, and leaves round(x / d) as int32 in v.
// The scales d and sums s of the blocks are step floats apart.
func begin(signature, name string, top float32) *quantizer {
	TEXT(name, noSplit, signature)
	g := &quantizer{
		x: Load(Param("x"), GP64()), q: Load(Param("q"), GP64()), d: Load(Param("d"), GP64()),
		s: Load(Param("s"), GP64()), blocks: Load(Param("blocks"), GP64()), step: Load(Param("step"), GP64()),
		v: []VecVirtual{YMM(), YMM(), YMM(), YMM()}, scale: YMM(),
	}
	SHLQ(Imm(2), g.step)
	big, t := YMM(), YMM()
	Label("block")
	// As integers the bits of infinity and NaN are the largest: they become the scale.
	VMOVUPS(float8("quantTiny", 1e-30), big)
	for i, v := range g.v {
		VMOVUPS(at(g.x, 32*i), v)
		VANDPS(words8("magnitude", 0x7fffffff), v, t)
		VPMAXUD(t, big, big)
	}
	fold(umaxOp, big)
	VMULPS(float8(name+"Inv", 1/top), big, g.scale)
	VMOVSS(g.scale.AsX(), at(g.d, 0))
	VMOVUPS(float8(name+"Top", top), t)
	VDIVPS(big, t, big)
	for _, v := range g.v {
		VMULPS(big, v, v)
		VCVTPS2DQ(v, v)
	}
	g.sum()
	return g
}

// sum writes d times the sum of the block's integers.
func (g *quantizer) sum() {
	s, t := YMM(), YMM()
	VPADDD(g.v[0], g.v[1], s)
	VPADDD(g.v[2], g.v[3], t)
	VPADDD(t, s, s)
	fold(func(a, b, dst Op) { VPADDD(a, b, dst) }, s)
	VCVTDQ2PS(s, s)
	VMULPS(g.scale, s, s)
	VMOVSS(s.AsX(), at(g.s, 0))
}

func (g *quantizer) end(quantBytes uint64) {
	ADDQ(I32(128), g.x)
	ADDQ(Imm(quantBytes), g.q)
	ADDQ(g.step, g.d)
	ADDQ(g.step, g.s)
	DECQ(g.blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

func quant16() {
	g := begin("func(x *float32, q *int16, d, s *float32, blocks, step int)", "quant16AVX2", 16383)
	for i := 0; i < 2; i++ {
		VPACKSSDW(g.v[2*i+1], g.v[2*i], g.v[2*i])
		VPERMQ(Imm(0xd8), g.v[2*i], g.v[2*i])
		VMOVDQU(g.v[2*i], at(g.q, 32*i))
	}
	g.end(64)
}

// interleave6 writes the words of six rows, n apart, as n groups of six; n is a multiple of 8.
func interleave6() {
	TEXT("interleave6AVX2", noSplit, "func(dst, src *uint32, n int)")
	dst, src, n, i := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	rows := columns{first: src, fourth: GP64(), stride: n}
	LEAQ(Mem{Base: src, Index: n, Scale: 2}, rows.fourth)
	ADDQ(n, rows.fourth)
	MOVQ(n, i)
	r := make([]VecVirtual, 6)
	t := make([]VecVirtual, 6)
	for j := range r {
		r[j], t[j] = YMM(), YMM()
	}
	x := YMM()
	Label("eight")
	for j := range r {
		VMOVDQU(rows.row(j, 0), r[j])
	}
	// Pairs of words of rows 0-1, 2-3 and 4-5, for words 0 1 | 4 5 and 2 3 | 6 7 of each row.
	for j := 0; j < 6; j += 2 {
		VPUNPCKLDQ(r[j+1], r[j], t[j])
		VPUNPCKHDQ(r[j+1], r[j], t[j+1])
	}
	// Four words of rows 0-3 for each of the words 0|4, 1|5, 2|6, 3|7; rows 4 and 5 stay in t[4] and t[5].
	VPUNPCKLQDQ(t[2], t[0], r[0])
	VPUNPCKHQDQ(t[2], t[0], r[1])
	VPUNPCKLQDQ(t[3], t[1], r[2])
	VPUNPCKHQDQ(t[3], t[1], r[3])
	for word := 0; word < 8; word++ {
		four, two := r[word%4].AsX(), t[4+word%4/2]
		if word >= 4 {
			VEXTRACTI128(Imm(1), r[word%4], x.AsX())
			four = x.AsX()
		}
		VMOVDQU(four, at(dst, 24*word))
		if word >= 4 && word%2 == 0 {
			VEXTRACTI128(Imm(1), two, two.AsX())
		}
		if word%2 == 0 {
			VMOVLPS(two.AsX(), at(dst, 24*word+16))
		} else {
			VMOVHPS(two.AsX(), at(dst, 24*word+16))
		}
	}
	ADDQ(I32(192), dst)
	rows.advance(32)
	SUBQ(Imm(32), i)
	JNZ(LabelRef("eight"))
	VZEROUPPER()
	RET()
}
