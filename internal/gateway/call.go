package gateway

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// form is one of the two shapes of answers.
type form interface {
	// begin returns the first events of a stream, before any text.
	begin() []any
	// event returns the events of a delta, the finish in one of its own.
	event(d delta) []any
	// usage is the event that ends a stream when the client asked for it.
	usage(u *openai.Usage) any
	// whole is the answer that doesn't stream, from all deltas in order.
	whole(deltas []delta, u *openai.Usage) any
}

// call is one HTTP request for an answer, with all its choices. The handler's
// goroutine owns it; choices reach it through out and fail.
type call struct {
	gateway  *Gateway
	route    string
	param    string // the field that its prompts came in
	tenant   *tenant.Tenant
	options  openai.Options
	prompts  [][]int32
	public   string // random part of the answer's id
	name     string // the answer's id
	admitted time.Time
	deadline time.Time
	choices  []*choice
	out      *outbox

	memory     int64       // taken from the budget of answers
	dispatched atomic.Bool // a choice got a pair: headers may go
	cancel     context.CancelCauseFunc
}

// The causes with which a call ends for want of a client.
var (
	errDone = fault.New(fault.Cancelled, "the call has ended")
	errSlow = fault.New(fault.Cancelled, "the client reads too slowly")
)

// errUnrecorded refuses what could not be recorded.
var errUnrecorded = fault.New(fault.Unavailable, "the server's record can't be written")

// recorded is errUnrecorded while the ledger can't be written; the log says so once.
func (g *Gateway) recorded() error {
	err := g.parts.Ledger.Err()
	switch before := g.unrecorded.Swap(err != nil); {
	case err == nil:
		return nil
	case !before:
		g.parts.Log.Error("the ledger can't be written, nothing is admitted", "error", err)
	}
	return errUnrecorded
}

// errStopped ends the calls that still run when the drain's deadline is over.
var errStopped = fault.New(fault.Unavailable, "the server is stopping")

// answer takes a parsed request through admission, runs it and delivers.
func (c *call) answer(w http.ResponseWriter, r *http.Request, f form) {
	reservation, err := c.admit()
	if err != nil {
		c.gateway.refuse(w, c.concerning(err))
		return
	}
	w.Header().Set("X-Request-Id", requestID(r, c.name))
	ctx, release := c.context(r.Context())
	var running sync.WaitGroup
	for _, ch := range c.choices {
		running.Go(func() { ch.run(ctx) })
	}
	err = c.deliver(ctx, w, f)
	c.cancel(errDone)
	running.Wait()
	release()
	c.gateway.quotas.settle(reservation, c.spent())
	c.gateway.answers.give(c.tenant.Name, c.memory)
	c.observe(err)
	if fault.Of(err) == fault.Cancelled {
		breakOff()
	}
}

// concerning names the field that an error is about: what is too long is a prompt.
func (c *call) concerning(err error) error {
	if fault.Of(err) != fault.OverContext {
		return err
	}
	return &about{c.param, err}
}

// breakOff ends the connection instead of the response: a handler that returned
// would give a client that only half closed, or reads slowly, a response that looks
// complete. Requires: everything of the request is settled; it doesn't return.
func breakOff() { panic(http.ErrAbortHandler) }

// admit decides about all choices at once, before any header, identity or
// place: the ledger can be written, each prompt fits, the tenant may spend it.
func (c *call) admit() (admission.Reservation, error) {
	g := c.gateway
	if err := g.recorded(); err != nil {
		return 0, err
	}
	limit, err := g.dispatch.limit()
	if err != nil {
		return 0, err
	}
	grants := make([]int, len(c.prompts))
	total := 0
	for i, prompt := range c.prompts {
		grant, err := limit.Decide(len(prompt), c.options.MaxTokens, g.config.ReserveTokens)
		if err != nil {
			return 0, err
		}
		if grant.Clamped {
			g.parts.Metrics.Add(metrics.ClampedOutputs, float64(c.options.N))
		}
		grants[i] = grant.Output
		total += (len(prompt) + grant.Output) * c.options.N
	}
	if err := c.takeMemory(grants); err != nil {
		return 0, err
	}
	reservation, err := c.reserve(grants, total)
	if err != nil {
		g.answers.give(c.tenant.Name, c.memory)
	}
	return reservation, err
}

// What a token of an answer that is delivered whole costs until it is: its share of
// the gathered pieces and of the JSON text, and with logprobs, for it and for each
// alternative, those in both forms.
const (
	answerTokenBytes   = 128
	answerLogprobBytes = 256
)

