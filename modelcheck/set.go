package modelcheck

// set is a set of hashes with open addressing.
type set struct {
	table []uint64
	count int
}

func newSet() *set { return &set{table: make([]uint64, 1<<12)} }

// add reports whether h was not there.
func (s *set) add(h uint64) bool {
	if s.count*10 > len(s.table)*7 {
		old := s.table
		s.table = make([]uint64, 2*len(old))
		for _, v := range old {
			if v != 0 {
				s.put(v)
			}
		}
	}
	if !s.put(h) {
		return false
	}
	s.count++
	return true
}

// has may be asked from several goroutines while none adds.
func (s *set) has(h uint64) bool {
	mask := uint64(len(s.table) - 1)
	for i := h & mask; s.table[i] != 0; i = (i + 1) & mask {
		if s.table[i] == h {
			return true
		}
	}
	return false
}

func (s *set) put(h uint64) bool {
	mask := uint64(len(s.table) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s.table[i] {
		case 0:
			s.table[i] = h
			return true
		case h:
			return false
		}
	}
}
