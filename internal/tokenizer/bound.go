package tokenizer

import (
	"context"
	"fmt"
	"math"
)

// TooLongError is a prompt that has more than Over tokens. How many more nobody counted.
type TooLongError struct{ Over int }

func (e *TooLongError) Error() string { return fmt.Sprintf("more than %d tokens", e.Over) }

// EncodePromptWithin is EncodePrompt for a prompt of at most tokensMax tokens. It gives up with a *TooLongError as soon as
// it is certain that there are more, and with the cause of ctx when that ends.
func (t *Tokenizer) EncodePromptWithin(ctx context.Context, segments []Segment, tokensMax int) ([]Token, error) {
	size := 0
	for _, s := range segments {
		size += len(s.Text)
	}
	if least := t.TokensLeast(size); least > tokensMax {
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

// TokensLeast is the smallest number of tokens that any text of so many bytes can have. It is 0 for all sizes where the
// vocabulary lets part of a text vanish: bytes that it has no token for, whitespace that it strips.
func (t *Tokenizer) TokensLeast(bytes int) int {
	if t.vocab.strips || !t.encoder.keepsAll() {
		return 0
	}
	return (bytes + t.vocab.bytesMax - 1) / t.vocab.bytesMax
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
