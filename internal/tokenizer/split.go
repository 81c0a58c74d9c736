package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// matcher returns the end of the word that begins at text[at:], or at if none begins there. A matcher is one regular
// expression of a pre-tokenizer, written out so that it takes linear time whatever the text.
type matcher func(t *classTable, text string, at int) int

// splitWords applies the stages one after another: each cuts the words of the one before it into its matches and what
// lies between them. emit gets the words of the last stage in order, until it says no; then splitWords does too.
func splitWords(t *classTable, stages []matcher, text string, emit func(word string) bool) bool {
	if len(stages) == 0 {
		return emit(text)
	}
	gap, at := 0, 0
	for at < len(text) {
		end := stages[0](t, text, at)
		if end == at {
			_, size := utf8.DecodeRuneInString(text[at:])
			at += size
			continue
		}
		if gap < at && !splitWords(t, stages[1:], text[gap:at], emit) || !splitWords(t, stages[1:], text[at:end], emit) {
			return false
		}
		gap, at = end, end
	}
	return gap >= at || splitWords(t, stages[1:], text[gap:at], emit)
}

// matchGPT2 is 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func matchGPT2(t *classTable, text string, at int) int {
	if end := contraction(text, at, false); end > at {
		return end
	}
	start := at
	if text[at] == ' ' {
		start++
	}
	if _, c, size := t.at(text, start); size > 0 {
		switch {
		case c&letter != 0:
			return t.run(text, start+size, letter)
		case c&number != 0:
			return t.run(text, start+size, number)
		case c&space == 0:
			return t.runNot(text, start+size, space|letter|number)
		}
	}
	return spaces(t, text, at)
}

// contraction matches 's|'t|'re|'ve|'m|'ll|'d, in any case if folded.
func contraction(text string, at int, folded bool) int {
	if text[at] != '\'' {
		return at
	}
	char := func(i int) byte {
		if i >= len(text) {
			return 0
		}
		if folded && text[i] >= 'A' && text[i] <= 'Z' {
			return text[i] + 'a' - 'A'
		}
		return text[i]
	}
	switch char(at + 1) {
	case 's', 't', 'm', 'd':
		return at + 2
	case 'r', 'v':
		if char(at+2) == 'e' {
			return at + 3
		}
	case 'l':
		if char(at+2) == 'l' {
			return at + 3
		}
	}
	return at
}

// spaces matches \s+(?!\S)|\s+, that is whitespace but for the last rune, which goes with the word after it.
func spaces(t *classTable, text string, at int) int {
	last, end := at, at
	for {
		_, c, size := t.at(text, end)
		if c&space == 0 {
			break
		}
		last, end = end, end+size
	}
	if end == len(text) || last == at {
		return end
	}
	return last
}

// lines matches \s*[\r\n]+, that is whitespace up to its last line break.
func lines(t *classTable, text string, at int) int {
	end := at
	for i := at; ; {
		r, c, size := t.at(text, i)
		if c&space == 0 {
			return end
		}
		i += size
		if r == '\r' || r == '\n' {
			end = i
		}
	}
}

// wordRule is the shape that Llama 3 gave to its expression, and many took up:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s\p{N}LETTERS]+[TRAIL]*|\s*[\r\n]+|\s+(?!\S)|\s+
type wordRule struct {
	letters   class  // letter, or letter and mark
	digitsMax int    // longest run of digits that is one word
	trail     string // what sticks to punctuation before it
}

func (w wordRule) match(t *classTable, text string, at int) int {
	if end := contraction(text, at, true); end > at {
		return end
	}
	r, c, size := t.at(text, at)
	if end := prefixed(t, text, at, r, c, size, w.letters); end > at {
		return end
	}
	if c&number != 0 {
		return digits(t, text, at, w.digitsMax)
	}
	if end := punctuated(t, text, at, space|number|w.letters, w.trail); end > at {
		return end
	}
	if end := lines(t, text, at); end > at {
		return end
	}
	return spaces(t, text, at)
}

// prefixed matches [^\r\n\p{L}\p{N}]?LETTERS+ where the rune at at is r.
func prefixed(t *classTable, text string, at int, r rune, c class, size int, letters class) int {
	if r == '\r' || r == '\n' || c&number != 0 {
		return at
	}
	if c&letters != 0 {
		return t.run(text, at+size, letters)
	}
	if end := t.run(text, at+size, letters); end > at+size {
		return end
	}
	return at
}

// digits matches \p{N}{1,most}.
func digits(t *classTable, text string, at, most int) int {
	end := at
	for range most {
		_, c, size := t.at(text, end)
		if c&number == 0 {
			break
		}
		end += size
	}
	return end
}

// punctuated matches " ?[^not]+[trail]*".
func punctuated(t *classTable, text string, at int, not class, trail string) int {
	start := at
	if text[at] == ' ' {
		start++
	}
	end := t.runNot(text, start, not)
	if end == start {
		return at
	}
	return trailing(text, end, trail)
}

func trailing(text string, end int, trail string) int {
	for end < len(text) && strings.IndexByte(trail, text[end]) >= 0 {
		end++
	}
	return end
}

// anyDigits is the bound of an unbounded run of digits.
const anyDigits = 1 << 30

// matchDigits returns the matcher of \p{N}{1,most}.
func matchDigits(most int) matcher {
	return func(t *classTable, text string, at int) int { return digits(t, text, at, most) }
}

// matchThreeDigits is [0-9][0-9][0-9].
func matchThreeDigits(_ *classTable, text string, at int) int {
	if len(text)-at < 3 {
		return at
	}
	for i := at; i < at+3; i++ {
		if text[i] < '0' || text[i] > '9' {
			return at
		}
	}
	return at + 3
}

// matchMarks returns the matcher of [\p{P}EXTRA]+, EXTRA being ASCII characters.
func matchMarks(extra string) matcher {
	return func(t *classTable, text string, at int) int {
		end := at
		for {
			r, c, size := t.at(text, end)
			if size == 0 || c&punctuation == 0 && (r >= utf8.RuneSelf || strings.IndexByte(extra, byte(r)) < 0) {
				return end
			}
			end += size
		}
	}
}

// matchLineBreak is [\r\n].
func matchLineBreak(_ *classTable, text string, at int) int {
	if text[at] == '\r' || text[at] == '\n' {
		return at + 1
	}
	return at
}

// matchLinesApart is [^\n]+|[\n]+.
func matchLinesApart(_ *classTable, text string, at int) int {
	end := at
	for end < len(text) && (text[end] == '\n') == (text[at] == '\n') {
		end++
	}
	return end
}

// matchSpaced returns the matcher of \s?SET+.
func matchSpaced(set class) matcher {
	return func(t *classTable, text string, at int) int {
		start := at
		if _, c, size := t.at(text, at); c&space != 0 {
			start += size
		}
		if end := t.run(text, start, set); end > start {
			return end
		}
		return at
	}
}
