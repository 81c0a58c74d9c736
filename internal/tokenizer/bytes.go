package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteRunes gives each byte the printable rune that byte-level vocabularies spell it with: itself where it is printable in
// Latin-1, and runes from U+0100 on, in order, for the rest. The table is GPT-2's bytes_to_unicode.
var byteRunes, runeBytes = byteAlphabet()

func byteAlphabet() (runes [256]rune, bytes [256 + 68]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE) {
			r, next = next, next+1
		}
		runes[b], bytes[r] = r, int16(b)
	}
	return runes, bytes
}

// rawBytes undoes the byte-level spelling. It reports false if text holds a rune that stands for no byte.
func rawBytes(text string) ([]byte, bool) {
	raw := make([]byte, 0, len(text))
	for _, r := range text {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return nil, false
		}
		raw = append(raw, byte(runeBytes[r]))
	}
	return raw, true
}

// validUTF8 replaces each byte that is not part of valid UTF-8 by U+FFFD.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		b.WriteRune(r)
	}
	return b.String()
}

// skipSpace returns the index of the first byte at or after at that is no ASCII whitespace.
func skipSpace(text string, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] >= '\t' && text[at] <= '\r') {
		at++
	}
	return at
}
