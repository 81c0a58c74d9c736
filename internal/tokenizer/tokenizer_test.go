package tokenizer_test

import (
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/tokenizer"
)

// metadata is a model file's in memory.
type metadata map[string]any

func get[T any](m metadata, key string) (T, bool) {
	v, ok := m[key].(T)
	return v, ok
}

func (m metadata) String(key string) (string, bool)    { return get[string](m, key) }
func (m metadata) Strings(key string) ([]string, bool) { return get[[]string](m, key) }
func (m metadata) Uint(key string) (uint64, bool)      { return get[uint64](m, key) }
func (m metadata) Bool(key string) (bool, bool)        { return get[bool](m, key) }
func (m metadata) Ints(key string) ([]int64, bool)     { return get[[]int64](m, key) }
func (m metadata) Floats(key string) ([]float32, bool) { return get[[]float32](m, key) }

// The kinds of tokens, as GGUF numbers them.
const (
	normal      = 1
	unknown     = 2
	control     = 3
	userDefined = 4
	byteKind    = 6
)

// word is a token of a test vocabulary.
type word struct {
	text string
	kind int64
}

// byteLevel returns a byte-level vocabulary: the 256 bytes, then the words. merges are pairs such as "t h".
func byteLevel(pre string, words []word, merges ...string) metadata {
	var texts []string
	var kinds []int64
	next := rune(256)
	for b := range rune(256) {
		r := b
		if !(b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE) {
			r, next = next, next+1
		}
		texts, kinds = append(texts, string(r)), append(kinds, normal)
	}
	for _, w := range words {
		texts, kinds = append(texts, w.text), append(kinds, w.kind)
	}
	return metadata{
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": texts,
		"tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges,
	}
}

// chatWords are 256 <|im_start|>, 257 <|im_end|>, 258 <think>, 259 "  ", 260 th, 261 the, 262 Ġthe, 263 <b>.
var chatWords = []word{
	{"<|im_start|>", control}, {"<|im_end|>", control}, {"<think>", userDefined}, {"  ", userDefined},
	{"th", normal}, {"the", normal}, {"Ġthe", normal}, {"<b>", userDefined},
}

func chatVocabulary() metadata {
	m := byteLevel("smollm", chatWords, "t h", "th e", "Ġ the")
	m["tokenizer.ggml.bos_token_id"] = uint64(256)
	m["tokenizer.ggml.eos_token_id"] = uint64(257)
	return m
}

// sentencePiece returns a vocabulary with byte fallback: <unk>, <s>, </s>, the 256 bytes, then words scored by position.
func sentencePiece(words ...string) metadata {
	texts := []string{"<unk>", "<s>", "</s>"}
	kinds := []int64{unknown, control, control}
	for b := range 256 {
		texts, kinds = append(texts, "<0x"+strings.ToUpper(string("0123456789abcdef"[b>>4])+string("0123456789abcdef"[b&15]))+">"), append(kinds, byteKind)
	}
	for _, w := range words {
		texts, kinds = append(texts, w), append(kinds, normal)
	}
	scores := make([]float32, len(texts))
	for i := range scores {
		scores[i] = -float32(i)
	}
	return metadata{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.scores": scores,
		"tokenizer.ggml.unknown_token_id": uint64(0),
	}
}

func build(t interface {
	Helper()
	Fatalf(string, ...any)
}, m metadata) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.New(m)
	if err != nil {
		t.Fatalf("tokenizer of a test vocabulary: %v", err)
	}
	return tok
}

func spell(tok *tokenizer.Tokenizer, tokens []tokenizer.Token) []string {
	spellings := []string{}
	for _, token := range tokens {
		spellings = append(spellings, tok.Spelling(token))
	}
	return spellings
}

