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
var cjk = parseRanges("ࠀ-一一-龥가-퟿")

// cjkKana is what DeepSeek V3 keeps apart.
var cjkKana = parseRanges("぀-ゟ゠-ヿ一-龥")

// casedLetters are DeepSeek LLM's letters with case, and forms akin to them.
var casedLetters = parseRanges("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⲳⲳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")

// widePunctuation is DeepSeek LLM's punctuation: ASCII's, its full-width forms, quotation marks and CJK stops.
var widePunctuation = parseRanges("!-/:-~‘-‟　-。！-／：-～")

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
