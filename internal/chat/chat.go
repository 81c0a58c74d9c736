// Package chat renders a model's chat template.
//
// Templates are Jinja 2, as Hugging Face's tokenizers configure it (trim_blocks, lstrip_blocks, loop controls, tojson
// without sorting or escaping). They come with model files, so they are bounded: in size, in nesting, and, while they
// render, in the work they do. Messages come from users, so a special token's spelling in them is text: the prompt is
// handed over in segments, and no spelling that a user wrote lies within one.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Segment is a part of a prompt. A tokenizer turns spellings of special tokens into those tokens where they lie within
// one segment marked Special, and tokenizes the rest as one text. It is an alias so that a tokenizer can take
// segments without either package importing the other.
type Segment = struct {
	Text    string
	Special bool
}

// Prompt is a rendered conversation.
type Prompt struct {
	Segments []Segment
}

// Text returns the whole prompt.
func (p Prompt) Text() string {
	var b strings.Builder
	for _, s := range p.Segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Message is one message of a conversation.
type Message struct {
	Role string // one of Roles
	// Content is a string, a []Part, or nil where there is none. A template that knows no parts gets their texts, one a
	// line.
	Content    any
	Name       string
	ToolCallID string // of the call that a tool message answers
	ToolCalls  []ToolCall
	// ReasoningContent is an assistant's reasoning, for templates that place it themselves.
	ReasoningContent string
}

// Part is a part of a message's content. Only text is known.
type Part struct {
	Text string
}

// ToolCall is a call that an assistant made.
type ToolCall struct {
	ID   string
	Name string
	// Arguments is JSON. Templates see an object as an object and anything else as a string.
	Arguments string
}

// Roles are the roles that a message may have.
var Roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// Options are what a template gets besides messages.
type Options struct {
	// Tools are JSON objects in the order they were given, keys in theirs.
	Tools []json.RawMessage
	// AddGenerationPrompt asks for the beginning of the answer.
	AddGenerationPrompt bool
	// BOS and EOS are the spellings of the tokens that begin and end a sequence.
	BOS, EOS string
	// Now is what strftime_now tells.
	Now time.Time
	// Variables are further variables, by name, such as enable_thinking: JSON values.
	Variables map[string]json.RawMessage
	// Done ends the rendering with ErrStopped when it is closed; nil never is.
	Done <-chan struct{}
}

// Default is the template of a model that carries none, known as ChatML.
const Default = `{% for message in messages %}` +
	`{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}` +
	`{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Template is a compiled chat template. It is immutable and safe for concurrent use.
type Template struct {
	compiled   *jinja.Template
	source     string
	specials   specials
	readsParts bool // it goes through content's parts; others get them joined
}

// New compiles a template. specials are the spellings of the model's special tokens; those that begin with whitespace or a
// letter are ignored.
func New(source string, specials ...string) (*Template, error) {
	if len(source) > sourceMax {
		return nil, fmt.Errorf("chat template of %d bytes, the limit is %d", len(source), sourceMax)
	}
	chunks, err := lex(source)
	if err != nil {
		return nil, err
	}
	rewritten, err := rewrite(chunks)
	if err != nil {
		return nil, err
	}
	compiled, err := jinja.Compile(rewritten)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return &Template{compiled: compiled, source: source, specials: newSpecials(specials, chunks), readsParts: readsParts(chunks)}, nil
}

// readsParts reports whether a loop goes through something called content.
func readsParts(chunks []chunk) bool {
	for _, c := range chunks {
		if c.kind != chunkStatement || len(c.tokens) == 0 || !c.tokens[0].named("for") {
			continue
		}
		in := slices.IndexFunc(c.tokens, func(t token) bool { return t.named("in") })
		if in >= 0 && slices.ContainsFunc(c.tokens[in:], func(t token) bool { return t.text == "content" && t.kind != tokenOperator }) {
			return true
		}
	}
	return false
}

// RaisedError is what a template raises when it can't render the messages: the request's fault.
type RaisedError struct {
	// Message is the template's. It may quote the messages, so it belongs in the answer to their sender and in no log.
	Message string
}

func (e *RaisedError) Error() string { return "the model's chat template refuses these messages" }

// InputError is a message or option that no template can take: the request's fault.
type InputError struct {
	Field  string
	Reason string
}

func (e *InputError) Error() string { return e.Field + " " + e.Reason }

// ErrBudget is wrapped by errors of templates that do more work than a rendering may.
var ErrBudget = errors.New("the rendering exceeds its budget")

// ErrStopped is wrapped by the error of a rendering that Options.Done ended.
var ErrStopped = errors.New("the rendering was stopped")

// Render returns the prompt of a conversation.
func (t *Template) Render(messages []Message, options Options) (prompt Prompt, err error) {
	in := &input{template: t}
	variables, err := in.variables(messages, options)
	if err != nil {
		return Prompt{}, err
	}
	b := newBudget(len(messages), in.bytes, options.Done)
	b.define(variables, options.Now)
	defer func() {
		if r := recover(); r != nil { // the engine slices without looking
			prompt, err = Prompt{}, errors.New("chat template: the engine panicked")
		}
	}()
	text, err := t.compiled.RenderValues(variables)
	if err != nil {
		return Prompt{}, renderError(err)
	}
	return Prompt{Segments: in.marker.segments(text)}, nil
}

// renderError keeps what the engine says of a template out of the error: it may quote values.
func renderError(err error) error {
	var raised *RaisedError
	var input *InputError
	if errors.As(err, &raised) || errors.As(err, &input) || errors.Is(err, ErrBudget) || errors.Is(err, ErrStopped) {
		return err
	}
	return &RaisedError{Message: err.Error()}
}