func TestEncodeSegments(t *testing.T) {
	template := func(text string) tokenizer.Segment { return tokenizer.Segment{Text: text, Special: true} }
	user := func(text string) tokenizer.Segment { return tokenizer.Segment{Text: text} }
	for _, c := range []struct {
		name     string
		segments []tokenizer.Segment
		want     []string
	}{
		{"nothing", nil, []string{}},
		{"special in the template", []tokenizer.Segment{template("<|im_start|>the<|im_end|>")}, []string{"<|im_start|>", "the", "<|im_end|>"}},
		{"special in user text is text", []tokenizer.Segment{user("<|im_end|>")}, strings.Split("<|im_end|>", "")},
		{"both", []tokenizer.Segment{template("<|im_start|>"), user("<|im_end|>"), template("<|im_end|>")}, append(append([]string{"<|im_start|>"}, strings.Split("<|im_end|>", "")...), "<|im_end|>")},
		{"a spelling across segments is text", []tokenizer.Segment{template("<|im_"), user("end|>")}, strings.Split("<|im_end|>", "")},
		{"a spelling across template segments is text", []tokenizer.Segment{template("<|im_"), template("end|>")}, strings.Split("<|im_end|>", "")},
		{"words go across segments", []tokenizer.Segment{template(" t"), user("he")}, []string{"Ġthe"}},
		{"markup in user text is text", []tokenizer.Segment{user("<think>")}, []string{"<", "th", "i", "n", "k", ">"}},
		{"markup in the template is a token", []tokenizer.Segment{template("<think>")}, []string{"<think>"}},
		{"plain user-defined tokens count everywhere", []tokenizer.Segment{user("<b>  the")}, []string{"<b>", "  ", "the"}},
		{"an unfinished spelling", []tokenizer.Segment{template("<|im_<|im_end|>")}, append(strings.Split("<|im_", ""), "<|im_end|>")},
		{"bytes that are no UTF-8", []tokenizer.Segment{user("\xff\xc3")}, []string{"ï", "¿", "½", "ï", "¿", "½"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok := build(t, chatVocabulary())
			if diff := cmp.Diff(c.want, spell(tok, tok.EncodeSegments(c.segments))); diff != "" {
				t.Errorf("tokens differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoTextBecomesASpecialToken(t *testing.T) {
	for name, m := range map[string]metadata{
		"byte level": chatVocabulary(),
		// The merges of these two would lead from text to the control tokens, if they were let.
		"merges to control":  byteLevel("gpt-2", []word{{"<|", normal}, {"<|x", control}}, "< |", "<| x"),
		"unions to control":  sentencePiece("▁", "<", "/", "s", ">", "</", "s>", "▁<"),
		"whole-word control": byteLevel("llama-bpe", []word{{"Ġsecret", control}, {"secret", control}}),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "whole-word control" {
				m["tokenizer.ggml.bos_token_id"] = uint64(256)
			}
			tok := build(t, m)
			rapid.Check(t, func(t *rapid.T) {
				parts := append(tok.SpecialSpellings(), "<|", "|>", "</s", "s>", " ", "a", "<0x41>", "<0x0A>", "secret")
				text := strings.Join(rapid.SliceOf(rapid.SampledFrom(parts)).Draw(t, "text"), "")
				for _, token := range tok.Encode(text) {
					if tok.IsSpecial(token) {
						t.Fatalf("text %q became the control token %q", text, tok.Spelling(token))
					}
				}
			})
		})
	}
}

func TestBOSAndEOS(t *testing.T) {
	with := func(extra metadata) metadata {
		m := chatVocabulary()
		maps.Copy(m, extra)
		return m
	}
	for _, c := range []struct {
		name string
		m    metadata
		text string
		want []string
	}{
		{"the file says nothing", chatVocabulary(), "the", []string{"the"}},
		{"add_bos", with(metadata{"tokenizer.ggml.add_bos_token": true}), "the", []string{"<|im_start|>", "the"}},
		{"add_bos, the template has it", with(metadata{"tokenizer.ggml.add_bos_token": true}), "<|im_start|>the", []string{"<|im_start|>", "the"}},
		{"add_eos", with(metadata{"tokenizer.ggml.add_eos_token": true}), "the", []string{"the", "<|im_end|>"}},
		{"SentencePiece adds BOS by default", sentencePiece("▁", "a", "▁a"), "a", []string{"<s>", "▁a"}},
		{"and a space after special tokens", sentencePiece("▁", "a", "▁a"), "a</s>a", []string{"<s>", "▁a", "</s>", "▁a"}},
		{"and bytes where there is no token", sentencePiece("▁", "a", "▁a"), "é", []string{"<s>", "▁", "<0xC3>", "<0xA9>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok := build(t, c.m)
			got := spell(tok, tok.EncodePrompt([]tokenizer.Segment{{Text: c.text, Special: true}}))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("tokens of %q differ (-want +got):\n%s", c.text, diff)
			}
		})
	}
}

func TestEndsOfGeneration(t *testing.T) {
	harmony := byteLevel("gpt-2", []word{{"<|end|>", control}, {"<|return|>", control}, {"<|call|>", control}})
	if diff := cmp.Diff([]tokenizer.Token{257, 258}, build(t, harmony).EOG()); diff != "" {
		t.Errorf("<|end|> only separates messages where <|return|> and <|call|> exist (-want +got):\n%s", diff)
	}
	m := byteLevel("gpt-2", []word{{"<|im_end|>", normal}, {"stop", normal}})
	m["tokenizer.ggml.eos_token_id"] = uint64(257)
	tok := build(t, m)
	if diff := cmp.Diff([]tokenizer.Token{256, 257}, tok.EOG()); diff != "" {
		t.Errorf("ends of generation differ (-want +got):\n%s", diff)
	}
	if !tok.IsEOG(256) || tok.IsEOG(0) || !tok.IsSpecial(256) {
		t.Error("<|im_end|> ends a generation and has no text, whatever type the file gives it")
	}
}

func TestNewRefuses(t *testing.T) {
	change := func(key string, value any) metadata {
		m := chatVocabulary()
		m[key] = value
		return m
	}
	for want, m := range map[string]metadata{
		"tokenizer.ggml.model is missing":                       change("tokenizer.ggml.model", nil),
		`model "t5" is not supported (known: gpt2, llama)`:      change("tokenizer.ggml.model", "t5"),
		`pre-tokenizer "nope" is not supported`:                 change("tokenizer.ggml.pre", "nope"),
		"tokenizer.ggml.tokens is missing or empty":             change("tokenizer.ggml.tokens", []string{}),
		"1 token types for 264 tokens":                          change("tokenizer.ggml.token_type", []int64{1}),
		"tokenizer.ggml.merges is missing":                      change("tokenizer.ggml.merges", nil),
		"merge 0 is no pair":                                    change("tokenizer.ggml.merges", []string{"abc"}),
		"merge 1 is no pair":                                    change("tokenizer.ggml.merges", []string{"a b", "a "}),
		"add_bos_token is set, but the file names no valid bos": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a"}, "tokenizer.ggml.merges": []string{}, "tokenizer.ggml.add_bos_token": true},
		"0 scores for 1 tokens":                                 {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": []string{"a"}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := tokenizer.New(m)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want it to say %q", err, want)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	for name, m := range map[string]metadata{
		"byte level":    byteLevel("smollm", chatWords, "t h", "th e", "Ġ the"),
		"llama-bpe":     byteLevelWithBOS("llama-bpe"),
		"qwen2":         byteLevel("qwen2", chatWords, "t h", "th e", "Ġ the"),
		"gpt-4o":        byteLevel("gpt-4o", chatWords, "t h", "th e", "Ġ the"),
		"deepseek-v3":   byteLevel("deepseek-v3", chatWords, "t h", "th e", "Ġ the"),
		"SentencePiece": sentencePiece("▁", "t", "h", "e", "th", "the", "▁the", "▁▁"),
	} {
		t.Run(name, func(t *testing.T) {
			tok := build(t, m)
			rapid.Check(t, func(t *rapid.T) {
				text := rapid.String().Draw(t, "text")
				if name == "SentencePiece" {
					text = strings.ReplaceAll(text, "\u2581", "") // the vocabulary's own sign for a space
				}
				if got := tok.Decode(tok.Encode(text)); got != text {
					t.Fatalf("text %q came back as %q", text, got)
				}
			})
		})
	}
}

func byteLevelWithBOS(pre string) metadata {
	m := byteLevel(pre, chatWords, "t h", "th e", "Ġ the")
	m["tokenizer.ggml.bos_token_id"] = uint64(256)
	return m
}

// Whatever tokens come, the pieces of text that a decoder gives are valid UTF-8 and make up the whole.
func TestDecoderStreamsTheWhole(t *testing.T) {
	for name, m := range map[string]metadata{"byte level": chatVocabulary(), "SentencePiece": sentencePiece("▁", "▁a", "é")} {
		t.Run(name, func(t *testing.T) {
			tok := build(t, m)
			rapid.Check(t, func(t *rapid.T) {
				tokens := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.Count()))).Draw(t, "tokens")
				d := tok.NewDecoder()
				var b strings.Builder
				for _, token := range tokens {
					text := d.Next(token)
					if !utf8.ValidString(text) {
						t.Fatalf("the text %q for token %d is not valid UTF-8", text, token)
					}
					b.WriteString(text)
					if d.Held() >= utf8.UTFMax {
						t.Fatalf("the decoder holds back %d bytes", d.Held())
					}
				}
				b.WriteString(d.Flush())
				if want := tok.Decode(tokens); b.String() != want {
					t.Fatalf("the stream gave %q, the whole is %q", b.String(), want)
				}
				if want := strings.ToValidUTF8(rawPieces(tok, tokens), ""); strings.ReplaceAll(b.String(), "\uFFFD", "") != strings.ReplaceAll(want, "\uFFFD", "") {
					t.Fatalf("the stream gave %q, the pieces are %q", b.String(), want)
				}
			})
		})
	}
}

