package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// symbol is a piece of a word: the token of that text, or, from the vocabulary's size on, a text that the merges know but
// the vocabulary doesn't.
type symbol = int32

// bpe encodes by byte pair: a word's bytes are merged, the pair of lowest rank first, the leftmost of equals.
type bpe struct {
	classes  *classTable
	stages   []matcher
	count    int // tokens in the vocabulary
	bytes    [256]symbol
	merges   pairTable
	nameless []string         // by symbol - count
	whole    map[string]Token // by bytes, if whole words are looked up first; else nil
}

// mergesMax bounds the merges a file may list. Real ones stay below 500,000.
const mergesMax = 1 << 22

func newBPE(v *vocab, meta Metadata, pre preTokenizer) (*bpe, error) {
	merges, ok := meta.Strings("tokenizer.ggml.merges")
	if !ok {
		return nil, errors.New("read tokenizer: key tokenizer.ggml.merges is missing")
	}
	if len(merges) > mergesMax {
		return nil, fmt.Errorf("read tokenizer: %d merges, the limit is %d", len(merges), mergesMax)
	}
	b := &bpe{classes: classes(), stages: pre.stages, count: len(v.texts), merges: newPairTable(len(merges))}
	names := b.readSymbols(v)
	for rank, merge := range merges {
		if err := b.addMerge(names, rank, merge); err != nil {
			return nil, err
		}
	}
	if pre.wholeWords {
		b.whole = map[string]Token{}
		for i, piece := range v.pieces {
			if v.kinds[i] == kindNormal && names[v.texts[i]] == symbol(i) {
				b.whole[string(piece)] = Token(i)
			}
		}
	}
	return b, nil
}

// readSymbols names the tokens that text can become. Control tokens and structural ones are left out, so that no sequence
// of merges leads to them.
func (b *bpe) readSymbols(v *vocab) map[string]symbol {
	names := make(map[string]symbol, len(v.texts))
	for i, text := range v.texts {
		kind := v.kinds[i]
		if kind == kindNormal || kind == kindUnused || kind == kindUserDefined && !isStructural(text) {
			if _, ok := rawBytes(text); ok {
				names[text] = symbol(i)
			}
		}
	}
	for c := range b.bytes {
		b.bytes[c] = b.symbolOf(names, string(byteRunes[c]))
	}
	return names
}

// symbolOf returns the symbol of a text, a new one if it has none.
func (b *bpe) symbolOf(names map[string]symbol, text string) symbol {
	s, ok := names[text]
	if !ok {
		s = symbol(b.count + len(b.nameless))
		names[text] = s
		b.nameless = append(b.nameless, text)
	}
	return s
}

func (b *bpe) addMerge(names map[string]symbol, rank int, merge string) error {
	if len(merge) < 3 {
		return fmt.Errorf("read tokenizer: merge %d is no pair", rank)
	}
	cut := strings.IndexByte(merge[1:], ' ') + 1
	if cut == 0 || cut == len(merge)-1 {
		return fmt.Errorf("read tokenizer: merge %d is no pair", rank)
	}
	left, right := merge[:cut], merge[cut+1:]
	b.merges.add(pair{b.symbolOf(names, left), b.symbolOf(names, right)}, int32(rank), b.symbolOf(names, left+right))
	return nil
}

func (b *bpe) encode(target []Token, text string, limit *bound) []Token {
	s := bpeScratch{bpe: b, bound: limit}
	splitWords(b.classes, b.stages, text, func(word string) bool {
		if token, ok := b.whole[word]; ok {
			target = append(target, token)
		} else {
			target = s.encodeWord(target, word)
		}
		return limit.step(len(target))
	})
	return target
}

func (b *bpe) keeps(c byte) bool { return int(b.bytes[c]) < b.count }

// bpeScratch is the working memory of one call.
type bpeScratch struct {
	*bpe
	bound   *bound
	symbols []symbol
	ranks   []int32  // short words: of the pair that begins at each symbol
	joined  []symbol // short words: what that pair merges into
	next    []int32  // long words: index of the symbol after, or the length; -1 if merged away
	prev    []int32  // long words: index of the symbol before, or -1
	queue   mergeQueue
}

