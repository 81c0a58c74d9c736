package scheduler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// of is the origin of a sequence's first token.
func of(id ID) kv.Origin {
	return kv.Origin{GatewayBoot: 9, Request: uint64(id), Attempt: 1, Epoch: 7}
}

func TestChunksAreFirstComeFirstServedWithinATenant(t *testing.T) {
	s := New()
	s.Add(1, 7, of(1), 150)
	s.Add(2, 7, of(2), 10)
	want := [][]Chunk{{{1, of(1), 96}}, {{1, of(1).At(96), 54}, {2, of(2), 10}}, nil}
	for i, w := range want {
		if diff := cmp.Diff(w, s.Step(96, 8)); diff != "" {
			t.Errorf("step %d differs (-want +got):\n%s", i, diff)
		}
	}
}

func TestABigTenantDoesNotHoldUpASmallOne(t *testing.T) {
	s := New()
	for id := range ID(10) {
		s.Add(id, 1, of(id), 1000)
	}
	s.Step(96, 8)
	s.Add(100, 2, of(100), 5) // comes later, behind ten thousand tokens of tenant 1
	if diff := cmp.Diff([]Chunk{{0, of(0).At(96), 96}}, s.Step(96, 8)); diff != "" {
		t.Fatalf("equal counters go by tag (-want +got):\n%s", diff)
	}
	if got := s.Step(96, 8)[0]; got != (Chunk{100, of(100), 5}) {
		t.Fatalf("tenant 2 waits behind tenant 1: first chunk is %v", got)
	}
}

func TestAnIdleTenantSavesUpNothing(t *testing.T) {
	s := New()
	s.Add(1, 1, of(1), 10_000)
	for range 50 {
		s.Step(96, 8)
	}
	s.Add(2, 2, of(2), 10_000)
	tokens := map[ID]int{}
	for range 20 {
		for _, c := range s.Step(96, 8) {
			tokens[c.ID] += c.Tokens
		}
	}
	if d := tokens[1] - tokens[2]; d < -96 || d > 96 {
		t.Fatalf("two busy tenants got %d and %d tokens in 20 steps, want them within a step of each other", tokens[1], tokens[2])
	}
}

func TestExtendAndRemove(t *testing.T) {
	s := New()
	s.Add(1, 1, of(1), 1)
	s.Add(2, 1, of(2), 1)
	s.Step(8, 8)
	if err := s.Extend(1, of(1).At(1), 1); err != nil {
		t.Fatal(err)
	}
	s.Remove(2)
	s.Remove(99)
	if diff := cmp.Diff([]Chunk{{1, of(1).At(1), 1}}, s.Step(8, 8)); diff != "" {
		t.Fatalf("chunks differ (-want +got):\n%s", diff)
	}
	if s.Len() != 1 {
		t.Fatalf("scheduler knows %d sequences, want 1", s.Len())
	}
}

// Tokens are taken for their own sequence only, and only behind its last.
func TestExtendRefusesWhatDoesNotFollow(t *testing.T) {
	s := New()
	s.Add(1, 1, of(1), 4)
	s.Step(3, 8)
	for name, c := range map[string]struct {
		id   ID
		from kv.Origin
	}{
		"a gap": {1, of(1).At(5)}, "a token twice": {1, of(1).At(3)}, "another request's": {1, of(2).At(4)},
		"another attempt's": {1, kv.Origin{Request: 1, Attempt: 2, Epoch: 7, Index: 4}}, "an unknown sequence": {2, of(2)},
	} {
		if err := s.Extend(c.id, c.from, 1); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if diff := cmp.Diff([]Chunk{{1, of(1).At(3), 1}}, s.Step(8, 8)); diff != "" {
		t.Errorf("a refused token changes what is left (-want +got):\n%s", diff)
	}
}

// Whatever is added, each step stays in its bounds, no sequence is picked twice in
// a step, and all tokens are computed exactly once, with tenants that always have
// work never further apart than one step and one chunk.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		left, next := map[ID]int{}, map[ID]kv.Origin{}
		for id := range ID(rapid.IntRange(1, 12).Draw(t, "sequences")) {
			left[id] = rapid.IntRange(1, 300).Draw(t, "tokens")
			s.Add(id, kv.TenantTag(rapid.IntRange(1, 4).Draw(t, "tenant")), of(id), left[id])
			next[id] = of(id)
		}
		budget, rows := rapid.IntRange(1, 100).Draw(t, "budget"), rapid.IntRange(1, 6).Draw(t, "rows")
		for {
			chunks := s.Step(budget, rows)
			if len(chunks) == 0 {
				break
			}
			sum, seen := 0, map[ID]bool{}
			for _, c := range chunks {
				if seen[c.ID] || c.Tokens < 1 {
					t.Fatalf("sequence %d is picked twice or with %d tokens", c.ID, c.Tokens)
				}
				if c.From != next[c.ID] {
					t.Fatalf("a chunk of sequence %d begins at %v, want %v", c.ID, c.From, next[c.ID])
				}
				next[c.ID] = c.From.At(c.From.Index + c.Tokens)
				seen[c.ID] = true
				sum += c.Tokens
				left[c.ID] -= c.Tokens
			}
			if sum > budget || len(chunks) > rows {
				t.Fatalf("step of %d tokens in %d rows, limits %d and %d", sum, len(chunks), budget, rows)
			}
		}
		for id, n := range left {
			if n != 0 {
				t.Fatalf("sequence %d has %d tokens left when nothing is picked any more", id, n)
			}
		}
	})
}
