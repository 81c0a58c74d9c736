package tokenizer_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/tokenizer"
)

// boundVocabularies have tokens of several bytes, of spaces and of markup.
func boundVocabularies(t *testing.T) map[string]*tokenizer.Tokenizer {
	return map[string]*tokenizer.Tokenizer{
		"byte level":     build(t, chatVocabulary()),
		"sentence piece": build(t, sentencePiece("\u2581", "\u2581\u2581", "a", "aa", "\u2581a", "t", "h", "th")),
	}
}

// Whatever the text and the bound: the tokens are those of the encoding without one,
// or there are more than the error says; and no text has fewer than its size says.
func TestEncodingWithinABound(t *testing.T) {
	for name, tok := range boundVocabularies(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "aaaa", " ", "  ", "the", "\u2581", "\u2581\u2581", "é", "<|im_end|>", "<b>", "\xff", "1"}), 0, 200).Draw(t, "text")
				segments := []tokenizer.Segment{{Text: strings.Join(parts, ""), Special: rapid.Bool().Draw(t, "special")}}
				most := rapid.IntRange(0, 250).Draw(t, "most")
				want := tok.EncodePrompt(segments)
				if least := tok.TokensLeast(len(segments[0].Text)); least > len(tok.EncodeSegments(segments)) {
					t.Fatalf("%d bytes are said to have %d tokens at least, they have %d", len(segments[0].Text), least, len(want))
				}
				got, err := tok.EncodePromptWithin(t.Context(), segments, most)
				var long *tokenizer.TooLongError
				switch {
				case len(want) <= most:
					if diff := cmp.Diff(want, got); err != nil || diff != "" {
						t.Fatalf("error %v, tokens differ (-without bound +within):\n%s", err, diff)
					}
				case !errors.As(err, &long) || long.Over < most || long.Over >= len(want) || got != nil:
					t.Fatalf("%d tokens within %d: %d tokens and error %v", len(want), most, len(got), err)
				}
			})
		})
	}
}

// What can't fit is refused by its size, before any work; ctx has ended here, and
// nobody looks at it.
func TestSizeAloneRefuses(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, tok := range boundVocabularies(t) {
		_, err := tok.EncodePromptWithin(gone, []tokenizer.Segment{{Text: strings.Repeat("a", 1<<20)}}, 1000)
		var long *tokenizer.TooLongError
		if !errors.As(err, &long) || long.Over < 10_000 {
			t.Errorf("%s: %v, want an error that says how many tokens there are at least", name, err)
		}
	}
}

// A vocabulary that lets bytes vanish bounds no text by its size.
func TestSizeSaysNothingWhereTextMayVanish(t *testing.T) {
	holed := byteLevel("smollm", nil)
	holed["tokenizer.ggml.tokens"].([]string)['q'] = "qqqq" // no token for the byte
	strips := chatVocabulary()
	strips["general.name"] = "Phi-3"
	for name, m := range map[string]metadata{"a byte without a token": holed, "stripped whitespace": strips} {
		if least := build(t, m).TokensLeast(1 << 20); least != 0 {
			t.Errorf("%s: a text of 1 MiB is said to have %d tokens at least, it may have none", name, least)
		}
	}
}

// An encoding stops in the middle of one endless word when ctx has ended.
func TestEncodingStopsWithItsContext(t *testing.T) {
	gone, leave := context.WithCancelCause(t.Context())
	cause := errors.New("the client is gone")
	leave(cause)
	for name, tok := range boundVocabularies(t) {
		for kind, text := range map[string]string{"one word": strings.Repeat("a", 1<<16), "words": strings.Repeat("a 1 ", 1<<14), "special tokens": strings.Repeat("<|im_end|>", 1<<13)} {
			tokens, err := tok.EncodePromptWithin(gone, []tokenizer.Segment{{Text: text, Special: true}}, math.MaxInt)
			if tokens != nil || !errors.Is(err, cause) {
				t.Errorf("%s, %s: %d tokens and error %v, want the cause", name, kind, len(tokens), err)
			}
		}
	}
}
