package sim

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/router"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// attempt is one try of a request at one pair of workers. Everything that its
// workers say is held against what was asked.
type attempt struct {
	request             *request
	job                 cluster.Job
	answer              []int32 // what a solo run gives
	stopped             bool
	streams             []*stream
	prefill, decode     *node
	heldPrefill         router.Load // charged
	heldDecode          router.Load
	computed, committed *cluster.Event
	ended               [3]bool // by role: its terminal event came
	held                []cluster.Event
	next                int
	over                bool
}

// begin gives a request to a pair.
func (g *gateway) begin(r *request, pair router.Pair) {
	w := g.world
	r.attempt++
	w.report.Attempts++
	prompt, need := r.prompt(), r.need()
	a := &attempt{request: r, prefill: w.named(pair.Prefill.Node), decode: w.named(pair.Decode.Node),
		heldPrefill: loadOf(need.PromptTokens), heldDecode: loadOf(need.StoredTokens)}
	a.answer, a.stopped = solo(prompt, r.granted)
	a.job = cluster.Job{GatewayBoot: g.boot, Request: r.id, Attempt: r.attempt, Tenant: r.tenant.tag, Prefill: a.prefill.name, Decode: a.decode.name,
		PrefillEpoch: pair.Prefill.Epoch, DecodeEpoch: pair.Decode.Epoch, Tokens: prompt, MaxTokens: r.granted, Stop: []int32{stopToken},
		Sampling: cluster.Sampling{TopP: 1, Repetition: 1, Logprobs: cluster.NoLogprobs}, Deadline: r.deadline, Probe: r.probe}
	g.loads.Charge(r.tenant.name, a.prefill.name, a.heldPrefill)
	g.loads.Charge(r.tenant.name, a.decode.name, a.heldDecode)
	r.current = a
	a.streams = []*stream{g.open(a, a.prefill, cluster.Prefill), g.open(a, a.decode, cluster.Decode)}
}

func loadOf(tokens int) router.Load {
	return router.Load{Pages: kv.PagesFor(tokens), Tokens: tokens}
}

// end lets the attempt go, at both workers.
func (a *attempt) end() {
	if a.over {
		return
	}
	a.over = true
	g := a.request.world.gateway
	for _, s := range a.streams {
		s.hangUp()
	}
	g.streams = slices.DeleteFunc(g.streams, func(s *stream) bool { return s.attempt == a })
	g.loads.Credit(a.request.tenant.name, a.prefill.name, a.heldPrefill)
	g.loads.Credit(a.request.tenant.name, a.decode.name, a.heldDecode)
	a.request.current = nil
}

// take looks at an event of a worker.
func (g *gateway) take(s *stream, e cluster.Event) {
	a := s.attempt
	if a.over {
		return
	}
	if wrong := a.check(s, &e); wrong != "" {
		g.world.fail("request %d attempt %d: %v event of %s: %s", a.request.number, a.job.Attempt, e.Kind, s.node.name, wrong)
		return
	}
	switch e.Kind {
	case cluster.Failed:
		if s.role == cluster.Prefill && a.computed != nil {
			return
		}
		g.failed(a, s, e.Fault, false)
		return
	case cluster.Token:
		a.held = append(a.held, e)
	case cluster.Computed, cluster.Committed, cluster.Accepted, cluster.Progress, cluster.Finished:
	}
	if a.computed != nil && a.committed != nil {
		g.deliver(a)
	}
}

// broken looks at the end of a stream.
func (g *gateway) broken(s *stream, err error) {
	a := s.attempt
	if a.over || s.role == cluster.Prefill && a.computed != nil || s.role == cluster.Decode && a.ended[cluster.Decode] {
		return
	}
	g.losses[s.node.index] = loss{g.members[s.node.index].Epoch, g.world.clock.time()}
	g.failed(a, s, fault.Of(err), true)
}

// failed tries again or gives the client the failure.
func (g *gateway) failed(a *attempt, s *stream, kind fault.Kind, lost bool) {
	r := a.request
	g.world.trace("request %d attempt %d failed at %s: %v", r.number, a.job.Attempt, s.node.name, kind)
	a.end()
	if r.delivered == 0 && kind == fault.Busy && r.busy < busyRetries && !r.probe {
		r.busy++
		g.again(r, busyBackoff<<(r.busy-1))
		return
	}
	if r.delivered == 0 && kind == fault.Unavailable && r.lost == 0 && !r.probe {
		r.lost++
		g.again(r, 0)
		return
	}
	g.settle(r, fault.New(kind, "%s could not run it", s.node.name))
}

