package tensor

import "fmt"

// Class is the kind of activations that a weight format is multiplied with.
type Class uint8

const (
	// ClassFloat keeps activations as f32: F32, F16 and BF16 weights.
	ClassFloat Class = iota + 1
	// ClassInt16 quantizes 32 columns to integers of +-16383 with one f32 scale: all block formats. The bound keeps the sum
	// over a block of Q6_K's 14-bit products (quant times sub-scale) inside 32 bits. Eight bits would do for speed but not
	// for truth: with them SmolLM2's Q4_1 file had a perplexity 0.2 % above that of exact arithmetic.
	ClassInt16
)

const (
	int16Max = 16383
	// quantTiny is the smallest absolute maximum that a block is scaled by, so that a block of zeros has a finite inverse.
	quantTiny float32 = 1e-30
)

// perWord returns how many activations share the four bytes that a kernel broadcasts.
func (c Class) perWord() int {
	switch c {
	case ClassFloat:
		return 1
	case ClassInt16:
		return 2
	}
	panic(fmt.Sprintf("tensor: activation class %d", c))
}

// tileTokens is the number of tokens that one product kernel takes at a time.
const tileTokens = 6

// Acts is the activations of some tokens, quantized and laid out for a product. Tokens are in tiles of six, the last one
// smaller; a tile of width w holds, for each block of 32 columns, [words of the block][w tokens] four-byte words, and beside
// them [block][w] scales and sums.
//
// Owner: Reset belongs to one goroutine. After it PackTile may run for different tiles at once, and after those the product.
type Acts struct {
	tokensMax, colsMax int

	class          Class
	tokens, blocks int
	words          []uint32  // immutable slice; the quantized values
	scales         []float32 // a block's scale d
	sums           []float32 // d times the sum of a block's integers
}

// NewActs returns Acts for up to tokensMax tokens of colsMax columns.
func NewActs(tokensMax, colsMax int) *Acts {
	blocks := ceilDiv(colsMax, blockCols)
	n := tokensMax * blocks
	return &Acts{
		tokensMax: tokensMax, colsMax: colsMax,
		words:  aligned[uint32](n * blockCols),
		scales: aligned[float32](n), sums: aligned[float32](n),
	}
}

// Reset makes room for tokens rows of m.Cols columns, of m's class. Matrices of the same class and columns share them.
func (a *Acts) Reset(m *Matrix, tokens int) {
	if tokens < 1 || tokens > a.tokensMax || m.Cols > a.colsMax {
		panic(fmt.Sprintf("tensor: activations of %d tokens of %d columns in room for %d of %d", tokens, m.Cols, a.tokensMax, a.colsMax))
	}
	a.class, a.tokens, a.blocks = m.Class(), tokens, m.blocks
}

// Suits reports whether a holds activations that m can be multiplied with.
func (a *Acts) Suits(m *Matrix) bool { return a.class == m.Class() && a.blocks == m.blocks }

// Tokens returns the number of tokens of the last Reset.
func (a *Acts) Tokens() int { return a.tokens }

// Tiles returns the number of tiles to pack.
func (a *Acts) Tiles() int { return ceilDiv(a.tokens, tileTokens) }

// TileTokens returns the half-open range of the tokens of a tile.
func (a *Acts) TileTokens(tile int) (lo, hi int) {
	return tile * tileTokens, min(tile*tileTokens+tileTokens, a.tokens)
}

// PackTile quantizes the tokens of a tile, whose values are row(token); row is called once a token, in order, and its result
// is done with before the next call. The row's length is the matrix's columns.
func (a *Acts) PackTile(t *Thread, tile int, row func(token int) []float32) {
	lo, hi := a.TileTokens(tile)
	dst := a.tile(tile)
	n := len(dst.words) / dst.width
	words := dst.words
	if dst.width > 1 {
		words = grow(&t.tokenWords, len(dst.words))
	}
	for i := range hi - lo {
		a.packToken(t, &dst, words[i*n:][:n], i, row(lo+i))
	}
	if dst.width > 1 {
		interleave(dst.words, words, dst.width)
	}
}

// Pack quantizes all tiles, on the calling thread alone.
func (a *Acts) Pack(t *Thread, row func(token int) []float32) {
	for tile := range a.Tiles() {
		a.PackTile(t, tile, row)
	}
}

// actTile is one tile of Acts.
type actTile struct {
	width        int // tokens
	words        []uint32
	scales, sums []float32
}

func (a *Acts) tile(tile int) actTile {
	lo, hi := a.TileTokens(tile)
	w := blockCols / a.class.perWord() * a.blocks
	return actTile{
		width: hi - lo, words: a.words[lo*w : hi*w],
		scales: a.scales[lo*a.blocks : hi*a.blocks],
		sums:   a.sums[lo*a.blocks : hi*a.blocks],
	}
}

// packToken quantizes x as token i of the tile: its integers into words, scales and sums into the tile.
func (a *Acts) packToken(t *Thread, dst *actTile, words []uint32, i int, x []float32) {
	cols := a.blocks * blockCols
	if len(x) > cols || len(x) <= cols-blockCols {
		panic(fmt.Sprintf("tensor: activations of %d columns for %d blocks of %d", len(x), a.blocks, blockCols))
	}
	if len(x) < cols {
		padded := grow(&t.padding, cols)
		clear(padded[copy(padded, x):])
		x = padded
	}
	switch a.class {
	case ClassInt16:
		quant16(x, as[int16](bytesOf(words)), dst.scales[i:], dst.sums[i:], dst.width)
	default:
		copy(words, as[uint32](bytesOf(x)))
	}
}

// interleaveGo writes width rows of words as columns: word w of row i to dst[w*width + i].
func interleaveGo(dst, src []uint32, width int) {
	n := len(src) / width
	for i := range width {
		at := i
		for _, v := range src[i*n:][:n] {
			dst[at] = v
			at += width
		}
	}
}

// quant16Go quantizes blocks of 32 to q = round(x/d), d = max|x|/16383; the blocks' scales d and sums d sum(q) are step apart.
// A NaN or an infinity in a block makes d one, and with it every product of the block: nothing that is not finite turns into
// a number here.
func quant16Go(x []float32, q []int16, scales, sums []float32, step int) {
	for b := range len(q) / blockCols {
		blk, out := x[b*blockCols:][:blockCols], q[b*blockCols:][:blockCols]
		big := absMax(blk)
		d, inv := float32(big*(1.0/int16Max)), float32(int16Max)/big
		var sum int32
		for i, v := range blk {
			n := min(max(roundInt(float32(v*inv)), -32768), 32767)
			out[i] = int16(n)
			sum += n
		}
		scales[b*step], sums[b*step] = d, float32(d*float32(sum))
	}
}
