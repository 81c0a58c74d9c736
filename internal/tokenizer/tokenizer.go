// Package tokenizer turns text into tokens and back.
//
// A tokenizer is read from a model file's metadata (the tokenizer.ggml keys of the GGUF format). Two families are
// known: byte-level BPE (tokenizer.ggml.model gpt2, with the split named by tokenizer.ggml.pre) and the
// SentencePiece style (tokenizer.ggml.model llama: scores, byte fallback, a space before the first word).
//
// Text is data. A special token's spelling inside it is tokenized as the characters it is made of; only a segment that
// the caller marks Special can yield special tokens. Nothing is remembered between calls: a cache that requests
// share would let one tenant time what another has asked. Encoding takes O(n log n) time and O(n) memory whatever the
// text.
package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Token is the index of a token in the model's vocabulary, 0 <= Token < Tokenizer.Count.
type Token = int32

// None stands where a model has no such token.
const None Token = -1

// Metadata is what a tokenizer reads from a model file; gguf.Metadata is one. Each getter reports false for a key that is
// absent or of another type.
type Metadata interface {
	String(key string) (string, bool)
	Strings(key string) ([]string, bool)
	Uint(key string) (uint64, bool)
	Bool(key string) (bool, bool)
	Ints(key string) ([]int64, bool)
	Floats(key string) ([]float32, bool)
}

// Segment is a part of a prompt. Special tells whether spellings of special tokens in Text are those tokens (the
// template's own output) or plain text (what a user wrote). It is an alias so that the renderer of templates can
// hand over its segments without either package importing the other.
type Segment = struct {
	Text    string
	Special bool
}

// Tokenizer is immutable and safe for concurrent use.
type Tokenizer struct {
	vocab    *vocab
	encoder  encoder
	keeps    [256]bool // bytes of a text that never vanish
	addBOS   bool
	addEOS   bool
	prefixed bool // a space goes before text that begins the prompt or follows a special token
}

// encoder appends the tokens of plain text, without special tokens.
type encoder interface {
	// encode may leave off where the bound says so.
	encode(target []Token, text string, b *bound) []Token
	// keeps reports whether each such byte of a text is in some token.
	keeps(c byte) bool
}

// New reads the tokenizer of a model.
func New(meta Metadata) (*Tokenizer, error) {
	family, ok := meta.String("tokenizer.ggml.model")
	if !ok {
		return nil, errors.New("read tokenizer: key tokenizer.ggml.model is missing")
	}
	switch family {
	case "gpt2":
		return newBPETokenizer(meta)
	case "llama":
		return newSPMTokenizer(meta)
	}
	return nil, fmt.Errorf("read tokenizer: model %q is not supported (known: gpt2, llama)", family)
}

func newBPETokenizer(meta Metadata) (*Tokenizer, error) {
	name, _ := meta.String("tokenizer.ggml.pre")
	pre, ok := preTokenizers[name]
	if !ok {
		return nil, fmt.Errorf("read tokenizer: pre-tokenizer %q is not supported (known: %s)", name, strings.Join(PreTokenizers(), ", "))
	}
	v, err := readVocab(meta, byteLevel)
	if err != nil {
		return nil, err
	}
	e, err := newBPE(v, meta, pre)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{vocab: v, encoder: e, addBOS: pre.addBOS}
	t.noteKept()
	return t, t.readFlags(meta)
}

func newSPMTokenizer(meta Metadata) (*Tokenizer, error) {
	v, err := readVocab(meta, sentencePiece)
	if err != nil {
		return nil, err
	}
	e, err := newSPM(v, meta)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{vocab: v, encoder: e, addBOS: true, prefixed: true}
	t.noteKept()
	return t, t.readFlags(meta)
}

// readFlags overrides the family's defaults with what the file says.
func (t *Tokenizer) readFlags(meta Metadata) error {
	override := func(flag *bool, key string) {
		if value, ok := meta.Bool(key); ok {
			*flag = value
		}
	}
	override(&t.addBOS, "tokenizer.ggml.add_bos_token")
	override(&t.addEOS, "tokenizer.ggml.add_eos_token")
	override(&t.prefixed, "tokenizer.ggml.add_space_prefix")
	if t.addBOS && t.vocab.bos == None {
		return errors.New("read tokenizer: add_bos_token is set, but the file names no valid bos_token_id")
	}
	if t.addEOS && t.vocab.eos == None {
		return errors.New("read tokenizer: add_eos_token is set, but the file names no valid eos_token_id")
	}
	return nil
}

