package gateway

import (
	"log/slog"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
)

// served tells the operator whose bound the served limit is: when workers can first
// serve it, and whenever it moves, since it moves for everybody.
type served struct {
	limit admission.Limit // told last
}

// look is for times when a pair of workers may serve.
func (s *served) look(limit admission.Limit, log *slog.Logger) {
	switch before := s.limit; {
	case before.Tokens == limit.Tokens:
		return
	case before.Tokens == 0:
		log.Info("context limit", "tokens", limit.Tokens, "by", limit.By)
	default:
		log.Warn("context limit has changed", "tokens", limit.Tokens, "by", limit.By, "before", before.Tokens)
	}
	s.limit = limit
}
