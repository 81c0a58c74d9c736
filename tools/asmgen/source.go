package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const noSplit = attr.NOSPLIT

// kind is how a word of 16 rows is multiplied with a word of activations.
type kind int

const (
	kindFloat kind = iota // 1 column a word
	kindInt16             // 2
)

// words is the number of words in a block of 32 columns.
func (k kind) words() int { return []int{32, 16}[k] }

// pointers are the registers that walk through a group's parts.
type pointers struct{ q, s, sup Register }

// vregs are the registers a source may use: w0 and w1 receive rows 0-7 and 8-15, t0 and t1 are free.
type vregs struct {
	w0, w1, t0, t1 VecVirtual
	raw            []VecVirtual          // nil, or two that loadNibbles keeps its bytes in
	kept           map[string]VecVirtual // constants in registers, if there is room
	late           bool                  // loadSix leaves the sub-scales to finishSub
}

// constant is a vector of equal words as an operand: a register if it is kept in one.
func (v vregs) constant(name string) Op {
	if r, ok := v.kept[name]; ok {
		return r
	}
	return words8(name, masks[name])
}

// keep loads constants into registers.
func (v *vregs) keep(names []string) {
	v.kept = map[string]VecVirtual{}
	for _, name := range names {
		r := YMM()
		VMOVDQU(words8(name, masks[name]), r)
		v.kept[name] = r
	}
}

// masks are the constants of the sources below.
var masks = map[string]uint32{
	"low2": 0x03030303, "low4": 0x000f000f,
}

// source describes where the weights of a group of 16 rows come from.
type source struct {
	name      string
	kind      kind
	panel     bool // expanded: minima stand in the place of supers, and nothing is prefetched
	quantSize int  // bytes of a block's quants, scales
	scaleSize int
	superSize int // bytes of a super-block's scales; 0 if there are none
	hasMin    bool
	subtract  bool     // the minimum is subtracted
	consts    []string // constants of load
	keepsRaw  bool     // load wants raw registers, and the words that share bytes together

	prologue func(p pointers, v vregs, tmp Mem) // before a block's words; tmp is 128 bytes of aligned memory
	load     func(p pointers, v vregs, tmp Mem, word int)
	scale    func(p pointers, v vregs) // scales into w0 and w1
	min      func(p pointers, v vregs) // minima into w0 and w1
}

// at is the address of a part plus an offset.
func at(p Register, disp int) Mem { return Mem{Base: p, Disp: disp} }

func halves(p func(p pointers) Register, disp int) func(p pointers, v vregs) {
	return func(ptr pointers, v vregs) {
		VCVTPH2PS(at(p(ptr), disp), v.w0)
		VCVTPH2PS(at(p(ptr), disp+16), v.w1)
	}
}

func floats(p func(p pointers) Register, disp int) func(p pointers, v vregs) {
	return func(ptr pointers, v vregs) {
		VMOVUPS(at(p(ptr), disp), v.w0)
		VMOVUPS(at(p(ptr), disp+32), v.w1)
	}
}

func inScales(p pointers) Register { return p.s }
func inSupers(p pointers) Register { return p.sup }

// packedSources are the layouts of packed matrices; see internal/tensor/layout.go.
func packedSources() []source {
	return []source{
		{name: "F32", kind: kindFloat, quantSize: 2048, load: loadWords},
		{name: "F16", kind: kindFloat, quantSize: 1024, load: loadHalves},
		{name: "BF16", kind: kindFloat, quantSize: 1024, load: loadBrain},
		{name: "I8", kind: kindInt16, quantSize: 512, scaleSize: 32, load: loadBytes, scale: halves(inScales, 0)},
		{
			name: "I8Min", kind: kindInt16, quantSize: 512, scaleSize: 128, load: loadBytes,
			scale: floats(inScales, 0), hasMin: true, min: floats(inScales, 64),
		},
		{name: "S4", kind: kindInt16, quantSize: 256, scaleSize: 32, load: loadSignedNibbles, keepsRaw: true, scale: halves(inScales, 0)},
		{
			name: "U4Min", kind: kindInt16, quantSize: 256, scaleSize: 64, load: loadNibbles, consts: []string{"low4"}, keepsRaw: true,
			scale: halves(inScales, 0), hasMin: true, min: halves(inScales, 32),
		},
		{
			name: "U4K", kind: kindInt16, quantSize: 256, scaleSize: 32, superSize: 64, load: loadNibbles, consts: []string{"low4"}, keepsRaw: true,
			scale: subScales(0, 0), hasMin: true, subtract: true, min: subScales(16, 32),
		},
		{
			name: "S6K", kind: kindInt16, quantSize: 384, scaleSize: 32, superSize: 32,
			prologue: spreadSubScales, load: loadSix, consts: []string{"low2"}, scale: halves(inSupers, 0),
		},
	}
}

// panelSources are expanded groups of rows: words as the product wants them, f32 scales, f32 minima in the place of supers.
func panelSources() []source {
	return []source{
		{name: "PanelInt16", panel: true, kind: kindInt16, quantSize: 1024, scaleSize: 64, load: loadWords, scale: floats(inScales, 0)},
		{
			name: "PanelInt16Min", panel: true, kind: kindInt16, quantSize: 1024, scaleSize: 64, load: loadWords,
			scale: floats(inScales, 0), hasMin: true, min: floats(inSupers, 0),
		},
	}
}

