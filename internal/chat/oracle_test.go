package chat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/gguf"
)

// python returns the interpreter that has jinja2.
func python(t *testing.T) string {
	t.Helper()
	name := os.Getenv("BULKHEAD_PYTHON")
	if name == "" {
		name = "python3"
	}
	if err := exec.Command(name, "-c", "import jinja2").Run(); err != nil {
		t.Skipf("%s has no jinja2 (see testdata/requirements.txt)", name)
	}
	return name
}

// templates returns the templates that the oracle's source carries, by name.
func templates(t *testing.T) map[string]string {
	t.Helper()
	modules := os.Getenv("BULKHEAD_ORACLE")
	if modules == "" {
		t.Skip("BULKHEAD_ORACLE names no node_modules folder with node-llama-cpp")
	}
	source := filepath.Join(t.TempDir(), "source")
	for _, args := range [][]string{
		{"clone", "-q", "--no-checkout", filepath.Join(modules, "node-llama-cpp", "llama", "gitRelease.bundle"), source},
		{"-C", source, "checkout", "-q", "HEAD", "--", "models/templates"},
	} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	files, err := filepath.Glob(filepath.Join(source, "models", "templates", "*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates in the oracle's source: %v", err)
	}
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(filepath.Base(file), ".jinja")] = string(text)
	}
	return found
}

var testNow = time.Date(2025, 3, 7, 9, 5, 3, 0, time.UTC)

// conversation is one test case for every template.
type conversation struct {
	name     string
	messages []Message
	options  Options
}

const weatherTool = `{"type":"function","function":{"name":"get_weather","description":"Weather of a \"city\" <now> & later","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Name"},"days":{"type":"integer","default":3,"enum":[1,2,3]},"exact":{"type":"number","default":0.5}},"required":["city"]}}}`

