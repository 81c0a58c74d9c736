package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// prepare takes a request as far as build needs its body: who may not ask costs
// nothing more, and one tenant has a bounded number of bodies, and of their bytes, in
// memory and in tokenization. It answers errors itself and says whether there was none.
func (g *Gateway) prepare(w http.ResponseWriter, r *http.Request, build builder) bool {
	err := g.prepared(w, r, build)
	if err != nil {
		g.refuse(w, err)
	}
	return err == nil
}

func (g *Gateway) prepared(w http.ResponseWriter, r *http.Request, build builder) error {
	t, err := g.authenticate(r)
	if err != nil {
		return err
	}
	if err := g.quotas.enter(t); err != nil {
		return err
	}
	if err := g.entry.enter(r.Context(), t.Name); err != nil {
		return err
	}
	defer g.entry.leave(t.Name)
	body, release, err := g.readBody(w, r, t.Name)
	if err != nil {
		return err
	}
	defer release()
	leave, err := g.heavy(r.Context(), t.Name, body)
	if err != nil {
		return err
	}
	defer leave()
	return build(r.Context(), t, body)
}

// builder makes of a body what is to be run, and keeps nothing of the body. It may give
// up when ctx, which is the client's connection, ends.
type builder func(ctx context.Context, t *tenant.Tenant, body []byte) error

// entry bounds the requests of each tenant that are being prepared. Those over
// the bound wait, with nothing in memory but their connection.
type entry struct {
	places int // of one tenant
	wait   time.Duration

	mu      sync.Mutex
	tenants map[string]*places // protected by mu; those with anyone in or waiting
}

type places struct {
	taken chan struct{}
	users int // in or waiting; protected by entry.mu
}

func newEntry(perTenant int, wait time.Duration) *entry {
	return &entry{places: perTenant, wait: wait, tenants: map[string]*places{}}
}

func (e *entry) enter(ctx context.Context, tenant string) error {
	p := e.join(tenant)
	timer := time.NewTimer(e.wait)
	defer timer.Stop()
	select {
	case p.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		e.part(tenant)
		return errGone
	case <-timer.C:
		e.part(tenant)
		return fault.New(fault.Busy, "%d requests of the tenant are being read, no place came free in %s", e.places, e.wait)
	}
}

func (e *entry) join(tenant string) *places {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.tenants[tenant]
	if p == nil {
		p = &places{taken: make(chan struct{}, e.places)}
		e.tenants[tenant] = p
	}
	p.users++
	return p
}

func (e *entry) part(tenant string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.tenants[tenant]
	if p.users--; p.users == 0 {
		delete(e.tenants, tenant)
	}
}

// leave gives a place back. Requires: enter returned nil.
func (e *entry) leave(tenant string) {
	e.mu.Lock()
	p := e.tenants[tenant]
	e.mu.Unlock()
	<-p.taken
	e.part(tenant)
}

// errGone ends what was done for a client that is no more.
var errGone = fault.New(fault.Cancelled, "the client went away")
