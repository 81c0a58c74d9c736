package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const chatHead = `{"model":"m","messages":[{"role":"user","content":"hi"}]`

func TestChatDefaults(t *testing.T) {
	got, err := ParseChat([]byte(chatHead + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &ChatRequest{
		Options:  Options{Model: "m", N: 1, Sampling: Sampling{Temperature: 1, TopP: 1, Repetition: 1, Logprobs: -1}},
		Messages: []Message{{Role: "user", Content: "hi"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("a minimal request has other defaults (-want +got):\n%s", diff)
	}
}

func TestChatReadsEveryField(t *testing.T) {
	got, err := ParseChat([]byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":9,
		"max_completion_tokens":5.0,"stop":["a","b"],"temperature":0,"top_p":0.5,"min_p":0.1,"top_k":40,"seed":-7,
		"repetition_penalty":1.1,"frequency_penalty":-2,"presence_penalty":2,"logit_bias":{"17":-100},"logprobs":true,
		"top_logprobs":3,"tools":[],"tool_choice":"none","response_format":{"type":"text"},"user":"u","metadata":{"a":1},
		"messages":[{"role":"system","content":[]},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"assistant","tool_calls":[{"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"42"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &ChatRequest{
		Options: Options{Model: "m", Stream: true, IncludeUsage: true, N: 2, MaxTokens: 5, Stop: []string{"a", "b"},
			Sampling: Sampling{Temperature: 0, TopP: .5, MinP: .1, TopK: 40, Seed: -7, HasSeed: true, Repetition: 1.1,
				Frequency: -2, Presence: 2, LogitBias: map[int32]float32{17: -100}, Logprobs: 3}},
		Messages: []Message{{Role: "system"}, {Role: "user", Content: "ab"},
			{Role: "assistant", ToolCalls: []ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}}},
			{Role: "assistant", ToolCalls: []ToolCall{{ID: "c2", Name: "f", Arguments: "{}"}}},
			{Role: "tool", ToolCallID: "c1", Content: "42"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("request differs (-want +got):\n%s", diff)
	}
}

// Each bad body is refused with an error that names the field, and the range
// where there is one.
func TestChatRefusals(t *testing.T) {
	for _, c := range []struct{ name, body, param, code, says string }{
		{"not JSON", `{"model":`, "", CodeInvalidJSON, "not valid JSON"},
		{"empty body", ``, "", CodeInvalidJSON, "not valid JSON"},
		{"array", `[1]`, "", CodeInvalidJSON, "must be a JSON object, it is an array"},
		{"null", `null`, "", CodeInvalidJSON, "it is null"},
		{"trailing bytes", chatHead + `} x`, "", CodeInvalidJSON, "not valid JSON"},
		{"no model", `{"messages":[{"role":"user","content":"x"}]}`, "model", CodeMissing, "1 to 256"},
		{"model number", `{"model":4}`, "model", CodeInvalidType, "a string, it is a number"},
		{"no messages", `{"model":"m"}`, "messages", CodeMissing, "at least 1"},
		{"messages empty", `{"model":"m","messages":[]}`, "messages", CodeMissing, "at least 1"},
		{"messages object", `{"model":"m","messages":{}}`, "messages", CodeInvalidType, "an array"},
		{"message string", `{"model":"m","messages":["x"]}`, "messages[0]", CodeInvalidType, "an object"},
		{"role", `{"model":"m","messages":[{"role":"king","content":"x"}]}`, "messages[0].role", CodeInvalidValue, "system"},
		{"no content", `{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content", CodeMissing, "required"},
		{"content null", `{"model":"m","messages":[{"role":"user","content":null}]}`, "messages[0].content", CodeMissing, "required"},
		{"content []", `{"model":"m","messages":[{"role":"user","content":[]}]}`, "messages[0].content", CodeOutOfRange, "at least 1"},
		{"content number", `{"model":"m","messages":[{"role":"user","content":7}]}`, "messages[0].content", CodeInvalidType, "a number"},
		{"image", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			"messages[0].content[0].type", CodeUnsupported, "text"},
		{"part without text", `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`,
			"messages[0].content[0].text", CodeMissing, "required"},
		{"calls of a user", `{"model":"m","messages":[{"role":"user","content":"x","tool_calls":[{}]}]}`,
			"messages[0].tool_calls", CodeInvalidValue, "assistant"},
		{"call without function", `{"model":"m","messages":[{"role":"assistant","tool_calls":[{}]}]}`,
			"messages[0].tool_calls[0].function", CodeMissing, "required"},
		{"temperature", chatHead + `,"temperature":2.1}`, "temperature", CodeOutOfRange, "0 to 2"},
		{"temperature huge", chatHead + `,"temperature":1e999}`, "temperature", CodeOutOfRange, "0 to 2"},
		{"temperature text", chatHead + `,"temperature":"1"}`, "temperature", CodeInvalidType, "0 to 2"},
		{"top_p", chatHead + `,"top_p":-0.1}`, "top_p", CodeOutOfRange, "0 to 1"},
		{"min_p", chatHead + `,"min_p":1.5}`, "min_p", CodeOutOfRange, "0 to 1"},
		{"top_k", chatHead + `,"top_k":-2}`, "top_k", CodeOutOfRange, "-1 to"},
		{"repetition", chatHead + `,"repetition_penalty":0}`, "repetition_penalty", CodeOutOfRange, "0.01 to 10"},
		{"max_tokens 0", chatHead + `,"max_tokens":0}`, "max_tokens", CodeOutOfRange, "1 to"},
		{"max_tokens huge", chatHead + `,"max_tokens":99999999999999999999}`, "max_tokens", CodeOutOfRange, "1 to"},
		{"max_tokens fraction", chatHead + `,"max_tokens":1.5}`, "max_tokens", CodeInvalidType, "fraction"},
		{"max_completion_tokens", chatHead + `,"max_completion_tokens":-1}`, "max_completion_tokens", CodeOutOfRange, "1 to"},
		{"n 0", chatHead + `,"n":0}`, "n", CodeOutOfRange, "1 to 32"},
		{"n text", chatHead + `,"n":"2"}`, "n", CodeInvalidType, "1 to 32"},
		{"five stops", chatHead + `,"stop":["a","b","c","d","e"]}`, "stop", CodeOutOfRange, "it has 5"},
		{"empty stop", chatHead + `,"stop":""}`, "stop", CodeOutOfRange, "1 to 1024"},
		{"stop with null", chatHead + `,"stop":["a",null]}`, "stop", CodeInvalidType, "strings"},
		{"seed", chatHead + `,"seed":1.5}`, "seed", CodeInvalidType, "integer"},
		{"top_logprobs", chatHead + `,"logprobs":true,"top_logprobs":21}`, "top_logprobs", CodeOutOfRange, "0 to 20"},
		{"top_logprobs alone", chatHead + `,"top_logprobs":2}`, "top_logprobs", CodeInvalidValue, "logprobs"},
		{"logprobs number", chatHead + `,"logprobs":1}`, "logprobs", CodeInvalidType, "boolean"},
		{"bias key", chatHead + `,"logit_bias":{"x":1}}`, "logit_bias", CodeInvalidValue, "token ids"},
		{"bias key with a sign", chatHead + `,"logit_bias":{"5":1,"+5":2}}`, "logit_bias", CodeInvalidValue, "plain digits"},
		{"bias key with a zero", chatHead + `,"logit_bias":{"05":1}}`, "logit_bias", CodeInvalidValue, "plain digits"},
		{"bias key -0", chatHead + `,"logit_bias":{"-0":1}}`, "logit_bias", CodeInvalidValue, "plain digits"},
		{"bias value", chatHead + `,"logit_bias":{"1":101}}`, "logit_bias", CodeOutOfRange, "-100 to 100"},
		{"stream text", chatHead + `,"stream":"yes"}`, "stream", CodeInvalidType, "boolean"},
		{"options without stream", chatHead + `,"stream_options":{}}`, "stream_options", CodeInvalidValue, "stream is true"},
		{"include_usage", chatHead + `,"stream":true,"stream_options":{"include_usage":1}}`, "stream_options.include_usage", CodeInvalidType, "boolean"},
		{"json object", chatHead + `,"response_format":{"type":"json_object"}}`, "response_format.type", CodeUnsupported, "structured"},
		{"tools", chatHead + `,"tools":[{"type":"function"}]}`, "tools", CodeUnsupported, "not supported"},
		{"tool_choice", chatHead + `,"tool_choice":"required"}`, "tool_choice", CodeUnsupported, "tools"},
		{"best_of", chatHead + `,"best_of":3,"n":2}`, "best_of", CodeUnsupported, "n (2)"},
		{"audio", chatHead + `,"modalities":["text","audio"]}`, "modalities", CodeUnsupported, "text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseChat([]byte(c.body))
			checkRefusal(t, err, c.param, c.code, c.says)
		})
	}
}

func checkRefusal(t *testing.T, err error, param, code, says string) {
	t.Helper()
	var bad *Error
	if !errors.As(err, &bad) {
		t.Fatalf("the body is accepted, want a refusal that names %q", param)
	}
	if bad.Param != param || bad.Code != code || bad.Type != TypeInvalidRequest {
		t.Errorf("refused with param %q, code %q, type %q; want %q, %q, %q", bad.Param, bad.Code, bad.Type, param, code, TypeInvalidRequest)
	}
	if !strings.Contains(bad.Message, says) {
		t.Errorf("message %q does not say %q", bad.Message, says)
	}
}

func TestCompletionPrompts(t *testing.T) {
	for _, c := range []struct {
		prompt string
		want   []Prompt
	}{
		{`"a"`, []Prompt{{Text: "a"}}},
		{`["a","b"]`, []Prompt{{Text: "a"}, {Text: "b"}}},
		{`[1,2]`, []Prompt{{Tokens: []int32{1, 2}}}},
		{`[[1],[2,3]]`, []Prompt{{Tokens: []int32{1}}, {Tokens: []int32{2, 3}}}},
	} {
		r, err := ParseCompletion([]byte(`{"model":"m","logprobs":2,"best_of":1,"echo":false,"prompt":` + c.prompt + `}`))
		if err != nil {
			t.Errorf("prompt %s: %v", c.prompt, err)
			continue
		}
		if diff := cmp.Diff(c.want, r.Prompts); diff != "" {
			t.Errorf("prompt %s differs (-want +got):\n%s", c.prompt, diff)
		}
		if r.Sampling.Logprobs != 2 {
			t.Errorf("logprobs is %d, want 2", r.Sampling.Logprobs)
		}
	}
}

func TestCompletionRefusals(t *testing.T) {
	for _, c := range []struct{ body, param, code, says string }{
		{`{"model":"m"}`, "prompt", CodeMissing, "required"},
		{`{"model":"m","prompt":""}`, "prompt[0]", CodeOutOfRange, "not be empty"},
		{`{"model":"m","prompt":[]}`, "prompt", CodeOutOfRange, "not be empty"},
		{`{"model":"m","prompt":[[]]}`, "prompt[0]", CodeOutOfRange, "not be empty"},
		{`{"model":"m","prompt":[1,"a"]}`, "prompt[1]", CodeInvalidType, "integer"},
		{`{"model":"m","prompt":["a",null]}`, "prompt[1]", CodeInvalidType, "null"},
		{`{"model":"m","prompt":[-1]}`, "prompt[0]", CodeOutOfRange, "0 to"},
		{`{"model":"m","prompt":["a","b"],"n":32}`, "prompt", CodeOutOfRange, "it is 64"},
		{`{"model":"m","prompt":"a","best_of":3}`, "best_of", CodeUnsupported, "n (1)"},
		{`{"model":"m","prompt":"a","echo":true}`, "echo", CodeUnsupported, "not supported"},
		{`{"model":"m","prompt":"a","suffix":"b"}`, "suffix", CodeUnsupported, "not supported"},
		{`{"model":"m","prompt":"a","logprobs":21}`, "logprobs", CodeOutOfRange, "0 to 20"},
		{`{"model":"m","prompt":"a","logprobs":true}`, "logprobs", CodeInvalidType, "0 to 20"},
	} {
		t.Run(c.body, func(t *testing.T) {
			_, err := ParseCompletion([]byte(c.body))
			checkRefusal(t, err, c.param, c.code, c.says)
		})
	}
}

// A body of many small values takes many times its size to parse; it isn't.
func TestValuesAreBounded(t *testing.T) {
	for name, body := range map[string]string{
		"token ids":    `{"model":"m","prompt":[` + strings.Repeat("1,", ValuesMax) + `1]}`,
		"empty arrays": `{"model":"m","prompt":[` + strings.Repeat("[],", ValuesMax) + `[]]}`,
	} {
		_, err := ParseCompletion([]byte(body))
		if checkRefusal(t, err, "", CodeOutOfRange, "524288 values"); t.Failed() {
			t.Log(name)
		}
	}
	text := `"prompt":"` + strings.Repeat(`,\",`, ValuesMax) + `"`
	if _, err := ParseCompletion([]byte(`{"model":"m",` + text + `}`)); err != nil {
		t.Errorf("commas in a text count: %v", err)
	}
}

func TestSteeringFieldsAreDropped(t *testing.T) {
	r, err := ParseChat([]byte(chatHead + `,"rid":1,"bootstrap_room":{"a":[]},"cache_salt":"x","kv_transfer_params":{"do_remote_prefill":true},
		"Extra_Key":"y","remote_block_ids":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bootstrap_room", "cache_salt", "extra_key", "kv_transfer_params", "other", "rid"}
	if diff := cmp.Diff(want, r.Dropped); diff != "" {
		t.Fatalf("dropped fields differ (-want +got):\n%s", diff)
	}
}

