package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Lengths are in elements, at least 8 and multiples of 8, unless said.

// broadcastParam loads a float argument into all lanes.
func broadcastParam(name string) VecVirtual {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := YMM()
	VBROADCASTSS(p.Addr, v)
	return v
}

// fold leaves op over all lanes in each lane: halves, then pairs, then neighbours.
func fold(op func(a, b, dst Op), v VecVirtual) {
	t := YMM()
	VPERM2F128(Imm(1), v, v, t)
	op(t, v, v)
	VPERMILPS(Imm(0x4e), v, t)
	op(t, v, v)
	VPERMILPS(Imm(0xb1), v, t)
	op(t, v, v)
}

func addOp(a, b, dst Op)  { VADDPS(a, b, dst) }
func maxOp(a, b, dst Op)  { VMAXPS(a, b, dst) }
func umaxOp(a, b, dst Op) { VPMAXUD(a, b, dst) }

// loop runs body for byte offsets 0, step, ... below end.
func loop(label string, i, end Register, step uint64, body func()) {
	XORQ(i, i)
	Label(label)
	body()
	ADDQ(Imm(step), i)
	CMPQ(i, end)
	JLT(LabelRef(label))
}

// idx is base plus a byte offset in a register.
func idx(base, i Register, disp int) Mem { return Mem{Base: base, Index: i, Scale: 1, Disp: disp} }

func rmsNorm() {
	TEXT("rmsNormAVX2", noSplit, "func(dst, x, w *float32, n int, eps, inv float32)")
	dst, x, w := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("w"), GP64())
	n, i := Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	s, v := YMM(), YMM()
	VXORPS(s, s, s)
	loop("squares", i, n, 32, func() {
		VMOVUPS(idx(x, i, 0), v)
		VFMADD231PS(v, v, s)
	})
	fold(addOp, s)
	VFMADD213PS(broadcastParam("eps"), broadcastParam("inv"), s)
	VSQRTPS(s, s)
	one := YMM()
	VMOVUPS(float8("one", 1), one)
	VDIVPS(s, one, s)
	loop("scale", i, n, 32, func() {
		VMULPS(idx(x, i, 0), s, v)
		VMULPS(idx(w, i, 0), v, v)
		VMOVUPS(v, idx(dst, i, 0))
	})
	VZEROUPPER()
	RET()
}

func addTo() {
	TEXT("addToAVX2", noSplit, "func(dst, src *float32, n int)")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	n, i, v := Load(Param("n"), GP64()), GP64(), YMM()
	SHLQ(Imm(2), n)
	loop("add", i, n, 32, func() {
		VMOVUPS(idx(dst, i, 0), v)
		VADDPS(idx(src, i, 0), v, v)
		VMOVUPS(v, idx(dst, i, 0))
	})
	VZEROUPPER()
	RET()
}

// exponential replaces x by e^x, clamped to the polynomial's range; NaN stays. lo and hi hold the range.
func exponential(x, lo, hi VecVirtual) {
	VMAXPS(x, lo, x) // the second source, x, is what comes out when it is NaN
	VMINPS(x, hi, x)
	exponentialInRange(x)
}

// exponentialInRange leaves anything where x is out of range.
func exponentialInRange(x VecVirtual) {
	n, r, p := YMM(), YMM(), YMM()
	VMULPS(float8("log2e", 1.44269504088896341), x, n)
	VROUNDPS(Imm(0), n, n)
	VMOVAPS(x, r)
	VFNMADD231PS(float8("ln2hi", 0.693359375), n, r)
	VFNMADD231PS(float8("ln2lo", -2.12194440e-4), n, r)
	VMOVUPS(float8("exp0", 1.9875691500e-4), p)
	VFMADD213PS(float8("exp1", 1.3981999507e-3), r, p)
	VFMADD213PS(float8("exp2", 8.3334519073e-3), r, p)
	VFMADD213PS(float8("exp3", 4.1665795894e-2), r, p)
	VFMADD213PS(float8("exp4", 1.6666665459e-1), r, p)
	VFMADD213PS(float8("exp5", 5.0000001201e-1), r, p)
	VMULPS(r, p, p)
	VFMADD213PS(r, r, p)
	VADDPS(float8("one", 1), p, p)
	VCVTPS2DQ(n, n)
	VPSLLD(Imm(23), n, n)
	VPADDD(n, p, x)
}

// expRange loads the range of exponential.
func expRange() (lo, hi VecVirtual) {
	lo, hi = YMM(), YMM()
	VMOVUPS(float8("expLow", -87.33654), lo)
	VMOVUPS(float8("expHigh", 88), hi)
	return lo, hi
}

func siluMul() {
	TEXT("siluMulAVX2", noSplit, "func(dst, gate, up *float32, n int)")
	dst, gp, u := Load(Param("dst"), GP64()), Load(Param("gate"), GP64()), Load(Param("up"), GP64())
	n, i := Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	lo, hi := expRange()
	zero, x, y := YMM(), YMM(), YMM()
	VXORPS(zero, zero, zero)
	loop("silu", i, n, 32, func() {
		VMOVUPS(idx(gp, i, 0), y)
		VSUBPS(y, zero, x)
		exponential(x, lo, hi)
		VADDPS(float8("one", 1), x, x)
		VDIVPS(x, y, y)
		VMULPS(idx(u, i, 0), y, y)
		VMOVUPS(y, idx(dst, i, 0))
	})
	VZEROUPPER()
	RET()
}

