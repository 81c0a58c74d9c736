// Package chatclient talks to a server through its OpenAI API.
//
// It knows the part that a person at a terminal needs: the list of models and
// streamed chat completions, as server-sent events (WHATWG HTML, section 9.2).
// Any server with that API will do. Where none is up, StartPrivate starts one
// for the time of a command.
package chatclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const (
	answerBytesMax = 64 << 20 // of an answer that is not streamed, and of an error
	errorTextMax   = 300      // bytes shown of an answer that can't be read
)

// ErrNoServer says that nothing answers at the address.
var ErrNoServer = errors.New("no server answers")

// ErrBroken says that an answer's stream ended before its end was announced.
var ErrBroken = errors.New("the answer broke off")

// APIError is a server's refusal, before or during an answer.
type APIError struct {
	Status     int // HTTP status; 0 within a stream
	Message    string
	Code       string
	RetryAfter string // as the server sent it, may be empty
	Foreign    bool   // neither the API's nor JSON: something else answers
}

// Error is the server's message with what identifies it.
func (e *APIError) Error() string {
	text := e.Message
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	if e.Status != 0 {
		text = fmt.Sprintf("%d: %s", e.Status, text)
	}
	if e.RetryAfter != "" {
		text += ", try again in " + e.RetryAfter + " s"
	}
	return text
}

// WantsKey tells a refusal that another key may cure.
func (e *APIError) WantsKey() bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// Client speaks to one server.
type Client struct {
	base *url.URL // without /v1
	key  string
	http *http.Client
}

// New makes a client for a server's address, with or without /v1 at its end. An
// empty key sends none.
func New(address, key string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("server address %q: want http:// or https:// and a host", address)
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, fmt.Errorf("server address %q: port %s, must be at most %d", address, port, math.MaxUint16)
		}
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	return &Client{base: u, key: key, http: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}}, nil
}

// Address is the server's address, for messages.
func (c *Client) Address() string { return c.base.Scheme + "://" + c.base.Host + c.base.Path }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Models lists the names of the models that the server has.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	response, err := c.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var list struct {
		Object string
		Data   []struct{ ID string }
	}
	err = json.NewDecoder(io.LimitReader(response.Body, answerBytesMax)).Decode(&list)
	switch {
	case err != nil && !isJSON(response):
		return nil, c.foreign(response, nil)
	case err != nil || list.Object != "list":
		return nil, fmt.Errorf("server %s: its answer is no list of models", c.Address())
	}
	names := make([]string, len(list.Data))
	for i, m := range list.Data {
		names[i] = m.ID
	}
	return names, nil
}

// Probe looks whether the API answers, before anything is asked of it: the error is that
// of no server, of one that wants another key, or of one that is something else. A
// server that has the API but no list of models passes.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.Models(ctx)
	var refused *APIError
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrNoServer):
		return err
	case errors.As(err, &refused) && (refused.Foreign || refused.WantsKey()):
		return err
	}
	return nil
}

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // "system", "user" or "assistant"
	Content string `json:"content"`
}

// Request is what to answer. Nil and zero settings are the server's to choose.
type Request struct {
	Model       string    `json:"model"`
	Messages    []Message `json:"messages"`
	MaxTokens   int       `json:"max_completion_tokens,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Seed        *int64    `json:"seed,omitempty"`
}

// Answer is a whole answer. The token counts are 0 if the server gave none.
type Answer struct {
	Text         string
	Finish       string // "stop", "length", ...
	PromptTokens int
	OutputTokens int
}

// Chat asks for an answer and calls emit with each piece of its text. What has
// been said before an error is in the Answer.
func (c *Client) Chat(ctx context.Context, r Request, emit func(text string) error) (Answer, error) {
	body, err := json.Marshal(struct {
		Request
		Stream        bool            `json:"stream"`
		StreamOptions map[string]bool `json:"stream_options"`
	}{r, true, map[string]bool{"include_usage": true}})
	if err != nil {
		return Answer{}, err
	}
	response, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	read := readAnswer
	switch {
	case isJSON(response): // a server that does not stream
		read = readWhole
	case mediaType(response) != "text/event-stream":
		return Answer{}, c.foreign(response, nil)
	}
	answer, err := read(response.Body, emit)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // reading fails in many ways once the context is over
	}
	return answer, err
}

// do sends a request and returns a response of status 200, or the error.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := c.http.Do(req)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		if wrapped := new(url.Error); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrNoServer, c.Address(), err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, c.refusal(response)
	}
	return response, nil
}

func (c *Client) refusal(r *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(r.Body, answerBytesMax)) // what there is must do
	e := parseError(text)
	if e == nil {
		return c.foreign(r, text)
	}
	e.Status, e.RetryAfter = r.StatusCode, r.Header.Get("Retry-After")
	return e
}

// foreign is the error of an answer that is not the API's. It names who gives it, and
// shows the beginning of its text, unless that is a page for a browser.
func (c *Client) foreign(r *http.Response, text []byte) *APIError {
	kind := mediaType(r)
	about := []string{http.StatusText(r.StatusCode)}
	for _, what := range []string{kind, r.Header.Get("Server")} {
		if what != "" {
			about = append(about, fmt.Sprintf("%.*q", errorTextMax, what))
		}
	}
	message := fmt.Sprintf("what %s answers is not the OpenAI API's: %s", c.Address(), strings.Join(about, ", "))
	if shown := strings.ToValidUTF8(string(text[:min(len(text), errorTextMax)]), ""); shown != "" && kind != "text/html" {
		message += fmt.Sprintf(": %q", shown)
	}
	return &APIError{Status: r.StatusCode, Message: message, RetryAfter: r.Header.Get("Retry-After"), Foreign: !isJSON(r)}
}

func isJSON(r *http.Response) bool { return mediaType(r) == "application/json" }

// mediaType is what the answer says that it is, without parameters.
func mediaType(r *http.Response) string {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // what can't be read is nothing known
	return kind
}

// parseError reads {"error": {"message": ..., "code": ...}}; nil if it is something else.
func parseError(text []byte) *APIError {
	var body struct {
		Error *struct {
			Message string
			Code    any // a text, a number or null
		}
	}
	if json.Unmarshal(text, &body) != nil || body.Error == nil {
		return nil
	}
	e := &APIError{Message: body.Error.Message}
	if body.Error.Code != nil {
		e.Code = fmt.Sprint(body.Error.Code)
	}
	return e
}
