package chatclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// stream writes server-sent events as they are given.
func stream(events string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, events)
	}
}

// whole writes JSON as it is given.
func whole(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

// delta is the event of a piece of text.
func delta(text string) string {
	quoted, _ := json.Marshal(text) // a string always has JSON
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%s},\"finish_reason\":null}]}\n\n", quoted)
}

const (
	finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	usage  = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n"
	done   = "data: [DONE]\n\n"
)

func ask(t *testing.T, handler http.Handler) (answer Answer, emitted string, err error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	c, err := New(server.URL+"/v1/", "key")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer, err = c.Chat(t.Context(), Request{Model: "m", Messages: []Message{{"user", "hi"}}}, func(text string) error {
		emitted += text
		return nil
	})
	return answer, emitted, err
}

func TestChatStreams(t *testing.T) {
	want := Answer{Text: "Hello wörld", Finish: "stop", PromptTokens: 5, OutputTokens: 2}
	tests := map[string]string{
		"plainly":                   delta("Hello") + delta(" wörld") + finish + usage + done,
		"with comments and CRLF":    ": keep-alive\r\n\r\n" + strings.ReplaceAll(delta("Hello wörld")+finish+usage+done, "\n", "\r\n"),
		"without spaces":            strings.ReplaceAll(delta("Hello wörld")+finish+usage+done, "data: ", "data:"),
		"with other fields":         "event: x\nid: 1\n" + delta("Hello wörld") + "retry: 5\n\n" + finish + usage + done,
		"with data over many lines": "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"Hello wörld\"}}]}\n\n" + finish + usage + done,
		"with another choice":       "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"no\"}}]}\n\n" + delta("Hello wörld") + finish + usage + done,
	}
	for name, events := range tests {
		answer, emitted, err := ask(t, stream(events))
		if diff := cmp.Diff(want, answer); diff != "" || err != nil || emitted != want.Text {
			t.Errorf("%s: emitted %q, error %v, answer (-want +got):\n%s", name, emitted, err, diff)
		}
	}
}

func TestChatTakesAnAnswerThatIsNotStreamed(t *testing.T) {
	want := Answer{Text: "Hello", Finish: "stop", PromptTokens: 5, OutputTokens: 2}
	answer, emitted, err := ask(t, whole(`{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":5,"completion_tokens":2}}`))
	if diff := cmp.Diff(want, answer); diff != "" || err != nil || emitted != want.Text {
		t.Errorf("emitted %q, error %v, answer (-want +got):\n%s", emitted, err, diff)
	}
}

func TestProbeTellsWhatAnswers(t *testing.T) {
	answer := func(status int, kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Server", "porch/1.0")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    string // empty: it passes
	}{
		{"a list of models", answer(200, "application/json", `{"object":"list","data":[]}`), ""},
		{"no list, and a refusal in the API's words", answer(400, "application/json", `{"error":{"message":"no"}}`), ""},
		{"no list, and a refusal in JSON", answer(404, "application/json", `{"detail":"Not Found"}`), ""},
		{"another key is wanted", answer(401, "application/json", `{"error":{"message":"no key"}}`), "401: no key"},
		{"a page", answer(200, "text/html", "<html>"), `answers is not the OpenAI API's: OK, "text/html", "porch/1.0"`},
		{"no page", answer(404, "text/html", "<html>"), `answers is not the OpenAI API's: Not Found, "text/html", "porch/1.0"`},
		{"a door", answer(403, "text/plain", "go away"), `answers is not the OpenAI API's: Forbidden, "text/plain", "porch/1.0": "go away"`},
	} {
		server := httptest.NewServer(test.handler)
		c, err := New(server.URL, "key")
		if err != nil {
			t.Fatal(err)
		}
		err = c.Probe(t.Context())
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: the probe says %v, want %q", test.name, err, test.want)
		}
		if err != nil && !strings.Contains(err.Error(), server.URL) && !strings.Contains(err.Error(), "401: ") {
			t.Errorf("%s: %v does not name the address", test.name, err)
		}
		c.Close()
		server.Close()
	}
}

func TestChatSendsWhatItShould(t *testing.T) {
	var got map[string]any
	var header http.Header
	var path string
	_, _, err := ask(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header, path = r.Header, r.URL.Path
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		stream(done)(w, r)
	}))
	want := map[string]any{
		"model": "m", "messages": []any{map[string]any{"role": "user", "content": "hi"}},
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || path != "/v1/chat/completions" || header.Get("Authorization") != "Bearer key" {
		t.Errorf("path %s, error %v, body (-want +got):\n%s", path, err, diff)
	}
}

