package gateway

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var variable = regexp.MustCompile(`"id":"[^"]*","object":"([^"]*)","created":\d+`)

func TestChatStreamsInOrder(t *testing.T) {
	b := newBench(t, setup{})
	resp := b.do("/v1/chat/completions", chat("hé", `"stream":true`, `"stream_options":{"include_usage":true}`))
	defer resp.Body.Close()
	got := events(t, resp.Body)
	for i := range got {
		got[i] = variable.ReplaceAllString(got[i], "$1")
	}
	chunk := func(rest string) string { return `{chat.completion.chunk,"model":"echo","choices":[` + rest }
	want := []string{
		chunk(`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}`),
		chunk(`{"index":0,"delta":{"content":"h"},"logprobs":null,"finish_reason":null}],"usage":null}`),
		chunk(`{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}],"usage":null}`),
		chunk(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}`),
		chunk(`],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}}`),
		"[DONE]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the stream differs (-want +got):\n%s", diff)
	}
	for name, value := range map[string]string{"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no", "Cache-Control": "no-cache"} {
		if got := resp.Header.Get(name); got != value {
			t.Errorf("header %s is %q, want %q", name, got, value)
		}
	}
	if b.record.kinds() != "accepted committed finished" {
		t.Errorf("the ledger has %q, want accepted committed finished", b.record.kinds())
	}
}

func TestChatWhole(t *testing.T) {
	b := newBench(t, setup{})
	status, text := b.answer("/v1/chat/completions", chat("hello"))
	got := variable.ReplaceAllString(text, "$1")
	want := `{chat.completion,"model":"echo","choices":[{"index":0,"message":{"role":"assistant","content":"hello","refusal":null},` +
		`"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":6,"completion_tokens":5,"total_tokens":11}}`
	if status != 200 || got != want {
		t.Errorf("status %d, body\n%s\nwant\n%s", status, got, want)
	}
	if !strings.Contains(text, `"id":"chatcmpl-`) {
		t.Errorf("the answer has no id: %s", text)
	}
}
