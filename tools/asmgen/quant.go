package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// quantizer is the part that both widths share.
type quantizer struct {
	x, q, d, s, blocks Register
	v                  []VecVirtual
	scale              VecVirtual
}

// begin starts the loop over blocks of 32: it loads a block, computes d = max|x| / top, and leaves round(x / d) as int32 in v.
func begin(signature string, name string, top float32) *quantizer {
	TEXT(name, noSplit, signature)
	g := &quantizer{
		x: Load(Param("x"), GP64()), q: Load(Param("q"), GP64()), d: Load(Param("d"), GP64()),
		s: Load(Param("s"), GP64()), blocks: Load(Param("blocks"), GP64()),
		v: []VecVirtual{YMM(), YMM(), YMM(), YMM()}, scale: YMM(),
	}
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
	ADDQ(Imm(4), g.d)
	ADDQ(Imm(4), g.s)
	DECQ(g.blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

func quant16() {
	g := begin("func(x *float32, q *int16, d, s *float32, blocks int)", "quant16AVX2", 16383)
	for i := 0; i < 2; i++ {
		VPACKSSDW(g.v[2*i+1], g.v[2*i], g.v[2*i])
		VPERMQ(Imm(0xd8), g.v[2*i], g.v[2*i])
		VMOVDQU(g.v[2*i], at(g.q, 32*i))
	}
	g.end(64)
}

func quant8() {
	g := begin("func(x *float32, q *int8, d, s *float32, blocks int)", "quant8AVX2", 127)
	order := YMM()
	VPACKSSDW(g.v[1], g.v[0], g.v[0])
	VPACKSSDW(g.v[3], g.v[2], g.v[2])
	VPACKSSWB(g.v[2], g.v[0], g.v[0])
	VMOVDQU(list8("packOrder", [8]uint32{0, 4, 1, 5, 2, 6, 3, 7}), order)
	VPERMD(g.v[0], order, g.v[0])
	VMOVDQU(g.v[0], at(g.q, 0))
	g.end(32)
}
