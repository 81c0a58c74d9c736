package tensor

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// colsFor returns a number of columns that suits the format and is not a round one.
func colsFor(f Format) int {
	switch f {
	case F32, F16, BF16:
		return 203
	case Q4_K, Q5_K, Q6_K:
		return 768
	default:
		return 224
	}
}

func TestDequantizeGivesTheExactValues(t *testing.T) {
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			raw := randomMatrix(newRNG(1), f, 37, colsFor(f))
			m := packed(raw)
			got := make([]float32, raw.cols)
			for r := range raw.rows {
				m.Dequantize(r, got)
				for c, want := range raw.exactRow(r) {
					if got[c] != float32(want) {
						t.Fatalf("row %d column %d is %v, want %v", r, c, got[c], want)
					}
				}
			}
		})
	}
}

// mulOn multiplies on a team of its own and returns [tokens][rows].
func mulOn(threads int, m *Matrix, x []float32, tokens int) []float32 {
	team := NewTeam(threads)
	defer team.Close()
	a := NewActs(tokens, m.Cols)
	a.Reset(m, tokens)
	out := make([]float32, tokens*m.Rows)
	row := func(i int) []float32 { return x[i*m.Cols:][:m.Cols] }
	team.Run(func(t *Thread) {
		t.Each(a.Tiles(), 1, func(lo, hi int) {
			for tile := lo; tile < hi; tile++ {
				a.PackTile(t, tile, row)
			}
		})
	})
	team.Run(func(t *Thread) { m.Mul(t, a, out, m.Rows) })
	return out
}

func TestMulIsNearTheExactProduct(t *testing.T) {
	const rows, tokens = 45, 8
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			rng := newRNG(2)
			raw := randomMatrix(rng, f, rows, colsFor(f))
			m := packed(raw)
			x := randomFloats(rng, tokens*raw.cols)
			got := mulOn(1, m, x, tokens)
			bound := map[Class]float64{ClassFloat: 2e-6, ClassInt16: 2e-4}[m.Class()]
			if e := relativeRMS(got, exactProduct(raw, x, tokens)); e > bound || math.IsNaN(e) {
				t.Errorf("the product's relative error is %.2g, want at most %.2g", e, bound)
			} else {
				t.Logf("relative error %.2g", e)
			}
		})
	}
}

func exactProduct(raw *rawMatrix, x []float32, tokens int) []float64 {
	out := make([]float64, tokens*raw.rows)
	for i := range tokens {
		for r := range raw.rows {
			for c, w := range raw.exactRow(r) {
				out[i*raw.rows+r] += w * float64(x[i*raw.cols+c])
			}
		}
	}
	return out
}

func relativeRMS(got []float32, want []float64) float64 {
	var e, s float64
	for i, w := range want {
		d := float64(got[i]) - w
		e, s = e+d*d, s+w*w
	}
	return math.Sqrt(e / s)
}

func TestMulHasTheSameBitsInAnyCompany(t *testing.T) {
	const rows, tokensMax = 53, 205
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			rng := newRNG(3)
			raw := randomMatrix(rng, f, rows, colsFor(f))
			m := packed(raw)
			x := randomFloats(rng, tokensMax*raw.cols)
			want := make([]float32, 0, tokensMax*rows)
			for i := range tokensMax {
				want = append(want, mulOn(1, m, x[i*raw.cols:], 1)...)
			}
			for _, tokens := range []int{2, 3, 4, 5, 6, 7, 11, 12, 13, 17, 96, 100, tokensMax} {
				for threads := 1; threads <= 3; threads++ {
					got := mulOn(threads, m, x, tokens)
					if d := firstDifference(got, want[:len(got)]); d >= 0 {
						t.Fatalf("%d tokens on %d threads: row %d of token %d is %v, alone %v",
							tokens, threads, d%rows, d/rows, got[d], want[d])
					}
				}
			}
		})
	}
}

