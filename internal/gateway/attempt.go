package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
)

// eventsMax bounds the events of one attempt that wait to be looked at. The
// reader of a full queue waits, and the worker's own bounded queue behind it.
const eventsMax = 64

// report is an event of one worker of the pair, or the end of its stream.
type report struct {
	role  cluster.Role
	event cluster.Event
	err   error // io.EOF: the stream ended after its terminal event
}

// receiver takes what an attempt delivers.
type receiver interface {
	// agreed is called once, before any token: all three counts are one.
	agreed(committed cluster.Event)
	// token takes the next token of the answer; true ends the attempt, the answer
	// is complete.
	token(e cluster.Event) (complete bool)
}

// outcome is how an attempt ended.
type outcome struct {
	reason string // cluster.ReasonStop or ReasonLength, empty when the receiver ended it
	tokens int    // handed to the receiver
	err    error
	lost   []cluster.Role // workers whose stream broke
	failed []cluster.Role // workers that said they failed, or said what no worker may
}

// attempt runs a job on its pair and hands the receiver what passed every check.
// It returns when both streams have ended.
func (g *Gateway) attempt(ctx context.Context, job cluster.Job, to receiver) outcome {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempt{gateway: g, to: to, verdict: verdict{job: &job, vocabulary: g.parts.Text.Vocabulary()}}
	reports := make(chan report, eventsMax)
	var readers sync.WaitGroup
	for role, node := range map[cluster.Role]string{cluster.Prefill: job.Prefill, cluster.Decode: job.Decode} {
		readers.Go(func() { g.read(ctx, job, role, node, reports) })
	}
	err := a.loop(ctx, reports)
	cancel(context.Canceled)
	readers.Wait()
	a.out.err = err
	var broken *breach
	if errors.As(err, &broken) {
		g.parts.Metrics.Add(metrics.ProvenanceFaults, 1, broken.check)
	}
	return a.out
}

// read forwards one worker's events until its stream or ctx ends.
func (g *Gateway) read(ctx context.Context, job cluster.Job, role cluster.Role, node string, reports chan<- report) {
	send := func(r report) bool {
		select {
		case reports <- r:
			return r.err == nil
		case <-ctx.Done():
			return false
		}
	}
	stream, err := g.parts.Cluster.Run(ctx, job, node)
	if err != nil {
		send(report{role: role, err: err})
		return
	}
	defer stream.Close()
	for {
		e, err := stream.Recv()
		if !send(report{role, e, err}) {
			return
		}
	}
}

// attempt is the state of one attempt, owned by its loop.
type attempt struct {
	gateway *Gateway
	to      receiver
	verdict verdict
	agreed  bool
	held    []cluster.Event // tokens that wait for prefill's verdict, at most what was granted
	out     outcome
}

func (a *attempt) loop(ctx context.Context, reports <-chan report) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-reports:
			if ended, err := a.take(r); ended || err != nil {
				return err
			}
		}
	}
}

// take looks at one report. ended says that the answer is complete.
func (a *attempt) take(r report) (ended bool, err error) {
	if r.err != nil {
		return false, a.closed(r)
	}
	if err := a.verdict.step(r.role, &r.event); err != nil {
		a.out.failed = append(a.out.failed, r.role)
		return false, err
	}
	switch r.event.Kind {
	case cluster.Failed:
		return false, a.failed(r)
	case cluster.Token:
		a.held = append(a.held, r.event)
	case cluster.Finished:
		if r.role == cluster.Decode {
			a.out.reason = r.event.Reason
		}
	case cluster.Accepted, cluster.Progress, cluster.Computed, cluster.Committed:
	}
	if !a.verdict.agreed() {
		return false, nil
	}
	return a.deliver(), nil
}

// deliver hands over what is held. Requires: the verdicts agree.
func (a *attempt) deliver() (ended bool) {
	if !a.agreed {
		a.agreed = true
		a.to.agreed(*a.verdict.committed)
	}
	for _, e := range a.held {
		a.out.tokens++
		if a.to.token(e) {
			a.out.reason = ""
			return true
		}
	}
	a.held = a.held[:0]
	return a.verdict.finished
}

// closed looks at the end of a stream. Prefill's is of no importance once its
// verdict is in: decode has the pages and has verified them.
func (a *attempt) closed(r report) error {
	if r.role == cluster.Prefill && a.verdict.computed != nil || r.role == cluster.Decode && a.verdict.finished {
		return nil
	}
	if errors.Is(r.err, io.EOF) {
		return a.verdict.fail(checkOrder, "%s ended its stream without a verdict", r.role)
	}
	if fault.Of(r.err) == fault.Unavailable {
		a.out.lost = append(a.out.lost, r.role)
	}
	return a.blame(r.role, fault.Of(r.err), r.err.Error())
}

// failed looks at a worker's refusal or failure.
func (a *attempt) failed(r report) error {
	if r.role == cluster.Prefill && a.verdict.computed != nil {
		return nil
	}
	switch r.event.Fault {
	case fault.Unavailable, fault.Internal, fault.Corrupt:
		a.out.failed = append(a.out.failed, r.role)
	default: // the request's, or the moment's
	}
	return a.blame(r.role, r.event.Fault, r.event.Reason)
}

// blame names the worker for the log and its role for the client, who is told
// the reason only if the request itself is at fault.
func (a *attempt) blame(role cluster.Role, kind fault.Kind, reason string) error {
	job := a.verdict.job
	reason = bare(reason, job, a.verdict.node(role))
	err := fault.New(kind, "request %d attempt %d: %s worker %s: %s", job.Request, job.Attempt, role, a.verdict.node(role), reason)
	public := "the " + role.String() + " worker could not run the request"
	if kind == fault.Invalid || kind == fault.OverContext {
		public = reason[:min(len(reason), errorBytesMax)]
	}
	return &detailed{public, err}
}

// bare is a reason without the ids that stand before it anyway.
func bare(reason string, job *cluster.Job, node string) string {
	id := fmt.Sprintf("request %d attempt %d", job.Request, job.Attempt)
	for _, prefix := range []string{id + " at " + node + ": ", id + ": "} {
		reason = strings.TrimPrefix(reason, prefix)
	}
	return reason
}

func (v *verdict) node(role cluster.Role) string {
	if role == cluster.Prefill {
		return v.job.Prefill
	}
	return v.job.Decode
}
