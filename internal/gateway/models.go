package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// model describes the served model; its context is the effective limit, which is
// left out until workers are known.
func (g *Gateway) model() openai.Model {
	limit, _ := g.dispatch.limit() // an unknown limit is 0 and left out
	return openai.Model{ID: g.config.Model, Object: "model", Created: g.started.Unix(), OwnedBy: g.config.Owner,
		ContextLength: limit.Tokens, MaxModelLen: limit.Tokens}
}

// serveModels answers GET /v1/models.
func (g *Gateway) serveModels(w http.ResponseWriter, r *http.Request) {
	if _, err := g.authenticate(r); err != nil {
		g.refuse(w, err)
		return
	}
	writeJSON(w, http.StatusOK, openai.ModelList{Object: "list", Data: []openai.Model{g.model()}})
}

// serveModel answers GET /v1/models/{id}; an id may have slashes.
func (g *Gateway) serveModel(w http.ResponseWriter, r *http.Request) {
	_, err := g.authenticate(r)
	if err == nil {
		err = g.knowsModel(strings.TrimPrefix(r.URL.Path, "/v1/models/"))
	}
	if err != nil {
		g.refuse(w, err)
		return
	}
	writeJSON(w, http.StatusOK, g.model())
}

// tokenizeMax bounds what is tokenized while no worker says what the limit is.
const tokenizeMax = 1 << 16

// serveTokenize answers POST /tokenize: the ids that a prompt or a conversation
// has. It needs a tenant's key, because it costs work.
func (g *Gateway) serveTokenize(w http.ResponseWriter, r *http.Request) {
	var answer openai.Tokenized
	if g.prepare(w, r, func(ctx context.Context, _ *tenant.Tenant, body []byte) (err error) {
		answer, err = g.tokenize(ctx, body)
		return err
	}) {
		writeJSON(w, http.StatusOK, answer)
	}
}

func (g *Gateway) tokenize(ctx context.Context, body []byte) (answer openai.Tokenized, err error) {
	request, err := openai.ParseTokenize(body)
	if err != nil {
		return answer, err
	}
	if request.Model != "" {
		if err := g.knowsModel(request.Model); err != nil {
			return answer, err
		}
	}
	count, unknown := g.counter()
	if unknown != nil {
		count.limit = tokenizeMax
	}
	ids := []int32{}
	switch {
	case request.Messages != nil:
		ids, err = count.chat(ctx, request.Messages)
	case request.Prompt != "":
		ids, err = count.prompt(ctx, request.Prompt)
	}
	if err != nil {
		return answer, err
	}
	limit, _ := g.dispatch.limit() // an unknown limit is 0 and left out
	answer = openai.Tokenized{Count: len(ids), MaxModelLen: limit.Tokens, Tokens: ids}
	if request.Pieces {
		for _, id := range ids {
			answer.Pieces = append(answer.Pieces, printable(g.parts.Text.Piece(id)))
		}
	}
	return answer, nil
}
