package tensor

import (
	"fmt"
	"math"
)

// vecWidth is the number of lanes whose length the vector operations want a multiple of.
const vecWidth = 8

// checkLen panics if n is not a multiple of the vector width, or an operand is shorter.
func checkLen(what string, n int, others ...int) {
	if n%vecWidth != 0 {
		panic(fmt.Sprintf("tensor: %s of %d values, want a multiple of %d", what, n, vecWidth))
	}
	checkRoom(what, n, others...)
}

// checkRoom panics if an operand is shorter than n.
func checkRoom(what string, n int, others ...int) {
	for _, o := range others {
		if o < n {
			panic(fmt.Sprintf("tensor: %s of %d values with %d of another operand", what, n, o))
		}
	}
}

// RmsNorm writes dst = x * w / sqrt(mean(x^2) + eps), the root mean square normalisation of Zhang and Sennrich (2019). The
// length of dst rules and is a multiple of 8; dst may be x.
func RmsNorm(dst, x, w []float32, eps float32) {
	checkLen("rms norm", len(dst), len(x), len(w))
	if len(dst) > 0 {
		rmsNorm(dst, x, w, eps)
	}
}

// AddTo adds src to dst; the length of src rules.
func AddTo(dst, src []float32) {
	checkRoom("sum", len(src), len(dst))
	dst = dst[:len(src)]
	n := len(src) &^ (vecWidth - 1)
	if n > 0 {
		addTo(dst[:n], src[:n])
	}
	addToGo(dst[n:], src[n:])
}

// SiluMul writes dst = silu(g) * u with silu(x) = x / (1 + e^-x). The length of dst rules and is a multiple of 8; dst may be
// g or u.
func SiluMul(dst, g, u []float32) {
	checkLen("silu product", len(dst), len(g), len(u))
	if len(dst) > 0 {
		siluMul(dst, g, u)
	}
}

// Softmax turns the first n scores of s into probabilities e^(scale (s - max)) / sum, and the others into zeros, whatever they
// were. The length of s is a multiple of 8 and n at least 1. One score that is NaN makes all probabilities NaN.
func Softmax(s []float32, n int, scale float32) {
	checkLen("softmax", len(s))
	if n < 1 || n > len(s) {
		panic(fmt.Sprintf("tensor: softmax of %d in %d scores", n, len(s)))
	}
	whole := alignUp(n, vecWidth)
	for i := n; i < whole; i++ {
		s[i] = float32(math.Inf(-1))
	}
	softmax(s[:whole], n, scale)
	clear(s[whole:])
}

// RopeNorm turns pairs (x[2i], x[2i+1]) of one head by the angles whose cosines and sines are given, one each a pair: the
// pairing of the llama architecture in GGUF. Values from 2 len(cos) on stay.
func RopeNorm(x, cos, sin []float32) {
	checkRoom("rope", 2*len(cos), len(x), 2*len(sin))
	x, sin = x[:2*len(cos)], sin[:len(cos)]
	n := len(cos) &^ (vecWidth - 1)
	if n > 0 {
		ropeNorm(x[:2*n], cos[:n], sin[:n])
	}
	ropeNormGo(x[2*n:], cos[n:], sin[n:])
}

// RopeNeox turns pairs (x[i], x[i+len(cos)]): the pairing of GPT-NeoX and Qwen. Values from 2 len(cos) on stay.
func RopeNeox(x, cos, sin []float32) {
	r := len(cos)
	checkRoom("rope", 2*r, len(x), 2*len(sin))
	x, sin = x[:2*r], sin[:r]
	n := r &^ (vecWidth - 1)
	if n > 0 {
		ropeNeox(x[:n], x[r:r+n], cos[:n], sin[:n])
	}
	ropeNeoxGo(x[n:r], x[r+n:], cos[n:], sin[n:])
}

// F32toF16 converts src to halves, rounding to nearest even; the length of src rules.
func F32toF16(dst []uint16, src []float32) {
	checkRoom("conversion", len(src), len(dst))
	dst = dst[:len(src)]
	n := len(src) &^ (vecWidth - 1)
	if n > 0 {
		f32toF16(dst[:n], src[:n])
	}
	f32toF16Go(dst[n:], src[n:])
}

// F16toF32 converts halves to float32, exactly; the length of src rules.
func F16toF32(dst []float32, src []uint16) {
	checkRoom("conversion", len(src), len(dst))
	dst = dst[:len(src)]
	n := len(src) &^ (vecWidth - 1)
	if n > 0 {
		f16toF32(dst[:n], src[:n])
	}
	f16toF32Go(dst[n:], src[n:])
}
