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
		"byte level":            build(t, chatVocabulary()),
		"byte level with holes": build(t, holed()),
		"stripping":             build(t, stripping()),
		"sentence piece":        build(t, sentencePiece("\u2581", "\u2581\u2581", "a", "aa", "\u2581a", "t", "h", "th")),
	}
}

// Whatever the text and the bound: the tokens are those of the encoding without one,
// or there are more than the error says; and no text has fewer than its size says.
func TestEncodingWithinABound(t *testing.T) {
	for name, tok := range boundVocabularies(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "aaaa", " ", "  ", "q", "the", "\u2581", "\u2581\u2581", "é", "<|im_end|>", "<b>", "\xff", "1"}), 0, 200).Draw(t, "text")
				segments := []tokenizer.Segment{{Text: strings.Join(parts, ""), Special: rapid.Bool().Draw(t, "special")}}
				most := rapid.IntRange(0, 250).Draw(t, "most")
				want := tok.EncodePrompt(segments)
				got, err := tok.EncodePromptWithin(t.Context(), segments, most)
				var long *tokenizer.TooLongError
				switch {
				case len(want) <= most:
					if diff := cmp.Diff(want, got); err != nil || diff != "" {
						t.Fatalf("error %v, tokens differ (-without bound +within):\n%s", err, diff)
					}
				case !errors.As(err, &long) || long.Over < most || long.Over >= len(want) || got != nil: // its least was too much
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

// holed has no token for q; real vocabularies lack bytes that few texts have.
func holed() metadata {
	m := chatVocabulary()
	m["tokenizer.ggml.tokens"].([]string)['q'] = "qqqq"
	return m
}

// stripping drops whitespace behind special tokens.
func stripping() metadata {
	m := chatVocabulary()
	m["general.name"] = "Phi-3"
	return m
}

// Bytes that may vanish don't count, the others beside them do.
func TestSizeCountsWhatStays(t *testing.T) {
	for _, c := range []struct {
		name string
		meta metadata
		unit string
		long bool
	}{
		{"no token for the byte", holed(), "q", false},
		{"a byte beside it", holed(), "a", true},
		{"stripped whitespace", stripping(), " ", false},
		{"text where whitespace is stripped", stripping(), "a", true},
	} {
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := build(t, c.meta).EncodePromptWithin(gone, []tokenizer.Segment{{Text: strings.Repeat(c.unit, 1<<18)}}, 1000)
		var long *tokenizer.TooLongError
		if sized := errors.As(err, &long) && long.Over > 1000; sized != c.long {
			t.Errorf("%s: %v; refused by its size is %v, want %v", c.name, err, sized, c.long)
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