// loadWords loads words that are stored as they are used.
func loadWords(p pointers, v vregs, _ Mem, word int) {
	VMOVDQU(at(p.q, word*64), v.w0)
	VMOVDQU(at(p.q, word*64+32), v.w1)
}

// loadHalves converts f16.
func loadHalves(p pointers, v vregs, _ Mem, word int) {
	VCVTPH2PS(at(p.q, word*32), v.w0)
	VCVTPH2PS(at(p.q, word*32+16), v.w1)
}

// loadBrain converts bfloat16: the top half of an f32.
func loadBrain(p pointers, v vregs, _ Mem, word int) {
	VPMOVZXWD(at(p.q, word*32), v.w0)
	VPMOVZXWD(at(p.q, word*32+16), v.w1)
	VPSLLD(Imm(16), v.w0, v.w0)
	VPSLLD(Imm(16), v.w1, v.w1)
}

// loadBytes widens pairs of int8.
func loadBytes(p pointers, v vregs, _ Mem, word int) {
	VPMOVSXBW(at(p.q, word*32), v.w0)
	VPMOVSXBW(at(p.q, word*32+16), v.w1)
}

// nibblePlace is where the nibbles of a word are: the first of its bytes, and the lowest of the four bits in each 16.
func nibblePlace(word int) (disp, bit int) {
	return word % 8 / 2 * 64, word/8*4 + word%2*8
}

// loadNibbles takes the four words that share 64 bytes from bits 0, 4, 8 and 12 of each 16.
func loadNibbles(p pointers, v vregs, _ Mem, word int) {
	_, bit := nibblePlace(word)
	eachRaw(p, v, word, func(raw, w VecVirtual) {
		if bit > 0 {
			VPSRLW(Imm(uint64(bit)), raw, w)
			raw = w
		}
		if bit < 12 {
			VPAND(v.constant("low4"), raw, w)
		}
	})
}

// loadSignedNibbles is loadNibbles for four bits in two's complement.
func loadSignedNibbles(p pointers, v vregs, _ Mem, word int) {
	_, bit := nibblePlace(word)
	eachRaw(p, v, word, func(raw, w VecVirtual) {
		if bit < 12 {
			VPSLLW(Imm(uint64(12-bit)), raw, w)
			raw = w
		}
		VPSRAW(Imm(12), raw, w)
	})
}

// eachRaw has the bytes of a word's first and last eight rows loaded, unless they still are, and then used.
func eachRaw(p pointers, v vregs, word int, use func(raw, w VecVirtual)) {
	disp, bit := nibblePlace(word)
	for h, w := range []VecVirtual{v.w0, v.w1} {
		raw := w
		if v.raw != nil {
			raw = v.raw[h]
		}
		if bit == 0 || v.raw == nil {
			VMOVDQU(at(p.q, disp+h*32), raw)
		}
		use(raw, w)
	}
}

// nibbleOrder has the four words of the same bytes next to each other.
var nibbleOrder = []int{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}

// subScales multiplies bytes of the block with halves of the super-block.
func subScales(scaleDisp, superDisp int) func(p pointers, v vregs) {
	return func(p pointers, v vregs) {
		for h, w := range []VecVirtual{v.w0, v.w1} {
			VPMOVZXBD(at(p.s, scaleDisp+8*h), w)
			VCVTDQ2PS(w, w)
			VCVTPH2PS(at(p.sup, superDisp+16*h), v.t0)
			VMULPS(v.t0, w, w)
		}
	}
}

// spreadSubScales writes the block's int8 sub-scales to tmp as pairs of int16: [columns 0-15, 16-31][rows 0-7, 8-15].
func spreadSubScales(p pointers, v vregs, tmp Mem) {
	for i := 0; i < 4; i++ {
		VPMOVSXBD(at(p.s, 8*i), v.t0)
		VPSLLD(Imm(16), v.t0, v.t1)
		VPBLENDW(Imm(0xaa), v.t1, v.t0, v.t0)
		VMOVDQA(v.t0, tmp.Offset(32*i))
	}
}

// loadSix takes three pairs of a quad from the upper six bits of a vector each, and the last from their lower two bits; it
// splits the two groups of eight rows, and multiplies by the sub-scales if it is not cheaper to multiply the sums, as it is for
// few tokens.
func loadSix(p pointers, v vregs, tmp Mem, pair int) {
	quad := pair / 4 * 96
	if i := pair % 4; i < 3 {
		VMOVDQU(at(p.q, quad+32*i), v.w1)
		VPSLLW(Imm(8), v.w1, v.w0)
	} else {
		low2 := func(i int, w VecVirtual) {
			VMOVDQU(at(p.q, quad+32*i), w)
			VPAND(v.constant("low2"), w, w)
		}
		low2(2, v.w0)
		for i := 1; i >= 0; i-- {
			low2(i, v.w1)
			VPSLLW(Imm(2), v.w0, v.w0)
			VPOR(v.w1, v.w0, v.w0)
		}
		VPSLLW(Imm(2), v.w0, v.w1)
		VPSLLW(Imm(10), v.w0, v.w0)
	}
	for h, w := range []VecVirtual{v.w0, v.w1} {
		VPSRAW(Imm(10), w, w)
		if !v.late {
			VPMULLW(tmp.Offset(pair/8*64+32*h), w, w)
		}
	}
}
