package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// columns addresses up to six rows, a stride apart, with three registers.
type columns struct{ first, fourth, stride Register }

// newColumns expects base and a stride in elements of four bytes.
func newColumns(n int, base, stride Register) columns {
	SHLQ(Imm(2), stride)
	c := columns{first: base, stride: stride}
	if n > 3 {
		c.fourth = GP64()
		LEAQ(Mem{Base: base, Index: stride, Scale: 2}, c.fourth)
		ADDQ(stride, c.fourth)
	}
	return c
}

func (c columns) row(i, disp int) Mem {
	base := c.first
	if i >= 3 {
		base = c.fourth
	}
	switch i % 3 {
	case 1:
		return Mem{Base: base, Index: c.stride, Scale: 1, Disp: disp}
	case 2:
		return Mem{Base: base, Index: c.stride, Scale: 2, Disp: disp}
	}
	return Mem{Base: base, Disp: disp}
}

func (c columns) advance(bytes uint64) {
	ADDQ(Imm(bytes), c.first)
	if c.fourth != nil {
		ADDQ(Imm(bytes), c.fourth)
	}
}

// attnQK writes the scores of the 16 lanes of a key page [dim][16] f16 for some columns of queries; dim is a multiple of 4.
func attnQK(cols int) {
	TEXT(fmt.Sprintf("attnQKx%d", cols), noSplit, "func(k *uint16, q *float32, ldQ int, s *float32, ldS, dim int)")
	Pragma("noescape")
	k, dim := Load(Param("k"), GP64()), Load(Param("dim"), GP64())
	q := newColumns(cols, Load(Param("q"), GP64()), Load(Param("ldQ"), GP64()))
	acc := make([]VecVirtual, 2*cols)
	for i := range acc {
		acc[i] = YMM()
		VXORPS(acc[i], acc[i], acc[i])
	}
	k0, k1, x := YMM(), YMM(), YMM()
	Label("dims")
	for u := 0; u < 4; u++ {
		VCVTPH2PS(at(k, 32*u), k0)
		VCVTPH2PS(at(k, 32*u+16), k1)
		for c := 0; c < cols; c++ {
			VBROADCASTSS(q.row(c, 4*u), x)
			VFMADD231PS(k0, x, acc[2*c])
			VFMADD231PS(k1, x, acc[2*c+1])
		}
	}
	ADDQ(I32(128), k)
	q.advance(16)
	SUBQ(Imm(4), dim)
	JNZ(LabelRef("dims"))
	s := Load(Param("s"), GP64())
	ldS := Load(Param("ldS"), GP64())
	SHLQ(Imm(2), ldS)
	for c := 0; c < cols; c++ {
		VMOVUPS(acc[2*c], at(s, 0))
		VMOVUPS(acc[2*c+1], at(s, 32))
		ADDQ(ldS, s)
	}
	VZEROUPPER()
	RET()
}

// qkPages is how many pages attnQKPages takes at a time for one to three columns: enough for eight or more chains of sums.
func qkPages(cols int) int { return []int{0, 4, 2, 2}[cols] }

// attnQKPages is attnQK over the first qkPages of a list of pages, whose keys start at pages[b][at]; scores of page b are 16 b on.
// Meanwhile it asks for as many pages `ahead` in the list, 0 if there are none: pages lie scattered in memory, so that nothing but
// the list tells which bytes come next.
func attnQKPages(cols int) {
	n := qkPages(cols)
	TEXT(fmt.Sprintf("attnQKx%dp%d", cols, n), noSplit,
		"func(pages *[]uint16, at, ahead int, q *float32, ldQ int, s *float32, ldS, dim int)")
	Pragma("noescape")
	list, offset, dim := Load(Param("pages"), GP64()), Load(Param("at"), GP64()), Load(Param("dim"), GP64())
	SHLQ(Imm(1), offset)
	next := newAhead(list, offset, n)
	q := newColumns(cols, Load(Param("q"), GP64()), Load(Param("ldQ"), GP64()))
	pages := make([]Register, n)
	acc := make([]VecVirtual, 2*cols*n)
	for i := range pages {
		pages[i] = GP64()
		MOVQ(at(list, 24*i), pages[i])
		ADDQ(offset, pages[i])
	}
	for i := range acc {
		acc[i] = YMM()
		VXORPS(acc[i], acc[i], acc[i])
	}
	k := YMM()
	x := make([]VecVirtual, cols)
	for c := range x {
		x[c] = YMM()
	}
	Label("dims")
	for _, page := range next {
		PREFETCHT0(at(page, 0))
		ADDQ(Imm(64), page)
	}
	for u := 0; u < 2; u++ {
		for c := range x {
			VBROADCASTSS(q.row(c, 4*u), x[c])
		}
		for p, page := range pages {
			for h := 0; h < 2; h++ {
				VCVTPH2PS(at(page, 32*u+16*h), k)
				for c := range x {
					VFMADD231PS(k, x[c], acc[2*(p*cols+c)+h])
				}
			}
		}
	}
	for _, page := range pages {
		ADDQ(Imm(64), page)
	}
	q.advance(8)
	SUBQ(Imm(2), dim)
	JNZ(LabelRef("dims"))
	s := Load(Param("s"), GP64())
	ldS := Load(Param("ldS"), GP64())
	SHLQ(Imm(2), ldS)
	for c := 0; c < cols; c++ {
		for p := range pages {
			VMOVUPS(acc[2*(p*cols+c)], at(s, 64*p))
			VMOVUPS(acc[2*(p*cols+c)+1], at(s, 64*p+32))
		}
		ADDQ(ldS, s)
	}
	VZEROUPPER()
	RET()
}

