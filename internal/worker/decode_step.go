package worker

import (
	"errors"
	"slices"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/engine"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/sample"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// step computes one token of each chosen sequence, checks the pages that were
// read, and only then samples and lets the tokens out.
func (d *Decode) step() bool {
	chunks := d.sched.Step(StepRowsMax, StepRowsMax)
	if len(chunks) == 0 {
		return false
	}
	d.rows, d.running = d.rows[:0], d.running[:0]
	for i, c := range chunks {
		s := d.byID[c.ID]
		d.must("schedule", s.origin(s.index).Expect(c.From))
		d.running = append(d.running, s)
		d.rows = append(d.rows, d.row(s, d.logits(i)))
		d.holdKernel(s.x)
	}
	err := d.engine.Step(d.rows)
	for _, s := range d.running {
		d.releaseKernel(s.x)
	}
	for i, s := range d.running {
		if d.byX[s.x] == s && !s.over {
			d.advance(s, d.rows[i].Logits[0], errors.Join(err, d.rows[i].Err))
		}
	}
	clear(d.rows) // a sequence that has ended is let go
	clear(d.running)
	return true
}

// logits is the buffer of row i, made once.
func (d *Decode) logits(i int) []float32 {
	for len(d.buffers) <= i {
		d.buffers = append(d.buffers, make([]float32, d.Model.Config.Vocab))
	}
	return d.buffers[i]
}

func (d *Decode) row(s *sequence, logits []float32) engine.Row {
	slots := s.slots[:s.at/kv.PageTokens+1]
	row := engine.Row{From: s.origin(s.index), Tokens: []int32{s.last}, Start: s.at, Pages: slots, Logits: []engine.Logits{{Values: logits}}}
	if s.fills() || s.index == 0 {
		row.Hash = d.hash(slots)
	}
	return row
}

// fills reports whether the token now computed takes the last lane of its page.
func (s *sequence) fills() bool { return (s.at+1)%kv.PageTokens == 0 }

// advance takes a step's result in.
func (d *Decode) advance(s *sequence, logits engine.Logits, err error) {
	if err == nil && !d.pagesHold(s) {
		err = fault.New(fault.Corrupt, "decode %s: a page carries a foreign tag or extent", d.Node)
	}
	if err != nil {
		d.fault(s, err)
		return
	}
	if err := d.extend(s); err != nil {
		d.fault(s, err)
		return
	}
	choice, err := d.sample(s, logits)
	if err != nil {
		d.fault(s, err)
		return
	}
	d.deliver(s, choice)
}

func (d *Decode) fault(s *sequence, err error) {
	d.Log.Error("decode failed", "request", s.Request, "x", s.x, "error", err)
	d.end(s, err)
	d.apply(transfer.Fault{X: s.x})
}

// written is the number of positions that were written before the step at s.at:
// all of the prompt, or all before the token now computed.
func (s *sequence) written() int { return max(s.at, len(s.Tokens)) }

// pagesHold compares, for each page that the step read or wrote, the tag at head
// and tail and the written extent with what the page table says.
func (d *Decode) pagesHold(s *sequence) bool {
	if d.omit.tags {
		return true
	}
	for i := range s.at/kv.PageTokens + 1 {
		tag := d.tag(s, i, s.written())
		extent, known := d.pool.Extent(s.refs[i])
		if !known || extent != int(tag.Tokens) || !d.slab.TagOK(s.refs[i].Slot, &tag) {
			return false
		}
	}
	return true
}

// extend raises the written extent of the page that got the token, and seals the
// page when it is full. The root of a prompt page that was written again must be
// the one that was verified: the same token gives the same bytes.
func (d *Decode) extend(s *sequence) error {
	i, positions := s.at/kv.PageTokens, max(s.at+1, len(s.Tokens))
	ref, tag := s.refs[i], d.tag(s, i, positions)
	if i < len(s.roots) && s.at == len(s.Tokens)-1 && d.root(ref.Slot) != s.roots[i] {
		return fault.New(fault.Corrupt, "decode %s: the last prompt token's page differs from what was verified", d.Node)
	}
	d.must("write", d.pool.Write(ref, int(tag.Tokens)))
	if tag.Tokens < kv.PageTokens {
		d.mark(tag)
		return nil
	}
	d.seal(tag)
	d.must("seal", d.pool.Seal(ref))
	return nil
}

// sample chooses the sequence's next token. Logits that were computed from another's
// are a mistake of this worker: the step's other rows are not to be trusted either.
func (d *Decode) sample(s *sequence, logits engine.Logits) (sample.Choice, error) {
	choice, err := s.sampler.Next(&d.scratch, sample.Logits(logits))
	if errors.Is(err, sample.ErrForeign) {
		d.must("sample", err)
	}
	if err != nil {
		return choice, fault.New(fault.Corrupt, "decode %s: %w", d.Node, err)
	}
	return choice, nil
}

func logprobs(s *sequence, choice *sample.Choice) *cluster.TokenLogprobs {
	if s.Sampling.Logprobs == cluster.NoLogprobs {
		return nil
	}
	l := &cluster.TokenLogprobs{Token: choice.Token, Logprob: float32(choice.Logprob)}
	for _, t := range choice.Top {
		l.Top = append(l.Top, cluster.Logprob{Token: t.Token, Logprob: float32(t.Logprob)})
	}
	return l
}

// deliver lets a token out, or ends the answer. The event's provenance is the logits',
// not what this sequence would write on it.
func (d *Decode) deliver(s *sequence, choice sample.Choice) {
	if slices.Contains(s.Stop, choice.Token) {
		d.finished(s, cluster.ReasonStop)
		return
	}
	from := choice.From
	e := cluster.Event{Kind: cluster.Token, Request: from.Request, Attempt: from.Attempt, Epoch: from.Epoch, Index: from.Index,
		X: s.x, Token: choice.Token, Logprob: logprobs(s, &choice)}
	s.index++
	d.emit(s, e)
	if s.over {
		return
	}
	if s.index >= s.MaxTokens {
		d.finished(s, cluster.ReasonLength)
		return
	}
	s.last, s.at = choice.Token, s.at+1
	d.must("schedule", d.sched.Extend(s.id, s.origin(s.index), 1))
}

func (d *Decode) finished(s *sequence, reason string) {
	e := d.event(s.job, cluster.Finished)
	e.X, e.Reason = s.x, reason
	d.endWith(s, e)
	d.apply(transfer.Finished{X: s.x})
}