// PreTokenizers lists the values of tokenizer.ggml.pre that New knows, sorted. The empty name stands for a file
// that names none.
func PreTokenizers() []string {
	var names []string
	for name := range preTokenizers {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Encode returns the tokens of text, with no token before or after it. Spellings of special tokens are text. Each byte
// that is not part of valid UTF-8 counts as U+FFFD.
func (t *Tokenizer) Encode(text string) []Token {
	return t.EncodeSegments([]Segment{{Text: text}})
}

// EncodePrompt returns the tokens of a prompt: the model's beginning-of-sequence token if the model asks for one and the
// prompt doesn't begin with it, the segments, and the end-of-sequence token if the model asks for that.
func (t *Tokenizer) EncodePrompt(segments []Segment) []Token {
	return t.encodePrompt(segments, boundless())
}

func (t *Tokenizer) encodePrompt(segments []Segment, b *bound) []Token {
	tokens := t.encodeSegments(segments, b)
	if t.addBOS && (len(tokens) == 0 || tokens[0] != t.vocab.bos) {
		tokens = slices.Insert(tokens, 0, t.vocab.bos)
	}
	if t.addEOS {
		tokens = append(tokens, t.vocab.eos)
	}
	return tokens
}

// EncodeSegments returns the tokens of the segments' texts set one after another. A special token is recognised only
// where its whole spelling lies within one segment marked Special; the text between two special tokens is
// tokenized as one, whatever segments it came from, as if the prompt had been one string.
func (t *Tokenizer) EncodeSegments(segments []Segment) []Token {
	return t.encodeSegments(segments, boundless())
}

func (t *Tokenizer) encodeSegments(segments []Segment, b *bound) []Token {
	text, trusted := join(segments)
	tokens := make([]Token, 0, min(len(text)/3, b.tokensMax)+4)
	start, follows := 0, true
	plain := func(end int) {
		if start >= end {
			return
		}
		part := text[start:end]
		if t.prefixed && follows {
			part = " " + part
		}
		tokens = t.encoder.encode(tokens, part, b)
		follows = false
	}
	t.vocab.specials.scan(text, trusted, func(at, end int, token Token) bool {
		plain(at)
		tokens = append(tokens, token)
		start, follows = end, true
		if t.vocab.stripsAfter(token) {
			start = skipSpace(text, end)
		}
		return b.step(len(tokens))
	})
	if b.why == stopNot {
		plain(len(text))
	}
	return tokens
}

// join concatenates the segments, makes the text valid UTF-8 and returns where it may hold special tokens.
func join(segments []Segment) (string, []span) {
	if len(segments) == 1 {
		text := validUTF8(segments[0].Text)
		if segments[0].Special {
			return text, []span{{0, len(text)}}
		}
		return text, nil
	}
	var b strings.Builder
	var trusted []span
	for _, s := range segments {
		at := b.Len()
		b.WriteString(validUTF8(s.Text))
		if s.Special && b.Len() > at {
			trusted = append(trusted, span{at, b.Len()})
		}
	}
	return b.String(), trusted
}

// Count returns the number of tokens in the vocabulary.
func (t *Tokenizer) Count() int { return len(t.vocab.texts) }

// BOS returns the token that begins a sequence, or None.
func (t *Tokenizer) BOS() Token { return t.vocab.bos }

// EOS returns the token that ends a sequence, or None.
func (t *Tokenizer) EOS() Token { return t.vocab.eos }

// AddsBOS reports whether EncodePrompt makes prompts begin with BOS.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// IsEOG reports whether token ends a generation: the end of the sequence, of a turn or of a message.
func (t *Tokenizer) IsEOG(token Token) bool { return t.vocab.eog[token] }

// EOG lists the tokens that end a generation, ascending.
func (t *Tokenizer) EOG() []Token {
	tokens := make([]Token, 0, len(t.vocab.eog))
	for token := range t.vocab.eog {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	return tokens
}

// IsSpecial reports whether token is a control token, one that has no text in an answer.
func (t *Tokenizer) IsSpecial(token Token) bool {
	return t.valid(token) && t.vocab.isControl(token)
}

// Spelling returns the token as the vocabulary spells it ("<|im_end|>", "Ġthe", "<0x0A>"), or "" if there is no such
// token. It is for templates and diagnostics; Piece gives what a token adds to a text.
func (t *Tokenizer) Spelling(token Token) string {
	if !t.valid(token) {
		return ""
	}
	return t.vocab.texts[token]
}

// SpecialSpellings lists the spellings that a Special segment turns into tokens, longest first.
func (t *Tokenizer) SpecialSpellings() []string { return slices.Clone(t.vocab.specials.spellings) }

func (t *Tokenizer) valid(token Token) bool {
	return token >= 0 && int(token) < len(t.vocab.texts)
}