func softmax() {
	TEXT("softmaxAVX2", noSplit, "func(s *float32, n int, scale float32)")
	s := Load(Param("s"), GP64())
	n, i := Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	scale := broadcastParam("scale")
	big, sum, x, low := YMM(), YMM(), YMM(), YMM()
	VMOVUPS(float8("minusInf", float32(math.Inf(-1))), big)
	loop("max", i, n, 32, func() { VMAXPS(idx(s, i, 0), big, big) })
	fold(maxOp, big)
	VXORPS(sum, sum, sum)
	lo, _ := expRange()
	loop("exp", i, n, 32, func() {
		VMOVUPS(idx(s, i, 0), x)
		VSUBPS(big, x, x)
		VMULPS(scale, x, x)
		VCMPPS(Imm(0x11), lo, x, low) // x below the range: exactly zero; x is never above it
		exponentialInRange(x)
		VANDNPS(x, low, x)
		VADDPS(x, sum, sum)
		VMOVUPS(x, idx(s, i, 0))
	})
	fold(addOp, sum)
	VMOVUPS(float8("one", 1), x)
	VDIVPS(sum, x, sum)
	loop("scale", i, n, 32, func() {
		VMULPS(idx(s, i, 0), sum, x)
		VMOVUPS(x, idx(s, i, 0))
	})
	VZEROUPPER()
	RET()
}

// ropeNorm turns neighbours; n is the number of pairs.
func ropeNorm() {
	TEXT("ropeNormAVX2", noSplit, "func(x, cos, sin *float32, n int)")
	x, c, s := Load(Param("x"), GP64()), Load(Param("cos"), GP64()), Load(Param("sin"), GP64())
	n, i := Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	low, high := YMM(), YMM()
	VMOVUPS(list8("doubleLow", [8]uint32{0, 0, 1, 1, 2, 2, 3, 3}), low)
	VMOVUPS(list8("doubleHigh", [8]uint32{4, 4, 5, 5, 6, 6, 7, 7}), high)
	cv, sv, v, t, cd := YMM(), YMM(), YMM(), YMM(), YMM()
	loop("turn", i, n, 32, func() {
		VMOVUPS(idx(c, i, 0), cv)
		VMOVUPS(idx(s, i, 0), sv)
		for h, double := range []VecVirtual{low, high} {
			VMOVUPS(at(x, 32*h), v)
			VPERMILPS(Imm(0xb1), v, t)
			VPERMPS(sv, double, cd)
			VMULPS(cd, t, t)
			VPERMPS(cv, double, cd)
			VFMADDSUB231PS(cd, v, t) // t = v*cos -+ t
			VMOVUPS(t, at(x, 32*h))
		}
		ADDQ(Imm(64), x)
	})
	VZEROUPPER()
	RET()
}

// ropeNeox turns pairs of a and b.
func ropeNeox() {
	TEXT("ropeNeoxAVX2", noSplit, "func(a, b, cos, sin *float32, n int)")
	a, b := Load(Param("a"), GP64()), Load(Param("b"), GP64())
	c, s := Load(Param("cos"), GP64()), Load(Param("sin"), GP64())
	n, i := Load(Param("n"), GP64()), GP64()
	SHLQ(Imm(2), n)
	av, bv, cv, sv, t, u := YMM(), YMM(), YMM(), YMM(), YMM(), YMM()
	loop("turn", i, n, 32, func() {
		VMOVUPS(idx(a, i, 0), av)
		VMOVUPS(idx(b, i, 0), bv)
		VMOVUPS(idx(c, i, 0), cv)
		VMOVUPS(idx(s, i, 0), sv)
		VMULPS(bv, sv, t)
		VMULPS(av, sv, u)
		VFMSUB231PS(av, cv, t)
		VFMADD231PS(bv, cv, u)
		VMOVUPS(t, idx(a, i, 0))
		VMOVUPS(u, idx(b, i, 0))
	})
	VZEROUPPER()
	RET()
}

func toHalf() {
	TEXT("f32toF16AVX2", noSplit, "func(dst *uint16, src *float32, n int)")
	dst, src, n, v := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64()), YMM()
	Label("convert")
	VMOVUPS(at(src, 0), v)
	VCVTPS2PH(Imm(0), v, at(dst, 0))
	ADDQ(Imm(32), src)
	ADDQ(Imm(16), dst)
	SUBQ(Imm(8), n)
	JNZ(LabelRef("convert"))
	VZEROUPPER()
	RET()
}

func fromHalf() {
	TEXT("f16toF32AVX2", noSplit, "func(dst *float32, src *uint16, n int)")
	dst, src, n, v := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64()), YMM()
	Label("convert")
	VCVTPH2PS(at(src, 0), v)
	VMOVUPS(v, at(dst, 0))
	ADDQ(Imm(16), src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(8), n)
	JNZ(LabelRef("convert"))
	VZEROUPPER()
	RET()
}

// storeLane writes halves 32 bytes apart.
func storeLane() {
	TEXT("storeLaneAVX2", noSplit, "func(dst *uint16, src *float32, n int)")
	dst, src, n, v := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64()), YMM()
	Label("store")
	VMOVUPS(at(src, 0), v)
	VCVTPS2PH(Imm(0), v, v.AsX())
	for i := 0; i < 8; i++ {
		VPEXTRW(Imm(uint64(i)), v.AsX(), at(dst, 32*i))
	}
	ADDQ(Imm(32), src)
	ADDQ(I32(256), dst)
	SUBQ(Imm(8), n)
	JNZ(LabelRef("store"))
	VZEROUPPER()
	RET()
}

func pause() {
	TEXT("pause", noSplit, "func()")
	PAUSE()
	RET()
}