func TestChatFailsClearly(t *testing.T) {
	refuse := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		text    string
		want    string
	}{
		{"a refusal", refuse(400, `{"error":{"message":"too long","type":"x","param":null,"code":"context_length_exceeded"}}`), "",
			"400: too long (context_length_exceeded), try again in 7 s"},
		{"a refusal by something else", refuse(502, "<html>"), "", `answers is not the OpenAI API's: Bad Gateway, "text/html", try again in 7 s`},
		{"a refusal in other words", refuse(404, "no such page"), "", `answers is not the OpenAI API's: Not Found, "text/plain": "no such page"`},
		{"an error in the stream", stream(delta("Hel") + `data: {"error":{"message":"worker lost","code":null}}` + "\n\n"), "Hel", "worker lost"},
		{"no end", stream(delta("Hel")), "Hel", "the answer broke off"},
		{"an end in the middle of an event", stream(delta("Hel") + "data: [DONE]"), "Hel", "the answer broke off"},
		{"nonsense", stream("data: {\n\n"), "", "a chunk of the answer can't be read"},
		{"a very long line", stream("data: " + strings.Repeat("x", eventLineMax+1)), "", "the answer broke off: bufio.Scanner: token too long"},
		{"a very long event", stream(strings.Repeat("data: "+strings.Repeat("x", eventLineMax/2)+"\n", 10)), "", "the limit is 4194304"},
		{"a page", refuse(200, "<html>"), "", `answers is not the OpenAI API's: OK, "text/html"`},
		{"JSON of another kind", whole("{}"), "", "no chat completion"},
		{"an error instead of an answer", whole(`{"error":{"message":"worker lost","code":null}}`), "", "worker lost"},
	}
	for _, test := range tests {
		answer, emitted, err := ask(t, test.handler)
		if err == nil || !strings.Contains(err.Error(), test.want) || answer.Text != test.text || emitted != test.text {
			t.Errorf("%s: error %v, text %q, emitted %q; want %q and %q", test.name, err, answer.Text, emitted, test.want, test.text)
		}
	}
}

func TestNoServerIsToldFromARefusal(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	c, err := New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var refused *APIError
	if _, err := c.Models(t.Context()); !errors.As(err, &refused) || refused.Status != 404 || errors.Is(err, ErrNoServer) {
		t.Errorf("error is %v, want a refusal of status 404", err)
	}
	server.Close()
	if _, err := c.Models(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("error is %v, want ErrNoServer", err)
	}
	for _, address := range []string{"", "localhost:8080", "ftp://h", "http://", "http://h:65536", "http://h:1843500/v1", "http://[::1]:99999999999999999999"} {
		if _, err := New(address, ""); err == nil {
			t.Errorf("address %q is accepted", address)
		}
	}
	for _, address := range []string{"http://h", "http://h:", "http://h:0", "https://[::1]:65535/v1"} {
		if _, err := New(address, ""); err != nil {
			t.Errorf("address %q is refused: %v", address, err)
		}
	}
}

func TestModelsAreListed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"a"},{"id":"b"}]}`)
	}))
	defer server.Close()
	c, err := New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Models(t.Context())
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" || err != nil {
		t.Errorf("error %v, models (-want +got):\n%s", err, diff)
	}
}

func TestACancelledChatKeepsWhatWasSaid(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stream(delta("Hel"))(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	c, err := New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer, err := c.Chat(ctx, Request{}, func(string) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || answer.Text != "Hel" {
		t.Errorf("error %v, text %q; want context.Canceled and what was said", err, answer.Text)
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte(delta("Hello") + finish + usage + done))
	f.Add([]byte(": c\r\n\r\ndata\n\ndata:\n\ndata: {\"error\":{}}\n\n"))
	f.Add([]byte("data: {\"choices\":[{}]}\n\n\n\ndata: [DONE]\n\n"))
	f.Fuzz(func(t *testing.T, events []byte) {
		var emitted strings.Builder
		read := func(r io.Reader) (Answer, error) {
			emitted.Reset()
			return readAnswer(r, func(text string) error { emitted.WriteString(text); return nil })
		}
		answer, err := read(bytes.NewReader(events))
		if answer.Text != emitted.String() {
			t.Errorf("the answer is %q, emitted was %q", answer.Text, emitted.String())
		}
		byByte, errByByte := read(iotest.OneByteReader(bytes.NewReader(events)))
		if answer != byByte || (err == nil) != (errByByte == nil) {
			t.Errorf("in one piece %+v (%v), byte by byte %+v (%v)", answer, err, byByte, errByByte)
		}
	})
}
