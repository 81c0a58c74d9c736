package engine

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/model"
	"github.com/bulkhead-kv/bulkhead/internal/tensor"
)

// exact is the model in float64: the same weights, dequantized, and every sum,
// root and exponential in double precision, in the plainest order. Nothing in it
// is fast.
type exact struct {
	m      *model.Model
	tokens []int32
	x      [][]float64 // residual stream by position; after run, normalised for the output
}

func (e *exact) run() {
	c := &e.m.Config
	e.x = table2(len(e.tokens), c.Embedding)
	row := make([]float32, c.Embedding)
	for i, t := range e.tokens {
		e.m.Embedding.Dequantize(int(t), row)
		for j, v := range row {
			e.x[i][j] = float64(v)
		}
	}
	for l := range e.m.Layers {
		w := &e.m.Layers[l]
		qkv := table2(len(e.x), c.QKVCols())
		for _, p := range w.QKV {
			times(p.Matrix, e.normed(w.AttnNorm), func(i, r int, v float64) { qkv[i][p.Column+r] = v })
		}
		times(w.Output, e.attention(qkv), func(i, r int, v float64) { e.x[i][r] += v })
		gateUp := table2(len(e.x), 2*c.FFN)
		times(w.GateUp, e.normed(w.FFNNorm), func(i, r int, v float64) { gateUp[i][r] = v })
		times(w.Down, gated(gateUp, c.FFN), func(i, r int, v float64) { e.x[i][r] += v })
	}
	e.x = e.normed(e.m.OutputNorm)
}

// logits are those of positions lo to hi-1.
func (e *exact) logits(lo, hi int) [][]float64 {
	out := table2(hi-lo, e.m.Config.Vocab)
	times(e.m.Output, e.x[lo:hi], func(i, r int, v float64) { out[i][r] = v })
	return out
}

func table2(rows, cols int) [][]float64 {
	out := make([][]float64, rows)
	for i := range out {
		out[i] = make([]float64, cols)
	}
	return out
}

// times gives each product of a row of m and a row of x to put.
func times(m *tensor.Matrix, x [][]float64, put func(i, r int, v float64)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			narrow, weights := make([]float32, m.Cols), make([]float64, m.Cols)
			for r := int(next.Add(1)) - 1; r < m.Rows; r = int(next.Add(1)) - 1 {
				m.Dequantize(r, narrow)
				for j, v := range narrow {
					weights[j] = float64(v)
				}
				for i := range x {
					put(i, r, dot(weights, x[i]))
				}
			}
		})
	}
	wg.Wait()
}

// dot keeps four sums only so that the processor need not wait for each.
func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s [4]float64
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s[0] += a[i] * b[i]
		s[1] += a[i+1] * b[i+1]
		s[2] += a[i+2] * b[i+2]
		s[3] += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s[0] += a[i] * b[i]
	}
	return s[0] + s[1] + s[2] + s[3]
}

func (e *exact) normed(weights []float32) [][]float64 {
	out := table2(len(e.x), len(weights))
	for i, x := range e.x {
		scale := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(e.m.Config.NormEps))
		for j, v := range x {
			out[i][j] = v * scale * float64(weights[j])
		}
	}
	return out
}

func (e *exact) attention(qkv [][]float64) [][]float64 {
	c := &e.m.Config
	out := table2(len(qkv), c.AttnCols())
	for i := range qkv {
		for h := range c.Heads + c.KVHeads {
			e.rotate(qkv[i][h*c.KeyDim:][:c.KeyDim], i)
		}
	}
	for i := range qkv {
		for h := range c.Heads {
			kvHead := h / (c.Heads / c.KVHeads)
			q := qkv[i][h*c.KeyDim:][:c.KeyDim]
			p := make([]float64, i+1)
			largest := math.Inf(-1)
			for j := range p {
				p[j] = dot(q, qkv[j][c.QueryCols()+kvHead*c.KeyDim:][:c.KeyDim]) / math.Sqrt(float64(c.KeyDim))
				largest = max(largest, p[j])
			}
			sum := 0.0
			for j := range p {
				p[j] = math.Exp(p[j] - largest)
				sum += p[j]
			}
			for j := range p {
				v := qkv[j][c.QueryCols()+c.KeyCols()+kvHead*c.ValueDim:][:c.ValueDim]
				for d := range v {
					out[i][h*c.ValueDim+d] += p[j] / sum * v[d]
				}
			}
		}
	}
	return out
}

func (e *exact) rotate(head []float64, pos int) {
	for j, f := range e.m.Config.RotaryFreqs {
		sin, cos := math.Sincos(float64(pos) * f)
		a, b := 2*j, 2*j+1
		if e.m.Config.Pairing == model.PairHalves {
			a, b = j, j+len(e.m.Config.RotaryFreqs)
		}
		head[a], head[b] = head[a]*cos-head[b]*sin, head[a]*sin+head[b]*cos
	}
}

// gated is silu(gate) x up; eight rows of each alternate.
func gated(gateUp [][]float64, ffn int) [][]float64 {
	out := table2(len(gateUp), ffn)
	for i, row := range gateUp {
		for j := range ffn {
			at := j/8*16 + j%8
			out[i][j] = row[at] / (1 + math.Exp(-row[at])) * row[at+8]
		}
	}
	return out
}

// drift sums how far logits are from exact ones.
type drift struct {
	errors, squares float64
	count           int
}

func (d *drift) add(got []float32, want []float64) {
	for i, v := range got {
		diff := float64(v) - want[i]
		d.errors += diff * diff
		d.squares += want[i] * want[i]
	}
	d.count += len(got)
}

// relative is the root mean square error over the root mean square.
func (d *drift) relative() float64 { return math.Sqrt(d.errors / d.squares) }

// absolute is the root mean square error.
func (d *drift) absolute() float64 { return math.Sqrt(d.errors / float64(d.count)) }

// loss is the negative logarithm of the token's probability.
func loss[F float32 | float64](logits []F, token int32) float64 {
	largest := logits[0]
	for _, v := range logits {
		largest = max(largest, v)
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v - largest))
	}
	return math.Log(sum) - float64(logits[token]-largest)
}

func TestRandomModelsAreNearExactArithmetic(t *testing.T) {
	// Products of 4-bit weights quantize activations to 8 bits.
	for f, limit := range map[tensor.Format]float64{tensor.F32: 1e-3, tensor.F16: 1e-3, tensor.BF16: 1e-3, tensor.Q8_0: 1e-3, tensor.Q6_K: 1e-3,
		tensor.Q4_0: 4e-2, tensor.Q4_1: 4e-2, tensor.Q4_K: 4e-2} {
		checkDrift(t, f.String(), randomModel(t, smallShape(f)), limit)
	}
	checkDrift(t, "mixed formats", randomModel(t, oddShape()), 2e-2)
}

func checkDrift(t *testing.T, name string, m *model.Model, limit float64) {
	t.Helper()
	tokens := make([]int32, 40)
	for i := range tokens {
		tokens[i] = int32(i * 37 % m.Config.Vocab)
	}
	e := exact{m: m, tokens: tokens}
	e.run()
	want, got := e.logits(0, len(tokens)), inChunks(t, m, tokens, 16, 1)
	var d drift
	for i := range got.logits {
		d.add(got.logits[i], want[i])
	}
	t.Logf("%s: relative RMS error of the logits %.6f", name, d.relative())
	if !(d.relative() <= limit) {
		t.Errorf("%s: logits are off by %g of their size, want at most %g", name, d.relative(), limit)
	}
}
