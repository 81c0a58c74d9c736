package gateway

import (
	"io"
	"sync"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// budget is a number of bytes that all tenants share, of which each may have a part.
// What a tenant can make the gateway keep is bounded by its part, and what all can
// by the whole.
type budget struct {
	what       string // for messages
	whole      int64
	tenantPart int64

	mu      sync.Mutex
	used    int64            // protected by mu
	tenants map[string]int64 // of used, those with any; protected by mu
}

func newBudget(what string, whole, tenantPart int64) *budget {
	return &budget{what: what, whole: whole, tenantPart: tenantPart, tenants: map[string]int64{}}
}

// take gives a tenant n bytes, or an error that says nothing of other tenants but
// that they use the rest.
func (b *budget) take(tenant string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch held := b.tenants[tenant]; {
	case n > b.tenantPart-held:
		return fault.New(fault.Busy, "%s of the tenant take %d bytes, %d more are over the limit of %d", b.what, held, n, b.tenantPart)
	case n > b.whole-b.used:
		return fault.New(fault.Unavailable, "the server has no room for more %s now", b.what)
	}
	b.used += n
	b.tenants[tenant] += n
	return nil
}

// give takes n bytes back that the tenant had.
func (b *budget) give(tenant string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.tenants[tenant] -= n; b.tenants[tenant] == 0 {
		delete(b.tenants, tenant)
	}
}

// metered takes what it reads from a budget.
type metered struct {
	io.Reader
	budget *budget
	tenant string
	taken  int64
}

func (m *metered) Read(data []byte) (int, error) {
	n, err := m.Reader.Read(data)
	if n == 0 {
		return 0, err
	}
	if over := m.budget.take(m.tenant, int64(n)); over != nil {
		return 0, over
	}
	m.taken += int64(n)
	return n, err
}

// release gives back what was taken.
func (m *metered) release() {
	m.budget.give(m.tenant, m.taken)
	m.taken = 0
}
