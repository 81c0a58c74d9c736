//go:build !purego

package tensor

import (
	"bytes"
	"fmt"
	"math"
	"testing"
)

func requireAVX2(t *testing.T) {
	if !Accelerated() {
		t.Skip("this processor has no AVX2, FMA and F16C: only the portable kernels run")
	}
}

// onOneThread runs fn on a team of one.
func onOneThread(fn func(t *Thread)) {
	team := NewTeam(1)
	defer team.Close()
	team.Run(fn)
}

func TestAssemblyProductsHaveThePortableBits(t *testing.T) {
	requireAVX2(t)
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			rng := newRNG(11)
			raw := randomMatrix(rng, f, 48, colsFor(f))
			m := packed(raw)
			x := randomFloats(rng, tileTokens*raw.cols)
			for width := 1; width <= tileTokens; width++ {
				a := NewActs(width, raw.cols)
				a.Reset(m, width)
				onOneThread(func(th *Thread) {
					a.Pack(th, func(i int) []float32 { return x[i*raw.cols:][:raw.cols] })
					tile := a.tile(0)
					for g := range m.groups {
						got, want := make([]float32, 20*width), make([]float32, 20*width)
						m.direct(g, &tile, got, 20, th)
						m.directGo(g, &tile, want, 20, th)
						if d := firstDifference(got, want); d >= 0 {
							t.Fatalf("group %d, %d tokens: row %d of token %d is %v, portable %v", g, width, d%20, d/20, got[d], want[d])
						}
					}
				})
			}
		})
	}
}

func TestAssemblyPanelsHaveThePortableBits(t *testing.T) {
	requireAVX2(t)
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			rng := newRNG(12)
			raw := randomMatrix(rng, f, 32, colsFor(f))
			m := packed(raw)
			x := randomFloats(rng, tileTokens*raw.cols)
			a := NewActs(tileTokens, raw.cols)
			a.Reset(m, tileTokens)
			onOneThread(func(th *Thread) {
				a.Pack(th, func(i int) []float32 { return x[i*raw.cols:][:raw.cols] })
				tile := a.tile(0)
				other := &Thread{team: th.team}
				for g := range m.groups {
					got, want := m.newPanel(th), m.newPanel(other)
					m.expand(g, &got)
					m.expandGo(g, &want)
					if !bytes.Equal(bytesOf(got.words), bytesOf(want.words)) {
						t.Fatalf("group %d: the expanded words differ", g)
					}
					if d := firstDifference(got.d, want.d); d >= 0 {
						t.Fatalf("group %d: scale %d is %v, portable %v", g, d, got.d[d], want.d[d])
					}
					if d := firstDifference(got.m, want.m); d >= 0 && got.kind == panelInt16Min {
						t.Fatalf("group %d: minimum %d is %v, portable %v", g, d, got.m[d], want.m[d])
					}
					c, cGo := make([]float32, 6*16), make([]float32, 6*16)
					got.mul(&tile, c, 16)
					want.mulGo(&tile, cGo, 16)
					if d := firstDifference(c, cGo); d >= 0 {
						t.Fatalf("group %d: row %d of token %d is %v, portable %v", g, d%16, d/16, c[d], cGo[d])
					}
				}
			})
		})
	}
}

// awkward is random values with zeros, subnormals, and large and small ones among them; lengths are multiples of 32.
func awkward(seed uint64, n int) []float32 {
	rng := newRNG(seed)
	v := randomFloats(rng, n)
	for i := range v {
		switch rng.IntN(12) {
		case 0:
			v[i] = 0
		case 1:
			v[i] *= 1e-40
		case 2:
			v[i] *= 1e4
		case 3:
			v[i] = float32(math.Copysign(0, -1))
		}
	}
	clear(v[:min(n, 32)]) // a block of zeros
	return v
}

func TestAssemblyQuantizersHaveThePortableBits(t *testing.T) {
	requireAVX2(t)
	const blocks, step = 40, 3
	x := awkward(13, blocks*32)
	floats := func() []float32 { return make([]float32, blocks*step) }
	d, s, dGo, sGo := floats(), floats(), floats(), floats()
	q16, q16Go := make([]int16, len(x)), make([]int16, len(x))
	quant16(x, q16, d, s, step)
	quant16Go(x, q16Go, dGo, sGo, step)
	if !bytes.Equal(bytesOf(q16), bytesOf(q16Go)) || firstDifference(d, dGo) >= 0 || firstDifference(s, sGo) >= 0 {
		t.Errorf("int16 quantization differs from the portable one")
	}
	words, got, want := make([]uint32, 6*40), make([]uint32, 6*40), make([]uint32, 6*40)
	for i := range words {
		words[i] = uint32(i)
	}
	interleave(got, words, 6)
	interleaveGo(want, words, 6)
	if !bytes.Equal(bytesOf(got), bytesOf(want)) {
		t.Errorf("interleaved words differ from the portable ones:\n%v\n%v", got, want)
	}
}

