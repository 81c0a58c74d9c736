package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// spm encodes in the SentencePiece style: the text's runes are merged, the neighbours that form the token of highest
// score first, the leftmost of equals. Runes that are no token become their bytes' tokens.
type spm struct {
	tokens   map[string]Token // what text can become: no control, byte or user-defined tokens
	scores   []float32        // by token
	bytes    [256]Token
	bytesMax int // length of the longest key of tokens
}

func newSPM(v *vocab, meta Metadata) (*spm, error) {
	s := &spm{tokens: make(map[string]Token, len(v.texts))}
	scores, ok := meta.Floats("tokenizer.ggml.scores")
	if !ok || len(scores) < len(v.texts) {
		return nil, fmt.Errorf("read tokenizer: %d scores for %d tokens", len(scores), len(v.texts))
	}
	s.scores = scores
	unknown := None
	if id, ok := meta.Uint("tokenizer.ggml.unknown_token_id"); ok && id < uint64(len(v.texts)) {
		unknown = Token(id)
	}
	for c := range s.bytes {
		s.bytes[c] = unknown
	}
	for i, text := range v.texts {
		switch v.kinds[i] {
		case kindNormal, kindUnused:
			s.tokens[text] = Token(i)
			s.bytesMax = max(s.bytesMax, len(text))
		case kindByte:
			if c, ok := byteToken(text); ok {
				s.bytes[c] = Token(i)
			}
		case kindControl, kindUnknown, kindUserDefined:
		}
	}
	return s, nil
}

// part is a stretch of the text, a rune or what runes were merged into.
type part struct {
	at, end    int32 // of the text; empty once merged into its left neighbour
	prev, next int32 // indexes of the parts beside it, or -1
}

// union is two neighbouring parts that form a token.
type union struct {
	score       float32
	left, right int32 // indexes of the parts
	size        int32 // bytes of both when it was queued
}

func (u union) before(other union) bool {
	return u.score > other.score || u.score == other.score && u.left < other.left
}

// spmScratch is the working memory of one call.
type spmScratch struct {
	*spm
	text  string
	parts []part
	queue []union // a heap, see before
}

func (s *spm) encode(target []Token, text string) []Token {
	w := spmScratch{spm: s, text: strings.ReplaceAll(text, " ", "\u2581")}
	w.splitRunes()
	for i := 1; i < len(w.parts); i++ {
		w.consider(int32(i-1), int32(i))
	}
	for len(w.queue) > 0 {
		w.merge(w.pop())
	}
	for i := int32(0); i >= 0 && len(w.parts) > 0; i = w.parts[i].next {
		target = w.appendPart(target, w.parts[i])
	}
	return target
}

func (w *spmScratch) splitRunes() {
	w.parts = make([]part, 0, utf8.RuneCountInString(w.text))
	for at := 0; at < len(w.text); {
		_, size := utf8.DecodeRuneInString(w.text[at:])
		i := int32(len(w.parts))
		w.parts = append(w.parts, part{at: int32(at), end: int32(at + size), prev: i - 1, next: i + 1})
		at += size
	}
	if n := len(w.parts); n > 0 {
		w.parts[n-1].next = -1
	}
}

// consider queues two neighbours if they form a token.
func (w *spmScratch) consider(left, right int32) {
	if left < 0 || right < 0 {
		return
	}
	at, end := w.parts[left].at, w.parts[right].end
	if int(end-at) > w.bytesMax {
		return
	}
	if token, ok := w.tokens[w.text[at:end]]; ok {
		w.push(union{score: w.scores[token], left: left, right: right, size: end - at})
	}
}

// merge joins two parts, unless one of them has changed since they were queued.
func (w *spmScratch) merge(u union) {
	left, right := &w.parts[u.left], &w.parts[u.right]
	if left.at == left.end || right.at == right.end || left.end-left.at+right.end-right.at != u.size {
		return
	}
	left.end, right.at = right.end, right.end
	left.next = right.next
	if right.next >= 0 {
		w.parts[right.next].prev = u.left
	}
	w.consider(left.prev, u.left)
	w.consider(u.left, left.next)
}

func (w *spmScratch) appendPart(target []Token, p part) []Token {
	text := w.text[p.at:p.end]
	if token, ok := w.tokens[text]; ok {
		return append(target, token)
	}
	for i := range len(text) {
		if token := w.bytes[text[i]]; token != None {
			target = append(target, token)
		}
	}
	return target
}

func (w *spmScratch) push(u union) {
	w.queue = append(w.queue, u)
	i := len(w.queue) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !u.before(w.queue[parent]) {
			break
		}
		w.queue[i] = w.queue[parent]
		i = parent
	}
	w.queue[i] = u
}

func (w *spmScratch) pop() union {
	first, last := w.queue[0], w.queue[len(w.queue)-1]
	h := w.queue[:len(w.queue)-1]
	w.queue = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
