package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// prefetch is how far ahead of its use a weight is asked for, in bytes.
const prefetch = 1536

// inRegisters is the largest number of tokens whose f32 sums stay in registers; more of them live on the stack.
const inRegisters = 2

// gen is a product kernel being written: 16 rows x tokens.
type gen struct {
	source
	tokens    int
	p         pointers
	x, dx, sx Register
	v         vregs
	acc       []VecVirtual // [token][rows 0-7, 8-15] integers of a block, or f32 sums for floats
	total     []VecVirtual // integers of the first half of a block, if sub-scales multiply sums
	sum       []VecVirtual // f32 sums if in registers
	mem       Mem          // otherwise on the stack
	tmp       Mem          // the source's
	blocks    Register
}

// product writes the kernel that multiplies a group of 16 rows with a tile of tokens:
//
//	q, s, sup  the group's quants, scales and super-scales (for panels: words, scales, minima)
//	x          activations [block][word][tokens]
//	dx, sx     their scales and sums [block][tokens]
//	c          result [token][16], rows ld floats apart
func product(w source, tokens int) {
	TEXT(fmt.Sprintf("mul%sx%d", w.name, tokens), noSplit,
		"func(q, s, sup *byte, x *uint32, dx, sx, c *float32, blocks, ld int)")
	g := &gen{source: w, tokens: tokens}
	g.p.q = Load(Param("q"), GP64())
	g.x = Load(Param("x"), GP64())
	g.blocks = Load(Param("blocks"), GP64())
	if w.kind != kindFloat {
		g.p.s = Load(Param("s"), GP64())
		g.dx = Load(Param("dx"), GP64())
	}
	if g.usesSuper() {
		g.p.sup = Load(Param("sup"), GP64())
	}
	if g.usesSums() {
		g.sx = Load(Param("sx"), GP64())
	}
	g.registers()
	if w.kind == kindFloat {
		g.floatLoop()
	} else {
		g.intLoop()
	}
	g.store()
	VZEROUPPER()
	RET()
}

func (g *gen) usesSuper() bool {
	return g.superSize > 0 || g.panel && g.hasMin
}

func (g *gen) usesSums() bool { return g.hasMin }

func (g *gen) registers() {
	g.acc = make([]VecVirtual, 2*g.tokens)
	for i := range g.acc {
		g.acc[i] = YMM()
	}
	g.v = vregs{w0: YMM(), w1: YMM(), t0: YMM(), t1: YMM()}
	if g.tokens <= inRegisters {
		g.v.keep(g.consts)
		if g.keepsRaw {
			g.v.raw = []VecVirtual{YMM(), YMM()}
		}
	}
	if g.kind == kindFloat {
		zero(g.acc)
		return
	}
	g.lateScales()
	g.placeSums(g.tokens <= inRegisters && (g.total == nil || g.tokens == 1))
}

func zero(regs []VecVirtual) {
	for _, r := range regs {
		VXORPS(r, r, r)
	}
}

// placeSums sets the f32 sums to zero, in registers or on the stack, and makes room there for what the source needs.
func (g *gen) placeSums(inRegisters bool) {
	size := 0
	if g.prologue != nil {
		size += 128
	}
	if !inRegisters {
		size += 64 * g.tokens
	}
	if size > 0 {
		g.tmp = alignedLocal(size)
		g.mem = g.tmp.Offset(size - 64*g.tokens)
	}
	if inRegisters {
		g.sum = make([]VecVirtual, 2*g.tokens)
		for i := range g.sum {
			g.sum[i] = YMM()
		}
		zero(g.sum)
		return
	}
	VXORPS(g.v.t0, g.v.t0, g.v.t0)
	for i := range g.acc {
		VMOVAPS(g.v.t0, g.mem.Offset(32*i))
	}
}

// alignedLocal is stack memory that starts at a multiple of 32 bytes.
func alignedLocal(size int) Mem {
	base := GP64()
	LEAQ(AllocLocal(size+32), base)
	ADDQ(Imm(31), base)
	ANDQ(I32(-32), base)
	return Mem{Base: base}
}

// lateScales decides to multiply a half block's sums instead of its weights by their sub-scales, and makes room for them.
func (g *gen) lateScales() {
	if g.prologue == nil || g.tokens > inRegisters {
		return
	}
	g.prologue, g.v.late = nil, true
	g.total = make([]VecVirtual, 2*g.tokens)
	for i := range g.total {
		g.total[i] = YMM()
	}
}

