package tokenizer

import (
	"context"
	"fmt"
	"math"
	"unicode/utf8"
)

// TooLongError is a prompt that has more than Over tokens. How many more nobody counted.
type TooLongError struct{ Over int }

func (e *TooLongError) Error() string { return fmt.Sprintf("more than %d tokens", e.Over) }

// EncodePromptWithin is EncodePrompt for a prompt of at most tokensMax tokens. It gives up with a *TooLongError as soon as
// it is certain that there are more, and with the cause of ctx when that ends.
func (t *Tokenizer) EncodePromptWithin(ctx context.Context, segments []Segment, tokensMax int) ([]Token, error) {
	if least := t.tokensLeast(segments); least > tokensMax {
		return nil, &TooLongError{least - 1}
	}
	b := &bound{done: ctx.Done(), tokensMax: tokensMax}
	tokens := t.encodePrompt(segments, b)
	switch {
	case b.why == stopLong || len(tokens) > tokensMax:
		return nil, &TooLongError{tokensMax}
	case b.why == stopDone:
		return nil, context.Cause(ctx)
	}
	return tokens, nil
}

// tokensLeast is a number of tokens that the segments have at least, for no token stands for more than bytesMax bytes. It
// takes one look at each byte. Bytes that may vanish don't count: those that the vocabulary has no token for, and
// whitespace where it is stripped.
func (t *Tokenizer) tokensLeast(segments []Segment) int {
	size := 0
	for _, s := range segments {
		valid := utf8.ValidString(s.Text)
		for i := range len(s.Text) {
			// Of what is not valid UTF-8 the bytes become others, but for ASCII.
			if c := s.Text[i]; t.keeps[c] && (valid || c < utf8.RuneSelf) {
				size++
			}
		}
	}
	return (size + t.vocab.bytesMax - 1) / t.vocab.bytesMax
}

// noteKept finds out which bytes of a text are in some token whatever stands beside them.
func (t *Tokenizer) noteKept() {
	for c := range t.keeps {
		stripped := t.vocab.strips && skipSpace(string([]byte{byte(c)}), 0) > 0
		t.keeps[c] = t.encoder.keeps(byte(c)) && !stripped
	}
}

// bound watches one encoding. Its methods are cheap enough for inner loops.
type bound struct {
	done      <-chan struct{}
	tokensMax int
	steps     uint
	why       stop
}

// stop is why an encoding gave up.
type stop uint8

const (
	stopNot stop = iota
	stopLong
	stopDone
)

// boundless never ends an encoding.
func boundless() *bound { return &bound{tokensMax: math.MaxInt} }

// stepsBetween is the number of steps, each well under a microsecond, between two looks at done.
const stepsBetween = 1 << 12

// step says whether to go on, with so many tokens made.
func (b *bound) step(tokens int) bool {
	if tokens > b.tokensMax && b.why == stopNot {
		b.why = stopLong
	}
	if b.steps++; b.steps%stepsBetween == 0 && b.why == stopNot {
		select {
		case <-b.done:
			b.why = stopDone
		default:
		}
	}
	return b.why == stopNot
}
