package tensor

import (
	"fmt"
	"testing"
)

// benchActs packs tokens of random activations for m.
func benchActs(m *Matrix, tokens int) *Acts {
	a := NewActs(tokens, m.Cols)
	a.Reset(m, tokens)
	x := randomFloats(newRNG(1), tokens*m.Cols)
	team := NewTeam(1)
	defer team.Close()
	team.Run(func(t *Thread) { a.Pack(t, func(i int) []float32 { return x[i*m.Cols:][:m.Cols] }) })
	return a
}

// benchMul reports the weights read a second and the multiplications and additions a second.
func benchMul(b *testing.B, m *Matrix, tokens, threads int) {
	a := benchActs(m, tokens)
	out := make([]float32, tokens*m.Rows)
	team := NewTeam(threads)
	defer team.Close()
	for b.Loop() {
		team.Run(func(t *Thread) { m.Mul(t, a, out, m.Rows) })
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(float64(m.PackedBytes())/seconds/1e9, "GB/s")
	b.ReportMetric(2*float64(m.Rows)*float64(m.Cols)*float64(tokens)/seconds/1e9, "Gop/s")
	b.ReportMetric(0, "ns/op")
}

func benchMatrix(f Format, rows, cols int) *Matrix {
	raw := randomMatrix(newRNG(1), f, 16, cols)
	m, err := Pack(AlignedBytes(PackedBytes(f, rows, cols)), f, rows, cols, func(r int) []byte { return raw.row(r % 16) })
	if err != nil {
		panic(err)
	}
	return m
}

// BenchmarkMatvecFromMemory streams weights larger than the last cache, one token.
func BenchmarkMatvecFromMemory(b *testing.B) {
	for _, f := range Formats() {
		m := benchMatrix(f, 64<<20/PackedBytes(f, 16, 1536)*16, 1536)
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("%v/threads=%d", f, threads), func(b *testing.B) { benchMul(b, m, 1, threads) })
		}
	}
}

// BenchmarkMatvecFromCache multiplies weights that stay in the second-level cache.
func BenchmarkMatvecFromCache(b *testing.B) {
	for _, f := range Formats() {
		m := benchMatrix(f, 256<<10/PackedBytes(f, 16, 768)*16, 768)
		for _, tokens := range []int{1, 2, 4, 6} {
			b.Run(fmt.Sprintf("%v/tokens=%d", f, tokens), func(b *testing.B) { benchMul(b, m, tokens, 1) })
		}
	}
}

// BenchmarkMatmul multiplies 510 tokens.
func BenchmarkMatmul(b *testing.B) {
	for _, f := range Formats() {
		m := benchMatrix(f, 1536, 768)
		b.Run(f.String(), func(b *testing.B) { benchMul(b, m, 510, 1) })
	}
}

// BenchmarkAttention walks 128 pages of one KV head.
func BenchmarkAttention(b *testing.B) {
	for _, c := range []struct{ dim, cols int }{{64, 1}, {64, 3}, {64, 6}, {128, 2}, {128, 6}, {128, 8}} {
		const pages = 128
		var k, v [][]uint16
		for p := range pages {
			k = append(k, randomHalves(uint64(p), c.dim*PageTokens))
			v = append(v, randomHalves(uint64(p), c.dim*PageTokens))
		}
		q, out := randomFloats(newRNG(3), c.cols*c.dim), make([]float32, c.cols*c.dim)
		const tokens = pages * PageTokens
		s := make([]float32, c.cols*tokens)
		for name, fn := range map[string]func(){
			"QK": func() { AttnQKPages(k, 0, q, c.dim, c.cols, s, tokens, c.dim) },
			"AV": func() { AttnAVPages(v, 0, c.dim, s, tokens, c.cols, out, c.dim, c.dim, tokens) },
		} {
			b.Run(fmt.Sprintf("%s/dim=%d/cols=%d", name, c.dim, c.cols), func(b *testing.B) {
				for b.Loop() {
					fn()
				}
				b.ReportMetric(2*float64(tokens*c.dim*c.cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gflop/s")
			})
		}
	}
}

// BenchmarkVectors reports values a second of the operations around the products.
func BenchmarkVectors(b *testing.B) {
	const n = 1536
	x, y, z, dst := randomFloats(newRNG(1), n), randomFloats(newRNG(2), n), randomFloats(newRNG(3), n), make([]float32, n)
	m := benchMatrix(Q8_0, 16, n)
	m4 := benchMatrix(Q4_0, 16, n)
	a := NewActs(tileTokens, n)
	team := NewTeam(1)
	defer team.Close()
	pack := func(m *Matrix, tokens int) func() {
		return func() {
			team.Run(func(t *Thread) {
				a.Reset(m, tokens)
				a.Pack(t, func(int) []float32 { return x })
			})
		}
	}
	for _, c := range []struct {
		name   string
		values int
		fn     func()
	}{
		{"rmsnorm", n, func() { RmsNorm(dst, x, y, 1e-5) }},
		{"silumul", n, func() { SiluMul(dst, x, y) }},
		{"softmax", n, func() { copy(dst, x); Softmax(dst, n, 0.125) }},
		{"rope", n, func() { RopeNorm(dst, y[:n/2], z[:n/2]) }},
		{"addto", n, func() { AddTo(dst, x) }},
		{"pack16x1", n, pack(m, 1)},
		{"pack16x6", 6 * n, pack(m, 6)},
		{"pack8x6", 6 * n, pack(m4, 6)},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.fn()
			}
			b.ReportMetric(float64(c.values)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gvalues/s")
		})
	}
}

// BenchmarkPack reports the raw bytes repacked a second by all processors.
func BenchmarkPack(b *testing.B) {
	for _, f := range Formats() {
		const rows, cols = 1024, 1536
		raw := randomMatrix(newRNG(1), f, 16, cols)
		dst := AlignedBytes(PackedBytes(f, rows, cols))
		b.Run(f.String(), func(b *testing.B) {
			for b.Loop() {
				if _, err := Pack(dst, f, rows, cols, func(r int) []byte { return raw.row(r % 16) }); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(rows / 16 * len(raw.raw)))
		})
	}
}