func rawPieces(tok *tokenizer.Tokenizer, tokens []tokenizer.Token) string {
	var b strings.Builder
	for _, token := range tokens {
		b.Write(tok.Piece(token))
	}
	if _, spaced := strings.CutPrefix(tok.Spelling(3), "<0x"); spaced { // SentencePiece: the first space is the encoder's
		return strings.TrimPrefix(b.String(), " ")
	}
	return b.String()
}

func TestDecoderHoldsRunesBack(t *testing.T) {
	tok := build(t, chatVocabulary())
	d := tok.NewDecoder()
	var got []string
	for _, token := range tok.Encode("é👍") {
		got = append(got, d.Next(token))
	}
	if diff := cmp.Diff([]string{"", "é", "", "", "", "👍"}, got); diff != "" {
		t.Errorf("text by token differs (-want +got):\n%s", diff)
	}
	d.Next(tok.Encode("é")[0])
	c := d.Clone()
	if got := d.Flush(); got != "\uFFFD" {
		t.Errorf("half a rune at the end became %q, want U+FFFD", got)
	}
	if got := c.Next(tok.Encode("é")[1]); got != "é" {
		t.Errorf("the clone gave %q for the second half, want é", got)
	}
}

func TestContinuationKeepsTheSpace(t *testing.T) {
	tok := build(t, sentencePiece("▁", "▁a"))
	start, more := tok.NewDecoder(), tok.NewContinuation()
	if got := start.Next(260) + "|" + more.Next(260); got != "a| a" {
		t.Errorf("start|continuation is %q, want a| a", got)
	}
}

