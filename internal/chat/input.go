package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

// input turns a request into the template's variables.
type input struct {
	template *Template
	marker   marker
	bytes    int // of all texts
}

func (in *input) variables(messages []Message, options Options) (map[string]jinja.Value, error) {
	if err := in.chooseMark(messages, options); err != nil {
		return nil, err
	}
	list := make([]jinja.Value, 0, len(messages))
	for i, m := range messages {
		v, err := in.message(m)
		if err != nil {
			return nil, &InputError{Field: fmt.Sprintf("messages[%d]", i), Reason: err.Error()}
		}
		list = append(list, v)
	}
	variables := map[string]jinja.Value{
		"messages":              jinja.NewList(list),
		"add_generation_prompt": jinja.NewBool(options.AddGenerationPrompt),
		"bos_token":             jinja.NewString(options.BOS),
		"eos_token":             jinja.NewString(options.EOS),
		"tools":                 jinja.None(),
	}
	if len(options.Tools) > 0 {
		tools := make([]jinja.Value, 0, len(options.Tools))
		for i, raw := range options.Tools {
			v, err := in.json(raw)
			if err != nil {
				return nil, &InputError{Field: fmt.Sprintf("tools[%d]", i), Reason: err.Error()}
			}
			tools = append(tools, v)
		}
		variables["tools"] = jinja.NewList(tools)
	}
	for name, raw := range options.Variables {
		if _, taken := variables[name]; taken || strings.HasSuffix(name, "_") {
			return nil, &InputError{Field: "chat_template_kwargs", Reason: "sets a variable that is not its to set"}
		}
		v, err := in.json(raw)
		if err != nil {
			return nil, &InputError{Field: "chat_template_kwargs", Reason: err.Error()}
		}
		variables[name] = v
	}
	return variables, nil
}

// chooseMark finds a mark that no text of the request or the template holds.
func (in *input) chooseMark(messages []Message, options Options) error {
	mark, ok := newMarker(in.template.specials.first, func(yield func(string)) {
		visit := func(text string) {
			in.bytes += len(text)
			yield(text)
		}
		yield(in.template.source)
		visit(options.BOS)
		visit(options.EOS)
		for _, raw := range options.Tools {
			visitJSON(raw, visit)
		}
		for name, raw := range options.Variables {
			visit(name)
			visitJSON(raw, visit)
		}
		for _, m := range messages {
			m.visit(visit)
		}
	})
	if !ok {
		return &InputError{Field: "messages", Reason: "use every private-use character of Unicode"}
	}
	in.marker = mark
	return nil
}

// visitJSON visits a JSON text as it is and its strings' values, where escapes may hide runes.
func visitJSON(raw []byte, visit func(string)) {
	visit(string(raw))
	if !bytes.ContainsRune(raw, '\\') {
		return
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	for {
		t, err := d.Token()
		if err != nil {
			return
		}
		if text, ok := t.(string); ok {
			visit(text)
		}
	}
}

func (m Message) visit(visit func(string)) {
	switch content := m.Content.(type) {
	case string:
		visit(content)
	case []Part:
		for _, p := range content {
			visit(p.Text)
		}
	}
	visit(m.Name)
	visit(m.ToolCallID)
	visit(m.ReasoningContent)
	for _, c := range m.ToolCalls {
		visit(c.ID)
		visit(c.Name)
		visitJSON([]byte(c.Arguments), visit)
	}
}

func (in *input) message(m Message) (jinja.Value, error) {
	if !slices.Contains(Roles, m.Role) {
		return jinja.Undefined(), fmt.Errorf("has a role that is none of %s", strings.Join(Roles, ", "))
	}
	var keep []string
	if m.Role == "assistant" { // the template takes the model's own markup out of earlier answers
		keep = in.template.specials.searched
	}
	text := func(s string) jinja.Value { return jinja.NewString(in.marker.apply(s, keep)) }
	v := jinja.NewDict()
	d := v.AsDict()
	d.Set("role", jinja.NewString(m.Role))
	if parts, ok := m.Content.([]Part); ok && !in.template.readsParts {
		m.Content = joinParts(parts)
	}
	switch content := m.Content.(type) {
	case nil:
		d.Set("content", jinja.None())
	case string:
		d.Set("content", text(content))
	case []Part:
		parts := make([]jinja.Value, 0, len(content))
		for _, p := range content {
			part := jinja.NewDict()
			part.AsDict().Set("type", jinja.NewString("text"))
			part.AsDict().Set("text", text(p.Text))
			parts = append(parts, part)
		}
		d.Set("content", jinja.NewList(parts))
	default:
		return v, errors.New("has content that is neither text nor parts")
	}
	for key, value := range map[string]string{"name": m.Name, "tool_call_id": m.ToolCallID, "reasoning_content": m.ReasoningContent} {
		if value != "" {
			d.Set(key, text(value))
		}
	}
	slices.Sort(d.Keys[2:]) // what a map's order leaves to chance
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, 0, len(m.ToolCalls))
		for _, c := range m.ToolCalls {
			calls = append(calls, in.toolCall(c))
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	return v, nil
}

func joinParts(parts []Part) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

func (in *input) toolCall(c ToolCall) jinja.Value {
	function := jinja.NewDict()
	function.AsDict().Set("name", jinja.NewString(in.marker.apply(c.Name, nil)))
	arguments := jinja.NewString(in.marker.apply(c.Arguments, nil))
	if v, err := in.json([]byte(c.Arguments)); err == nil && v.IsDict() {
		arguments = v
	}
	function.AsDict().Set("arguments", arguments)
	call := jinja.NewDict()
	if c.ID != "" {
		call.AsDict().Set("id", jinja.NewString(in.marker.apply(c.ID, nil)))
	}
	call.AsDict().Set("type", jinja.NewString("function"))
	call.AsDict().Set("function", function)
	return call
}

// json turns JSON into a value, keys in their order, texts marked.
func (in *input) json(raw []byte) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := in.decode(d, 0)
	if err != nil {
		return v, err
	}
	if _, err := d.Token(); err != io.EOF {
		return v, errors.New("is more than one JSON value")
	}
	return v, nil
}

var errJSON = errors.New("is not valid JSON")

func (in *input) decode(d *json.Decoder, depth int) (jinja.Value, error) {
	if depth > nestingMax {
		return jinja.Undefined(), fmt.Errorf("nests deeper than %d", nestingMax)
	}
	t, err := d.Token()
	if err != nil {
		return jinja.Undefined(), errJSON
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return in.decodeObject(d, depth)
		}
		return in.decodeList(d, depth)
	case string:
		return jinja.NewString(in.marker.apply(t, nil)), nil
	}
	return jinja.FromGoValue(t), nil
}

func (in *input) decodeObject(d *json.Decoder, depth int) (jinja.Value, error) {
	v := jinja.NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return v, errJSON
		}
		item, err := in.decode(d, depth+1)
		if err != nil {
			return v, err
		}
		v.AsDict().Set(in.marker.apply(key.(string), nil), item)
	}
	if _, err := d.Token(); err != nil {
		return v, errJSON
	}
	return v, nil
}

func (in *input) decodeList(d *json.Decoder, depth int) (jinja.Value, error) {
	items := []jinja.Value{}
	for d.More() {
		item, err := in.decode(d, depth+1)
		if err != nil {
			return jinja.Undefined(), err
		}
		items = append(items, item)
	}
	if _, err := d.Token(); err != nil {
		return jinja.Undefined(), errJSON
	}
	return jinja.NewList(items), nil
}
