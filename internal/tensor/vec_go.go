package tensor

import "math"

// This file is the portable form of the vector kernels. An explicit conversion of a product to float32 keeps the compiler from
// fusing it into a sum.

// rmsNormGo sums the squares in eight lanes.
func rmsNormGo(dst, x, w []float32, eps float32) {
	var lanes [8]float32
	for i := range dst {
		lanes[i%8] = fma32(x[i], x[i], lanes[i%8])
	}
	mean := fma32(sumLanes(&lanes), 1/float32(len(dst)), eps)
	scale := 1 / float32(math.Sqrt(float64(mean)))
	for i := range dst {
		dst[i] = float32(float32(x[i]*scale) * w[i])
	}
}

func addToGo(dst, src []float32) {
	for i, v := range src {
		dst[i] += v
	}
}

func silu(x float32) float32 { return x / float32(exp32(-x)+1) }

func siluMulGo(dst, g, u []float32) {
	for i := range dst {
		dst[i] = float32(silu(g[i]) * u[i])
	}
}

// softmaxGo works on n scores, padded with minus infinity to len(s), a multiple of 8.
func softmaxGo(s []float32, n int, scale float32) {
	big := float32(math.Inf(-1))
	for _, v := range s {
		big = max(big, v)
	}
	var lanes [8]float32
	for i, v := range s {
		e := float32(0)
		if x := float32((v - big) * scale); !(x < expLow) {
			e = exp32(x)
		}
		if i >= n {
			e = 0
		}
		s[i] = e
		lanes[i%8] += e
	}
	inv := 1 / sumLanes(&lanes)
	for i := range s {
		s[i] = float32(s[i] * inv)
	}
	clear(s[n:])
}

func ropeNormGo(x, cos, sin []float32) {
	for i, c := range cos {
		x[2*i], x[2*i+1] = turn(x[2*i], x[2*i+1], c, sin[i])
	}
}

func ropeNeoxGo(a, b, cos, sin []float32) {
	for i, c := range cos {
		a[i], b[i] = turn(a[i], b[i], c, sin[i])
	}
}

// turn rotates the vector (a, b).
func turn(a, b, cos, sin float32) (float32, float32) {
	return fma32(a, cos, -float32(b*sin)), fma32(b, cos, float32(a*sin))
}

func f32toF16Go(dst []uint16, src []float32) {
	for i, v := range src {
		dst[i] = floatToHalf(v)
	}
}

func f16toF32Go(dst []float32, src []uint16) {
	for i, v := range src {
		dst[i] = halfToFloat(v)
	}
}
