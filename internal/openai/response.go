package openai

import "encoding/json"

// Reasons for which a choice ends.
const (
	FinishStop   = "stop"
	FinishLength = "length"
)

// Usage counts tokens. Prompts count once, however many choices they have.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// NewUsage adds the two up.
func NewUsage(prompt, completion int) *Usage { return &Usage{prompt, completion, prompt + completion} }

// ChatCompletion is the answer to a chat request that doesn't stream.
type ChatCompletion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"` // "chat.completion"
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []ChatChoice `json:"choices"`
	Usage   *Usage       `json:"usage"`
}

// ChatChoice is one answer.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      ChatMessage   `json:"message"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
}

// ChatMessage is the assistant's message.
type ChatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// ChatLogprobs holds one entry a token of the answer.
type ChatLogprobs struct {
	Content []TokenLogprob `json:"content"`
}

// TokenLogprob is a token with its natural-log probability and likely
// alternatives. Bytes is the exact form of a token that is part of a character.
type TokenLogprob struct {
	Token   string       `json:"token"`
	Logprob float32      `json:"logprob"`
	Bytes   Bytes        `json:"bytes"`
	Top     []TopLogprob `json:"top_logprobs"`
}

// TopLogprob is one alternative.
type TopLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   Bytes   `json:"bytes"`
}

// Bytes is an array of numbers on the wire, where []byte would be base64.
type Bytes []byte

// MarshalJSON writes the bytes as an array of numbers.
func (b Bytes) MarshalJSON() ([]byte, error) {
	numbers := make([]int, len(b))
	for i, v := range b {
		numbers[i] = int(v)
	}
	return json.Marshal(numbers)
}

// ChatChunk is one event of a chat stream.
type ChatChunk struct {
	ID      string        `json:"id"`
	Object  string        `json:"object"` // "chat.completion.chunk"
	Created int64         `json:"created"`
	Model   string        `json:"model"`
	Choices []ChunkChoice `json:"choices"` // empty in the usage chunk
	Usage   StreamUsage   `json:"usage,omitzero"`
}

// ChunkChoice is what a chunk adds to a choice.
type ChunkChoice struct {
	Index        int           `json:"index"`
	Delta        Delta         `json:"delta"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// Delta is empty in a choice's last chunk.
type Delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// StreamUsage is absent (zero), null until the last chunk, or the usage.
type StreamUsage struct {
	Asked bool
	Usage *Usage
}

// MarshalJSON writes the usage or null; a zero StreamUsage is left out by omitzero.
func (u StreamUsage) MarshalJSON() ([]byte, error) { return json.Marshal(u.Usage) }

// Completion is the answer to a text completion, and one event of its stream.
type Completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"` // "text_completion"
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []CompletionChoice `json:"choices"`
	Usage   StreamUsage        `json:"usage,omitzero"`
}

// CompletionChoice is one answer, or what an event adds to it.
type CompletionChoice struct {
	Text         string              `json:"text"`
	Index        int                 `json:"index"`
	Logprobs     *CompletionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
}

// CompletionLogprobs holds parallel arrays, one item a token. TextOffset counts
// characters from the start of the choice's text.
type CompletionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// Model is an entry of /v1/models. MaxModelLen and ContextLength are the same
// number, the effective limit, under the two names that clients look for. They are
// left out while it is not known.
type Model struct {
	ID            string `json:"id"`
	Object        string `json:"object"` // "model"
	Created       int64  `json:"created"`
	OwnedBy       string `json:"owned_by"`
	ContextLength int    `json:"context_length,omitzero"`
	MaxModelLen   int    `json:"max_model_len,omitzero"`
}

// ModelList is the answer of /v1/models.
type ModelList struct {
	Object string  `json:"object"` // "list"
	Data   []Model `json:"data"`
}

// Tokenized is the answer of /tokenize.
type Tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len,omitzero"`
	Tokens      []int32  `json:"tokens"`
	Pieces      []string `json:"token_strs,omitempty"`
}