// newAhead is where the keys start in the n pages that are `ahead` in the list.
func newAhead(list, offset Register, n int) []Register {
	first := GP64()
	Load(Param("ahead"), first)
	LEAQ(Mem{Base: first, Index: first, Scale: 2}, first)
	LEAQ(Mem{Base: list, Index: first, Scale: 8}, first)
	pages := make([]Register, n)
	for i := range pages {
		pages[i] = GP64()
		MOVQ(at(first, 24*i), pages[i])
		ADDQ(offset, pages[i])
	}
	return pages
}

// avAhead is how many pages before its use attnAV asks for a page, if it takes so few columns that memory bounds it.
const (
	avAhead        = 2
	avAheadColumns = 3
)

// avDims are the numbers of dimensions of which attnAV keeps sums for a number of columns: wide enough for eight chains of
// sums if the registers allow, and 16 for what is left.
func avDims(cols int) []int {
	switch {
	case cols == 1:
		return []int{64, 16}
	case cols <= 3:
		return []int{32, 16}
	default:
		return []int{16}
	}
}

// attnAV adds n tokens' values, weighted, to out, for `count` runs of dims dimensions. pages is the first of a list of slices, a
// page of 16 tokens each; token t of page b starts at pages[b][at + t ldV]. A run keeps its sums in registers over all pages.
func attnAV(cols, dims int) {
	TEXT(fmt.Sprintf("attnAVx%dd%d", cols, dims), noSplit,
		"func(pages *[]uint16, at, ldV int, p *float32, ldP int, out *float32, ldOut, count, n int)")
	Pragma("noescape")
	offset, ldV := Load(Param("at"), GP64()), Load(Param("ldV"), GP64())
	out, ldOut := Load(Param("out"), GP64()), Load(Param("ldOut"), GP64())
	count, ldP := Load(Param("count"), GP64()), Load(Param("ldP"), GP64())
	SHLQ(Imm(1), offset)
	SHLQ(Imm(1), ldV)
	SHLQ(Imm(2), ldOut)
	SHLQ(Imm(2), ldP)
	vecs := dims / 8
	acc := make([]VecVirtual, cols*vecs)
	for i := range acc {
		acc[i] = YMM()
	}
	eachOut := func(f func(acc VecVirtual, m Mem)) {
		o := GP64()
		MOVQ(out, o)
		for c := 0; c < cols; c++ {
			for i := 0; i < vecs; i++ {
				f(acc[c*vecs+i], at(o, 32*i))
			}
			if c < cols-1 {
				ADDQ(ldOut, o)
			}
		}
	}
	row, page, left, n := GP64(), GP64(), GP64(), GP64()
	var ahead Register
	if cols <= avAheadColumns {
		ahead = GP64()
	}
	p := columns{first: GP64(), stride: ldP}
	Label("run")
	eachOut(func(a VecVirtual, m Mem) { VMOVUPS(m, a) })
	Load(Param("pages"), page)
	Load(Param("n"), left)
	Load(Param("p"), p.first)
	if cols > 3 {
		p.fourth = GP64()
		LEAQ(Mem{Base: p.first, Index: ldP, Scale: 2}, p.fourth)
		ADDQ(ldP, p.fourth)
	}
	Label("page")
	MOVQ(at(page, 0), row)
	ADDQ(offset, row)
	ADDQ(Imm(24), page)
	MOVQ(U32(16), n)
	CMPQ(left, n)
	CMOVQLT(left, n)
	SUBQ(n, left)
	if ahead != nil {
		MOVQ(row, ahead)
		CMPQ(left, Imm(16*(avAhead-1)))
		JLE(LabelRef("token"))
		MOVQ(at(page, 24*(avAhead-1)), ahead)
		ADDQ(offset, ahead)
	}
	Label("token")
	if ahead != nil {
		for line := 0; line < (2*dims+63)/64; line++ {
			PREFETCHT0(at(ahead, 64*line))
		}
		ADDQ(ldV, ahead)
	}
	avToken(cols, vecs, p, row, acc)
	ADDQ(ldV, row)
	p.advance(4)
	DECQ(n)
	JNZ(LabelRef("token"))
	TESTQ(left, left)
	JNZ(LabelRef("page"))
	eachOut(func(a VecVirtual, m Mem) { VMOVUPS(a, m) })
	ADDQ(I32(int32(2*dims)), offset)
	ADDQ(I32(int32(4*dims)), out)
	DECQ(count)
	JNZ(LabelRef("run"))
	VZEROUPPER()
	RET()
}

// avToken adds one token. With few values to a column the values are kept and the weights loaded, otherwise the reverse.
func avToken(cols, vecs int, p columns, row Register, acc []VecVirtual) {
	x := YMM()
	if cols == 1 {
		VBROADCASTSS(p.row(0, 0), x)
		for i := 0; i < vecs; i++ {
			t := YMM()
			VCVTPH2PS(at(row, 16*i), t)
			VFMADD231PS(t, x, acc[i])
		}
		return
	}
	if vecs == 2 {
		v0, v1 := YMM(), YMM()
		VCVTPH2PS(at(row, 0), v0)
		VCVTPH2PS(at(row, 16), v1)
		for c := 0; c < cols; c++ {
			VBROADCASTSS(p.row(c, 0), x)
			VFMADD231PS(v0, x, acc[2*c])
			VFMADD231PS(v1, x, acc[2*c+1])
		}
		return
	}
	weights := make([]VecVirtual, cols)
	for c := range weights {
		weights[c] = YMM()
		VBROADCASTSS(p.row(c, 0), weights[c])
	}
	for i := 0; i < vecs; i++ {
		VCVTPH2PS(at(row, 16*i), x)
		for c := 0; c < cols; c++ {
			VFMADD231PS(x, weights[c], acc[c*vecs+i])
		}
	}
}
