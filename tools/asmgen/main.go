// Command asmgen writes the AVX2 kernels of internal/tensor.
//
// Run it by go generate ./internal/tensor, which calls generate.sh beside this file.
package main

import (
	"math"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

func main() {
	build.ConstraintExpr("amd64,!purego")
	for _, w := range packedSources() {
		for tokens := 1; tokens <= 6; tokens++ {
			product(w, tokens)
		}
		expand(w)
	}
	for _, w := range panelSources() {
		product(w, 6)
	}
	quant16()
	interleave6()
	rmsNorm()
	addTo()
	siluMul()
	softmax()
	ropeNorm()
	ropeNeox()
	toHalf()
	fromHalf()
	storeLane()
	for cols := 1; cols <= 6; cols++ {
		attnQK(cols)
		if cols <= 3 {
			attnQKPages(cols)
		}
		for _, dims := range avDims(cols) {
			attnAV(cols, dims)
		}
	}
	pause()
	build.Generate()
}

// constants keeps one copy of each vector constant.
type constants map[string]operand.Mem

var vectors = constants{}

// words8 is a vector of eight equal 32-bit words.
func words8(name string, v uint32) operand.Mem {
	return list8(name, [8]uint32{v, v, v, v, v, v, v, v})
}

// float8 is a vector of eight equal floats.
func float8(name string, v float32) operand.Mem { return words8(name, math.Float32bits(v)) }

func list8(name string, v [8]uint32) operand.Mem {
	if m, ok := vectors[name]; ok {
		return m
	}
	m := build.GLOBL(name, 8|16) // RODATA|NOPTR
	for i, x := range v {
		build.DATA(4*i, operand.U32(x))
	}
	vectors[name] = m
	return m
}
