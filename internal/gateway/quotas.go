package gateway

import (
	"strconv"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// quotas shares admission's quotas among the requests.
type quotas struct {
	now func() time.Time

	mu    sync.Mutex
	table *admission.Quotas // protected by mu
}

func newQuotas(now func() time.Time) *quotas {
	return &quotas{now: now, table: admission.NewQuotas()}
}

// account names a tenant's account. One that was removed and added again has another
// tag, and with it an account of its own: what its predecessor spent is not its.
func account(t *tenant.Tenant) string { return strconv.FormatUint(uint64(t.Tag), 16) }

func (q *quotas) enter(t *tenant.Tenant) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.table.Enter(q.now(), account(t), admission.Limits(t.Limits()))
}

func (q *quotas) reserve(t *tenant.Tenant, ask admission.Ask) (admission.Reservation, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.table.Reserve(q.now(), account(t), admission.Limits(t.Limits()), ask)
}

func (q *quotas) settle(id admission.Reservation, usedTokens int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.table.Settle(q.now(), id, usedTokens)
}

func (q *quotas) expire() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.table.Expire(q.now())
}
