package gateway

import (
	"context"
	"math"
	"net/http"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// serveChat answers POST /v1/chat/completions.
func (g *Gateway) serveChat(w http.ResponseWriter, r *http.Request) {
	var c *call
	if g.prepare(w, r, func(ctx context.Context, t *tenant.Tenant, body []byte) (err error) {
		c, err = g.chatCall(ctx, t, body)
		return err
	}) {
		c.answer(w, r, &chatForm{c})
	}
}

func (g *Gateway) chatCall(ctx context.Context, t *tenant.Tenant, body []byte) (*call, error) {
	request, err := openai.ParseChat(body)
	if err != nil {
		return nil, err
	}
	if err := g.accept(&request.Options); err != nil {
		return nil, err
	}
	count, err := g.counter()
	if err != nil {
		return nil, err
	}
	prompt, err := count.chat(ctx, request.Messages)
	if err != nil {
		return nil, err
	}
	return g.newCall("chatcmpl", paramMessages, t, request.Options, [][]int32{prompt}), nil
}

// accept counts the dropped fields, and refuses an unknown model and what
// names tokens that the model doesn't have.
func (g *Gateway) accept(o *openai.Options) error {
	for _, field := range o.Dropped {
		g.parts.Metrics.Add(metrics.DroppedFields, 1, field)
	}
	if err := g.knowsModel(o.Model); err != nil {
		return err
	}
	for id := range o.Sampling.LogitBias {
		if int(id) >= g.parts.Text.Vocabulary() {
			return &about{"logit_bias", fault.New(fault.Invalid, "logit_bias names a token id over %d, the last of the model", g.parts.Text.Vocabulary()-1)}
		}
	}
	return nil
}

func (g *Gateway) knowsModel(name string) error {
	if name != g.config.Model {
		return fault.New(fault.NotFound, "no model %.64q; known: %s", name, g.config.Model)
	}
	return nil
}

func (g *Gateway) newCall(route, param string, t *tenant.Tenant, o openai.Options, prompts [][]int32) *call {
	bytesMax := math.MaxInt // an answer that is delivered whole has its bytes from a budget
	if o.Stream {
		bytesMax = g.config.OutboxBytesMax
	}
	return &call{gateway: g, route: route, param: param, tenant: t, options: o, prompts: prompts, out: newOutbox(bytesMax)}
}

// chatForm is the form of chat completions.
type chatForm struct{ call *call }

func (f *chatForm) chunk(choices ...openai.ChunkChoice) openai.ChatChunk {
	return openai.ChatChunk{ID: f.call.name, Object: "chat.completion.chunk", Created: f.call.admitted.Unix(),
		Model: f.call.gateway.config.Model, Choices: choices, Usage: openai.StreamUsage{Asked: f.call.options.IncludeUsage}}
}

// begin gives each choice its role, once.
func (f *chatForm) begin() (events []any) {
	for i := range f.call.choices {
		empty := ""
		events = append(events, f.chunk(openai.ChunkChoice{Index: i, Delta: openai.Delta{Role: "assistant", Content: &empty}}))
	}
	return events
}

func (f *chatForm) event(d delta) (events []any) {
	if d.piece.text != "" || len(d.piece.tokens) > 0 {
		events = append(events, f.chunk(openai.ChunkChoice{Index: d.choice, Delta: openai.Delta{Content: &d.piece.text}, Logprobs: f.logprobs(d.piece.tokens)}))
	}
	if d.finish != "" {
		events = append(events, f.chunk(openai.ChunkChoice{Index: d.choice, FinishReason: &d.finish}))
	}
	return events
}

func (f *chatForm) usage(u *openai.Usage) any {
	chunk := f.chunk()
	chunk.Choices = []openai.ChunkChoice{}
	chunk.Usage.Usage = u
	return chunk
}

func (f *chatForm) whole(deltas []delta, u *openai.Usage) any {
	texts := make([]strings.Builder, len(f.call.choices))
	answer := openai.ChatCompletion{ID: f.call.name, Object: "chat.completion", Created: f.call.admitted.Unix(),
		Model: f.call.gateway.config.Model, Choices: make([]openai.ChatChoice, len(f.call.choices)), Usage: u}
	for i := range answer.Choices {
		answer.Choices[i] = openai.ChatChoice{Index: i, Message: openai.ChatMessage{Role: "assistant"}, Logprobs: f.logprobs(nil)}
	}
	for _, d := range deltas {
		choice := &answer.Choices[d.choice]
		texts[d.choice].WriteString(d.piece.text)
		if l := f.logprobs(d.piece.tokens); l != nil {
			choice.Logprobs.Content = append(choice.Logprobs.Content, l.Content...)
		}
		if d.finish != "" {
			choice.FinishReason = d.finish
		}
	}
	for i := range answer.Choices {
		answer.Choices[i].Message.Content = texts[i].String()
	}
	return answer
}

// logprobs is nil when the client didn't ask.
func (f *chatForm) logprobs(tokens []tokenText) *openai.ChatLogprobs {
	if f.call.options.Sampling.Logprobs == cluster.NoLogprobs {
		return nil
	}
	l := &openai.ChatLogprobs{Content: make([]openai.TokenLogprob, 0, len(tokens))}
	for _, t := range tokens {
		top := make([]openai.TopLogprob, 0, len(t.logprob.Top))
		for _, alternative := range t.logprob.Top {
			bytes := f.call.gateway.parts.Text.Piece(alternative.Token)
			top = append(top, openai.TopLogprob{Token: printable(bytes), Logprob: sayable(alternative.Logprob), Bytes: bytes})
		}
		l.Content = append(l.Content, openai.TokenLogprob{Token: printable(t.bytes), Logprob: sayable(t.logprob.Logprob), Bytes: t.bytes, Top: top})
	}
	return l
}

// logprobMin stands for the logarithm of zero, which JSON has no number for.
const logprobMin = -9999

func sayable(logprob float32) float32 { return max(logprob, logprobMin) }

// printable is a token's bytes as valid UTF-8; its exact bytes stand beside it.
func printable(bytes []byte) string { return strings.ToValidUTF8(string(bytes), "\uFFFD") }
