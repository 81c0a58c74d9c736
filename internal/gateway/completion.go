package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// serveCompletion answers POST /v1/completions.
func (g *Gateway) serveCompletion(w http.ResponseWriter, r *http.Request) {
	var c *call
	if g.prepare(w, r, func(ctx context.Context, t *tenant.Tenant, body []byte) (err error) {
		c, err = g.completionCall(ctx, t, body)
		return err
	}) {
		c.answer(w, r, &completionForm{c})
	}
}

func (g *Gateway) completionCall(ctx context.Context, t *tenant.Tenant, body []byte) (*call, error) {
	request, err := openai.ParseCompletion(body)
	if err != nil {
		return nil, err
	}
	if err := g.accept(&request.Options); err != nil {
		return nil, err
	}
	prompts, err := g.prompts(ctx, request.Prompts)
	if err != nil {
		return nil, err
	}
	return g.newCall("cmpl", paramPrompt, t, request.Options, prompts), nil
}

func (g *Gateway) prompts(ctx context.Context, prompts []openai.Prompt) (all [][]int32, err error) {
	count, err := g.counter()
	if err != nil {
		return nil, err
	}
	for i, p := range prompts {
		ids := p.Tokens
		if ids == nil {
			if ids, err = count.prompt(ctx, p.Text); err != nil {
				return nil, err
			}
		}
		for _, id := range ids {
			if int(id) >= g.parts.Text.Vocabulary() {
				return nil, &about{paramPrompt, fault.New(fault.Invalid, "prompt %d has a token id over %d, the last of the model", i, g.parts.Text.Vocabulary()-1)}
			}
		}
		all = append(all, ids)
	}
	return all, nil
}

// completionForm is the form of text completions.
type completionForm struct {
	call *call
}

func (f *completionForm) chunk(choices ...openai.CompletionChoice) openai.Completion {
	return openai.Completion{ID: f.call.name, Object: "text_completion", Created: f.call.admitted.Unix(),
		Model: f.call.gateway.config.Model, Choices: choices, Usage: openai.StreamUsage{Asked: f.call.options.IncludeUsage}}
}

func (f *completionForm) begin() []any { return nil }

func (f *completionForm) event(d delta) (events []any) {
	if d.piece.text != "" || len(d.piece.tokens) > 0 {
		events = append(events, f.chunk(openai.CompletionChoice{Text: d.piece.text, Index: d.choice, Logprobs: f.logprobs(d.piece.tokens)}))
	}
	if d.finish != "" {
		events = append(events, f.chunk(openai.CompletionChoice{Index: d.choice, FinishReason: &d.finish}))
	}
	return events
}

func (f *completionForm) usage(u *openai.Usage) any {
	chunk := f.chunk()
	chunk.Choices = []openai.CompletionChoice{}
	chunk.Usage.Usage = u
	return chunk
}

func (f *completionForm) whole(deltas []delta, u *openai.Usage) any {
	answer := f.chunk(make([]openai.CompletionChoice, len(f.call.choices))...)
	answer.Usage = openai.StreamUsage{Asked: true, Usage: u}
	texts := make([]strings.Builder, len(f.call.choices))
	tokens := make([][]tokenText, len(f.call.choices))
	for _, d := range deltas {
		texts[d.choice].WriteString(d.piece.text)
		tokens[d.choice] = append(tokens[d.choice], d.piece.tokens...)
		if d.finish != "" {
			answer.Choices[d.choice].FinishReason = &d.finish
		}
	}
	for i := range answer.Choices {
		choice := &answer.Choices[i]
		choice.Index, choice.Text, choice.Logprobs = i, texts[i].String(), f.logprobs(tokens[i])
	}
	return answer
}

// logprobs is nil when the client didn't ask.
func (f *completionForm) logprobs(tokens []tokenText) *openai.CompletionLogprobs {
	if f.call.options.Sampling.Logprobs == cluster.NoLogprobs {
		return nil
	}
	l := &openai.CompletionLogprobs{Tokens: []string{}, TokenLogprobs: []float32{}, TopLogprobs: []map[string]float32{}, TextOffset: []int{}}
	for _, t := range tokens {
		l.Tokens = append(l.Tokens, spelling(t.bytes))
		l.TokenLogprobs = append(l.TokenLogprobs, sayable(t.logprob.Logprob))
		l.TextOffset = append(l.TextOffset, t.charOffset)
		top := map[string]float32{}
		for _, alternative := range t.logprob.Top {
			name := spelling(f.call.gateway.parts.Text.Piece(alternative.Token))
			// Of two tokens with one spelling the likelier, which comes first, stands.
			if _, taken := top[name]; !taken {
				top[name] = sayable(alternative.Logprob)
			}
		}
		l.TopLogprobs = append(l.TopLogprobs, top)
	}
	return l
}

// spelling is a token's text; bytes that are no text are written out as OpenAI
// does it, because this form has no other place for them.
func spelling(bytes []byte) string {
	if utf8.Valid(bytes) {
		return string(bytes)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, v := range bytes {
		fmt.Fprintf(&b, `\x%02x`, v)
	}
	return b.String()
}
