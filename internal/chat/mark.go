package chat

import (
	"strings"
	"unicode/utf8"
)

// specials are a model's special tokens, as far as users' text could spell them.
type specials struct {
	first    string   // the runes that they begin with
	searched []string // those that the template looks for in content, such as "</think>"
}

func newSpecials(spellings []string, chunks []chunk) specials {
	var s specials
	for _, spelling := range spellings {
		r, _ := utf8.DecodeRuneInString(spelling)
		if spelling == "" || isSpace(r) || isNameRune(r) {
			continue
		}
		if !strings.ContainsRune(s.first, r) {
			s.first += string(r)
		}
		if isSearched(spelling, chunks) {
			s.searched = append(s.searched, spelling)
		}
	}
	return s
}

// isSearched reports whether the template looks for the spelling: it is the first argument of a method or filter, such as
// split, or stands before "in" or "not in".
func isSearched(spelling string, chunks []chunk) bool {
	for _, c := range chunks {
		for i, t := range c.tokens {
			if t.kind != tokenString || t.text != spelling {
				continue
			}
			if i+1 < len(c.tokens) && (c.tokens[i+1].named("in") || c.tokens[i+1].named("not")) {
				return true
			}
			if i >= 3 && c.tokens[i-1].is("(") && (c.tokens[i-3].is(".") || c.tokens[i-3].is("|")) {
				return true
			}
		}
	}
	return false
}

// marker is a rune that occurs nowhere in the input or the template. It is put into users' text after each rune that
// could begin a special token, and taken out of the prompt again, which is cut there: so no special token's spelling that
// a user wrote, or a template put together from pieces that users wrote, lies within one segment.
//
// A single private-use rune can't be cut in two, has no case and is no whitespace, so that templates handle the
// text around it as they would without it.
type marker struct {
	mark  rune // 0 if none was needed
	first string
}

// Private-use planes, from which the mark is taken.
const (
	markFirst = 0xF0000
	markLast  = 0x10FFFD
)

// newMarker returns a marker for texts, or false if they use up all private-use runes.
func newMarker(first string, texts func(yield func(string))) (marker, bool) {
	used := map[rune]bool{}
	texts(func(text string) {
		for i := 0; i < len(text); {
			if text[i] < 0xF3 { // the first byte of the private-use planes' encodings is F3 or F4
				i++
				continue
			}
			r, size := utf8.DecodeRuneInString(text[i:])
			if r >= markFirst && r <= markLast {
				used[r] = true
			}
			i += size
		}
	})
	for r := rune(markFirst); r <= markLast; r++ {
		if !used[r] && r&0xFFFE != 0xFFFE {
			return marker{mark: r, first: first}, true
		}
	}
	return marker{}, false
}

// apply marks a user's text. Spellings in keep stay whole.
func (m marker) apply(text string, keep []string) string {
	if m.first == "" || !strings.ContainsAny(text, m.first) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		if n := prefixSize(text[i:], keep); n > 0 {
			b.WriteString(text[i : i+n])
			i += n
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		b.WriteString(text[i : i+size])
		if strings.ContainsRune(m.first, r) {
			b.WriteRune(m.mark)
		}
		i += size
	}
	return b.String()
}

func prefixSize(text string, spellings []string) int {
	longest := 0
	for _, s := range spellings {
		if len(s) > longest && strings.HasPrefix(text, s) {
			longest = len(s)
		}
	}
	return longest
}

// segments cuts a rendered text at its marks.
func (m marker) segments(text string) []Segment {
	parts := strings.Split(text, string(m.mark))
	segments := make([]Segment, 0, len(parts))
	for _, part := range parts {
		if part != "" {
			segments = append(segments, Segment{Text: part, Special: true})
		}
	}
	return segments
}