// shortWordMax is the longest word, in bytes, for which looking through all pairs before each merge is
// quicker than keeping them in a heap.
const shortWordMax = 48

func (s *bpeScratch) encodeWord(target []Token, word string) []Token {
	s.symbols = slices.Grow(s.symbols[:0], len(word))
	for i := range len(word) {
		s.symbols = append(s.symbols, s.bytes[word[i]])
	}
	if len(word) <= shortWordMax {
		s.mergeShort()
	} else {
		s.mergeLong(len(target))
	}
	if s.bound.why != stopNot {
		return target
	}
	for _, sym := range s.symbols {
		target = s.appendSymbol(target, sym)
	}
	return target
}

// appendSymbol appends a symbol's token, or those of its bytes. Bytes that the vocabulary lacks are dropped.
func (s *bpeScratch) appendSymbol(target []Token, sym symbol) []Token {
	if int(sym) < s.count {
		return append(target, sym)
	}
	raw, _ := rawBytes(s.nameless[int(sym)-s.count])
	for _, c := range raw {
		if int(s.bytes[c]) < s.count {
			target = append(target, s.bytes[c])
		}
	}
	return target
}

// mergeShort merges s.symbols, keeping the rank of each pair beside it.
func (s *bpeScratch) mergeShort() {
	s.ranks, s.joined = s.ranks[:0], s.joined[:0]
	for i := 0; i+1 < len(s.symbols); i++ {
		rank, joined := s.merges.find(pair{s.symbols[i], s.symbols[i+1]})
		s.ranks = append(s.ranks, rank)
		s.joined = append(s.joined, joined)
	}
	for {
		best, bestRank := -1, noRank
		for i, rank := range s.ranks {
			if rank < bestRank {
				best, bestRank = i, rank
			}
		}
		if best < 0 {
			return
		}
		s.symbols[best] = s.joined[best]
		s.symbols = remove(s.symbols, best+1)
		s.ranks = remove(s.ranks, best)
		s.joined = remove(s.joined, best)
		for i := max(best-1, 0); i <= best && i < len(s.ranks); i++ {
			s.ranks[i], s.joined[i] = s.merges.find(pair{s.symbols[i], s.symbols[i+1]})
		}
	}
}

func remove(list []int32, i int) []int32 {
	copy(list[i:], list[i+1:])
	return list[:len(list)-1]
}

// mergeLong merges s.symbols by a heap of pairs over a linked list. A rank belongs to one pair, so a candidate whose rank
// is no longer its symbol's has been overtaken and is skipped.
func (s *bpeScratch) mergeLong(tokens int) {
	n := len(s.symbols)
	s.next, s.prev = slices.Grow(s.next[:0], n), slices.Grow(s.prev[:0], n)
	s.queue = slices.Grow(s.queue[:0], n)
	for i := range n {
		s.next = append(s.next, int32(i+1))
		s.prev = append(s.prev, int32(i-1))
	}
	for i := 0; i < n-1 && s.bound.step(tokens); i++ {
		s.queuePair(i, i+1)
	}
	for len(s.queue) > 0 && s.bound.step(tokens) {
		s.mergeCandidate(s.queue.pop())
	}
	kept := 0
	for i := 0; i < n; i = int(s.next[i]) {
		s.symbols[kept] = s.symbols[i]
		kept++
	}
	s.symbols = s.symbols[:kept]
}

func (s *bpeScratch) mergeCandidate(c candidate) {
	n, left, right := len(s.symbols), c.left(), int(s.next[c.left()])
	if right < 0 || right >= n {
		return
	}
	rank, joined := s.merges.find(pair{s.symbols[left], s.symbols[right]})
	if uint32(rank) != c.rank() {
		return
	}
	s.symbols[left] = joined
	after := int(s.next[right])
	s.next[left], s.next[right] = int32(after), -1
	if after < n {
		s.prev[after] = int32(left)
		s.queuePair(left, after)
	}
	if before := int(s.prev[left]); before >= 0 {
		s.queuePair(before, left)
	}
}

func (s *bpeScratch) queuePair(left, right int) {
	if rank, _ := s.merges.find(pair{s.symbols[left], s.symbols[right]}); rank != noRank {
		s.queue.push(newCandidate(uint32(rank), left))
	}
}
