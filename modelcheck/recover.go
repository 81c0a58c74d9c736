package modelcheck

import (
	"fmt"
	"sync"
)

// recovery is what Recovers asks for.
type recovery[S any] struct {
	steps  int
	heal   func(S) S
	unrest func(S) error
}

// Recovers demands, from every state, that healing leads to rest. heal takes one
// healing step, it must leave its argument as it was and may be repeated;
// unrest says what is missing, nil is rest. More than steps steps are a violation.
//
// Small steps are cheap: healing ends where it comes to a state from which another
// has come to rest. That is sound because heal and unrest, like Apply, depend on
// what the key tells apart alone. Where a key is shared by symmetric states, what
// healed one of them heals the other as in a mirror: not step by step the same
// states, but a way to rest of as many steps.
func Recovers[S any](name string, steps int, heal func(S) S, unrest func(S) error) Property[S] {
	return Property[S]{Name: name, recovers: &recovery[S]{steps, heal, unrest}}
}

// heals looks for rest, and records for each state on the way how far off it is.
func (c *checker[S, A]) heals(r *recovery[S], restful *known, s S) error {
	err := r.unrest(s)
	var way []uint64
	buffer := make([]byte, 0, 512)
	left := 0
	for err != nil {
		if len(way) == r.steps {
			return fmt.Errorf("no rest after %d healing steps: %w", r.steps, err)
		}
		s = r.heal(s)
		var h uint64
		h, buffer = hash(c.model, buffer, s)
		way = append(way, h)
		if n, ok := restful.get(h); ok && len(way)+n <= r.steps {
			left = n
			break
		}
		err = r.unrest(s)
	}
	for i, h := range way {
		restful.put(h, left+len(way)-1-i)
	}
	return nil
}

// known is for each of many hashes a number of steps.
type known struct{ shards [knownShards]knownShard }

// knownShards keeps goroutines out of each other's way.
const knownShards = 64

type knownShard struct {
	mu    sync.Mutex
	steps map[uint64]int32 // protected by mu
}

func (k *known) shard(h uint64) *knownShard { return &k.shards[h%knownShards] }

func (k *known) get(h uint64) (steps int, ok bool) {
	s := k.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.steps[h]
	return int(n), ok
}

func (k *known) put(h uint64, steps int) {
	s := k.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.steps == nil {
		s.steps = map[uint64]int32{}
	}
	s.steps[h] = int32(steps)
}
