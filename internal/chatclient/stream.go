package chatclient

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	eventLineMax  = 1 << 20
	eventBytesMax = 4 << 20
	textBytesMax  = 64 << 20 // of one answer
)

// readAnswer reads a stream of completion chunks up to its [DONE].
func readAnswer(r io.Reader, emit func(string) error) (Answer, error) {
	var a Answer
	var text strings.Builder
	events := newEvents(r)
	for {
		data, err := events.next()
		a.Text = text.String()
		if err == io.EOF {
			return a, ErrBroken
		}
		if err != nil {
			return a, fmt.Errorf("%w: %w", ErrBroken, err)
		}
		if data == "[DONE]" {
			return a, nil
		}
		piece, err := a.apply(data)
		if err != nil {
			return a, err
		}
		if text.Len()+len(piece) > textBytesMax {
			return a, fmt.Errorf("answer of %d bytes, the limit is %d", text.Len()+len(piece), textBytesMax)
		}
		text.WriteString(piece)
		a.Text = text.String()
		if piece == "" {
			continue
		}
		if err := emit(piece); err != nil {
			return a, err
		}
	}
}

// readWhole reads an answer that is not streamed.
func readWhole(r io.Reader, emit func(string) error) (Answer, error) {
	text, err := io.ReadAll(io.LimitReader(r, answerBytesMax+1))
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if len(text) > answerBytesMax {
		return Answer{}, fmt.Errorf("answer of more than %d bytes", answerBytesMax)
	}
	if e := parseError(text); e != nil {
		return Answer{}, e
	}
	var whole struct {
		Choices []struct {
			Message      struct{ Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			PromptTokens     int `json:"prompt_tokens"`
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal(text, &whole); err != nil || len(whole.Choices) == 0 {
		return Answer{}, errors.New("the answer can't be read: it is JSON, and no chat completion")
	}
	first := whole.Choices[0] // one answer was asked for
	return Answer{first.Message.Content, first.FinishReason, whole.Usage.PromptTokens, whole.Usage.CompletionTokens}, emit(first.Message.Content)
}

// apply takes one chunk and returns the text that it adds.
func (a *Answer) apply(data string) (piece string, err error) {
	if e := parseError([]byte(data)); e != nil {
		return "", e
	}
	var chunk struct {
		Choices []struct {
			Index        int
			Delta        struct{ Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage *struct {
			PromptTokens     int `json:"prompt_tokens"`
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(data), &chunk); err != nil {
		return "", fmt.Errorf("a chunk of the answer can't be read: %w", err)
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue // one answer was asked for
		}
		piece += choice.Delta.Content
		if choice.FinishReason != "" {
			a.Finish = choice.FinishReason
		}
	}
	if chunk.Usage != nil {
		a.PromptTokens, a.OutputTokens = chunk.Usage.PromptTokens, chunk.Usage.CompletionTokens
	}
	return piece, nil
}

// events reads the data of server-sent events.
type events struct {
	lines *bufio.Scanner
}

func newEvents(r io.Reader) *events {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, eventLineMax)
	return &events{lines}
}

// next gives the data of the next event that has any, or io.EOF. An event that
// the stream's end cuts off is not one.
func (e *events) next() (string, error) {
	var data []string
	total := 0
	for e.lines.Scan() {
		line := e.lines.Text()
		if line == "" {
			if len(data) > 0 {
				return strings.Join(data, "\n"), nil
			}
			continue
		}
		field, value, _ := strings.Cut(line, ":") // a comment has an empty field
		if field != "data" {
			continue
		}
		if total += len(value); total > eventBytesMax {
			return "", fmt.Errorf("event of %d bytes or more, the limit is %d", total, eventBytesMax)
		}
		data = append(data, strings.TrimPrefix(value, " "))
	}
	if err := e.lines.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}