func TestAssemblyVectorsHaveThePortableBits(t *testing.T) {
	requireAVX2(t)
	for _, n := range []int{8, 16, 64, 96, 576, 1536} {
		x, y, z := awkward(21, n), awkward(22, n), awkward(23, n)
		copyOf := func(v []float32) []float32 { return append([]float32(nil), v...) }
		check := func(what string, got, want []float32) {
			t.Helper()
			if d := firstDifference(got, want); d >= 0 {
				t.Errorf("%s of %d: value %d is %v, portable %v", what, n, d, got[d], want[d])
			}
		}
		got, want := make([]float32, n), make([]float32, n)
		RmsNorm(got, x, y, 1e-5)
		rmsNormGo(want, x, y, 1e-5)
		check("rms norm", got, want)

		SiluMul(got, x, y)
		siluMulGo(want, x, y)
		check("silu product", got, want)

		got, want = copyOf(x), copyOf(x)
		AddTo(got, y)
		addToGo(want, y)
		check("sum", got, want)

		for _, scale := range []float32{1, 0.125, 1e-3} {
			for valid := max(1, n-7); valid <= n; valid++ {
				got, want = copyOf(z), copyOf(z)
				for i := valid; i < n; i++ {
					want[i] = float32(math.Inf(-1))
				}
				Softmax(got, valid, scale)
				softmaxGo(want, valid, scale)
				check(fmt.Sprintf("softmax of %d valid", valid), got, want)
			}
		}
		pairs := n / 2
		got, want = copyOf(x), copyOf(x)
		RopeNorm(got, y[:pairs], z[:pairs])
		ropeNormGo(want, y[:pairs], z[:pairs])
		check("rope of neighbours", got, want)
		got, want = copyOf(x), copyOf(x)
		RopeNeox(got, y[:pairs], z[:pairs])
		ropeNeoxGo(want[:pairs], want[pairs:], y[:pairs], z[:pairs])
		check("rope of halves", got, want)
	}
}

func TestAssemblyHalvesHaveThePortableBits(t *testing.T) {
	requireAVX2(t)
	// All halves, then all floats around the boundaries of the conversion.
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	got, want := make([]float32, len(all)), make([]float32, len(all))
	F16toF32(got, all)
	f16toF32Go(want, all)
	if d := firstDifference(got, want); d >= 0 {
		t.Fatalf("half %#04x is %v, portable %v", d, got[d], want[d])
	}
	var floats []float32
	for _, v := range want {
		bits := math.Float32bits(v)
		for _, d := range []uint32{0, 1, 0xfff, 0x1000, 0x1001, 0x1fff} {
			floats = append(floats, math.Float32frombits(bits+d), math.Float32frombits(bits-d))
		}
	}
	h, hGo := make([]uint16, len(floats)), make([]uint16, len(floats))
	F32toF16(h, floats)
	f32toF16Go(hGo, floats)
	for i := range h {
		if h[i] != hGo[i] {
			t.Fatalf("%x (%v) becomes half %#04x, portable %#04x", math.Float32bits(floats[i]), floats[i], h[i], hGo[i])
		}
	}
	key, page, pageGo := randomFloats(newRNG(3), 64), make([]uint16, 64*16), make([]uint16, 64*16)
	StoreK(page, 5, key)
	storeLaneGo(pageGo[5:], key)
	if !bytes.Equal(bytesOf(page), bytesOf(pageGo)) {
		t.Errorf("the stored key differs from the portable one")
	}
}

func TestAssemblyAttentionHasThePortableBits(t *testing.T) {
	requireAVX2(t)
	for _, dim := range []int{16, 32, 48, 64, 80, 96, 128, 256} {
		k, v := randomHalves(31, dim*16), randomHalves(32, dim*16)
		for cols := 1; cols <= 19; cols++ {
			ldQ, ldS := dim+3, 37
			q := randomFloats(newRNG(33), cols*ldQ)
			s, sGo := make([]float32, cols*ldS), make([]float32, cols*ldS)
			AttnQK(k, q, ldQ, cols, s, ldS, dim)
			attnQKGo(k, q, ldQ, cols, sGo, ldS, dim)
			if d := firstDifference(s, sGo); d >= 0 {
				t.Fatalf("dim %d, %d columns: score %d is %v, portable %v", dim, cols, d, s[d], sGo[d])
			}
			for _, n := range []int{1, 2, 7, 16} {
				out := randomFloats(newRNG(34), cols*ldQ)
				outGo := append([]float32(nil), out...)
				AttnAV(v, dim, s, ldS, cols, out, ldQ, dim, n)
				attnAVGo([][]uint16{v}, 0, dim, s, ldS, cols, outGo, ldQ, dim, n)
				if d := firstDifference(out, outGo); d >= 0 {
					t.Fatalf("dim %d, %d columns, %d tokens: value %d is %v, portable %v", dim, cols, n, d, out[d], outGo[d])
				}
			}
		}
	}
}
