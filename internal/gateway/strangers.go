package gateway

import (
	"log/slog"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// strangers names, once a start of each, the workers whose model is not the
// gateway's. They are never taken, so that nothing else would tell.
type strangers struct {
	model kv.Fingerprint
	named map[string]kv.Epoch // by node; bounded by the cluster file
}

func (s strangers) look(members []cluster.Member, log *slog.Logger) {
	for _, m := range members {
		if m.Epoch == 0 || m.Fingerprint == s.model || s.named[m.Node] == m.Epoch {
			continue
		}
		s.named[m.Node] = m.Epoch
		log.Error("worker has another model than the gateway and is left out", "node", m.Node, "role", m.Role.String(),
			"fingerprint", m.Fingerprint.String(), "gateway", s.model.String())
	}
}
