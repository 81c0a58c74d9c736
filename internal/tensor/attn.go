package tensor

import "fmt"

// PageTokens is the number of tokens of a page of keys and values. For one layer and one KV head a page holds the keys as
// [head dim][16] f16, lane t being token t, and the values as [16][head dim] f16.
const PageTokens = 16

// callTokens bounds the tokens of one kernel call, which the scheduler can't interrupt, to well below 100 microseconds.
const callTokens = 128 * PageTokens

// dimStep is what a head's dimensions are a multiple of.
const dimStep = 16

// AttnQK writes s[c*ldS + lane] = q[c] . k[lane] for the 16 lanes of a page and columns c = 0..cols-1, where q[c] starts at
// q[c*ldQ] and has dim values. A column is any pair of query head and token that shares the page: the heads of a group in
// decode, some tokens of one head in prefill; its scores are the same in either company. Lanes are independent of each other:
// what stands in a lane beyond the written extent reaches that lane's scores only, and Softmax drops those.
func AttnQK(k []uint16, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	if dim < dimStep || dim%dimStep != 0 || len(k) < dim*PageTokens {
		panic(fmt.Sprintf("tensor: keys of %d values for a head of %d dimensions", len(k), dim))
	}
	if cols < 1 || ldQ < 0 || len(q) < (cols-1)*ldQ+dim || len(s) < (cols-1)*ldS+PageTokens {
		panic(fmt.Sprintf("tensor: %d query columns in %d values into %d scores", cols, len(q), len(s)))
	}
	attnQK(k, q, ldQ, cols, s, ldS, dim)
}

// AttnQKPages is AttnQK over a list of pages: the key of a page starts at pages[b][at], and its scores at s[c*ldS + 16 b].
func AttnQKPages(pages [][]uint16, at int, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	if dim < dimStep || dim%dimStep != 0 || at < 0 {
		panic(fmt.Sprintf("tensor: keys from %d on for a head of %d dimensions", at, dim))
	}
	if cols < 1 || ldQ < 0 || len(q) < (cols-1)*ldQ+dim || len(s) < (cols-1)*ldS+len(pages)*PageTokens {
		panic(fmt.Sprintf("tensor: %d query columns in %d values and %d pages into %d scores", cols, len(q), len(pages), len(s)))
	}
	for b, page := range pages {
		if len(page) < at+dim*PageTokens {
			panic(fmt.Sprintf("tensor: page %d of %d values for keys of %d dimensions from %d on", b, len(page), dim, at))
		}
	}
	attnQKPages(pages, at, q, ldQ, cols, s, ldS, dim)
}

// qkEach is attnQKPages one page at a time.
func qkEach(pages [][]uint16, at int, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	for b, page := range pages {
		attnQK(page[at:], q, ldQ, cols, s[b*PageTokens:], ldS, dim)
	}
}

// AttnAV is AttnAVPages for one page, whose values start at v[0]; n is at most 16.
func AttnAV(v []uint16, ldV int, p []float32, ldP, cols int, out []float32, ldOut, dims, n int) {
	pages := [1][]uint16{v}
	AttnAVPages(pages[:], 0, ldV, p, ldP, cols, out, ldOut, dims, n)
}

// AttnAVPages adds p[c*ldP + t] * v[t] for the tokens t = 0..n-1, in this order, to out[c*ldOut : +dims], for columns
// c = 0..cols-1. Token t's values start at pages[t/16][at + t%16*ldV]; dims is a multiple of 16 and may be less than the
// head's, to share one head among threads. Tokens from n on are not read.
func AttnAVPages(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, dims, n int) {
	if n < 0 || n > len(pages)*PageTokens || dims < dimStep || dims%dimStep != 0 || ldV < dims || at < 0 {
		panic(fmt.Sprintf("tensor: values of %d tokens of %d dimensions, %d apart, in %d pages", n, dims, ldV, len(pages)))
	}
	if n == 0 {
		return
	}
	if cols < 1 || len(p) < (cols-1)*ldP+n || len(out) < (cols-1)*ldOut+dims {
		panic(fmt.Sprintf("tensor: %d columns of %d probabilities and %d values into %d", cols, len(p), dims, len(out)))
	}
	pages = pages[:ceilDiv(n, PageTokens)]
	for b, page := range pages {
		if tokens := min(PageTokens, n-b*PageTokens); len(page) < at+(tokens-1)*ldV+dims {
			panic(fmt.Sprintf("tensor: page %d of %d values for %d tokens from %d on, %d apart", b, len(page), tokens, at, ldV))
		}
	}
	for ; n > callTokens; n -= callTokens {
		attnAV(pages, at, ldV, p, ldP, cols, out, ldOut, dims, callTokens)
		pages, p = pages[callTokens/PageTokens:], p[callTokens:]
	}
	attnAV(pages, at, ldV, p, ldP, cols, out, ldOut, dims, n)
}

// StoreK writes the key of one head as a lane of a page, rounded to f16: page[d*16 + lane] = key[d].
func StoreK(page []uint16, lane int, key []float32) {
	if lane < 0 || lane >= PageTokens || len(page) < len(key)*PageTokens || len(key)%vecWidth != 0 || len(key) == 0 {
		panic(fmt.Sprintf("tensor: key of %d dimensions as lane %d of %d values", len(key), lane, len(page)))
	}
	storeLane(page[lane:], key)
}

// attnQKGo is the portable form of AttnQK.
func attnQKGo(k []uint16, q []float32, ldQ, cols int, s []float32, ldS, dim int) {
	for c := range cols {
		clear(s[c*ldS:][:PageTokens])
	}
	var key [PageTokens]float32
	for d := range dim {
		f16toF32Go(key[:], k[d*PageTokens:][:PageTokens])
		for c := range cols {
			x, row := q[c*ldQ+d], s[c*ldS:][:PageTokens]
			for lane, kv := range key {
				row[lane] = fma32(kv, x, row[lane])
			}
		}
	}
}

// attnAVGo is the portable form of AttnAVPages.
func attnAVGo(pages [][]uint16, at, ldV int, p []float32, ldP, cols int, out []float32, ldOut, dims, n int) {
	for t := range n {
		v := pages[t/PageTokens][at+t%PageTokens*ldV:]
		for d := range dims {
			x := halfToFloat(v[d])
			for c := range cols {
				out[c*ldOut+d] = fma32(x, p[c*ldP+t], out[c*ldOut+d])
			}
		}
	}
}

func storeLaneGo(dst []uint16, src []float32) {
	for d, v := range src {
		dst[d*PageTokens] = floatToHalf(v)
	}
}
