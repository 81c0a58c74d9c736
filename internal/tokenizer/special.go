package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// span is the half-open range [at, end) of a text.
type span struct{ at, end int }

// specials finds special tokens in text: the leftmost, and of those the longest. Immutable.
//
// Three classes of tokens are kept apart. Control tokens and structural user-defined ones ("<think>", "<tool_call>")
// count only in trusted spans. Other user-defined tokens, such as runs of spaces or HTML tags that a vocabulary has as
// tokens, count everywhere: they are how that model reads plain text.
type specials struct {
	nodes     []specialNode
	first     [256]bool // bytes that begin a special token
	spellings []string  // of the tokens that count in trusted spans, longest first
}

type specialNode struct {
	next    map[byte]int32
	token   Token // None if no token ends here
	trusted bool  // the token counts in trusted spans only
}

func newSpecials(v *vocab) *specials {
	s := &specials{nodes: []specialNode{{token: None}}}
	for i, text := range v.texts {
		if text == "" {
			continue
		}
		switch v.kinds[i] {
		case kindControl, kindUnknown:
			s.add(text, Token(i), true)
		case kindUserDefined:
			s.add(text, Token(i), isStructural(text))
		case kindNormal, kindUnused, kindByte:
		}
	}
	slices.SortFunc(s.spellings, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	return s
}

func (s *specials) add(text string, token Token, trusted bool) {
	s.first[text[0]] = true
	s.spellings = append(s.spellings, text)
	at := int32(0)
	for i := range len(text) {
		next, ok := s.nodes[at].next[text[i]]
		if !ok {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, specialNode{token: None})
			if s.nodes[at].next == nil {
				s.nodes[at].next = map[byte]int32{}
			}
			s.nodes[at].next[text[i]] = next
		}
		at = next
	}
	s.nodes[at].token, s.nodes[at].trusted = token, trusted
}

// scan calls found for each special token in text, left to right, until it says no. trusted is sorted and free of overlaps.
func (s *specials) scan(text string, trusted []span, found func(at, end int, token Token) bool) {
	for at := 0; at < len(text); {
		if !s.first[text[at]] {
			at++
			continue
		}
		for len(trusted) > 0 && trusted[0].end <= at {
			trusted = trusted[1:]
		}
		trustedEnd := at
		if len(trusted) > 0 && trusted[0].at <= at {
			trustedEnd = trusted[0].end
		}
		end, token := s.longest(text, at, trustedEnd)
		if token == None {
			at++
			continue
		}
		if !found(at, end, token) {
			return
		}
		at = end
	}
}

// longest returns the longest special token at at; those that need trust must end by trustedEnd.
func (s *specials) longest(text string, at, trustedEnd int) (int, Token) {
	end, token := at, None
	node := int32(0)
	for i := at; i < len(text); i++ {
		next, ok := s.nodes[node].next[text[i]]
		if !ok {
			break
		}
		node = next
		n := &s.nodes[node]
		if n.token != None && (!n.trusted || i+1 <= trustedEnd) {
			end, token = i+1, n.token
		}
	}
	return end, token
}

// isStructural reports whether a user-defined token is markup that models act on, so that a user must not be able to write
// it: anything in angle or square brackets but plain HTML elements.
func isStructural(text string) bool {
	opened := strings.HasPrefix(text, "<") || strings.HasPrefix(text, "[")
	closed := strings.HasSuffix(text, ">") || strings.HasSuffix(text, "]")
	if !opened || !closed {
		return strings.Contains(text, "<|") || strings.Contains(text, "|>")
	}
	return !htmlElements[strings.TrimPrefix(strings.Trim(text, "<>"), "/")]
}

// htmlElements are the elements that vocabularies hold as tokens of plain text.
var htmlElements = map[string]bool{
	"table": true, "caption": true, "thead": true, "tbody": true, "tfoot": true, "tr": true, "th": true, "td": true,
	"h1": true, "h2": true, "h3": true, "h4": true, "h5": true, "h6": true, "blockquote": true, "strong": true, "em": true,
	"b": true, "i": true, "u": true, "s": true, "sub": true, "sup": true, "code": true, "a": true, "img": true, "ul": true,
	"ol": true, "li": true, "p": true, "br": true, "div": true, "span": true, "pre": true, "html": true, "body": true,
}