// firstDifference returns the first index where the bits differ, or -1.
func firstDifference(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

func TestMulAddAndMulGatedAgreeWithMul(t *testing.T) {
	for _, tokens := range []int{1, 5, 29} {
		t.Run(fmt.Sprint(tokens), func(t *testing.T) {
			rng := newRNG(4)
			gate, up := randomMatrix(rng, Q8_0, 24, 64), randomMatrix(rng, Q8_0, 24, 64)
			x := randomFloats(rng, tokens*64)
			zipped, err := Pack(AlignedBytes(PackedBytes(Q8_0, 48, 64)), Q8_0, 48, 64, ZipRows(gate.row, up.row))
			if err != nil {
				t.Fatal(err)
			}
			g, u := mulOn(1, packed(gate), x, tokens), mulOn(1, packed(up), x, tokens)
			want := make([]float32, len(g))
			SiluMul(want, g, u)

			team := NewTeam(2)
			defer team.Close()
			a := NewActs(tokens, 64)
			a.Reset(zipped, tokens)
			got, added := make([]float32, len(g)), append([]float32(nil), u...)
			team.Run(func(th *Thread) {
				if th.ID == 0 {
					a.Pack(th, func(i int) []float32 { return x[i*64:][:64] })
				}
			})
			team.Run(func(th *Thread) {
				zipped.MulGated(th, a, got, 24)
				packed(gate).MulAdd(th, a, added, 24)
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the gated product differs from silu(gate) * up (-want +got):\n%s", diff)
			}
			for i := range added {
				if added[i] != u[i]+g[i] {
					t.Fatalf("value %d of the added product is %v, want %v", i, added[i], u[i]+g[i])
				}
			}
		})
	}
}

// q8Activations rounds x as llama.cpp does for four-bit weights (quantize_row_q8_1): blocks of 32, an f16 scale.
func q8Activations(x []float32) []float32 {
	out := make([]float32, len(x))
	for b := 0; b < len(x); b += 32 {
		var big float32
		for _, v := range x[b : b+32] {
			big = max(big, v, -v)
		}
		d := big / 127
		stored := halfToFloat(floatToHalf(d))
		for i, v := range x[b : b+32] {
			if d > 0 {
				out[b+i] = stored * float32(math.Round(float64(v*(1/d))))
			}
		}
	}
	return out
}

// A model of four-bit weights leaves no room for a second error of the same size.
func TestActivationsAreFinerThanThePeers(t *testing.T) {
	const rows, tokens, cols = 48, 32, 768
	for _, f := range []Format{Q4_0, Q4_1, Q4_K} {
		t.Run(f.String(), func(t *testing.T) {
			rng := newRNG(5)
			raw := randomMatrix(rng, f, rows, cols)
			x := randomFloats(rng, tokens*cols)
			for i := range x {
				x[i] *= float32(math.Exp(rng.NormFloat64())) // heavy tails, as a model has
			}
			want := exactProduct(raw, x, tokens)
			peer := make([]float32, len(want))
			for i, v := range exactProduct(raw, q8Activations(x), tokens) {
				peer[i] = float32(v)
			}
			ours, theirs := relativeRMS(mulOn(1, packed(raw), x, tokens), want), relativeRMS(peer, want)
			if ours > theirs/50 {
				t.Errorf("relative error %.3g, the peer's rounding of activations to eight bits gives %.3g; want a fiftieth", ours, theirs)
			}
		})
	}
}

func TestMulDoesNotAllocate(t *testing.T) {
	m := packed(randomMatrix(newRNG(1), Q8_0, 64, 64))
	x := randomFloats(newRNG(2), 20*64)
	a, out := NewActs(20, 64), make([]float32, 20*64)
	team := NewTeam(1)
	defer team.Close()
	row := func(i int) []float32 { return x[i*64:][:64] }
	for _, tokens := range []int{1, 6, 20} {
		phase := func(t *Thread) {
			a.Reset(m, tokens)
			a.Pack(t, row)
			m.Mul(t, a, out, 64)
			m.MulAdd(t, a, out, 64)
			m.MulGated(t, a, out, 64)
		}
		team.Run(phase) // grows the scratch memory
		if n := testing.AllocsPerRun(10, func() { team.Run(phase) }); n != 0 {
			t.Errorf("a phase of %d tokens allocates %v times, want none", tokens, n)
		}
	}
}
