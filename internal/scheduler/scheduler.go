// Package scheduler chooses which sequences run in the next step.
//
// It is fair by tokens: each tenant has a counter of the tokens computed for it,
// and the tenant with the smallest one goes next (the virtual token counter of
// Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A tenant
// that becomes active starts at the smallest counter of the active ones, so that
// nobody saves up a claim by being idle. Within a tenant the order is first come,
// first served.
//
// Each chunk says whose it is and which of the sequence's tokens come first in it, so
// that the worker can hold that against its own books, and more tokens are only taken
// for a sequence that ends where they begin.
//
// The package is pure: same calls, same answers.
package scheduler

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// ID names a sequence within one scheduler.
type ID uint64

// Chunk is a sequence's part of a step: the number of its tokens to compute, at least 1.
type Chunk struct {
	ID     ID
	From   kv.Origin // of the chunk's first token
	Tokens int
}

type sequence struct {
	id        ID
	from      kv.Origin // of the first token still to compute
	remaining int       // tokens still to compute; 0: waits for Extend
}

type tenant struct {
	tag    kv.TenantTag
	served uint64 // virtual token counter
	queue  []sequence
}

// Scheduler holds the sequences of one worker. Owner: the worker's loop.
type Scheduler struct {
	tenants []*tenant // active ones, in order of tag
	counts  int       // sequences in all queues
}

// New returns an empty scheduler.
func New() *Scheduler { return &Scheduler{} }

// Len is the number of sequences.
func (s *Scheduler) Len() int { return s.counts }

// Add enters a sequence with tokens to compute, the first of which is from's. Requires:
// the id is new.
func (s *Scheduler) Add(id ID, tag kv.TenantTag, from kv.Origin, tokens int) {
	t := s.tenant(tag)
	t.queue = append(t.queue, sequence{id, from, tokens})
	s.counts++
}

// Remove takes a sequence out, whatever it has left. An unknown id is ignored.
func (s *Scheduler) Remove(id ID) {
	for i, t := range s.tenants {
		k := slices.IndexFunc(t.queue, func(q sequence) bool { return q.id == id })
		if k < 0 {
			continue
		}
		t.queue = slices.Delete(t.queue, k, k+1)
		s.counts--
		if len(t.queue) == 0 {
			s.tenants = slices.Delete(s.tenants, i, i+1)
		}
		return
	}
}

// Step picks the chunks of the next step: at most budget tokens in all, at most
// rows sequences, each sequence once. The tokens are charged to their tenants and
// taken off what the sequences have left; a sequence with none left stays known
// until Remove, or until Extend gives it more.
func (s *Scheduler) Step(budget, rows int) []Chunk {
	var chunks []Chunk
	picked := map[ID]bool{}
	for budget > 0 && len(chunks) < rows {
		t, k := s.next(picked)
		if t == nil {
			break
		}
		q := &t.queue[k]
		n := min(budget, q.remaining)
		chunk := Chunk{q.id, q.from, n}
		q.remaining -= n
		q.from.Index += n
		t.served += uint64(n)
		budget -= n
		picked[q.id] = true
		chunks = append(chunks, chunk)
	}
	return chunks
}

// Extend gives a known sequence more tokens to compute. It is an error, and nothing
// changes, unless the sequence is from's and from is the token behind its last.
func (s *Scheduler) Extend(id ID, from kv.Origin, tokens int) error {
	for _, t := range s.tenants {
		for k := range t.queue {
			if q := &t.queue[k]; q.id == id {
				if err := q.from.At(q.from.Index + q.remaining).Expect(from); err != nil {
					return fmt.Errorf("schedule sequence %d: %w", id, err)
				}
				q.remaining += tokens
				return nil
			}
		}
	}
	return fmt.Errorf("schedule sequence %d: it is not known", id)
}

// next finds the tenant with the smallest counter that has a sequence to run, and
// the first such sequence. Equal counters: the smaller tag.
func (s *Scheduler) next(picked map[ID]bool) (best *tenant, index int) {
	for _, t := range s.tenants {
		if best != nil && t.served >= best.served {
			continue
		}
		k := slices.IndexFunc(t.queue, func(q sequence) bool { return q.remaining > 0 && !picked[q.id] })
		if k >= 0 {
			best, index = t, k
		}
	}
	return best, index
}

// tenant finds the active tenant or makes it active at the smallest counter there is.
func (s *Scheduler) tenant(tag kv.TenantTag) *tenant {
	i, found := slices.BinarySearchFunc(s.tenants, tag, func(t *tenant, tag kv.TenantTag) int {
		switch {
		case t.tag < tag:
			return -1
		case t.tag > tag:
			return 1
		}
		return 0
	})
	if found {
		return s.tenants[i]
	}
	t := &tenant{tag: tag}
	for k, other := range s.tenants {
		if k == 0 || other.served < t.served {
			t.served = other.served
		}
	}
	s.tenants = slices.Insert(s.tenants, i, t)
	return t
}