// finishSub multiplies the sums of a half block by its sub-scales; after the second half acc has the block's integers.
func (g *gen) finishSub(half int) {
	for h, w := range []VecVirtual{g.v.w0, g.v.w1} {
		VPMOVSXBD(at(g.p.s, 16*half+8*h), w)
		for t := 0; t < g.tokens; t++ {
			i := 2*t + h
			if half == 0 {
				VPMULLD(w, g.acc[i], g.total[i])
				continue
			}
			VPMULLD(w, g.acc[i], g.acc[i])
			VPADDD(g.total[i], g.acc[i], g.acc[i])
		}
	}
}

// prefetchWord asks for the weights of a later block, once a cache line. Panels are in the first cache; so are F32 weights when
// six tokens share them, or else arithmetic bounds the product.
func (g *gen) prefetchWord(i int) {
	if g.panel || g.kind == kindFloat && g.quantSize == 2048 && g.tokens == 6 {
		return
	}
	lines := g.quantSize / 64
	n := g.kind.words()
	for l := i * lines / n; l < (i+1)*lines/n; l++ {
		PREFETCHT0(at(g.p.q, prefetch+64*l))
	}
}

func (g *gen) floatLoop() {
	const unroll = 8
	Label("block")
	for i := 0; i < 32/unroll; i++ {
		for k := 0; k < unroll; k++ {
			word := i*unroll + k
			g.prefetchWord(word)
			g.load(g.p, g.v, g.tmp, word)
			for t := 0; t < g.tokens; t++ {
				VBROADCASTSS(at(g.x, (word*g.tokens+t)*4), g.v.t0)
				VFMADD231PS(g.v.w0, g.v.t0, g.acc[2*t])
				VFMADD231PS(g.v.w1, g.v.t0, g.acc[2*t+1])
			}
		}
	}
	ADDQ(I32(int32(g.quantSize)), g.p.q)
	ADDQ(I32(int32(32*4*g.tokens)), g.x)
	DECQ(g.blocks)
	JNZ(LabelRef("block"))
}

func (g *gen) intLoop() {
	var n Register
	if g.superSize > 0 {
		n = GP64()
		MOVQ(U32(8), n)
	}
	Label("block")
	if g.prologue != nil {
		g.prologue(g.p, g.v, g.tmp)
	}
	for i := 0; i < g.kind.words(); i++ {
		word := i
		if g.v.raw != nil {
			word = nibbleOrder[i]
		}
		g.prefetchWord(i)
		g.load(g.p, g.v, g.tmp, word)
		for t := 0; t < g.tokens; t++ {
			g.step(word, t)
		}
		if g.total != nil && i%8 == 7 {
			g.finishSub(i / 8)
		}
	}
	g.finishBlock()
	ADDQ(I32(int32(g.quantSize)), g.p.q)
	ADDQ(I32(int32(g.scaleSize)), g.p.s)
	ADDQ(I32(int32(g.kind.words()*4*g.tokens)), g.x)
	ADDQ(Imm(uint64(4*g.tokens)), g.dx)
	if g.usesSums() {
		ADDQ(Imm(uint64(4*g.tokens)), g.sx)
	}
	switch {
	case g.superSize > 0:
		DECQ(n)
		JNZ(LabelRef("same"))
		MOVQ(U32(8), n)
		ADDQ(Imm(uint64(g.superSize)), g.p.sup)
		Label("same")
	case g.usesSuper():
		ADDQ(Imm(64), g.p.sup)
	}
	DECQ(g.blocks)
	JNZ(LabelRef("block"))
}

// step multiplies one word of 16 rows with one word of a token and adds to the token's integers.
func (g *gen) step(word, t int) {
	a0, a1, x, y := g.acc[2*t], g.acc[2*t+1], g.v.t0, g.v.t1
	VPBROADCASTD(at(g.x, (word*g.tokens+t)*4), x)
	if word == 0 || word == 8 && g.total != nil {
		VPMADDWD(g.v.w0, x, a0)
		VPMADDWD(g.v.w1, x, a1)
		return
	}
	VPMADDWD(g.v.w0, x, y)
	VPMADDWD(g.v.w1, x, x)
	VPADDD(y, a0, a0)
	VPADDD(x, a1, a1)
}

// finishBlock scales the block's integers and adds them to the sums; the order is that of internal/tensor/mul_go.go.
func (g *gen) finishBlock() {
	for _, a := range g.acc {
		VCVTDQ2PS(a, a)
	}
	g.scale(g.p, g.v)
	x, y := g.v.t0, g.v.t1
	for t := 0; t < g.tokens; t++ {
		VBROADCASTSS(at(g.dx, 4*t), x)
		for h, w := range []VecVirtual{g.v.w0, g.v.w1} {
			i := 2*t + h
			VMULPS(w, x, y)
			g.accumulate(i, y, !g.hasMin)
		}
	}
	if g.hasMin {
		g.addMinima()
	}
}

