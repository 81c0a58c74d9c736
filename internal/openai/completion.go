package openai

import (
	"encoding/json"
	"fmt"
)

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Options
	Prompts []Prompt // at least one; len(Prompts)*N <= ChoicesMax
}

// Prompt is text, or token ids when Tokens isn't nil.
type Prompt struct {
	Text   string
	Tokens []int32
}

// TokenizeRequest is the body of POST /tokenize: a prompt or messages.
type TokenizeRequest struct {
	Model    string // may be empty: the served one
	Prompt   string
	Messages []Message // nil when a prompt was given
	Pieces   bool      // return_token_strs: the tokens' text too
}

// ParseCompletion reads the body of a text completion. The error is an *Error.
func ParseCompletion(body []byte) (*CompletionRequest, error) {
	o, bad := parseObject(body)
	if bad != nil {
		return nil, bad
	}
	r := &CompletionRequest{Options: o.options()}
	if top, ok := o.integer("logprobs", 0, LogprobsMax); ok {
		r.Sampling.Logprobs = int(top)
	}
	r.Prompts = o.prompts()
	if count := len(r.Prompts) * r.N; o.err == nil && count > ChoicesMax {
		o.fail(invalid(CodeOutOfRange, "prompt", "the number of prompts times n must be at most %d, it is %d", ChoicesMax, count))
	}
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// prompts reads the four forms: a string, strings, token ids, arrays of token ids.
func (o *object) prompts() []Prompt {
	raw, ok := o.get("prompt")
	if !ok {
		o.fail(invalid(CodeMissing, "prompt", "prompt is required: a string, an array of strings, or token ids"))
		return nil
	}
	if kindOf(raw) == "a string" {
		raw = json.RawMessage("[" + string(raw) + "]")
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		o.wrongType("prompt", "a string, an array of strings, or token ids", raw)
		return nil
	}
	if len(items) == 0 {
		o.fail(invalid(CodeOutOfRange, "prompt", "prompt must not be empty"))
		return nil
	}
	if kindOf(items[0]) == "a number" {
		return []Prompt{o.tokenPrompt("prompt", items)}
	}
	if len(items) > ChoicesMax {
		o.fail(invalid(CodeOutOfRange, "prompt", "prompt must have at most %d prompts, it has %d", ChoicesMax, len(items)))
		return nil
	}
	prompts := make([]Prompt, 0, len(items))
	for i, item := range items {
		prompts = append(prompts, o.prompt(fmt.Sprintf("prompt[%d]", i), item))
	}
	return prompts
}

func (o *object) prompt(path string, raw json.RawMessage) Prompt {
	var p Prompt
	if kindOf(raw) == "an array" {
		var ids []json.RawMessage
		if json.Unmarshal(raw, &ids) != nil {
			o.wrongType(path, "a string or an array of token ids", raw)
		}
		return o.tokenPrompt(path, ids)
	}
	if kindOf(raw) == "null" || json.Unmarshal(raw, &p.Text) != nil {
		o.wrongType(path, "a string or an array of token ids", raw)
		return p
	}
	if p.Text == "" {
		o.fail(invalid(CodeOutOfRange, path, "%s must not be empty", path))
	}
	return p
}

func (o *object) tokenPrompt(path string, items []json.RawMessage) Prompt {
	ids := make([]int32, len(items))
	if len(items) == 0 {
		o.fail(invalid(CodeOutOfRange, path, "%s must not be empty", path))
	}
	for i, raw := range items {
		v, bad := integerOf(path, raw, 0, TokenMax)
		if bad != nil {
			_, bad = integerOf(fmt.Sprintf("%s[%d]", path, i), raw, 0, TokenMax)
			o.fail(bad)
			break
		}
		ids[i] = int32(v)
	}
	return Prompt{Tokens: ids}
}

// ParseTokenize reads the body of /tokenize. The error is an *Error.
func ParseTokenize(body []byte) (*TokenizeRequest, error) {
	o, bad := parseObject(body)
	if bad != nil {
		return nil, bad
	}
	r := &TokenizeRequest{Pieces: o.boolean("return_token_strs")}
	r.Model, _ = o.text("model")
	if _, chat := o.get("messages"); chat {
		r.Messages = o.messages()
	} else {
		var ok bool
		if r.Prompt, ok = o.text("prompt"); !ok {
			o.fail(invalid(CodeMissing, "prompt", "prompt (a string) or messages is required"))
		}
	}
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}
