package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
)

// TooLong is Text's error for a prompt that has more than Over tokens; how many more,
// nobody counted.
type TooLong struct{ Over int }

// Error names the number.
func (t *TooLong) Error() string { return fmt.Sprintf("the prompt has more than %d tokens", t.Over) }

// counter counts prompts against the limit that was served when the request came.
type counter struct {
	text  Text
	limit int // tokens
}

// countFactor is how many times the limit a prompt may have and still be counted to its
// end, so that the refusal says how long it is. Of longer ones it says a lower bound.
const countFactor = 2

func (g *Gateway) counter() (counter, error) {
	limit, err := g.dispatch.limit()
	return counter{g.parts.Text, limit.Tokens}, err
}

func (c counter) chat(ctx context.Context, messages []openai.Message) ([]int32, error) {
	ids, err := c.text.Chat(ctx, messages, countFactor*c.limit)
	return ids, c.err(ctx, paramMessages, err)
}

func (c counter) prompt(ctx context.Context, text string) ([]int32, error) {
	ids, err := c.text.Prompt(ctx, text, countFactor*c.limit)
	return ids, c.err(ctx, paramPrompt, err)
}

func (c counter) err(ctx context.Context, param string, err error) error {
	var long *TooLong
	switch {
	case errors.As(err, &long):
		return &about{param, fault.New(fault.OverContext, "%w, the context limit is %d tokens", long, c.limit)}
	case err != nil && ctx.Err() != nil:
		return errGone
	}
	return err
}
