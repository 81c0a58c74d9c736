package tensor

import "math"

// fma32 returns a b + c rounded once, like the hardware's single-precision fused multiply-add.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b) // exact: 24 + 24 bits
	s := p + float64(c)
	// A second rounding to 24 bits is harmless unless the first one landed on the middle between two floats, or the result is
	// so small that the middles lie elsewhere.
	bits := math.Float64bits(s)
	if bits&(1<<29-1) != 1<<28 && bits>>52&0x7ff > 1023-126 {
		return float32(s)
	}
	// The sum's rounding error, exactly (Knuth's two-sum). If there is one, round s to odd: then the rounding to 24 bits
	// below gives what a single rounding of the exact value would have given.
	v := s - p
	err := (p - (s - v)) + (float64(c) - v)
	if err == 0 || err != err {
		return float32(s)
	}
	if bits&1 == 0 {
		if err > 0 == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

// halfToFloat converts an IEEE 754 half to float32, exactly.
func halfToFloat(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0:
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		if frac != 0 {
			frac |= 512 // a quiet NaN, as the hardware gives
		}
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// floatToHalf converts to an IEEE 754 half, rounding to nearest even; out of range becomes infinity.
func floatToHalf(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	bits &= 0x7fffffff
	switch {
	case bits > 0x7f800000: // NaN: keep the top of its payload, quiet
		return sign | 0x7e00 | uint16(bits>>13&0x1ff)
	case bits >= 0x47800000: // 65536 and more
		return sign | 0x7c00
	case bits >= 0x38800000: // normal: rebias, then round; a carry runs into the exponent, up to infinity
		bits -= 112 << 23
		return sign | uint16((bits+0xfff+bits>>13&1)>>13)
	case bits < 0x33000000: // below half of the smallest subnormal
		return sign
	}
	// Subnormal: units of 2^-24.
	shift := 126 - bits>>23
	frac := bits&0x7fffff | 0x800000
	v := frac >> shift
	rest, mid := frac&(1<<shift-1), uint32(1)<<(shift-1)
	if rest > mid || rest == mid && v&1 == 1 {
		v++
	}
	return sign | uint16(v)
}

// exp32 returns e^x as the vector kernels do (the Cephes polynomial, about 1 ulp), for x clamped to [expLow, 88]. NaN stays.
func exp32(x float32) float32 {
	if x < expLow {
		x = expLow
	}
	if x > expHigh {
		x = expHigh
	}
	n := float32(math.RoundToEven(float64(float32(x * expLog2e))))
	r := fma32(-n, expLn2Hi, x)
	r = fma32(-n, expLn2Lo, r)
	p := fma32(expC0, r, expC1)
	p = fma32(p, r, expC2)
	p = fma32(p, r, expC3)
	p = fma32(p, r, expC4)
	p = fma32(p, r, expC5)
	p = float32(p * r)
	p = fma32(p, r, r)
	p = float32(p + 1)
	if p != p {
		return p
	}
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
}

// Constants of exp32; the assembly has the same.
const (
	expLow   float32 = -87.33654
	expHigh  float32 = 88
	expLog2e float32 = 1.44269504088896341
	expLn2Hi float32 = 0.693359375
	expLn2Lo float32 = -2.12194440e-4
	expC0    float32 = 1.9875691500e-4
	expC1    float32 = 1.3981999507e-3
	expC2    float32 = 8.3334519073e-3
	expC3    float32 = 4.1665795894e-2
	expC4    float32 = 1.6666665459e-1
	expC5    float32 = 5.0000001201e-1
)

// sumLanes adds eight lanes in the order of the vector kernels: halves, then pairs, then neighbours.
func sumLanes(v *[8]float32) float32 {
	var s [4]float32
	for i := range s {
		s[i] = v[i] + v[i+4]
	}
	a, b := s[0]+s[2], s[1]+s[3]
	return a + b
}

// absMax returns the largest absolute value, at least quantTiny; it compares bits, so that infinity and then NaN are largest.
func absMax(x []float32) float32 {
	big := math.Float32bits(quantTiny)
	for _, v := range x {
		big = max(big, math.Float32bits(v)&0x7fffffff)
	}
	return math.Float32frombits(big)
}

// roundInt rounds to nearest even; what does not fit 32 bits, and NaN, becomes the smallest integer, as in the hardware.
func roundInt(v float32) int32 {
	r := math.RoundToEven(float64(v))
	if r >= -(1<<31) && r < 1<<31 {
		return int32(r)
	}
	return math.MinInt32
}