// takeMemory takes what the answer may need from the budget. An answer that never fits
// is the client's mistake.
func (c *call) takeMemory(grants []int) error {
	if c.options.Stream {
		return nil
	}
	token := int64(answerTokenBytes)
	if n := c.options.Sampling.Logprobs; n >= 0 {
		token += int64(1+n) * answerLogprobBytes
	}
	tokens := int64(0)
	for _, grant := range grants {
		tokens += int64(grant) * int64(c.options.N)
	}
	if most := c.gateway.config.TenantAnswersBytesMax; tokens*token > most {
		return fault.New(fault.Invalid, "an answer of %d tokens may take %d bytes before it is complete, the limit is %d: stream it, or ask for fewer tokens, choices or logprobs",
			tokens, tokens*token, most)
	}
	if err := c.gateway.answers.take(c.tenant.Name, tokens*token); err != nil {
		return err
	}
	c.memory = tokens * token
	return nil
}

// reserve takes the tokens from the tenant's quota and queues the choices.
func (c *call) reserve(grants []int, total int) (admission.Reservation, error) {
	g := c.gateway
	c.admitted = g.parts.Now()
	c.deadline = c.admitted.Add(g.config.RequestTimeout)
	reservation, err := g.quotas.reserve(c.tenant, admission.Ask{
		Choices: len(c.prompts) * c.options.N, Tokens: total, Until: c.deadline.Add(time.Minute),
	})
	if err != nil {
		return 0, err
	}
	if err := c.queue(grants); err != nil {
		g.quotas.settle(reservation, 0)
		return 0, err
	}
	return reservation, nil
}

// queue makes the choices and lets them wait, all or none.
func (c *call) queue(grants []int) error {
	var waiters []*waiter
	for i, prompt := range c.prompts {
		for range c.options.N {
			ch := c.gateway.newChoice(c, len(c.choices), prompt, grants[i])
			c.choices = append(c.choices, ch)
			waiters = append(waiters, ch.waiter)
		}
	}
	if err := c.gateway.dispatch.enqueue(waiters); err != nil {
		return err
	}
	c.public = publicName()
	c.name = c.route + "-" + c.public
	for _, ch := range c.choices {
		ch.record(EntryAccepted, noEvent, 0)
	}
	return nil
}

// context ends with the client's connection, the deadline, the tenant, the
// gateway or the call itself; its cause says which.
func (c *call) context(parent context.Context) (ctx context.Context, release func()) {
	ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	gone := context.AfterFunc(parent, func() { c.cancel(errGone) })
	timer := time.AfterFunc(c.gateway.config.RequestTimeout, func() {
		c.cancel(fault.New(fault.Deadline, "the answer took longer than %s", c.gateway.config.RequestTimeout))
	})
	stop := context.AfterFunc(c.gateway.stopped, func() { c.cancel(errStopped) })
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.tenant.Gone():
			c.cancel(fault.New(fault.Unauthenticated, "the tenant was removed"))
		case <-ctx.Done():
		}
		close(ended)
	}()
	return ctx, func() {
		timer.Stop()
		stop()
		gone()
		<-ended
	}
}

// fail ends the whole call: one choice that fails leaves no complete answer.
func (c *call) fail(err error) { c.cancel(err) }

// spent is what all attempts that were begun cost: the prompt once a choice, and
// what was generated.
func (c *call) spent() int {
	prompt, output := c.tokens()
	return prompt + output
}

func (c *call) tokens() (prompt, output int) {
	for _, ch := range c.choices {
		if ch.attempt > 0 {
			prompt += len(ch.prompt)
		}
		output += ch.delivered
	}
	return prompt, output
}

// observe counts how the call ended. err is what deliver returned.
func (c *call) observe(err error) {
	how := "ok"
	if err != nil {
		how = kindOf(err)
		c.gateway.countFailure(err)
	}
	if fault.Of(err) == fault.Cancelled {
		c.gateway.parts.Metrics.Add(metrics.Disconnects, 1)
	}
	took := c.gateway.parts.Now().Sub(c.admitted)
	c.gateway.parts.Metrics.Observe(metrics.RequestSeconds, took.Seconds(), c.route, how)
	prompt, output := c.tokens()
	c.gateway.parts.Log.Info("request ended", "id", c.name, "tenant", fmt.Sprintf("%016x", uint64(c.tenant.Tag)), "outcome", how,
		"choices", len(c.choices), "prompt_tokens", prompt, "output_tokens", output, "seconds", took.Seconds())
}

// usage counts each prompt once and every generated token.
func (c *call) usage(generated int) *openai.Usage {
	prompt := 0
	for _, p := range c.prompts {
		prompt += len(p)
	}
	return openai.NewUsage(prompt, generated)
}
