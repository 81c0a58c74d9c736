package gateway

import (
	"context"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// echoText is a small model's side of text: a token is a byte, and three more
// ids. A conversation is its messages, each behind idMessage.
type echoText struct{}

const (
	idMessage  = 256
	idEnd      = 257
	vocabulary = 258
)

func (echoText) Chat(ctx context.Context, messages []openai.Message, tokensMax int) (ids []int32, err error) {
	for _, m := range messages {
		if m.Role == "tool" {
			return nil, fault.New(fault.Invalid, "the template has no place for a tool")
		}
		text, _ := echoText{}.Prompt(ctx, m.Content, math.MaxInt)
		ids = append(append(ids, idMessage), text...)
	}
	return ids, tooLong(ids, tokensMax)
}

func tooLong(ids []int32, tokensMax int) error {
	if len(ids) > tokensMax {
		return &TooLong{tokensMax}
	}
	return nil
}

// holdText is a prompt that takes as long as ctx lasts.
const holdText = "hold"

func (echoText) Prompt(ctx context.Context, text string, tokensMax int) (ids []int32, err error) {
	if text == holdText {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return ids, tooLong(ids, tokensMax)
}

func (echoText) Piece(token int32) []byte {
	if token < 256 {
		return []byte{byte(token)}
	}
	return nil
}

func (echoText) Vocabulary() int { return vocabulary }
func (echoText) Stops() []int32  { return []int32{idEnd} }

// hook sees each event of a job before it is sent. It may change the event,
// wait for ctx or a channel, or return an error, with which the stream breaks.
type hook func(ctx context.Context, job cluster.Job, role cluster.Role, e *cluster.Event) error

// echoCluster is a small real cluster in this process: prefill and decode agree
// about a job, and decode repeats the last message of its prompt, then stops.
// Given a hook it misbehaves as told; probes go by it.
type echoCluster struct {
	mu      sync.Mutex
	members []cluster.Member
	changed chan struct{}
	hook    hook
	jobs    []cluster.Job // as decode got them, probes left out
	open    int           // streams not closed
	probes  int
	probed  int // tokens of the latest probe
	now     func() time.Time
}

func newEchoCluster(nodes ...cluster.Member) *echoCluster {
	return &echoCluster{members: nodes, changed: make(chan struct{}), now: time.Now}
}

// member is a worker with a pool of the given number of pages.
func member(node string, role cluster.Role, pages int) cluster.Member {
	return cluster.Member{Up: true, Status: cluster.Status{Node: node, Role: role, Epoch: kv.Epoch(len(node)) + kv.Epoch(role)*1000,
		Fingerprint: kv.Fingerprint{1}, Vocab: vocabulary, FreePages: pages,
		Limits: cluster.Limits{ContextTokens: 1 << 20, PoolPages: pages + 2, UsablePages: pages, ReservedPages: 2, PageTokens: kv.PageTokens}}}
}

// Status gives the members as seen now, so that only a test makes them stale.
func (c *echoCluster) Status() []cluster.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	members := append([]cluster.Member(nil), c.members...)
	for i := range members {
		if members[i].Seen.IsZero() {
			members[i].Seen = c.now()
		}
	}
	return members
}

func (c *echoCluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *echoCluster) change(f func(members []cluster.Member)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.members)
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *echoCluster) setHook(h hook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = h
}

func (c *echoCluster) counts() (jobs, open, probes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.jobs), c.open, c.probes
}

func (c *echoCluster) Run(ctx context.Context, job cluster.Job, node string) (Stream, error) {
	if err := job.Validate(); err != nil {
		return nil, err
	}
	role, epoch, ok := job.Part(node)
	if !ok {
		return nil, fault.New(fault.Invalid, "node %s has no part in the job", node)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	switch {
	case job.Probe && role == cluster.Decode:
		c.probes++
		c.probed = len(job.Tokens)
	case role == cluster.Decode:
		c.jobs = append(c.jobs, job)
	}
	return &echoStream{cluster: c, ctx: ctx, job: job, role: role, events: script(job, role, epoch)}, nil
}

// script is what a well-behaved worker says.
func script(job cluster.Job, role cluster.Role, epoch kv.Epoch) (events []cluster.Event) {
	add := func(e cluster.Event) {
		e.Request, e.Attempt, e.Epoch = job.Request, job.Attempt, epoch
		events = append(events, e)
	}
	digest := kv.TokenDigest(kv.Key{1}, job.Tokens)
	verdict := cluster.Event{X: kv.TransferID{Epoch: job.DecodeEpoch, Sequence: job.Request<<8 + uint64(job.Attempt)},
		PromptTokens: len(job.Tokens), TokenDigest: digest, Root: kv.Root([]kv.Digest{kv.Digest(digest)})}
	add(cluster.Event{Kind: cluster.Accepted})
	if role == cluster.Prefill {
		add(cluster.Event{Kind: cluster.Progress, PromptTokens: len(job.Tokens)})
		verdict.Kind = cluster.Computed
		add(verdict)
		add(cluster.Event{Kind: cluster.Finished, Reason: cluster.ReasonDone})
		return events
	}
	verdict.Kind = cluster.Committed
	add(verdict)
	reason := cluster.ReasonLength
	for i, id := range echo(job.Tokens) {
		if id == idEnd {
			reason = cluster.ReasonStop
			break
		}
		if i == job.MaxTokens {
			break
		}
		e := cluster.Event{Kind: cluster.Token, Index: i, Token: id}
		if n := job.Sampling.Logprobs; n >= 0 {
			e.Logprob = &cluster.TokenLogprobs{Token: id, Logprob: -0.5}
			for k := range n {
				e.Logprob.Top = append(e.Logprob.Top, cluster.Logprob{Token: (id + int32(k)) % 256, Logprob: -0.5 - float32(k)})
			}
		}
		add(e)
	}
	add(cluster.Event{Kind: cluster.Finished, Reason: reason})
	return events
}

// echo is the last message and the end.
func echo(prompt []int32) []int32 {
	from := 0
	for i, id := range prompt {
		if id == idMessage {
			from = i + 1
		}
	}
	return append(append([]int32(nil), prompt[from:]...), idEnd)
}

type echoStream struct {
	cluster *echoCluster
	ctx     context.Context
	job     cluster.Job
	role    cluster.Role
	events  []cluster.Event
	closed  bool
}

func (s *echoStream) Recv() (cluster.Event, error) {
	if s.ctx.Err() != nil {
		return cluster.Event{}, fault.New(fault.Cancelled, "cancelled")
	}
	if len(s.events) == 0 {
		return cluster.Event{}, io.EOF
	}
	e := s.events[0]
	s.events = s.events[1:]
	s.cluster.mu.Lock()
	h := s.cluster.hook
	s.cluster.mu.Unlock()
	if h != nil && !s.job.Probe {
		if err := h(s.ctx, s.job, s.role, &e); err != nil {
			return cluster.Event{}, err
		}
	}
	if e.Kind == cluster.Failed {
		s.events = nil
	}
	return e, nil
}

func (s *echoStream) Close() {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.cluster.open--
	}
}

// record keeps the entries of a gateway's ledger.
type record struct {
	mu      sync.Mutex
	entries []Entry
	err     error
}

func (r *record) Record(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
}

func (r *record) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *record) all(kind EntryKind) (entries []Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.Kind == kind {
			entries = append(entries, e)
		}
	}
	return entries
}

func (r *record) kinds() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []string
	for _, e := range r.entries {
		kinds = append(kinds, string(e.Kind))
	}
	return strings.Join(kinds, " ")
}
