package tensor

import (
	"math"
	"math/big"
	"testing"
)

// exactFMA rounds the exact a b + c once, by way of arbitrary precision.
func exactFMA(a, b, c float32) float32 {
	x := new(big.Float).SetPrec(700).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(700).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(700).SetFloat64(float64(c)))
	f, _ := x.Float32()
	return f
}

func TestFMARoundsOnce(t *testing.T) {
	rng := newRNG(1)
	random := func() float32 {
		for {
			// All magnitudes, and often few bits, so that sums land on the middle between two floats.
			bits := rng.Uint32()
			if rng.IntN(2) == 0 {
				bits &= 0xfffff000
			}
			if rng.IntN(2) == 0 {
				bits = bits&0x807fffff | uint32(120+rng.IntN(16))<<23
			}
			if f := math.Float32frombits(bits); f == f && !math.IsInf(float64(f), 0) {
				return f
			}
		}
	}
	for range 300000 {
		a, b, c := random(), random(), random()
		if got, want := fma32(a, b, c), exactFMA(a, b, c); got != want {
			t.Fatalf("fma(%v, %v, %v) is %v, want %v", a, b, c, got, want)
		}
	}
	// Half a unit less a trifle that 53 bits don't hold: rounding twice would go up to the even neighbour. Once where floats are
	// normal, once where they are subnormal.
	above, below := float32(1+math.Ldexp(1, -23)), float32(1-math.Ldexp(1, -23))
	for _, unit := range []int{-23, -149} {
		odd := float32(math.Ldexp(1, unit+22) + math.Ldexp(1, unit))
		if unit == -23 {
			odd = float32(1 + math.Ldexp(1, unit))
		}
		small := float32(math.Ldexp(1, unit/2))
		rest := float32(math.Ldexp(1, unit-1-unit/2))
		if got := fma32(above*small, below*rest, odd); got != odd {
			t.Errorf("an odd float of units 2^%d and almost half a unit is %v, want %v", unit, got, odd)
		}
	}
}

func TestFMAOfWhatIsNotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, v := range [][3]float32{{inf, 1, 1}, {1, 1, inf}, {nan, 1, 1}, {1, nan, 1}, {1, 1, nan}, {inf, 0, 1}, {inf, 1, -inf}} {
		got, want := fma32(v[0], v[1], v[2]), v[0]*v[1]+v[2]
		if math.IsNaN(float64(got)) != math.IsNaN(float64(want)) || got == got && got != want {
			t.Errorf("fma(%v) is %v, want %v", v, got, want)
		}
	}
}

func TestExpIsNearTheExponential(t *testing.T) {
	worst := 0.0
	for x := -87.0; x < 88; x += 0.00217 {
		got, want := float64(exp32(float32(x))), math.Exp(float64(float32(x)))
		worst = max(worst, math.Abs(got-want)/want)
	}
	if worst > 2e-7 {
		t.Errorf("the largest relative error is %.2g, want at most 2e-7", worst)
	}
	if got := exp32(0); got != 1 {
		t.Errorf("e^0 is %v, want 1", got)
	}
}

func TestHalvesRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := halfToFloat(h)
		if f != f {
			continue
		}
		if back := floatToHalf(f); back != h {
			t.Fatalf("half %#04x becomes %v becomes %#04x", h, f, back)
		}
	}
}