func TestErrorBodyHasNulls(t *testing.T) {
	got, err := json.Marshal((&Error{Message: "m", Type: TypeServer}).Body())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"error":{"message":"m","type":"server_error","param":null,"code":null}}`
	if string(got) != want {
		t.Fatalf("error body is %s, want %s", got, want)
	}
}

func TestStreamUsageForms(t *testing.T) {
	for _, c := range []struct {
		usage StreamUsage
		want  string
	}{
		{StreamUsage{}, `{"id":"","object":"","created":0,"model":"","choices":[]}`},
		{StreamUsage{Asked: true}, `{"id":"","object":"","created":0,"model":"","choices":[],"usage":null}`},
		{StreamUsage{Asked: true, Usage: NewUsage(1, 2)},
			`{"id":"","object":"","created":0,"model":"","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`},
	} {
		got, err := json.Marshal(ChatChunk{Choices: []ChunkChoice{}, Usage: c.usage})
		if err != nil || string(got) != c.want {
			t.Errorf("chunk is %s (%v), want %s", got, err, c.want)
		}
	}
}

// secret stands in a fuzzed body as a value; no error may repeat it.
const secret = "c4n4ry-value"

func FuzzParse(f *testing.F) {
	for _, seed := range []string{chatHead + `}`, `{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"` + secret + `","messages":[{"role":"` + secret + `"}]}`,
		`{"model":"m","prompt":"a","stop":["` + secret + `"],"seed":"` + secret + `"}`, `{"prompt":"x","return_token_strs":true}`, `[]`, `{"n":1e308}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"` + secret + `"}]}],"logit_bias":{"` + secret + `":0}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		chat, err := ParseChat(body)
		checkFuzzed(t, err)
		if err == nil && (len(chat.Messages) == 0 || chat.N < 1 || chat.N > ChoicesMax || chat.Sampling.TopP <= 0) {
			t.Fatalf("an accepted request is out of its ranges: %+v", chat.Options)
		}
		completion, err := ParseCompletion(body)
		checkFuzzed(t, err)
		if err == nil && (len(completion.Prompts) == 0 || len(completion.Prompts)*completion.N > ChoicesMax) {
			t.Fatalf("an accepted request has %d prompts, n %d", len(completion.Prompts), completion.N)
		}
		_, err = ParseTokenize(body)
		checkFuzzed(t, err)
	})
}

func checkFuzzed(t *testing.T, err error) {
	if err == nil {
		return
	}
	var bad *Error
	if !errors.As(err, &bad) || bad.Message == "" || len(bad.Message) > 300 || strings.Contains(bad.Message, secret) {
		t.Fatalf("error is empty, long, of another type or repeats the input: %q", err)
	}
}

func TestBrokenJSONHasAPlace(t *testing.T) {
	for body, want := range map[string]string{
		``:                     "it is empty",
		`{"model":"m",}`:       "the mistake is at byte 14 of 14",
		`{"model": m}`:         "the mistake is at byte 11 of 12",
		`{"model":"secret tex`: "it breaks off after 20 bytes",
	} {
		_, err := ParseChat([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s is refused with %v, want %q", body, err, want)
		}
	}
}

// An unknown limit is no limit of 0.
func TestUnknownLimitIsLeftOut(t *testing.T) {
	text, err := json.Marshal([]any{Model{ID: "m"}, Tokenized{}})
	if err != nil || strings.Contains(string(text), "len") {
		t.Errorf("without a limit there is %s (%v)", text, err)
	}
}
