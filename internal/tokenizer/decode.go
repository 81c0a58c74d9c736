package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Piece returns the bytes that token adds to a text: nothing for control tokens and for ids that the vocabulary lacks.
// They need not be whole runes. The caller must not change them.
func (t *Tokenizer) Piece(token Token) []byte {
	if !t.valid(token) {
		return nil
	}
	return t.vocab.pieces[token]
}

// Decode returns the text of tokens from its start. Control tokens have no text; bytes that are not part of valid
// UTF-8 become U+FFFD, one each. Decode(Encode(text)) == text if text is valid UTF-8, the vocabulary has every byte and
// the text holds no spelling that a vocabulary strips whitespace after.
func (t *Tokenizer) Decode(tokens []Token) string {
	d := t.NewDecoder()
	var b strings.Builder
	for _, token := range tokens {
		b.WriteString(d.Next(token))
	}
	b.WriteString(d.Flush())
	return b.String()
}

// Decoder turns tokens into text as they come. What Next and Flush return, one after another, is valid UTF-8 and, for
// a decoder from NewDecoder, what Decode returns for all the tokens at once.
type Decoder struct {
	tokenizer *Tokenizer
	held      []byte // the beginning of a rune, at most utf8.UTFMax-1 bytes
	trim      bool   // the first piece's leading space is the encoder's, not the text's
}

// NewDecoder returns a decoder of a text from its start. If the encoder puts a space before a text, the decoder
// takes it away.
func (t *Tokenizer) NewDecoder() *Decoder {
	return &Decoder{tokenizer: t, trim: t.prefixed}
}

// NewContinuation returns a decoder of tokens that go on with a text, as a completion's do. It keeps a leading space.
func (t *Tokenizer) NewContinuation() *Decoder {
	return &Decoder{tokenizer: t}
}

// Next takes the next token and returns the text that is certain now. A rune whose bytes are spread over several tokens
// comes out whole, with the last of them.
func (d *Decoder) Next(token Token) string {
	piece := d.tokenizer.Piece(token)
	if len(piece) == 0 {
		return ""
	}
	if d.trim {
		d.trim = false
		if piece[0] == ' ' {
			piece = piece[1:]
		}
	}
	if len(d.held) == 0 && utf8.Valid(piece) {
		return string(piece)
	}
	d.held = append(d.held, piece...)
	var b strings.Builder
	for len(d.held) > 0 && utf8.FullRune(d.held) {
		r, size := utf8.DecodeRune(d.held)
		b.WriteRune(r)
		d.held = d.held[size:]
	}
	d.held = append([]byte(nil), d.held...)
	return b.String()
}

// Flush returns what is left at the end: U+FFFD for each byte of a rune that was never completed.
func (d *Decoder) Flush() string {
	text := strings.Repeat("\uFFFD", len(d.held))
	d.held = nil
	return text
}

// Held returns the number of bytes that wait for the rest of their rune, 0 to 3.
func (d *Decoder) Held() int { return len(d.held) }

// Clone returns a decoder in the same state.
func (d *Decoder) Clone() *Decoder {
	c := *d
	c.held = append([]byte(nil), d.held...)
	return &c
}
