package tensor

import (
	"fmt"
	"math"
	"testing"
)

// attend computes the attention of some columns over pages, as an engine does.
func attend(k, v [][]uint16, q []float32, dim, extent int, scale float32) []float32 {
	cols, ld := len(q)/dim, len(k)*PageTokens
	s, out := make([]float32, cols*ld), make([]float32, cols*dim)
	AttnQKPages(k, 0, q, dim, cols, s, ld, dim)
	for c := range cols {
		Softmax(s[c*ld:][:ld], extent, scale)
	}
	AttnAVPages(v, 0, dim, s, ld, cols, out, dim, dim, extent)
	return out
}

func TestAttentionIgnoresWhatLiesBeyondTheExtent(t *testing.T) {
	const dim = 64
	nan := floatToHalf(float32(math.NaN()))
	inf := floatToHalf(float32(math.Inf(1)))
	garbage := map[string]func(i int) uint16{
		"nan":      func(int) uint16 { return nan },
		"infinity": func(i int) uint16 { return inf | uint16(i&1)<<15 },
		"foreign":  func(i int) uint16 { return uint16(i*7919 + 1) },
		"zero":     func(int) uint16 { return 0 },
	}
	for extent := 1; extent < 2*PageTokens; extent++ {
		want := map[int][]float32{}
		for name, g := range garbage {
			var k, v [][]uint16
			for b := range 2 {
				k = append(k, randomHalves(uint64(10+b), dim*PageTokens))
				v = append(v, randomHalves(uint64(20+b), dim*PageTokens))
				for lane := max(0, extent-b*PageTokens); lane < PageTokens; lane++ {
					for d := range dim {
						k[b][d*PageTokens+lane] = g(d)
						v[b][lane*dim+d] = g(d)
					}
				}
			}
			for _, cols := range []int{1, 2, 3, 6, 8} {
				got := attend(k, v, randomFloats(newRNG(1), cols*dim), dim, extent, 0.125)
				if want[cols] == nil {
					want[cols] = got
				}
				if d := firstDifference(got, want[cols]); d >= 0 || got[0] != got[0] {
					t.Errorf("extent %d, %d columns: %s beyond it changes value %d", extent, cols, name, d)
				}
			}
		}
	}
}

func TestAttentionShowsGarbageInsideTheExtent(t *testing.T) {
	// The counterpart of the test above: what it looks for is visible when the extent covers it.
	const dim, extent = 64, 9
	k, v := randomHalves(1, dim*PageTokens), randomHalves(2, dim*PageTokens)
	q := randomFloats(newRNG(3), dim)
	want := attend([][]uint16{k}, [][]uint16{v}, q, dim, extent, 0.125)
	v[(extent-1)*dim] ^= 0x0400
	if got := attend([][]uint16{k}, [][]uint16{v}, q, dim, extent, 0.125); firstDifference(got, want) < 0 {
		t.Errorf("a changed value inside the extent does not change the result")
	}
	k[(dim-1)*PageTokens+extent-1] = floatToHalf(float32(math.NaN()))
	got := attend([][]uint16{k}, [][]uint16{v}, q, dim, extent, 0.125)
	for d, x := range got {
		if x == x {
			t.Fatalf("a NaN score inside the extent leaves value %d finite", d)
		}
	}
}

func TestAttentionHasTheSameBitsInAnyCompany(t *testing.T) {
	for _, dim := range []int{16, 48, 64, 128} {
		for cols := 2; cols <= 17; cols++ {
			t.Run(fmt.Sprintf("dim %d, %d columns", dim, cols), func(t *testing.T) {
				k, v := randomHalves(5, dim*PageTokens), randomHalves(6, dim*PageTokens)
				q := randomFloats(newRNG(7), cols*dim)
				s := make([]float32, cols*PageTokens)
				AttnQK(k, q, dim, cols, s, PageTokens, dim)
				out := make([]float32, cols*dim)
				AttnAV(v, dim, s, PageTokens, cols, out, dim, dim, 11)
				for c := range cols {
					one := make([]float32, PageTokens)
					AttnQK(k, q[c*dim:], dim, 1, one, PageTokens, dim)
					if d := firstDifference(one, s[c*PageTokens:][:PageTokens]); d >= 0 {
						t.Fatalf("column %d alone has another score in lane %d", c, d)
					}
					alone := make([]float32, dim)
					for d := 0; d < dim; d += 16 { // and in parts
						AttnAV(v[d:], dim, one, PageTokens, 1, alone[d:], dim, 16, 11)
					}
					if d := firstDifference(alone, out[c*dim:][:dim]); d >= 0 {
						t.Fatalf("column %d alone has another value %d", c, d)
					}
				}
			})
		}
	}
}

func TestAttentionOverPagesIsAttentionPageByPage(t *testing.T) {
	const dim, pages, at = 80, 5, 32
	for _, cols := range []int{1, 2, 3, 4, 6, 8, 11} {
		for _, n := range []int{1, 15, 16, 17, 63, 64, 65, 80} {
			var k, v [][]uint16
			for b := range pages {
				k = append(k, randomHalves(uint64(b), at+dim*PageTokens))
				v = append(v, randomHalves(uint64(50+b), at+dim*PageTokens))
			}
			q := randomFloats(newRNG(9), cols*dim)
			const ld = pages * PageTokens
			s, sPage := make([]float32, cols*ld), make([]float32, cols*ld)
			AttnQKPages(k, at, q, dim, cols, s, ld, dim)
			got, want := make([]float32, cols*dim), make([]float32, cols*dim)
			AttnAVPages(v, at, dim, s, ld, cols, got, dim, dim, n)
			for b := range pages {
				AttnQK(k[b][at:], q, dim, cols, sPage[b*PageTokens:], ld, dim)
				AttnAV(v[b][at:], dim, s[b*PageTokens:], ld, cols, want, dim, dim, min(PageTokens, max(0, n-b*PageTokens)))
			}
			if d := firstDifference(s, sPage); d >= 0 {
				t.Fatalf("%d columns: score %d differs", cols, d)
			}
			if d := firstDifference(got, want); d >= 0 {
				t.Fatalf("%d columns, %d tokens: value %d is %v over the list, %v page by page", cols, n, d, got[d], want[d])
			}
		}
	}
}
