package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Options
	Messages []Message // at least one
}

// Message is one turn of a conversation. Text parts are joined in order.
type Message struct {
	Role       string // one of Roles
	Content    string
	Name       string
	ToolCallID string
	ToolCalls  []ToolCall
}

// ToolCall is a call that the assistant made earlier in the conversation.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // JSON as text
}

var roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// Roles lists the roles a message may have.
func Roles() []string { return slices.Clone(roles) }

// ParseChat reads the body of a chat completion. The error is an *Error.
func ParseChat(body []byte) (*ChatRequest, error) {
	o, bad := parseObject(body)
	if bad != nil {
		return nil, bad
	}
	r := &ChatRequest{Options: o.options()}
	r.Sampling.Logprobs = o.chatLogprobs()
	r.Messages = o.messages()
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// chatLogprobs is -1 without logprobs, else the number of alternatives.
func (o *object) chatLogprobs() int {
	on := o.boolean("logprobs")
	top, has := o.integer("top_logprobs", 0, LogprobsMax)
	if has && top > 0 && !on {
		o.fail(invalid(CodeInvalidValue, "top_logprobs", "top_logprobs needs logprobs to be true"))
	}
	if !on {
		return -1
	}
	return int(top)
}

func (o *object) messages() []Message {
	items, ok := o.list("messages")
	if !ok || len(items) == 0 {
		o.fail(invalid(CodeMissing, "messages", "messages is required: an array of at least 1 message"))
		return nil
	}
	messages := make([]Message, len(items))
	for i, raw := range items {
		m, ok := o.child(fmt.Sprintf("messages[%d]", i), raw)
		if !ok {
			return nil
		}
		messages[i] = m.message()
		if o.adopt(m); o.err != nil {
			return nil
		}
	}
	return messages
}

func (o *object) message() Message {
	role, ok := o.text("role")
	if !ok || !slices.Contains(roles, role) {
		o.fail(invalid(CodeInvalidValue, o.path+"role", "%srole must be one of %s", o.path, strings.Join(roles, ", ")))
		return Message{}
	}
	m := Message{Role: role}
	m.Name, _ = o.text("name")
	m.ToolCallID, _ = o.text("tool_call_id")
	m.ToolCalls = o.toolCalls(role)
	m.Content = o.content(role, len(m.ToolCalls) > 0)
	return m
}

func (o *object) toolCalls(role string) []ToolCall {
	items, ok := o.list("tool_calls")
	if !ok {
		return nil
	}
	if role != "assistant" && len(items) > 0 {
		o.fail(invalid(CodeInvalidValue, o.path+"tool_calls", "%stool_calls is only allowed for the role assistant", o.path))
		return nil
	}
	calls := make([]ToolCall, len(items))
	for i, raw := range items {
		c, ok := o.child(fmt.Sprintf("%stool_calls[%d]", o.path, i), raw)
		if !ok {
			return nil
		}
		calls[i] = c.toolCall()
		o.adopt(c)
	}
	return calls
}

func (o *object) toolCall() ToolCall {
	call := ToolCall{}
	call.ID, _ = o.text("id")
	raw, ok := o.get("function")
	if !ok {
		o.fail(invalid(CodeMissing, o.path+"function", "%sfunction is required", o.path))
		return call
	}
	f, ok := o.child(o.path+"function", raw)
	if !ok {
		return call
	}
	call.Name, _ = f.text("name")
	call.Arguments, _ = f.text("arguments")
	o.adopt(f)
	return call
}

// content reads a string, null or text parts. Null and absent are allowed for an
// assistant that called tools; an empty array of parts is refused for a user and
// is the empty text for the other roles.
func (o *object) content(role string, called bool) string {
	path := o.path + "content"
	raw, ok := o.get("content")
	if !ok {
		if role != "assistant" || !called {
			o.fail(invalid(CodeMissing, path, "%s is required: a string or an array of text parts", path))
		}
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		o.wrongType(path, "a string or an array of text parts", raw)
		return ""
	}
	if len(parts) == 0 && role == "user" {
		o.fail(invalid(CodeOutOfRange, path, "%s must have at least 1 part", path))
	}
	return o.joinParts(path, parts)
}

func (o *object) joinParts(path string, parts []json.RawMessage) string {
	var b strings.Builder
	for i, raw := range parts {
		p, ok := o.child(fmt.Sprintf("%s[%d]", path, i), raw)
		if !ok {
			return ""
		}
		b.WriteString(p.part())
		if o.adopt(p); o.err != nil {
			return ""
		}
	}
	return b.String()
}

func (o *object) part() string {
	kind, _ := o.text("type")
	name := "text"
	switch kind {
	case "text":
	case "refusal":
		name = "refusal"
	default:
		o.fail(invalid(CodeUnsupported, o.path+"type", `%stype must be "text": other parts are not supported by this model`, o.path))
		return ""
	}
	s, ok := o.text(name)
	if !ok {
		o.fail(invalid(CodeMissing, o.path+name, "%s%s is required: a string", o.path, name))
	}
	return s
}
