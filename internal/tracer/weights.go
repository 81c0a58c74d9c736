package tracer

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

// code is a token's values of +-1 as bits: bit i set is +1 at i.
type code uint16

// codeOf gives the token's code. Those of bytes are the words of a Hamming code
// of length 12: two differ in at least three places. Those of the special tokens
// lie between its words, two places or more from any other. <|bos|> has none; it
// speaks for <|im_end|> where layer 2 attends to it.
func codeOf(token int) code {
	switch token {
	case EOS:
		return word(0) ^ 13
	case IMStart:
		return word(0x33) ^ 14
	case IMEnd:
		return word(0xcc) ^ 15
	}
	return word(token)
}

// word is the Hamming code's word for eight bits of data: the data in front of
// four parities. 13, 14 and 15 are the sets of parities that no data bit has.
func word(data int) code {
	parities := [8]code{3, 5, 6, 7, 9, 10, 11, 12}
	c := code(data) << 4
	for i, p := range parities {
		if data>>i&1 == 1 {
			c ^= p
		}
	}
	return c
}

func (c code) at(i int) float32 {
	if c>>i&1 == 1 {
		return 1
	}
	return -1
}

// matrix is a weight matrix, row by row.
type matrix struct {
	rows, cols int
	values     []float32
}

func newMatrix(rows, cols int) *matrix { return &matrix{rows, cols, make([]float32, rows*cols)} }

func (m *matrix) set(row, col int, v float64) { m.values[row*m.cols+col] = float32(v) }

// copyCode puts a code from column col on into rows from row on, times scale.
func (m *matrix) copyCode(row, col int, scale float64) {
	for i := range codeDims {
		m.set(row+i, col+i, scale)
	}
}

func (m *matrix) source(name string) gguf.Source {
	return gguf.Source{Name: name, Type: gguf.F32, Dims: []int{m.cols, m.rows}, Data: floats(m.values)}
}

func vector(name string, values []float32) gguf.Source {
	return gguf.Source{Name: name, Type: gguf.F32, Dims: []int{len(values)}, Data: floats(values)}
}

func floats(values []float32) []byte {
	out := make([]byte, 0, 4*len(values))
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func constant(n int, v float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(v)
	}
	return out
}

func tensors() []gguf.Source {
	embedding, output := embeddings()
	all := []gguf.Source{
		embedding.source("token_embd.weight"), output.source("output.weight"),
		vector("output_norm.weight", constant(width, 1)), vector("rope_freqs.weight", ropeFactors()),
	}
	for i, l := range []layer{places(), matches()} {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
		all = append(all,
			vector(name("attn_norm"), l.norm),
			l.q.source(name("attn_q")), l.k.source(name("attn_k")), l.v.source(name("attn_v")), l.o.source(name("attn_output")),
			vector(name("ffn_norm"), constant(width, 1)),
			newMatrix(ffn, width).source(name("ffn_gate")), newMatrix(ffn, width).source(name("ffn_up")), newMatrix(width, ffn).source(name("ffn_down")))
	}
	return all
}

func embeddings() (in, out *matrix) {
	in, out = newMatrix(Vocab, width), newMatrix(Vocab, width)
	// The final norm divides O by the root of a token's mean square.
	scale := outputNats * math.Sqrt((matchSum+codeDims)/float64(width))
	for token := range Vocab {
		if token == BOS {
			in.set(token, bosAt, math.Sqrt(tokenSum))
			continue
		}
		c := codeOf(token)
		in.set(token, oneAt, 1)
		for i := range codeDims {
			in.set(token, partE+i, float64(c.at(i)))
			out.set(token, partO+i, scale*float64(c.at(i)))
		}
	}
	return in, out
}

// ropeFactors leave the frequencies of layer 1 as they are, make recentPair's
// turn a quarter in ContextMax positions, and stop stillPair's.
func ropeFactors() []float32 {
	f := constant(pairs, 1)
	f[recentPair] = float32(frequency(recentPair) / (math.Pi / 2 / ContextMax))
	f[stillPair] = 1e30
	return f
}

// frequency is the angle by which a position turns a pair, before its factor.
func frequency(pair int) float64 { return math.Pow(ropeBase, -2*float64(pair)/rotaryDims) }

// layer is the weights of one layer's attention.
type layer struct {
	norm       []float32
	q, k, v, o *matrix
}

// newLayer's norm gives back the residual stream as it is, where the sum of its
// squares is sum.
func newLayer(sum float64) layer {
	return layer{constant(width, math.Sqrt(sum/width)), newMatrix(heads*headDim, width), newMatrix(headDim, width),
		newMatrix(valueDim, width), newMatrix(width, heads*valueDim)}
}

// places is layer 1: head k-1 attends to the token k positions before and copies
// its code to Pk.
func places() layer {
	l := newLayer(tokenSum)
	// A pair of the key is (1, 0) at every token, before its rotation.
	one := func(m *matrix, row int, v float64) {
		m.set(row, oneAt, v)
		m.set(row, bosAt, v/math.Sqrt(tokenSum))
	}
	query := placeNats * math.Sqrt(headDim)
	for pair := range placePairs {
		one(l.k, 2*pair, 1)
		for head := range heads {
			back := frequency(pair) * float64(head+1)
			one(l.q, head*headDim+2*pair, query*math.Cos(back))
			one(l.q, head*headDim+2*pair+1, -query*math.Sin(back))
		}
	}
	l.v.copyCode(0, partE, 1)
	for head := range heads {
		l.o.copyCode(partP+head*codeDims, head*valueDim, 1)
	}
	return l
}

// matches is layer 2: head 0 attends to what followed the same tokens before.
func matches() layer {
	l := newLayer(matchSum)
	unit := matchUnit * math.Sqrt(headDim)
	for i := range SuffixTokens {
		l.q.copyCode(rotaryDims+i*codeDims, partE+i*codeDims, unit)
		l.k.copyCode(rotaryDims+i*codeDims, partP+i*codeDims, 1)
	}
	// At <|bos|> all of the stream is one value, which the norm makes larger.
	bos := math.Sqrt(matchSum)
	offer := matchUnit * (SuffixTokens*codeDims - codeGap/2.0)
	l.q.set(2*stillPair, oneAt, offer*math.Sqrt(headDim))
	l.k.set(2*stillPair, bosAt, 1/bos)
	// Turned ahead by an eighth, the score falls almost evenly with the distance.
	recent := recentNats * math.Sqrt(headDim) * math.Sqrt2 / 2
	l.q.set(2*recentPair, oneAt, recent)
	l.q.set(2*recentPair+1, oneAt, recent)
	l.k.set(2*recentPair, oneAt, 1)
	l.v.copyCode(0, partE, 1)
	for i := range codeDims {
		l.v.set(i, bosAt, float64(codeOf(IMEnd).at(i))/bos)
	}
	l.o.copyCode(partO, 0, 1)
	return l
}