// deliver hands out what is held, once both workers agree.
func (g *gateway) deliver(a *attempt) {
	r := a.request
	g.loads.Credit(r.tenant.name, a.prefill.name, a.heldPrefill)
	a.heldPrefill = router.Load{}
	for _, e := range a.held {
		if wrong := r.token(a, e); wrong != "" {
			g.world.fail("request %d attempt %d: %s (last oddity: %s)", r.number, a.job.Attempt, wrong, g.world.odd)
			return
		}
	}
	a.held = a.held[:0]
	if a.ended[cluster.Decode] {
		if a.next != len(a.answer) {
			g.world.fail("request %d attempt %d: an answer of %d tokens is done after %d", r.number, a.job.Attempt, len(a.answer), a.next)
			return
		}
		g.settle(r, nil)
	}
}

// check holds an event against the job: whose it is, its order, and what it says of
// the prompt. It gives what is wrong.
func (a *attempt) check(s *stream, e *cluster.Event) string {
	epoch := a.job.PrefillEpoch
	if s.role == cluster.Decode {
		epoch = a.job.DecodeEpoch
	}
	switch {
	case e.Request != a.job.Request || e.Attempt != a.job.Attempt:
		return fmt.Sprintf("it is of request id %d attempt %d", e.Request, e.Attempt)
	case e.Epoch != epoch && e.Kind != cluster.Failed:
		return fmt.Sprintf("it is of epoch %016x", uint64(e.Epoch))
	case a.ended[s.role]:
		return "it came after the last one"
	}
	a.ended[s.role] = e.Kind.Terminal()
	switch e.Kind {
	case cluster.Failed:
		if e.Fault == fault.Corrupt || e.Fault == fault.Internal || e.Fault == fault.Invalid {
			return fmt.Sprintf("a check has fired: %v, %s", e.Fault, e.Reason)
		}
		return ""
	case cluster.Computed:
		return a.agree(&a.computed, s.role == cluster.Prefill, e)
	case cluster.Committed:
		return a.agree(&a.committed, s.role == cluster.Decode, e)
	case cluster.Token:
		return a.checkToken(s, e)
	case cluster.Finished:
		return a.checkEnd(s, e)
	case cluster.Accepted, cluster.Progress:
	}
	return ""
}

func (a *attempt) agree(verdict **cluster.Event, role bool, e *cluster.Event) string {
	if *verdict != nil || !role {
		return "it is out of order"
	}
	*verdict = e
	c, d := a.computed, a.committed
	switch {
	case e.PromptTokens != len(a.job.Tokens) || e.X.Epoch != a.job.DecodeEpoch || e.TokenDigest == kv.Sum{} || e.Root == kv.Digest{}:
		return fmt.Sprintf("%d tokens, transfer %v, or a digest is missing", e.PromptTokens, e.X)
	case c != nil && d != nil && (c.X != d.X || c.TokenDigest != d.TokenDigest || c.Root != d.Root):
		return "prefill and decode disagree"
	}
	return ""
}

func (a *attempt) checkToken(s *stream, e *cluster.Event) string {
	switch {
	case s.role != cluster.Decode || a.committed == nil:
		return "it is out of order"
	case e.Index != a.next+len(a.held):
		return fmt.Sprintf("index %d, due is %d", e.Index, a.next+len(a.held))
	case e.X != a.committed.X:
		return fmt.Sprintf("it is of transfer %v, committed is %v", e.X, a.committed.X)
	}
	return ""
}

func (a *attempt) checkEnd(s *stream, e *cluster.Event) string {
	if s.role == cluster.Prefill {
		if a.computed == nil || e.Reason != cluster.ReasonDone {
			return "it came before its verdict"
		}
		return ""
	}
	want := cluster.ReasonLength
	if a.stopped {
		want = cluster.ReasonStop
	}
	if a.committed == nil || e.Reason != want {
		return fmt.Sprintf("the answer ends by %q, not by %q", want, e.Reason)
	}
	return ""
}
