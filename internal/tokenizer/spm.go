package tokenizer

import (
	"fmt"
	"math"
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

// spmScratch is the working memory of one call.
type spmScratch struct {
	*spm
	text  string
	parts []part
	queue mergeQueue
}

// keeps knows nothing of runes that are tokens: what it says no to may be kept. A space is encoded as U+2581.
func (s *spm) keeps(c byte) bool {
	if c == ' ' {
		return s.keeps(0xE2) && s.keeps(0x96) && s.keeps(0x81)
	}
	return s.bytes[c] != None
}

func (s *spm) encode(target []Token, text string, b *bound) []Token {
	w := spmScratch{spm: s, text: strings.ReplaceAll(text, " ", "\u2581")}
	w.splitRunes()
	w.queue = make(mergeQueue, 0, len(w.parts))
	for i := 0; i < len(w.parts) && b.step(len(target)); i++ {
		w.consider(int32(i))
	}
	for len(w.queue) > 0 && b.step(len(target)) {
		w.merge(w.queue.pop())
	}
	if b.why != stopNot {
		return target
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

// union returns the rank of the token that a part and its right neighbour form, if they form one.
func (w *spmScratch) union(left int32) (uint32, bool) {
	p := w.parts[left]
	if p.next < 0 || p.at == p.end {
		return 0, false
	}
	end := w.parts[p.next].end
	if int(end-p.at) > w.bytesMax {
		return 0, false
	}
	token, ok := w.tokens[w.text[p.at:end]]
	if !ok {
		return 0, false
	}
	return scoreRank(w.scores[token]), true
}

// scoreRank maps scores to ranks, the highest score to the lowest rank.
func scoreRank(score float32) uint32 {
	bits := math.Float32bits(score + 0) // + 0 makes minus zero zero
	if bits>>31 == 0 {
		return ^(bits | 1<<31)
	}
	return bits
}

// consider queues a part and its right neighbour if they form a token.
func (w *spmScratch) consider(left int32) {
	if rank, ok := w.union(left); ok {
		w.queue.push(newCandidate(rank, int(left)))
	}
}

// merge joins a part with its right neighbour. A candidate whose rank is no longer that of the two has been overtaken; one
// whose rank is, though it was queued for others, stands for the equal one queued beside it.
func (w *spmScratch) merge(c candidate) {
	at := int32(c.left())
	if rank, ok := w.union(at); !ok || rank != c.rank() {
		return
	}
	left := &w.parts[at]
	right := &w.parts[left.next]
	left.end, right.at = right.end, right.end
	left.next = right.next
	if left.next >= 0 {
		w.parts[left.next].prev = at
	}
	if left.prev >= 0 {
		w.consider(left.prev)
	}
	w.consider(at)
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