// accumulate adds acc[i] * w to sum i. On the stack the sum stays in acc[i] too, and is written only if it is final.
func (g *gen) accumulate(i int, w VecVirtual, final bool) {
	if g.sum != nil {
		VFMADD231PS(g.acc[i], w, g.sum[i])
		return
	}
	VFMADD213PS(g.mem.Offset(32*i), w, g.acc[i])
	if final {
		VMOVAPS(g.acc[i], g.mem.Offset(32*i))
	}
}

func (g *gen) addMinima() {
	g.min(g.p, g.v)
	sums := g.sum
	if sums == nil {
		sums = g.acc
	}
	for t := 0; t < g.tokens; t++ {
		VBROADCASTSS(at(g.sx, 4*t), g.v.t0)
		for h, w := range []VecVirtual{g.v.w0, g.v.w1} {
			i := 2*t + h
			if g.subtract {
				VFNMADD231PS(w, g.v.t0, sums[i])
			} else {
				VFMADD231PS(w, g.v.t0, sums[i])
			}
			if g.sum == nil {
				VMOVAPS(sums[i], g.mem.Offset(32*i))
			}
		}
	}
}

func (g *gen) store() {
	c := Load(Param("c"), GP64())
	ld := Load(Param("ld"), GP64())
	SHLQ(Imm(2), ld)
	sums := g.sum
	if sums == nil {
		sums = g.acc
	}
	for t := 0; t < g.tokens; t++ {
		VMOVUPS(sums[2*t], at(c, 0))
		VMOVUPS(sums[2*t+1], at(c, 32))
		if t < g.tokens-1 {
			ADDQ(ld, c)
		}
	}
}

// expand writes the kernel that turns a packed group into a panel.
func expand(w source) {
	if w.name == "F32" {
		return
	}
	TEXT("expand"+w.name, noSplit, "func(q, s, sup *byte, words *uint32, d, m *float32, blocks int)")
	g := &gen{source: w}
	g.p.q = Load(Param("q"), GP64())
	out := Load(Param("words"), GP64())
	g.blocks = Load(Param("blocks"), GP64())
	var d, m, n Register
	if w.kind != kindFloat {
		g.p.s = Load(Param("s"), GP64())
		d = Load(Param("d"), GP64())
	}
	if w.superSize > 0 {
		g.p.sup = Load(Param("sup"), GP64())
		n = GP64()
		MOVQ(U32(8), n)
	}
	if w.hasMin {
		m = Load(Param("m"), GP64())
	}
	g.v = vregs{w0: YMM(), w1: YMM(), t0: YMM(), t1: YMM()}
	g.v.keep(w.consts)
	if w.prologue != nil {
		g.tmp = alignedLocal(128)
	}
	Label("block")
	if w.prologue != nil {
		w.prologue(g.p, g.v, g.tmp)
	}
	for word := 0; word < w.kind.words(); word++ {
		w.load(g.p, g.v, g.tmp, word)
		VMOVDQU(g.v.w0, at(out, 64*word))
		VMOVDQU(g.v.w1, at(out, 64*word+32))
	}
	ADDQ(I32(int32(64*w.kind.words())), out)
	g.expandScales(d, m)
	ADDQ(I32(int32(w.quantSize)), g.p.q)
	if w.superSize > 0 {
		DECQ(n)
		JNZ(LabelRef("same"))
		MOVQ(U32(8), n)
		ADDQ(Imm(uint64(w.superSize)), g.p.sup)
		Label("same")
	}
	DECQ(g.blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

func (g *gen) expandScales(d, m Register) {
	if g.kind == kindFloat {
		return
	}
	g.scale(g.p, g.v)
	VMOVUPS(g.v.w0, at(d, 0))
	VMOVUPS(g.v.w1, at(d, 32))
	ADDQ(Imm(64), d)
	if g.hasMin {
		g.min(g.p, g.v)
		for h, w := range []VecVirtual{g.v.w0, g.v.w1} {
			if g.subtract {
				VXORPS(words8("signs", 0x80000000), w, w)
			}
			VMOVUPS(w, at(m, 32*h))
		}
		ADDQ(Imm(64), m)
	}
	ADDQ(I32(int32(g.scaleSize)), g.p.s)
}
