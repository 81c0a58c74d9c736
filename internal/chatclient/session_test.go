package chatclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// script is a person who types the given lines; "^C" drops one.
type script struct {
	lines []string
	out   *bytes.Buffer
}

func (s *script) Line(prompt string) (string, error) {
	if len(s.lines) == 0 {
		return "", io.EOF
	}
	line := s.lines[0]
	s.lines = s.lines[1:]
	fmt.Fprintf(s.out, "%s%s\n", prompt, line)
	if line == "^C" {
		return "", ErrLineDropped
	}
	return line, nil
}

// parrot answers with the conversation it was sent. Some last words make it
// behave in another way.
func parrot(w http.ResponseWriter, r *http.Request) {
	var request Request
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	last := request.Messages[len(request.Messages)-1].Content
	switch last {
	case "refuse":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"no","code":"refused"}}`)
		return
	case "break":
		stream(delta("half an ans"))(w, r)
		return
	case "hang":
		stream(delta("wait for it"))(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	case "long":
		stream(delta("on and on")+strings.Replace(finish, "stop", "length", 1)+usage+done)(w, r)
		return
	}
	var heard []string
	for _, m := range request.Messages {
		heard = append(heard, m.Role[:1]+":"+m.Content)
	}
	stream(delta("heard ")+delta(fmt.Sprintf("%q", heard))+finish+usage+done)(w, r)
}

// TestSessions replays conversations: the input is what a person types, the
// output what the terminal shows.
func TestSessions(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(parrot))
	defer server.Close()
	datadriven.RunTest(t, "testdata/sessions.txt", func(t *testing.T, d *datadriven.TestData) string {
		client, err := New(server.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var out bytes.Buffer
		s := &Session{
			Client: client, Lines: &script{strings.Split(d.Input, "\n"), &out}, Dim: func(s string) string { return "~ " + s },
			Stoppable: context.WithCancel,
		}
		s.Out = &out
		if d.HasArg("stop") {
			s.Stoppable = func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				s.Out = stopper{&out, cancel}
				return ctx, cancel
			}
		}
		if err := s.Run(t.Context()); err != nil {
			fmt.Fprintf(&out, "error: %v\n", err)
		}
		return out.String()
	})
}

// stopper is a terminal at which Ctrl-C is typed as soon as "wait" is read.
type stopper struct {
	io.Writer
	stop context.CancelFunc
}

func (s stopper) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("wait")) {
		s.stop()
	}
	return s.Writer.Write(b)
}

func TestSaveWritesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.md")
	var out bytes.Buffer
	s := &Session{Lines: &script{[]string{"/save " + path, "/save " + path, "/save", "/save /nowhere/x"}, new(bytes.Buffer)}, Out: &out, Dim: strings.ToUpper}
	s.Request.Messages = []Message{{"system", "be brief"}, {"user", "hi"}}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if string(text) != "## system\n\nbe brief\n\n## user\n\nhi\n\n" || err != nil {
		t.Errorf("saved %q, error %v", text, err)
	}
	for _, want := range []string{"SAVED 2 MESSAGES", "FILE EXISTS", "WANTS A FILE'S NAME", "NO SUCH FILE"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the terminal lacks %q:\n%s", want, out.String())
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a conversation should be private: mode %v, error %v", info.Mode(), err)
	}
}
