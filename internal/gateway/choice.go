package gateway

import (
	"context"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/admission"
	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/router"
)

// choice is one answer of a call: one request to the workers, run by one
// goroutine, which owns it.
type choice struct {
	gateway  *Gateway
	call     *call
	index    int    // in the call
	number   uint64 // the request's
	prompt   []int32
	granted  int
	sampling cluster.Sampling
	waiter   *waiter

	lease     *lease // of the running attempt
	attempt   uint32
	text      assembler
	delivered int // tokens taken into the answer
	lastToken time.Time
	done      bool // a stop string completed the answer
}

func (g *Gateway) newChoice(c *call, index int, prompt []int32, granted int) *choice {
	ch := &choice{gateway: g, call: c, index: index, number: g.request(), prompt: prompt, granted: granted,
		sampling: sampling(c.options.Sampling, index), text: assembler{stops: c.options.Stop}}
	ch.waiter = &waiter{
		ticket: admission.Ticket{ID: ch.number, Tenant: c.tenant.Name, Tokens: len(prompt) + granted},
		need:   router.Need{PromptTokens: len(prompt), StoredTokens: admission.Stored(len(prompt), granted)},
		since:  g.parts.Now(), turn: make(chan turn, 1),
	}
	return ch
}

// sampling is the job's form of the client's wishes. Choices of one request get
// seeds one after another, the first one the client's own.
func sampling(s openai.Sampling, index int) cluster.Sampling {
	return cluster.Sampling{
		Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP, TopK: s.TopK, Seed: uint64(s.Seed) + uint64(index), HasSeed: s.HasSeed,
		Repetition: s.Repetition, Frequency: s.Frequency, Presence: s.Presence, LogitBias: s.LogitBias, Logprobs: s.Logprobs,
	}
}

// run makes attempts until one ends the answer or no other is allowed, and puts
// the end into the outbox.
func (c *choice) run(ctx context.Context) {
	reason, err := c.attempts(ctx)
	if err != nil {
		c.record(EntryFailed, noEvent, fault.Of(err))
		c.call.fail(err)
		return
	}
	c.record(EntryFinished, noEvent, 0)
	c.gateway.parts.Metrics.Add(metrics.PromptTokens, float64(len(c.prompt)))
	c.gateway.parts.Metrics.Add(metrics.OutputTokens, float64(c.delivered))
	c.call.out.put(delta{choice: c.index, piece: c.text.flush(), finish: reason, tokens: c.delivered})
}

func (c *choice) attempts(ctx context.Context) (finish string, err error) {
	again := retries{config: c.gateway.config}
	for {
		c.lease, err = c.gateway.dispatch.wait(ctx, c.waiter)
		if err != nil {
			return "", err
		}
		c.call.dispatched.Store(true)
		c.gateway.parts.Metrics.Observe(metrics.QueueSeconds, c.lease.waited.Seconds())
		c.attempt++
		out := c.gateway.attempt(ctx, c.job(), c)
		c.settle(out)
		if out.err == nil {
			return c.finish(out), nil
		}
		pause, why := again.after(out)
		if why == "" {
			return "", again.last(out.err)
		}
		c.gateway.parts.Metrics.Add(metrics.Retries, 1, why)
		if !sleep(ctx, pause) {
			return "", context.Cause(ctx)
		}
		c.gateway.dispatch.requeue(c.waiter)
	}
}

// settle ends the attempt's lease and notes which workers are to be avoided.
func (c *choice) settle(out outcome) {
	if nodes := c.gateway.avoid(c.lease.pair, out); len(nodes) > 0 {
		c.gateway.parts.Log.Warn("worker failed a request", "nodes", nodes, "request", c.number, "attempt", c.attempt, "error", out.err)
	}
	c.lease.release()
	how := "ok"
	if out.err != nil {
		how = fault.Of(out.err).String()
	}
	c.gateway.parts.Metrics.Add(metrics.Attempts, 1, how)
}

// avoid notes the workers that an attempt has lost, or that failed in it, and
// returns their names.
func (g *Gateway) avoid(pair router.Pair, out outcome) (nodes []string) {
	worker := func(role cluster.Role) router.Worker {
		if role == cluster.Prefill {
			return pair.Prefill
		}
		return pair.Decode
	}
	for _, role := range out.lost {
		g.dispatch.lost(worker(role))
		nodes = append(nodes, worker(role).Node)
	}
	for _, role := range out.failed {
		g.dispatch.failed(worker(role))
		nodes = append(nodes, worker(role).Node)
	}
	return nodes
}