// A rule that is quadratic in any of these takes minutes, not the moment that all of them take.
func TestHostileTextsEnd(t *testing.T) {
	models := map[string]metadata{"SentencePiece": sentencePiece("▁", "a", "aa", "aaaa", "▁▁")}
	for _, pre := range []string{"smollm", "llama-bpe", "qwen35", "gpt-4o", "deepseek-v3", "deepseek-coder", "deepseek-llm", "falcon"} {
		models[pre] = byteLevel(pre, []word{{"aa", normal}, {"aaaa", normal}, {"ĠĠ", normal}}, "a a", "aa aa", "Ġ Ġ")
		models[pre]["tokenizer.ggml.bos_token_id"] = uint64(0)
	}
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			tok := build(t, m)
			for _, part := range []string{"a", " ", "\n", "9", "'", "日A", " \n x", "e\u0301", "<|im_end|", "\x80"} {
				text := strings.Repeat(part, 1<<18/len(part))
				if len(tok.Encode(text)) == 0 {
					t.Errorf("%q repeated became no token", part)
				}
			}
		})
	}
}

func FuzzEncode(f *testing.F) {
	for _, seed := range []string{"", "the the", "<|im_end|>", "é👍 \r\n\t 123", "\xff\xfe", "'s'LL", strings.Repeat("a", 100)} {
		f.Add(seed, true)
	}
	var toks []*tokenizer.Tokenizer
	for _, pre := range tokenizer.PreTokenizers() {
		m := byteLevelWithBOS(pre)
		toks = append(toks, build(f, m))
	}
	toks = append(toks, build(f, sentencePiece("▁", "t", "h", "th", "▁▁")))
	f.Fuzz(func(t *testing.T, text string, special bool) {
		for _, tok := range toks {
			tokens := tok.EncodeSegments([]tokenizer.Segment{{Text: text, Special: special}})
			if len(tokens) > 3*len(text)+3 {
				t.Fatalf("%d bytes became %d tokens", len(text), len(tokens))
			}
			if got := tok.Decode(tokens); !utf8.ValidString(got) {
				t.Fatalf("the text of the tokens is not valid UTF-8: %q", got)
			}
		}
	})
}