var conversations = []conversation{
	{"one user message", []Message{{Role: "user", Content: "Hello, world"}}, Options{AddGenerationPrompt: true}},
	{"system and turns", []Message{
		{Role: "system", Content: "Be brief."}, {Role: "user", Content: "  What is 2+2?\n"}, {Role: "assistant", Content: "4"}, {Role: "user", Content: "Größer als 3? 日本語 👍"},
	}, Options{AddGenerationPrompt: true}},
	{"no generation prompt", []Message{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Hello"}}, Options{}},
	{"angle brackets", []Message{{Role: "user", Content: "if a < b && c > d { [x] } <|im_end|> </s>"}, {Role: "assistant", Content: "<b>yes</b>"}, {Role: "user", Content: "ok <"}}, Options{AddGenerationPrompt: true}},
	{"reasoning in an earlier answer", []Message{
		{Role: "user", Content: "Think"}, {Role: "assistant", Content: "<think>\nhm, so\n</think>\n\nThe answer"}, {Role: "user", Content: "And?"},
	}, Options{AddGenerationPrompt: true}},
	{"tools", []Message{{Role: "system", Content: "Use tools."}, {Role: "user", Content: "Weather in Paris?"}}, Options{AddGenerationPrompt: true, Tools: []json.RawMessage{[]byte(weatherTool)}}},
	{"a tool's result", []Message{
		{Role: "user", Content: "Weather in Paris?"},
		{Role: "assistant", Content: "", ToolCalls: []ToolCall{{ID: "call_1_id", Name: "get_weather", Arguments: `{"city":"Paris","days":2,"note":"<a>"}`}}},
		{Role: "tool", Content: `{"temp": 21}`, Name: "get_weather", ToolCallID: "call_1_id"},
		{Role: "assistant", Content: "It is 21."}, {Role: "user", Content: "Thanks"},
	}, Options{AddGenerationPrompt: true, Tools: []json.RawMessage{[]byte(weatherTool)}}},
	{"thinking off", []Message{{Role: "user", Content: "Quick"}}, Options{AddGenerationPrompt: true, Variables: map[string]json.RawMessage{"enable_thinking": []byte("false")}}},
	{"two users in a row", []Message{{Role: "user", Content: "a"}, {Role: "user", Content: "b"}}, Options{AddGenerationPrompt: true}},
	{"content in parts", []Message{{Role: "user", Content: []Part{{"one "}, {"two"}}}}, Options{AddGenerationPrompt: true}},
}

// testSpecials are spellings of many models.
var testSpecials = []string{
	"<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]",
	"<think>", "</think>", "<tool_call>", "</tool_call>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>", "<tool_response>", "</tool_response>",
}

// context is the conversation as Python gets it.
func (c conversation) context(t *testing.T, joined bool) map[string]any {
	t.Helper()
	messages := []any{}
	for _, m := range c.messages {
		d := ordered{{"role", m.Role}}
		if parts, ok := m.Content.([]Part); ok && joined {
			d = append(d, pair{"content", joinParts(parts)})
		} else if ok {
			list := []any{}
			for _, p := range parts {
				list = append(list, ordered{{"type", "text"}, {"text", p.Text}})
			}
			d = append(d, pair{"content", list})
		} else {
			d = append(d, pair{"content", m.Content})
		}
		if m.Name != "" {
			d = append(d, pair{"name", m.Name})
		}
		if m.ToolCallID != "" {
			d = append(d, pair{"tool_call_id", m.ToolCallID})
		}
		if len(m.ToolCalls) > 0 {
			calls := []any{}
			for _, call := range m.ToolCalls {
				calls = append(calls, ordered{{"id", call.ID}, {"type", "function"}, {"function", ordered{{"name", call.Name}, {"arguments", json.RawMessage(call.Arguments)}}}})
			}
			d = append(d, pair{"tool_calls", calls})
		}
		messages = append(messages, d)
	}
	context := map[string]any{
		"messages": messages, "add_generation_prompt": c.options.AddGenerationPrompt, "bos_token": c.options.BOS, "eos_token": c.options.EOS, "tools": nil,
	}
	if len(c.options.Tools) > 0 {
		context["tools"] = c.options.Tools
	}
	for name, value := range c.options.Variables {
		context[name] = value
	}
	return context
}

// ordered is a JSON object with its keys in order.
type (
	ordered []pair
	pair    struct {
		key   string
		value any
	}
)

func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(p.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(p.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// rendering is what Python made of a case.
type rendering struct {
	Text  *string `json:"text"`
	Error string  `json:"error"`
}

type pythonCase struct {
	Template string         `json:"template"`
	Context  map[string]any `json:"context"`
}

func renderInPython(t *testing.T, cases []pythonCase) []rendering {
	t.Helper()
	var in bytes.Buffer
	encoder := json.NewEncoder(&in)
	encoder.SetEscapeHTML(false)
	for _, c := range cases {
		if err := encoder.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python(t), "testdata/render.py")
	cmd.Stdin = &in
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("render.py: %v: %s", err, stderr.String())
	}
	var answers []rendering
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var r rendering
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, r)
	}
	if len(answers) != len(cases) {
		t.Fatalf("render.py gave %d answers to %d cases", len(answers), len(cases))
	}
	return answers
}

// differences are where we don't do as Python does. A row that no case needs fails the test.
var differences = []struct{ template, python, reason string }{ // python: how its error begins; "" if it has none
	{"Apertus-8B-Instruct", "TypeError: can only concatenate str", "the engine adds a number to a text"},
	{"openai-gpt-oss-120b", "TypeError: can only concatenate str", "the engine adds a number to a text"},
	{"meetkai-functionary-medium-v3.2", "TypeError: can only concatenate str", "the engine adds a mapping to a text"},
	{"CohereForAI-c4ai-command-r-plus-tool_use", "TypeError: 'NoneType' object is not iterable", "the engine goes through no tools as through none"},
	{"CohereForAI-c4ai-command-r-plus-tool_use", "UndefinedError: 'dict object' has no attribute 'description'", "the engine takes what is undefined for empty"},
	{"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "TypeError: 'NoneType' object is not iterable", "the engine goes through no tools as through none"},
	{"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "TypeError: 'NoneType' object is not iterable", "the engine goes through no tools as through none"},
	{"fireworks-ai-llama-3-firefunction-v2", "UndefinedError: 'functions' is undefined", "the engine takes what is undefined for empty"},
	{"Kimi-K2-Instruct", "SecurityError: access to attribute 'append'", "lists of a rendering's own may grow; they are bounded"},
	{"Kimi-K2-Thinking", "SecurityError: access to attribute 'append'", "lists of a rendering's own may grow; they are bounded"},
	{"llama-cpp-deepseek-r1", "TypeError: Object of type generator is not JSON", "the engine's map gives a list"},
	{"meetkai-functionary-medium-v3.1", "", "Python's |safe makes what is added to it HTML-escaped"},
}

func TestTemplatesEqualPython(t *testing.T) {
	python(t)
	found := templates(t)
	if path := os.Getenv("BULKHEAD_SMOLLM2"); path != "" {
		file, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		text, ok := file.Metadata.String("tokenizer.chat_template")
		if !ok {
			t.Fatalf("%s carries no chat template", path)
		}
		found["SmolLM2 (from the model file)"] = text
	}
	found["Default"] = Default
	var names []string
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)

	var cases []pythonCase
	compiled := map[string]*Template{}
	for _, name := range names {
		template, err := New(found[name], testSpecials...)
		if err != nil {
			t.Errorf("%s doesn't compile: %v", name, err)
			delete(found, name)
			continue
		}
		compiled[name] = template
		for i := range conversations {
			conversations[i].options.BOS, conversations[i].options.EOS, conversations[i].options.Now = "<s>", "</s>", testNow
			cases = append(cases, pythonCase{found[name], conversations[i].context(t, !template.readsParts)})
		}
	}
	want := renderInPython(t, cases)
	equal, raised, differ, at := 0, 0, 0, 0
	needed := make([]bool, len(differences))
	for _, name := range names {
		if compiled[name] == nil {
			continue
		}
		for _, c := range conversations {
			w := want[at]
			at++
			got := render(compiled[name], c)
			switch known := knownDifference(name, w); {
			case (w.Text == nil) == (got.Text == nil) && (w.Text == nil || *w.Text == *got.Text):
				if w.Text == nil {
					raised++
				} else {
					equal++
				}
			case known >= 0:
				needed[known] = true
				differ++
			default:
				t.Errorf("%s/%s: differs from Python (error %q, ours %q) (-want +got):\n%s", name, c.name, w.Error, got.Error, cmp.Diff(w.Text, got.Text))
			}
		}
	}
	for i, d := range differences {
		if !needed[i] {
			t.Errorf("%s equals Python now where the table says it differs (%s)", d.template, d.reason)
		}
	}
	t.Logf("%d templates, %d conversations: %d texts equal, %d refused by both, %d known differences", len(compiled), len(conversations), equal, raised, differ)
}

func render(template *Template, c conversation) rendering {
	prompt, err := template.Render(c.messages, c.options)
	if err != nil {
		var raised *RaisedError
		if errors.As(err, &raised) {
			return rendering{Error: raised.Message}
		}
		return rendering{Error: err.Error()}
	}
	text := prompt.Text()
	return rendering{Text: &text}
}

func knownDifference(template string, w rendering) int {
	return slices.IndexFunc(differences, func(d struct{ template, python, reason string }) bool {
		return d.template == template && (d.python == "") == (w.Error == "") && strings.HasPrefix(w.Error, d.python)
	})
}
