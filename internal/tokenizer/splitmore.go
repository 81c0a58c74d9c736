package tokenizer

import "unicode/utf8"

// runeRanges are inclusive ranges, ascending.
type runeRanges [][2]rune

func (s runeRanges) has(r rune) bool {
	for _, pair := range s {
		if r <= pair[1] {
			return r >= pair[0]
		}
	}
	return false
}

// parseRanges reads the inside of a bracket expression such as "A-Zaµ". It knows no escapes.
func parseRanges(expr string) runeRanges {
	var ranges runeRanges
	runes := []rune(expr)
	for i := 0; i < len(runes); i++ {
		if i+2 < len(runes) && runes[i+1] == '-' {
			ranges = append(ranges, [2]rune{runes[i], runes[i+2]})
			i += 2
			continue
		}
		ranges = append(ranges, [2]rune{runes[i], runes[i]})
	}
	return ranges
}

// matchRanges returns the matcher of [RANGES]+, after \s? if spaced.
func matchRanges(ranges runeRanges, spaced bool) matcher {
	return func(t *classTable, text string, at int) int {
		start := at
		if _, c, size := t.at(text, at); spaced && c&space != 0 {
			start += size
		}
		end := start
		for end < len(text) {
			r, size := utf8.DecodeRuneInString(text[end:])
			if !ranges.has(r) {
				break
			}
			end += size
		}
		if end == start {
			return at
		}
		return end
	}
}

// matchSpacesAtEnd is \s+$.
func matchSpacesAtEnd(t *classTable, text string, at int) int {
	if end := t.run(text, at, space); end == len(text) {
		return end
	}
	return at
}

// cjk is what DeepSeek's first tokenizers keep apart. Its second range spans most scripts by an oversight of theirs that
// the models were trained with.
var cjk = parseRanges("\u0800-\u4E00\u4E00-\u9FA5\uAC00-\uD7FF")

// cjkKana is what DeepSeek V3 keeps apart.
var cjkKana = parseRanges("\u3040-\u309F\u30A0-\u30FF\u4E00-\u9FA5")

// casedLetters are DeepSeek LLM's letters with case, and forms akin to them.
var casedLetters = parseRanges("" +
	"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373" +
	"\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F" +
	"\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77" +
	"\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D" +
	"\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB" +
	"\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128" +
	"\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4" +
	"\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF" +
	"\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3" +
	"\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943")

// widePunctuation is DeepSeek LLM's punctuation: ASCII's, its full-width forms, quotation marks and CJK stops.
var widePunctuation = parseRanges("!-/:-~\u2018-\u201F\u3000-\u3002\uFF01-\uFF0F\uFF1A-\uFF5E")

// matchDeepSeekV3 is
//
//	[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func matchDeepSeekV3(t *classTable, text string, at int) int {
	r, c, size := t.at(text, at)
	if r < utf8.RuneSelf && c&(punctuation|sign) != 0 {
		if end := asciiLetters(text, at+1); end > at+1 {
			return end
		}
	}
	if c&(letter|mark) != 0 {
		return t.run(text, at+size, letter|mark)
	}
	if r != '\r' && r != '\n' && c&(punctuation|sign) == 0 {
		if end := t.run(text, at+size, letter|mark); end > at+size {
			return end
		}
	}
	start := at
	if r == ' ' {
		start++
	}
	if end := t.run(text, start, punctuation|sign); end > start {
		return trailing(text, end, "\r\n")
	}
	if end := lines(t, text, at); end > at {
		return end
	}
	return spaces(t, text, at)
}

func asciiLetters(text string, at int) int {
	for at < len(text) && (text[at] >= 'a' && text[at] <= 'z' || text[at] >= 'A' && text[at] <= 'Z') {
		at++
	}
	return at
}

// casedRule is the shape of GPT-4o's expression, which starts a new word where lower case turns into upper case. With
// UPPER for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and LOWER for [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
//
//	[^\r\n\p{L}\p{N}]?UPPER*LOWER+(?i:'s|...)?|[^\r\n\p{L}\p{N}]?UPPER+LOWER*(?i:'s|...)?|
//	\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
type casedRule struct {
	contractions bool // words take their contraction along
	digitsMax    int
}

func (w casedRule) match(t *classTable, text string, at int) int {
	r, c, size := t.at(text, at)
	if end := w.word(t, text, at, r, c, size); end > at {
		if w.contractions && end < len(text) {
			return contraction(text, end, true)
		}
		return end
	}
	if c&number != 0 {
		return digits(t, text, at, w.digitsMax)
	}
	if end := punctuated(t, text, at, space|number|letter, "\r\n/"); end > at {
		return end
	}
	if end := lines(t, text, at); end > at {
		return end
	}
	return spaces(t, text, at)
}

// word tries, as the expression does, each shape after a prefix before the same shape without one.
func (w casedRule) word(t *classTable, text string, at int, r rune, c class, size int) int {
	hasPrefix := r != '\r' && r != '\n' && c&(letter|number) == 0
	for _, shape := range []matcher{mixedWord, upperWord} {
		if hasPrefix {
			if end := shape(t, text, at+size); end > at+size {
				return end
			}
		}
		if end := shape(t, text, at); end > at {
			return end
		}
	}
	return at
}

func isUpperLike(c class) bool { return c&mark != 0 || c&letter != 0 && c&lower == 0 }
func isLowerLike(c class) bool { return c&mark != 0 || c&letter != 0 && c&upper == 0 }

// mixedWord matches UPPER*LOWER+. Runes without case are both, so UPPER* may have to give back its last ones.
func mixedWord(t *classTable, text string, at int) int {
	end, afterLower := at, at
	for {
		_, c, size := t.at(text, end)
		if !isUpperLike(c) {
			break
		}
		end += size
		if isLowerLike(c) {
			afterLower = end
		}
	}
	if more := lowerRun(t, text, end); more > end {
		return more
	}
	return afterLower
}

// upperWord matches UPPER+LOWER*.
func upperWord(t *classTable, text string, at int) int {
	end := at
	for {
		_, c, size := t.at(text, end)
		if !isUpperLike(c) {
			break
		}
		end += size
	}
	if end == at {
		return at
	}
	return lowerRun(t, text, end)
}

func lowerRun(t *classTable, text string, at int) int {
	for {
		_, c, size := t.at(text, at)
		if !isLowerLike(c) {
			return at
		}
		at += size
	}
}
