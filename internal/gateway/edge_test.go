package gateway

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// Cases that servers of this API get wrong, each with what is right. want holds
// texts that the whole response has, lacks those that it hasn't.
func TestEdgeCases(t *testing.T) {
	completion := func(more string) string { return `{"model":"echo","prompt":"héy"` + more + `}` }
	b := newBench(t, setup{})
	for _, c := range []struct {
		name   string
		path   string
		body   string
		status int
		want   []string
		lacks  []string
	}{
		{"usage is one last chunk without choices, null before", "chat", chat("h", `"stream":true`, `"stream_options":{"include_usage":true}`), 200,
			[]string{`"finish_reason":"stop"}],"usage":null}`, `"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}` + "\n\ndata: [DONE]\n\n"}, nil},
		{"the same for text completions", "text", completion(`,"stream":true,"stream_options":{"include_usage":true}`), 200,
			[]string{`"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":4,"total_tokens":8}}` + "\n\ndata: [DONE]\n\n", `"usage":null`}, nil},
		{"a stream without options has no usage", "chat", chat("h", `"stream":true`), 200, []string{"[DONE]"}, []string{"usage"}},
		{"include_usage false", "chat", chat("h", `"stream":true`, `"stream_options":{"include_usage":false}`), 200, []string{"[DONE]"}, []string{"usage"}},
		{"chunks before the last have finish_reason null", "chat", chat("h", `"stream":true`), 200,
			[]string{`{"content":"h"},"logprobs":null,"finish_reason":null}`}, nil},
		{"the finish has a chunk of its own", "chat", chat("h", `"stream":true`), 200, []string{`"delta":{},"logprobs":null,"finish_reason":"stop"`}, nil},
		{"text split within a character", "text", completion(``), 200, []string{`"text":"héy"`}, []string{`\ufffd`, "\uFFFD"}},
		{"text split within a character, streamed", "text", completion(`,"stream":true`), 200, []string{`"text":"é"`}, []string{`\ufffd`, "\uFFFD"}},
		{"a stop over several tokens", "chat", chat("abcSTOPdef", `"stop":"STOP"`), 200, []string{`"content":"abc"`, `"finish_reason":"stop"`}, []string{"S", "def"}},
		{"a stop over several tokens, streamed", "chat", chat("abcSTOPdef", `"stream":true`, `"stop":["STOP"]`), 200,
			[]string{`"content":"c"`, `"finish_reason":"stop"`, "[DONE]"}, []string{`"S"`, "def", `"ST`}},
		{"a held prefix of a stop leaves at the end", "chat", chat("abcST", `"stream":true`, `"stop":"STOP"`), 200, []string{`"content":"ST"`, "[DONE]"}, nil},
		{"a stop at the very beginning", "chat", chat("STOP", `"stop":"STOP"`), 200, []string{`"content":""`, `"finish_reason":"stop"`}, nil},
		{"output that ends by length", "chat", chat("abc", `"max_tokens":2`), 200, []string{`"content":"ab"`, `"finish_reason":"length"`}, nil},
		{"max_completion_tokens wins", "chat", chat("abc", `"max_tokens":1`, `"max_completion_tokens":2`), 200, []string{`"content":"ab"`}, nil},
		{"more output than there is room for is clamped", "chat", chat("abc", `"max_tokens":1000000`), 200, []string{`"content":"abc"`}, nil},
		{"assistant content null with tool calls", "chat", `{"model":"echo","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"ok"}]}`, 200,
			[]string{`"content":"ok"`}, nil},
		{"assistant content absent with tool calls", "chat", `{"model":"echo","messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"ok"}]}`, 200,
			[]string{`"content":"ok"`}, nil},
		{"messages []", "chat", `{"model":"echo","messages":[]}`, 400, []string{`"param":"messages"`}, nil},
		{"prompt empty", "text", `{"model":"echo","prompt":""}`, 400, []string{`"param":"prompt[0]"`}, nil},
		{"content [] of a user", "chat", `{"model":"echo","messages":[{"role":"user","content":[]}]}`, 400, []string{`"param":"messages[0].content"`}, nil},
		{"content [] of a system message", "chat", `{"model":"echo","messages":[{"role":"system","content":[]},{"role":"user","content":"ok"}]}`, 200, []string{`"content":"ok"`}, nil},
		{"a role that the template has no place for", "chat", `{"model":"echo","messages":[{"role":"tool","content":"x"}]}`, 400, []string{`"type":"invalid_request_error"`}, nil},
		{"logprobs without top_logprobs", "chat", chat("é", `"logprobs":true`), 200,
			[]string{`"logprobs":{"content":[{"token":"` + "\uFFFD" + `","logprob":-0.5,"bytes":[195],"top_logprobs":[]},{"token":"` + "\uFFFD" + `","logprob":-0.5,"bytes":[169],"top_logprobs":[]}]}`}, nil},
		{"top_logprobs 0", "chat", chat("a", `"logprobs":true`, `"top_logprobs":0`), 200, []string{`"top_logprobs":[]`}, nil},
		{"top_logprobs 2", "chat", chat("a", `"logprobs":true`, `"top_logprobs":2`), 200,
			[]string{`"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},{"token":"b","logprob":-1.5,"bytes":[98]}]`}, nil},
		{"logprobs of an empty answer", "chat", chat("", `"logprobs":true`), 200, []string{`"logprobs":{"content":[]}`}, nil},
		{"logprobs stream with their text", "chat", chat("a", `"logprobs":true`, `"stream":true`), 200, []string{`{"content":"a"},"logprobs":{"content":[{"token":"a"`}, nil},
		{"legacy logprobs of several prompts", "text", `{"model":"echo","prompt":["ab","é"],"logprobs":1}`, 200,
			[]string{`"tokens":["a","b"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"a":-0.5},{"b":-0.5}],"text_offset":[0,1]`,
				`"tokens":["bytes:\\xc3","bytes:\\xa9"]`, `"text_offset":[0,0]`, `"prompt_tokens":4`}, nil},
		{"prompts of token ids", "text", `{"model":"echo","prompt":[[97,98],[99]]}`, 200, []string{`"text":"ab","index":0`, `"text":"c","index":1`}, nil},
		{"a token id that the model lacks", "text", `{"model":"echo","prompt":[97,999]}`, 400, []string{"257"}, []string{"999"}},
		{"a bias on a token that the model lacks", "chat", chat("a", `"logit_bias":{"999":1}`), 400, []string{"257"}, []string{"999"}},
		{"invalid JSON", "chat", `{"model":`, 400, []string{`"code":"invalid_json"`}, nil},
		{"JSON that is no object", "chat", `[]`, 400, []string{`"code":"invalid_json"`}, nil},
		{"nothing", "chat", ``, 400, []string{`"code":"invalid_json"`}, nil},
		{"a number out of range", "chat", chat("a", `"temperature":3`), 400, []string{"0 to 2", `"param":"temperature"`}, nil},
		{"json mode", "chat", chat("a", `"response_format":{"type":"json_object"}`), 400, []string{`"param":"response_format.type"`}, nil},
		{"tools", "chat", chat("a", `"tools":[{"type":"function"}]`), 400, []string{`"param":"tools"`}, nil},
		{"an unknown model", "chat", `{"model":"canary","messages":[{"role":"user","content":"x"}]}`, 404, []string{`"code":"model_not_found"`, `no model \"canary\"; known: echo`}, nil},
		{"fields nobody knows", "chat", chat("a", `"frobnicate":{"x":[1]}`, `"user":"u"`, `"store":false`), 200, []string{`"content":"a"`}, nil},
		{"fields that would steer", "chat", chat("a", `"rid":"x"`, `"bootstrap_room":7`, `"kv_transfer_params":{"do_remote_prefill":true}`, `"cache_salt":"s"`), 200, []string{`"content":"a"`}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := map[string]string{"chat": "/v1/chat/completions", "text": "/v1/completions"}[c.path]
			resp := b.do(path, c.body)
			status, text := b.read(resp)
			if status != c.status {
				t.Errorf("status %d, want %d: %s", status, c.status, text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the response lacks %s:\n%s", want, text)
				}
			}
			body := strings.Join(variable.Split(text, -1), "") // without ids, which may have any letters
			for _, lacks := range c.lacks {
				if strings.Contains(body, lacks) {
					t.Errorf("the response has %s:\n%s", lacks, text)
				}
			}
			if status >= 400 {
				checkErrorShape(t, text)
			}
			if status == 200 && strings.Contains(c.body, `"stream":true`) {
				checkStreamShape(t, text)
			}
		})
	}
}

