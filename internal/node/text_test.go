package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bulkhead-kv/bulkhead/internal/gateway"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

// Both forms of a prompt give up when it is too long and when nobody waits for it.
func TestTextGivesUp(t *testing.T) {
	text, err := newText(tracer.File())
	if err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	leave(cause)
	for name, encode := range map[string]func(ctx context.Context, s string, tokensMax int) ([]int32, error){
		"prompt": text.Prompt,
		"chat": func(ctx context.Context, s string, tokensMax int) ([]int32, error) {
			return text.Chat(ctx, []openai.Message{{Role: "user", Content: s}}, tokensMax)
		},
	} {
		if ids, err := encode(t.Context(), "hello", 100); err != nil || len(ids) < 5 {
			t.Errorf("%s: %d tokens, %v", name, len(ids), err)
		}
		var long *gateway.TooLong
		if _, err := encode(t.Context(), strings.Repeat("x", 1<<20), 100); !errors.As(err, &long) || long.Over < 100 {
			t.Errorf("%s: %v, want that it is too long", name, err)
		}
		if _, err := encode(gone, strings.Repeat("x y ", 1<<14), 1<<20); !errors.Is(err, cause) {
			t.Errorf("%s: %v, want the cause of the end", name, err)
		}
	}
}
