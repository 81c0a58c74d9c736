package sample

import "math"

// candidate is a token that may be drawn.
type candidate struct {
	logit  float64 // after penalties and bias
	weight float64 // its probability over that of the most probable token
	token  Token
}

// before orders candidates: the more probable first, the lower token of equals. It looks at logits, because different
// ones may round to the same weight.
func (c candidate) before(other candidate) bool {
	return c.logit > other.logit || c.logit == other.logit && c.token < other.token
}

// likely is the weight from which on tokens are looked at first. Any value gives the same answers; this one makes the
// first look suffice nearly always.
const likely = 1e-4

// draw takes a token by temperature, min-p, top-k and top-p. It uses one random number.
func (s *Sampler) draw(scratch *Scratch, logits []float64) Token {
	u := float64(s.random.Uint64()>>11) / (1 << 53)
	most := logits[argmaxAdjusted(logits)]
	if s.config.TopP == 1 && (s.config.TopK == 0 || s.config.TopK >= len(logits)) {
		list, total := s.weigh(scratch, logits, most, s.config.MinP)
		return pick(list, total, u)
	}
	list, total := s.weigh(scratch, logits, most, max(likely, s.config.MinP))
	kept, enough := s.keep(list, total)
	if !enough && s.config.MinP < likely {
		list, total = s.weigh(scratch, logits, most, s.config.MinP)
		kept, _ = s.keep(list, total)
	}
	var sum float64
	for _, c := range kept {
		sum += c.weight
	}
	return pick(kept, sum, u)
}

// weigh lists the tokens of at least the given weight, by token, and returns the sum of the weights of all that min-p
// leaves; with top-k, which takes no share of all, the sum is of those listed.
func (s *Sampler) weigh(scratch *Scratch, logits []float64, most, least float64) ([]candidate, float64) {
	list, total := scratch.weights[:0], 0.0
	floor := math.Inf(-1)
	if s.config.TopK > 0 && least > 0 {
		floor = most + s.config.Temperature*(math.Log(least)-1) // safely below least, to save most exponentials
	}
	for i, x := range logits {
		if x < floor {
			continue
		}
		weight := math.Exp((x - most) / s.config.Temperature)
		if weight < s.config.MinP {
			continue
		}
		total += weight
		if weight >= least {
			list = append(list, candidate{x, weight, Token(i)})
		}
	}
	scratch.weights = list
	return list, total
}

// keep moves the tokens that top-k and top-p leave to the end of list and returns them, the least probable first. total
// is the sum of the weights of all tokens, listed or not. It reports false if tokens that are not listed might
// belong to them.
func (s *Sampler) keep(list []candidate, total float64) (kept []candidate, enough bool) {
	heapify(list)
	if s.config.TopK == 0 {
		return keepShare(list, s.config.TopP*total)
	}
	count := min(s.config.TopK, len(list))
	total = 0 // top-p is a share of what top-k leaves
	for heap := list; len(list)-len(heap) < count; {
		heap = popToEnd(heap)
		total += list[len(heap)].weight
	}
	enough = count == s.config.TopK
	if s.config.TopP == 1 {
		return list[len(list)-count:], enough
	}
	kept, sum := list[len(list):], 0.0
	for len(kept) < count && (len(kept) == 0 || sum < s.config.TopP*total) {
		kept = list[len(list)-len(kept)-1:]
		sum += kept[0].weight
	}
	return kept, enough
}

// keepShare moves the first candidates of a heap, as few as reach share, to the end of list. It reports whether they do.
func keepShare(list []candidate, share float64) (kept []candidate, reached bool) {
	heap, sum := list, 0.0
	for len(heap) > 0 {
		heap = popToEnd(heap)
		sum += list[len(heap)].weight
		if sum >= share {
			return list[len(heap):], true
		}
	}
	return list, false
}

// pick returns the token at the share u of the weights. Rounding may leave u past the end: then it is the last token of
// any weight.
func pick(list []candidate, sum, u float64) Token {
	at := u * sum
	last := list[0].token
	for _, c := range list {
		if c.weight == 0 {
			continue
		}
		last = c.token
		if at < c.weight {
			break
		}
		at -= c.weight
	}
	return last
}

// heapify makes list a heap with the first candidate at its root.
func heapify(list []candidate) {
	for i := len(list)/2 - 1; i >= 0; i-- {
		sink(list, i)
	}
}

// popToEnd swaps the root with the heap's last entry and returns the heap without it.
func popToEnd(heap []candidate) []candidate {
	n := len(heap) - 1
	heap[0], heap[n] = heap[n], heap[0]
	sink(heap[:n], 0)
	return heap[:n]
}

func sink(heap []candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && heap[child+1].before(heap[child]) {
			child++
		}
		if !heap[child].before(heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}