// checkErrorShape demands {"error":{message,type,param,code}} with a code that is
// text or null.
func checkErrorShape(t *testing.T, text string) {
	t.Helper()
	var body map[string]map[string]any
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		t.Fatalf("the error is not of the API's shape: %s", text)
	}
	var names []string
	for _, name := range []string{"message", "type", "param", "code"} {
		if _, ok := body["error"][name]; ok {
			names = append(names, name)
		}
	}
	if len(body) != 1 || len(names) != 4 || len(body["error"]) != 4 {
		t.Errorf("the error has other fields: %s", text)
	}
	if code, ok := body["error"]["code"].(string); body["error"]["code"] != nil && (!ok || code == "") {
		t.Errorf("the error's code is neither text nor null: %s", text)
	}
}

// checkStreamShape demands one id and one time in all chunks, one finish a
// choice, and [DONE] last and once.
func checkStreamShape(t *testing.T, text string) {
	t.Helper()
	data := events(t, strings.NewReader(text))
	type head struct {
		ID      string
		Created int64
	}
	heads := map[head]bool{}
	for _, d := range data[:len(data)-1] {
		var h head
		if err := json.Unmarshal([]byte(d), &h); err != nil || h.ID == "" || h.Created == 0 {
			t.Errorf("a chunk is not JSON with id and created: %s", d)
		}
		heads[h] = true
	}
	if _, finishes := spoken(t, data, 0); len(heads) != 1 || len(finishes) != 1 || data[len(data)-1] != "[DONE]" || strings.Count(text, "[DONE]") != 1 {
		t.Errorf("%d heads, finishes %v; want one of each and [DONE] at the end:\n%s", len(heads), finishes, text)
	}
}

