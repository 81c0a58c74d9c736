package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of properties of a rune, as regular expressions name them.
type class uint8

const (
	letter      class = 1 << iota // \p{L}
	number                        // \p{N}
	mark                          // \p{M}
	punctuation                   // \p{P}
	sign                          // \p{S}
	space                         // \s, of Unicode
	lower                         // \p{Ll}
	upper                         // \p{Lu} or \p{Lt}
)

// classTable holds the class of every rune of Unicode 15.1.
type classTable [unicode.MaxRune + 1]class

var classes = sync.OnceValue(func() *classTable {
	t := new(classTable)
	t.add(unicode.L, letter)
	t.add(unicode.N, number)
	t.add(unicode.M, mark)
	t.add(unicode.P, punctuation)
	t.add(unicode.S, sign)
	t.add(unicode.White_Space, space)
	t.add(unicode.Ll, lower)
	t.add(unicode.Lu, upper)
	t.add(unicode.Lt, upper)
	t.add(unicode151.letters, letter)
	t.add(unicode151.symbols, sign)
	return t
})

// unicode151 is what Unicode 15.1 assigned and the standard library's 15.0 tables lack.
var unicode151 = struct{ letters, symbols *unicode.RangeTable }{
	letters: &unicode.RangeTable{R32: []unicode.Range32{{Lo: 0x2EBF0, Hi: 0x2EE5D, Stride: 1}}},
	symbols: &unicode.RangeTable{R16: []unicode.Range16{{Lo: 0x2FFC, Hi: 0x2FFF, Stride: 1}, {Lo: 0x31EF, Hi: 0x31EF, Stride: 1}}},
}

func (t *classTable) add(table *unicode.RangeTable, c class) {
	for _, r := range table.R16 {
		for i := uint32(r.Lo); i <= uint32(r.Hi); i += uint32(r.Stride) {
			t[i] |= c
		}
	}
	for _, r := range table.R32 {
		for i := r.Lo; i <= r.Hi; i += r.Stride {
			t[i] |= c
		}
	}
}

// at returns the rune at text[i:], its class and its size in bytes; size 0 at the end of the text.
func (t *classTable) at(text string, i int) (r rune, c class, size int) {
	if i >= len(text) {
		return -1, 0, 0
	}
	if b := text[i]; b < utf8.RuneSelf {
		return rune(b), t[b], 1
	}
	r, size = utf8.DecodeRuneInString(text[i:])
	return r, t[r], size
}

// run returns the index of the first rune at or after i that has none of the classes in set.
func (t *classTable) run(text string, i int, set class) int {
	for i < len(text) {
		_, c, size := t.at(text, i)
		if c&set == 0 {
			break
		}
		i += size
	}
	return i
}

// runNot returns the index of the first rune at or after i that has one of the classes in set.
func (t *classTable) runNot(text string, i int, set class) int {
	for i < len(text) {
		_, c, size := t.at(text, i)
		if c&set != 0 {
			break
		}
		i += size
	}
	return i
}
