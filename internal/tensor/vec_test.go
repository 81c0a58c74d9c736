package tensor

import (
	"math"
	"testing"
)

func near(t *testing.T, what string, got []float32, want func(i int) float64, bound float64) {
	t.Helper()
	for i, g := range got {
		if w := want(i); math.Abs(float64(g)-w) > bound*(1+math.Abs(w)) || g != g {
			t.Errorf("%s: value %d is %v, want %v within %.1g", what, i, g, w, bound)
			return
		}
	}
}

func TestVectorOperationsAreNearExactArithmetic(t *testing.T) {
	const n = 96
	x, w := randomFloats(newRNG(1), n), randomFloats(newRNG(2), n)
	got := make([]float32, n)
	var square float64
	for _, v := range x {
		square += float64(v) * float64(v)
	}
	RmsNorm(got, x, w, 1e-5)
	near(t, "rms norm", got, func(i int) float64 { return float64(x[i]) * float64(w[i]) / math.Sqrt(square/n+1e-5) }, 1e-6)

	SiluMul(got, x, w)
	near(t, "silu product", got, func(i int) float64 { return float64(x[i]) / (1 + math.Exp(-float64(x[i]))) * float64(w[i]) }, 1e-6)

	const valid = 77
	copy(got, x)
	for i := valid; i < n; i++ {
		got[i] = float32(math.NaN()) // what lies beyond the valid scores does not count
	}
	Softmax(got, valid, 0.5)
	var sum float64
	for _, v := range x[:valid] {
		sum += math.Exp(float64(v) * 0.5)
	}
	near(t, "softmax", got, func(i int) float64 {
		if i >= valid {
			return 0
		}
		return math.Exp(float64(x[i])*0.5) / sum
	}, 1e-6)

	const pairs = 21 // not a multiple of the vector width; the values from 42 on stay
	cos, sin := make([]float32, pairs), make([]float32, pairs)
	for i := range cos {
		s, c := math.Sincos(float64(i))
		cos[i], sin[i] = float32(c), float32(s)
	}
	rotated := func(a, b float32, i, part int) float64 {
		if part == 0 {
			return float64(a)*float64(cos[i]) - float64(b)*float64(sin[i])
		}
		return float64(b)*float64(cos[i]) + float64(a)*float64(sin[i])
	}
	copy(got, x)
	RopeNorm(got, cos, sin)
	near(t, "rope of neighbours", got, func(i int) float64 {
		if i >= 2*pairs {
			return float64(x[i])
		}
		return rotated(x[i&^1], x[i|1], i/2, i%2)
	}, 1e-6)
	copy(got, x)
	RopeNeox(got, cos, sin)
	near(t, "rope of halves", got, func(i int) float64 {
		if i >= 2*pairs {
			return float64(x[i])
		}
		return rotated(x[i%pairs], x[i%pairs+pairs], i%pairs, i/pairs)
	}, 1e-6)

	sumOf := append([]float32(nil), x[:13]...)
	AddTo(sumOf, w[:13])
	near(t, "sum", sumOf, func(i int) float64 { return float64(x[i] + w[i]) }, 0)
}

func TestSoftmaxDoesNotDependOnThePadding(t *testing.T) {
	x := randomFloats(newRNG(1), 64)
	short, long := append([]float32(nil), x[:24]...), append([]float32(nil), x...)
	Softmax(short, 19, 1)
	Softmax(long, 19, 1)
	if d := firstDifference(short, long[:24]); d >= 0 {
		t.Errorf("probability %d depends on the length of the padding", d)
	}
}

func TestSoftmaxOfNaNIsNaN(t *testing.T) {
	for i := range 19 {
		s := randomFloats(newRNG(1), 24)
		s[i] = float32(math.NaN())
		Softmax(s, 19, 1)
		for j, v := range s[:19] {
			if v == v {
				t.Fatalf("a NaN as score %d leaves probability %d finite", i, j)
			}
		}
	}
}

func TestMisuseOfVectorsPanics(t *testing.T) {
	v := make([]float32, 24)
	for name, fn := range map[string]func(){
		"norm of 12 values":          func() { RmsNorm(v[:12], v, v, 1) },
		"norm with short weights":    func() { RmsNorm(v, v, v[:8], 1) },
		"softmax of none":            func() { Softmax(v, 0, 1) },
		"softmax of more than there": func() { Softmax(v, 25, 1) },
		"rope of too few values":     func() { RopeNorm(v[:4], v[:8], v[:8]) },
		"keys too short":             func() { AttnQK(make([]uint16, 100), v, 16, 1, v, 16, 16) },
		"values too short":           func() { AttnAV(make([]uint16, 100), 16, v, 16, 1, v, 16, 16, 16) },
		"tokens beyond the pages":    func() { AttnAV(make([]uint16, 1000), 16, v, 16, 1, v, 16, 16, 17) },
		"lane beyond the page":       func() { StoreK(make([]uint16, 256), 16, v[:16]) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic")
				}
			}()
			fn()
		})
	}
}
