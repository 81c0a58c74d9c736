package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/chat"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/gguf"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tokenizer"
)

// text is a model's tokenizer and chat template as the gateway uses them. Nothing
// of one call is kept for another.
type text struct {
	*tokenizer.Tokenizer
	template *chat.Template
}

func newText(f *gguf.File) (*text, error) {
	tok, err := tokenizer.New(f.Metadata)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	source, ok := f.Metadata.String("tokenizer.chat_template")
	if !ok {
		source = chat.Default
	}
	template, err := chat.New(source, tok.SpecialSpellings()...)
	if err != nil {
		return nil, err
	}
	return &text{tok, template}, nil
}

// Chat renders and tokenizes a conversation for the assistant's turn.
func (t *text) Chat(ctx context.Context, messages []openai.Message, tokensMax int) ([]int32, error) {
	turns := make([]chat.Message, len(messages))
	for i, m := range messages {
		turns[i] = chat.Message{Role: m.Role, Content: m.Content, Name: m.Name, ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			turns[i].ToolCalls = append(turns[i].ToolCalls, chat.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
	}
	prompt, err := t.template.Render(turns, chat.Options{AddGenerationPrompt: true, BOS: t.Spelling(t.BOS()), EOS: t.Spelling(t.EOS()), Now: time.Now(), Done: ctx.Done()})
	if errors.Is(err, chat.ErrStopped) {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, templateFault(err)
	}
	return t.encode(ctx, prompt.Segments, tokensMax)
}

// templateFault keeps a template's refusal of the messages apart from its failure.
func templateFault(err error) error {
	var raised *chat.RaisedError
	var input *chat.InputError
	if errors.As(err, &raised) || errors.As(err, &input) || errors.Is(err, chat.ErrBudget) {
		return fault.New(fault.Invalid, "messages: %w", err)
	}
	return fmt.Errorf("chat template: %w", err)
}

// Prompt tokenizes a text that the model shall continue.
func (t *text) Prompt(ctx context.Context, s string, tokensMax int) ([]int32, error) {
	return t.encode(ctx, []tokenizer.Segment{{Text: s}}, tokensMax)
}

func (t *text) encode(ctx context.Context, segments []tokenizer.Segment, tokensMax int) ([]int32, error) {
	ids, err := t.EncodePromptWithin(ctx, segments, tokensMax)
	var long *tokenizer.TooLongError
	if errors.As(err, &long) {
		return nil, &gateway.TooLong{Over: long.Over}
	}
	return ids, err
}

// Vocabulary is the number of token ids.
func (t *text) Vocabulary() int { return t.Count() }

// Stops are the ids that end an answer.
func (t *text) Stops() []int32 { return t.EOG() }
