package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// tokenKind is a token's type, as tokenizer.ggml.token_type numbers it.
type tokenKind uint8

const (
	kindNormal      tokenKind = 1
	kindUnknown     tokenKind = 2
	kindControl     tokenKind = 3
	kindUserDefined tokenKind = 4
	kindUnused      tokenKind = 5
	kindByte        tokenKind = 6
)

// family is how a vocabulary spells bytes.
type family uint8

const (
	byteLevel     family = iota // each byte is a printable rune, see byteRunes
	sentencePiece               // spaces are U+2581, lone bytes are <0xNN>
)

// tokensMax bounds a vocabulary. Real ones stay below 300,000.
const tokensMax = 1 << 22

// vocab is the list of tokens. Immutable.
type vocab struct {
	texts    []string // by token, as spelled in the file
	kinds    []tokenKind
	pieces   [][]byte // by token, the bytes it adds to a text; nil for control tokens
	bos, eos Token
	eog      map[Token]bool
	specials *specials
	bytesMax int  // the most bytes of text that one token stands for, at least 1
	strips   bool // whitespace after most special tokens is dropped, as Phi-3 wants it
}

func readVocab(meta Metadata, f family) (*vocab, error) {
	texts, ok := meta.Strings("tokenizer.ggml.tokens")
	if !ok || len(texts) == 0 {
		return nil, errors.New("read tokenizer: key tokenizer.ggml.tokens is missing or empty")
	}
	if len(texts) > tokensMax {
		return nil, fmt.Errorf("read tokenizer: %d tokens, the limit is %d", len(texts), tokensMax)
	}
	v := &vocab{texts: texts, kinds: make([]tokenKind, len(texts))}
	if err := v.readKinds(meta); err != nil {
		return nil, err
	}
	v.readEnds(meta, f)
	v.fillPieces(f)
	name, _ := meta.String("general.name")
	name = strings.ToLower(name)
	v.strips = strings.Contains(name, "phi-3") || strings.Contains(name, "phi3")
	v.specials = newSpecials(v)
	return v, nil
}

func (v *vocab) readKinds(meta Metadata) error {
	for i := range v.kinds {
		v.kinds[i] = kindNormal
	}
	kinds, ok := meta.Ints("tokenizer.ggml.token_type")
	if !ok {
		return nil
	}
	if len(kinds) < len(v.texts) {
		return fmt.Errorf("read tokenizer: %d token types for %d tokens", len(kinds), len(v.texts))
	}
	for i := range v.kinds {
		if kinds[i] >= int64(kindNormal) && kinds[i] <= int64(kindByte) {
			v.kinds[i] = tokenKind(kinds[i])
		} else {
			v.kinds[i] = kindUnused
		}
	}
	return nil
}

// endSpellings are tokens that end a generation in some model family, whatever the file's key for it says.
var endSpellings = map[string]bool{
	"<|eot_id|>": true, "<|im_end|>": true, "<|end|>": true, "<|return|>": true, "<|call|>": true, "<|flush|>": true,
	"<|calls|>": true, "<end_of_turn>": true, "<|endoftext|>": true, "</s>": true, "<|eom_id|>": true, "<EOT>": true,
	"_<EOT>": true, "[EOT]": true, "[EOS]": true, "<|end_of_text|>": true, "<end_of_utterance>": true, "<eos>": true,
	"<turn|>": true, "<|tool_response>": true, "<｜end▁of▁sentence｜>": true, "[e~[": true,
	// A model that goes on to the next file or repository has finished with this one.
	"<|fim_pad|>": true, "<fim-pad>": true, "<fim_pad>": true, "<PAD>": true, "[PAD]": true, "<|fim_repo|>": true,
	"<|repo_name|>": true, "<fim-repo>": true, "<REPO>": true, "<reponame>": true, "<|file_sep|>": true,
}

// readEnds finds the tokens that begin and end a sequence.
func (v *vocab) readEnds(meta Metadata, f family) {
	id := func(key string, fallback Token) Token {
		if value, ok := meta.Uint(key); ok && value < uint64(len(v.texts)) {
			return Token(value)
		}
		if int(fallback) >= len(v.texts) {
			return None
		}
		return fallback
	}
	fallbackBOS, fallbackEOS := None, None
	if f == sentencePiece {
		fallbackBOS, fallbackEOS = 1, 2
	}
	v.bos = id("tokenizer.ggml.bos_token_id", fallbackBOS)
	v.eos = id("tokenizer.ggml.eos_token_id", fallbackEOS)
	v.eog = map[Token]bool{}
	for _, token := range []Token{v.eos, id("tokenizer.ggml.eot_token_id", None), id("tokenizer.ggml.eom_token_id", None)} {
		if token != None {
			v.eog[token] = true
		}
	}
	ends := map[string]Token{}
	for i, text := range v.texts {
		if endSpellings[text] {
			v.eog[Token(i)] = true
			ends[text] = Token(i)
		}
	}
	for token := range v.eog {
		v.kinds[token] = kindControl
	}
	v.exemptEnds(ends)
}

// exemptEnds takes back two spellings that only look like an end where certain others exist: <|end|> between the messages
// of one answer, and </s> as markup.
func (v *vocab) exemptEnds(ends map[string]Token) {
	has := func(texts ...string) bool {
		for _, text := range texts {
			if _, ok := ends[text]; !ok {
				return false
			}
		}
		return true
	}
	if has("<|end|>", "<|return|>", "<|call|>") || has("<|end|>", "<|calls|>", "<|flush|>") {
		delete(v.eog, ends["<|end|>"])
	}
	if has("</s>", "<|tool_response>") {
		delete(v.eog, ends["</s>"])
		v.kinds[ends["</s>"]] = kindNormal
	}
}

func (v *vocab) fillPieces(f family) {
	v.pieces = make([][]byte, len(v.texts))
	v.bytesMax = 1
	for i, text := range v.texts {
		v.pieces[i] = pieceOf(text, v.kinds[i], f)
		// A special token stands for its spelling, and U+2581 in a text for a space.
		v.bytesMax = max(v.bytesMax, len(text), len(v.pieces[i]))
	}
}

// pieceOf returns the bytes that a token adds to a text.
func pieceOf(text string, kind tokenKind, f family) []byte {
	switch kind {
	case kindUserDefined:
		return []byte(text)
	case kindByte:
		if b, ok := byteToken(text); ok {
			return []byte{b}
		}
		return nil
	case kindNormal, kindUnused:
		if f == sentencePiece {
			return []byte(strings.ReplaceAll(text, "\u2581", " "))
		}
		if raw, ok := rawBytes(text); ok {
			return raw
		}
		return []byte(text)
	case kindControl, kindUnknown:
	}
	return nil
}

// byteToken reads the spelling of a lone byte, <0x00> to <0xFF>.
func byteToken(text string) (byte, bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(text[3:5], 16, 8)
	return byte(b), err == nil
}

func (v *vocab) isControl(token Token) bool {
	return v.kinds[token] == kindControl || v.kinds[token] == kindUnknown
}

// stripsAfter reports whether whitespace that follows the special token is dropped.
func (v *vocab) stripsAfter(token Token) bool {
	if !v.strips {
		return false
	}
	switch v.texts[token] {
	case "<unk>", "<s>", "<|endoftext|>":
		return false
	}
	return true
}