// The jobs of requests that try to steer carry nothing of it.
func TestJobsAreTheGatewaysOwn(t *testing.T) {
	b := newBench(t, setup{})
	b.answer("/v1/chat/completions", chat("a", `"rid":"canary"`, `"seed":-1`, `"temperature":0.5`, `"top_k":3`, `"min_p":0.25`,
		`"repetition_penalty":1.5`, `"frequency_penalty":-1`, `"presence_penalty":1`, `"logit_bias":{"97":-1}`, `"top_p":0.75`, `"max_tokens":4`))
	ada, err := b.folder.Authenticate(b.keys["ada"], b.gateway.started)
	if err != nil {
		t.Fatal(err)
	}
	got := b.cluster.jobs[0]
	if got.Deadline.IsZero() || got.GatewayBoot != b.gateway.boot {
		t.Errorf("the job has deadline %v and boot %x", got.Deadline, got.GatewayBoot)
	}
	got.Deadline, got.GatewayBoot, got.Request = b.gateway.started, 0, 0
	want := cluster.Job{Attempt: 1, Tenant: ada.Tag, Prefill: "p", Decode: "d", PrefillEpoch: 1001, DecodeEpoch: 2001,
		Tokens: []int32{idMessage, 'a'}, MaxTokens: 4, Stop: []int32{idEnd}, Deadline: b.gateway.started,
		Sampling: cluster.Sampling{Temperature: .5, TopP: .75, MinP: .25, TopK: 3, Seed: 1<<64 - 1, HasSeed: true, Repetition: 1.5,
			Frequency: -1, Presence: 1, LogitBias: map[int32]float32{97: -1}, Logprobs: -1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the job differs (-want +got):\n%s", diff)
	}
}

// A stop string ends the job at decode: what the client doesn't get isn't computed.
func TestStopCancelsDecode(t *testing.T) {
	b := newBench(t, setup{})
	cancelled := make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role != cluster.Decode || e.Kind != cluster.Token {
			return nil
		}
		switch e.Index {
		case 0:
			context.AfterFunc(ctx, func() { close(cancelled) })
		case 3: // may not come any more
			<-ctx.Done()
		}
		return nil
	})
	if status, text := b.answer("/v1/chat/completions", chat("abcdef", `"stop":"c"`)); status != 200 || !strings.Contains(text, `"content":"ab"`) || !strings.Contains(text, `"completion_tokens":3`) {
		t.Errorf("status %d, body %s", status, text)
	}
	<-cancelled
}

// An error names the field that the client has to change, whoever finds it.
func TestErrorsNameTheField(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.ContextTokens = 100 }})
	over, far := strings.Repeat("x", 150), strings.Repeat("x", 500)
	text := func(prompt string, more ...string) string {
		return `{"model":"echo","prompt":"` + prompt + `"` + strings.Join(append([]string{""}, more...), ",") + `}`
	}
	for _, c := range []struct {
		name, path, body, param string
	}{
		{"chat, over", "/v1/chat/completions", chat(over), "messages"},
		{"chat, far over", "/v1/chat/completions", chat(far), "messages"},
		{"completion, over", "/v1/completions", text(over), "prompt"},
		{"completion, far over", "/v1/completions", text(far), "prompt"},
		{"completion, unknown id", "/v1/completions", `{"model":"echo","prompt":[2000000000]}`, "prompt"},
		{"completion, unknown id of a bias", "/v1/completions", text("a", `"logit_bias":{"2000000000":1}`), "logit_bias"},
		{"tokenize, a prompt far over", "/tokenize", text(far), "prompt"},
		{"tokenize, messages far over", "/tokenize", chat(far), "messages"},
	} {
		if status, answer := b.answer(c.path, c.body); status != 400 || !strings.Contains(answer, `"param":"`+c.param+`"`) {
			t.Errorf("%s: status %d, body %s; want 400 about %s", c.name, status, answer, c.param)
		}
	}
	b.cluster.setHook(fails(cluster.Decode, fault.OverContext, 1))
	for _, stream := range []string{`"stream":false`, `"stream":true`} {
		if status, answer := b.answer("/v1/completions", text("a", stream)); status != 400 || !strings.Contains(answer, `"param":"prompt"`) {
			t.Errorf("a worker's refusal, %s: status %d, body %s; want 400 about prompt", stream, status, answer)
		}
	}
}
