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

// metered takes what it reads from a budget: up front what is known to come, and the
// rest as it comes.
type metered struct {
	io.Reader
	budget *budget
	tenant string
	taken  int64
	read   int64
}

// reserve takes n bytes before they are read.
func (m *metered) reserve(n int64) error {
	if err := m.budget.take(m.tenant, n); err != nil {
		return err
	}
	m.taken += n
	return nil
}

func (m *metered) Read(data []byte) (int, error) {
	n, err := m.Reader.Read(data)
	if more := m.read + int64(n) - m.taken; more > 0 {
		if over := m.reserve(more); over != nil {
			return 0, over
		}
	}
	m.read += int64(n)
	return n, err
}

// release gives back what was taken.
func (m *metered) release() {
	m.budget.give(m.tenant, m.taken)
	m.taken = 0
}
