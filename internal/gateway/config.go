package gateway

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what the gateway does. Default gives working values, Validate
// names every mistake.
type Config struct {
	// Model is the name under which the model is served; Owner stands beside it
	// in /v1/models.
	Model string
	Owner string
	// OpenMetrics serves /metrics and the reasons of /readyz to whoever reaches the API,
	// beside AdminHandler. They say nothing of one request or tenant, but one who watches
	// while others ask learns when, how much and how long.
	OpenMetrics bool
	// ContextTokens is the served context; 0: as much as the workers hold.
	ContextTokens int
	// ReserveTokens is the output granted when a client names no maximum.
	ReserveTokens int

	// BodyBytesMax bounds a request's body, BodyTimeout the time it takes to come.
	BodyBytesMax int64
	BodyTimeout  time.Duration
	// TenantBodiesMax bounds the requests of one tenant that are read and tokenized
	// at one time; others wait for at most QueueTimeout.
	TenantBodiesMax int
	// BodiesBytesMax bounds the bytes of all bodies that are read and tokenized at one
	// time, TenantBodiesBytesMax those of one tenant. While it is parsed and tokenized a
	// body costs up to bodyCost times its bytes. Of the bodies over HeavyBodyBytes one a
	// tenant is parsed and tokenized at a time.
	BodiesBytesMax       int64
	TenantBodiesBytesMax int64
	HeavyBodyBytes       int64
	// AnswersBytesMax bounds the memory of all answers that are gathered to be delivered
	// whole, TenantAnswersBytesMax that of one tenant's. It is taken at admission: for
	// each choice and granted token answerTokenBytes, and with logprobs
	// answerLogprobBytes for the token and for each alternative.
	AnswersBytesMax       int64
	TenantAnswersBytesMax int64
	// RequestTimeout is the time from admission to the end of the answer.
	RequestTimeout time.Duration

	// QueueMax bounds the choices that wait for workers, but for one request of each
	// tenant with none waiting; TenantQueueMax those of one tenant, QueueTimeout their
	// wait. OutageTimeout is how long a choice
	// waits while no pair of workers can serve at all. RetryAfter is told to those
	// who find the queue full.
	QueueMax       int
	TenantQueueMax int
	QueueTimeout   time.Duration
	OutageTimeout  time.Duration
	RetryAfter     time.Duration
	// TenantSharePercent is how much of all workers' pages the running choices of one
	// tenant may hold, so that room is left for the next tenant who comes. A tenant with
	// nothing running may hold any part, and 100 bounds nothing.
	TenantSharePercent int
	// BusyRetriesMax bounds how often a choice whose workers were busy is given
	// to a pair again, BusyBackoff is the first pause before that; it doubles.
	BusyRetriesMax int
	BusyBackoff    time.Duration

	// KeepAlive is the time between comments in a stream with nothing to say.
	KeepAlive time.Duration
	// WriteTimeout bounds one write to a client, OutboxBytesMax what waits for it.
	WriteTimeout   time.Duration
	OutboxBytesMax int

	// FreshFor is how old a worker's state may be. A worker that was lost is not
	// taken for LostFor; one that was lost or failed a request is taken last for
	// AvoidFor. Neither holds when it has started anew.
	FreshFor time.Duration
	LostFor  time.Duration
	AvoidFor time.Duration
	// ReadyFor is how old the last real transfer may be; a pair that carried none
	// for ProbeEvery is probed, for at most ProbeTimeout.
	ReadyFor     time.Duration
	ProbeEvery   time.Duration
	ProbeTimeout time.Duration

	// ConnectionsMax bounds the open connections of Serve. For one more, the one that has
	// been without a request longest is closed.
	ConnectionsMax int
	// HeaderTimeout, IdleTimeout and HeaderBytesMax bound a connection,
	// DrainTimeout the end of running answers when the gateway stops.
	HeaderTimeout  time.Duration
	IdleTimeout    time.Duration
	HeaderBytesMax int
	DrainTimeout   time.Duration
}

