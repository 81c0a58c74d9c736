package chatclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ErrLineDropped is what Lines gives when the user gave up a line (Ctrl-C).
var ErrLineDropped = errors.New("line dropped")

const (
	promptFirst = ">>> "
	promptMore  = "... "
	fence       = `"""` // begins and ends a message of several lines
	inputMax    = 16 << 20
)

const help = `/help           this text
/clear          forget the conversation, keep the system message
/system TEXT    set the system message and forget the conversation; alone it shows it
/save FILE      write the conversation to a file
/quit           leave, as Ctrl-D does
"""             begins and ends a message of several lines
Ctrl-C          stops an answer, or drops the line being typed
`

// Lines is where a person types.
type Lines interface {
	// Line shows the prompt and reads a line: io.EOF at the end, ErrLineDropped
	// if the user gave it up.
	Line(prompt string) (string, error)
}

// Session is a conversation at a terminal.
type Session struct {
	Client  *Client
	Request Request // settings; its messages are the conversation so far
	Lines   Lines
	Out     io.Writer
	Dim     func(string) string // for remarks
	// Stoppable derives the context of one answer, which Ctrl-C ends.
	Stoppable func(context.Context) (context.Context, context.CancelFunc)
}

// Run talks until the input ends.
func (s *Session) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		text, fenced, err := s.message()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, ErrLineDropped):
			continue
		case err != nil:
			return err
		case text == "":
		case strings.HasPrefix(text, "/") && !fenced:
			if quit := s.command(text); quit {
				return nil
			}
		default:
			if err := s.turn(ctx, text); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// message reads one message, of one line or between fences. Between fences there
// are no commands.
func (s *Session) message() (text string, fenced bool, err error) {
	line, err := s.Lines.Line(promptFirst)
	if err != nil {
		return "", false, err
	}
	text, fenced = strings.CutPrefix(strings.TrimSpace(line), fence)
	if !fenced {
		return text, false, nil
	}
	text, closed := strings.CutSuffix(text, fence)
	for !closed {
		if line, err = s.Lines.Line(promptMore); err != nil {
			return "", true, err
		}
		line, closed = strings.CutSuffix(strings.TrimRight(line, " \t"), fence)
		if text += "\n" + line; len(text) > inputMax {
			return "", true, fmt.Errorf("message of %d bytes, the limit is %d", len(text), inputMax)
		}
	}
	return strings.TrimSpace(text), true, nil
}

// command runs a line that begins with a slash.
func (s *Session) command(line string) (quit bool) {
	name, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "/help", "/?":
		fmt.Fprint(s.Out, help)
	case "/clear":
		s.clear(s.system())
		s.remark("forgotten")
	case "/system":
		s.setSystem(rest)
	case "/save":
		s.save(rest)
	case "/quit", "/exit", "/bye":
		return true
	default:
		s.remark("unknown command %s, /help lists them", name)
	}
	return false
}

// remark is a line of the program's own.
func (s *Session) remark(format string, args ...any) {
	fmt.Fprintln(s.Out, s.Dim(fmt.Sprintf(format, args...)))
}

func (s *Session) system() string {
	if m := s.Request.Messages; len(m) > 0 && m[0].Role == "system" {
		return m[0].Content
	}
	return ""
}

func (s *Session) clear(system string) {
	s.Request.Messages = nil
	if system != "" {
		s.Request.Messages = []Message{{"system", system}}
	}
}

func (s *Session) setSystem(text string) {
	if text != "" {
		s.clear(text)
	}
	s.remark("system message: %s", orNone(s.system()))
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func (s *Session) save(path string) {
	if path == "" {
		s.remark("/save wants a file's name")
		return
	}
	var b strings.Builder
	for _, m := range s.Request.Messages {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", m.Role, m.Content)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteString(b.String())
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		s.remark("not saved: %v", err)
		return
	}
	s.remark("saved %d messages to %s", len(s.Request.Messages), path)
}

// turn asks for one answer. A refusal is shown and the question forgotten, so
// that the user may change it; what was said before Ctrl-C stays.
func (s *Session) turn(ctx context.Context, text string) error {
	s.Request.Messages = append(s.Request.Messages, Message{"user", text})
	answerCtx, stop := s.Stoppable(ctx)
	answer, err := s.Client.Chat(answerCtx, s.Request, func(piece string) error {
		_, err := io.WriteString(s.Out, piece)
		return err
	})
	stopped := answerCtx.Err() != nil
	stop()
	if answer.Text != "" && !strings.HasSuffix(answer.Text, "\n") {
		fmt.Fprintln(s.Out)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err == nil || stopped && answer.Text != "":
		s.Request.Messages = append(s.Request.Messages, Message{"assistant", answer.Text})
	default:
		s.Request.Messages = s.Request.Messages[:len(s.Request.Messages)-1]
	}
	switch {
	case stopped:
		s.remark("(stopped)")
	case err != nil:
		s.remark("error: %v", err)
	case answer.Finish == "length":
		s.remark("(cut off at %d tokens)", answer.OutputTokens)
	}
	return nil
}
