package sim

// shrinkRounds bounds how often each part of a failing run is made smaller.
const shrinkRounds = 3

// Shrink looks for a smaller run of the same seed that fails too: fewer faults, then
// fewer clients, then fewer events, each by bisection. Whatever it gives has failed.
func (s *Simulator) Shrink(failed Report) Report {
	for range shrinkRounds {
		before := failed.Config
		failed = s.bisect(failed, failed.FaultCount(), func(c *Config, n int) { c.Faults = n })
		failed = s.bisect(failed, failed.Requests, func(c *Config, n int) { c.Requests = max(1, n) })
		failed = s.bisect(failed, failed.Steps, func(c *Config, n int) { c.Steps = max(1, n) })
		if failed.Config.Faults == before.Faults && failed.Config.Requests == before.Requests && failed.Config.Steps == before.Steps {
			break
		}
	}
	return failed
}

// bisect looks for the smallest number, up to most, with which the run still fails.
// Where failures are not monotone in it, that is some small number.
func (s *Simulator) bisect(failed Report, most int, set func(*Config, int)) Report {
	for low, high := 0, most; low < high; {
		middle := (low + high) / 2
		c := failed.Config
		set(&c, middle)
		if r := s.Run(c); r.Failure != "" {
			failed, high = r, middle
		} else {
			low = middle + 1
		}
	}
	return failed
}

// FaultCount is the number of faults that happened.
func (r Report) FaultCount() (n int) {
	for _, k := range r.Faults {
		n += k
	}
	return n
}