func (c *choice) finish(out outcome) string {
	if out.reason == cluster.ReasonLength && !c.done {
		return openai.FinishLength
	}
	return openai.FinishStop
}

// job is the present attempt for both workers.
func (c *choice) job() cluster.Job {
	g, pair := c.gateway, c.lease.pair
	return cluster.Job{
		GatewayBoot: g.boot, Request: c.number, Attempt: c.attempt, Tenant: c.call.tenant.Tag,
		Prefill: pair.Prefill.Node, Decode: pair.Decode.Node, PrefillEpoch: pair.Prefill.Epoch, DecodeEpoch: pair.Decode.Epoch,
		Tokens: c.prompt, MaxTokens: c.granted, Stop: g.parts.Text.Stops(), Sampling: c.sampling, Deadline: c.call.deadline,
	}
}

// agreed is the receiver's: from here on output may leave.
func (c *choice) agreed(committed cluster.Event) {
	c.lease.handedOver()
	c.gateway.health.transferred(c.lease.pair)
	c.record(EntryCommitted, committed, 0)
}

// token is the receiver's: the next token of the answer.
func (c *choice) token(e cluster.Event) (complete bool) {
	c.measure()
	c.delivered++
	out, stopped := c.text.push(c.gateway.parts.Text.Piece(e.Token), e.Logprob)
	c.done = stopped
	if out.text != "" || len(out.tokens) > 0 {
		if !c.call.out.put(delta{choice: c.index, piece: out}) {
			c.gateway.parts.Metrics.Add(metrics.SlowClients, 1)
			c.call.fail(errSlow)
			return true
		}
	}
	return stopped
}

func (c *choice) measure() {
	now := c.gateway.parts.Now()
	if c.delivered == 0 {
		c.gateway.parts.Metrics.Observe(metrics.FirstTokenSeconds, now.Sub(c.call.admitted).Seconds())
	} else {
		c.gateway.parts.Metrics.Observe(metrics.TokenGapSeconds, now.Sub(c.lastToken).Seconds())
	}
	c.lastToken = now
}

func (c *choice) record(kind EntryKind, committed cluster.Event, why fault.Kind) {
	e := Entry{Kind: kind, Boot: c.gateway.boot, Request: c.number, Attempt: c.attempt, Tenant: c.call.tenant.Tag,
		X: committed.X, Prompt: len(c.prompt), Output: c.delivered, Fault: why}
	if kind == EntryAccepted {
		e.Output, e.Answer = c.granted, c.call.public
	}
	c.gateway.parts.Ledger.Record(e)
}

// retries decides whether a choice may be tried again: as often as configured
// while workers are busy, once after a worker was lost, and never after a token.
type retries struct {
	config Config
	busy   int
	lost   int
}

// Reasons to try again, as they are counted.
const (
	retryBusy = "busy"
	retryLost = "lost"
)

// busyDoublingsMax bounds the pause between tries to 64 times the first.
const busyDoublingsMax = 6

// after gives the pause before the next attempt and its reason, which is empty
// when there may be none.
func (r *retries) after(out outcome) (pause time.Duration, why string) {
	if out.tokens > 0 {
		return 0, ""
	}
	if kind := fault.Of(out.err); kind == fault.Busy {
		r.busy++
		if r.busy <= r.config.BusyRetriesMax {
			return r.config.BusyBackoff << min(r.busy-1, busyDoublingsMax), retryBusy
		}
	} else if kind == fault.Unavailable {
		r.lost++
		if r.lost == 1 {
			return 0, retryLost
		}
	}
	return 0, ""
}

// last is the error of a choice that isn't tried again. Workers that stay busy
// are no longer the client's turn to wait for: they are unavailable.
func (r *retries) last(err error) error {
	if fault.Of(err) == fault.Busy {
		return &detailed{"no room at the workers", fault.New(fault.Unavailable, "no room at the workers after %d attempts: %w", r.busy, err)}
	}
	return err
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