// Default is a Config that lacks the model's name only.
func Default() Config {
	return Config{
		Owner: "bulkhead", ReserveTokens: 1024,
		BodyBytesMax: 16 << 20, BodyTimeout: 30 * time.Second, TenantBodiesMax: 16,
		BodiesBytesMax: 256 << 20, TenantBodiesBytesMax: 64 << 20, HeavyBodyBytes: 256 << 10,
		AnswersBytesMax: 1 << 30, TenantAnswersBytesMax: 256 << 20, RequestTimeout: 10 * time.Minute,
		QueueMax: 1024, TenantQueueMax: 256, QueueTimeout: 30 * time.Second, OutageTimeout: 3 * time.Second,
		RetryAfter: 2 * time.Second, TenantSharePercent: 75, BusyRetriesMax: 6, BusyBackoff: 50 * time.Millisecond,
		KeepAlive: 10 * time.Second, WriteTimeout: 20 * time.Second, OutboxBytesMax: 256 << 10,
		FreshFor: 5 * time.Second, LostFor: time.Second, AvoidFor: 5 * time.Second,
		ReadyFor: 30 * time.Second, ProbeEvery: 10 * time.Second, ProbeTimeout: 10 * time.Second,
		ConnectionsMax: 4096, HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, HeaderBytesMax: 64 << 10, DrainTimeout: 30 * time.Second,
	}
}

// bodyCost is what a body costs at most while it is parsed and tokenized, in its bytes.
const bodyCost = 20

// RequestBytes is what requests may make the gateway hold at one time: bodies that are
// read and tokenized, and answers that are gathered.
func (c Config) RequestBytes() int64 { return c.AnswersBytesMax + bodyCost*c.BodiesBytesMax }

// Within lowers the budgets of bodies and answers, each by the same part, as far as is
// needed for RequestBytes to be at most so many. A body may then be at most as long as
// all of one tenant. Requires: bytes >= 1 MiB.
func (c Config) Within(bytes int64) Config {
	part := min(1, float64(bytes)/float64(c.RequestBytes()))
	for _, budget := range []*int64{&c.AnswersBytesMax, &c.TenantAnswersBytesMax, &c.BodiesBytesMax, &c.TenantBodiesBytesMax} {
		*budget = int64(float64(*budget) * part)
	}
	c.BodyBytesMax = min(c.BodyBytesMax, c.TenantBodiesBytesMax)
	return c
}

// Validate names all mistakes.
func (c Config) Validate() error {
	var errs []error
	if c.Model == "" {
		errs = append(errs, errors.New("gateway: the model has no name"))
	}
	for _, f := range []struct {
		name      string
		value, lo int64
	}{
		{"context tokens", int64(c.ContextTokens), 0}, {"reserve tokens", int64(c.ReserveTokens), 1},
		{"body bytes", c.BodyBytesMax, 1}, {"queue length", int64(c.QueueMax), 1},
		{"tenant bodies", int64(c.TenantBodiesMax), 1}, {"tenant share in percent", int64(c.TenantSharePercent), 1}, {"tenant queue length", int64(c.TenantQueueMax), 1}, {"busy retries", int64(c.BusyRetriesMax), 0},
		{"bytes of all bodies", c.BodiesBytesMax, c.BodyBytesMax}, {"bytes of a tenant's bodies", c.TenantBodiesBytesMax, c.BodyBytesMax},
		{"heavy body bytes", c.HeavyBodyBytes, 0}, {"bytes of all whole answers", c.AnswersBytesMax, 1}, {"bytes of a tenant's whole answers", c.TenantAnswersBytesMax, 1},
		{"outbox bytes", int64(c.OutboxBytesMax), 1}, {"header bytes", int64(c.HeaderBytesMax), 1}, {"connections", int64(c.ConnectionsMax), 1},
	} {
		if f.value < f.lo {
			errs = append(errs, fmt.Errorf("gateway: %s is %d, it must be at least %d", f.name, f.value, f.lo))
		}
	}
	if c.TenantSharePercent > 100 {
		errs = append(errs, fmt.Errorf("gateway: tenant share is %d percent, it must be at most 100", c.TenantSharePercent))
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"body timeout", c.BodyTimeout}, {"request timeout", c.RequestTimeout}, {"queue timeout", c.QueueTimeout},
		{"outage timeout", c.OutageTimeout}, {"retry after", c.RetryAfter}, {"busy back-off", c.BusyBackoff},
		{"keep-alive", c.KeepAlive}, {"write timeout", c.WriteTimeout}, {"fresh for", c.FreshFor}, {"lost for", c.LostFor}, {"avoid for", c.AvoidFor},
		{"ready for", c.ReadyFor}, {"probe every", c.ProbeEvery}, {"probe timeout", c.ProbeTimeout},
		{"header timeout", c.HeaderTimeout}, {"idle timeout", c.IdleTimeout}, {"drain timeout", c.DrainTimeout},
	} {
		if f.value <= 0 {
			errs = append(errs, fmt.Errorf("gateway: %s is %s, it must be over 0", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}
