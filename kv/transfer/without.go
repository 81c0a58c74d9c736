package transfer

import "github.com/bulkhead-kv/bulkhead/kv/internal/guard"

// Without takes guards away, for tests and the checker. Only packages below kv
// can name the argument.
func (t *Target) Without(guards guard.Set) *Target {
	t.without = guards
	return t
}

// Without takes guards away, for tests and the checker. Only packages below kv
// can name the argument.
func (j *Join) Without(guards guard.Set) *Join {
	j.without = guards
	return j
}

// Without takes guards away, for tests and the checker. Only packages below kv
// can name the argument.
func (s *Source) Without(guards guard.Set) *Source {
	s.without = guards
	return s
}
