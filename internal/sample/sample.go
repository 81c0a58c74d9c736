package sample

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// ErrForeign: logits are not those of the answer's next token. Whoever mixed them up
// may have mixed up more.
var ErrForeign = errors.New("sample: logits of another token")

// Logits are what a token of the vocabulary each is worth as the next one, and which
// token they were computed for.
type Logits struct {
	From   kv.Origin
	Values []float32 // one for each token of the vocabulary
}

// Choice is a chosen token.
type Choice struct {
	From    kv.Origin // of the logits
	Token   Token
	Logprob float64   // natural logarithm of the model's probability; 0 unless asked for
	Top     []Logprob // the most probable tokens, in descending order; nil unless asked for
}

// Logprob is a token and the natural logarithm of its probability in the model's distribution.
type Logprob struct {
	Token   Token
	Logprob float64
}

// Sampler is one answer's state: its random numbers and the tokens so far. It is small; what needs the size of the
// vocabulary is in Scratch.
type Sampler struct {
	config Config
	due    kv.Origin // of the next token
	biases []bias
	random rand.PCG
	seen   map[Token]struct{} // of prompt and answer; nil unless the repetition penalty needs it
	counts map[Token]int      // of the answer; nil unless a penalty needs it
}

// stream is the second half of the generator's seed, so that a request's seed alone sets the numbers.
const stream = 0xB01C4EAD

// New returns the sampler of an answer to prompt, whose first token is to come from
// first. Requires: config is valid.
func New(config Config, first kv.Origin, prompt []Token) *Sampler {
	s := &Sampler{config: config, due: first, biases: config.biases(), random: *rand.NewPCG(config.Seed, stream)}
	if config.RepetitionPenalty != 1 {
		s.seen = make(map[Token]struct{})
		for _, token := range prompt {
			s.seen[token] = struct{}{}
		}
	}
	if config.FrequencyPenalty != 0 || config.PresencePenalty != 0 {
		s.counts = make(map[Token]int)
	}
	return s
}

// Clone returns a sampler in the same state.
func (s *Sampler) Clone() *Sampler {
	c := *s
	c.seen = maps.Clone(s.seen)
	c.counts = maps.Clone(s.counts)
	return &c
}

// Scratch is working memory that samplers of one goroutine take turns with. The zero value is ready.
type Scratch struct {
	logits  []float64   // after penalties and bias
	weights []candidate // in proportion to the probabilities
}

// Next chooses the token that follows and counts it as part of the answer. from are the model's logits; they are not
// changed. Logits of any other token than the answer's next are an error, ErrForeign, and so is a logit that is not
// finite; the state stays as it was.
func (s *Sampler) Next(scratch *Scratch, from Logits) (Choice, error) {
	if err := s.due.Expect(from.From); err != nil {
		return Choice{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	logits := from.Values
	best, err := argmax(logits)
	if err != nil {
		return Choice{}, err
	}
	choice := Choice{From: s.due, Token: best}
	switch adjusted := s.adjusts(); {
	case adjusted && s.config.Temperature == 0:
		choice.Token = argmaxAdjusted(s.adjust(scratch, logits))
	case s.config.Temperature != 0:
		choice.Token = s.draw(scratch, s.adjust(scratch, logits))
	}
	if s.config.Logprobs {
		s.report(&choice, logits, logits[best])
	}
	s.accept(choice.Token)
	return choice, nil
}

// argmax returns the most probable token, the lowest of equals.
func argmax(logits []float32) (Token, error) {
	if len(logits) == 0 {
		return 0, fmt.Errorf("sample: no logits")
	}
	best := 0
	for i, x := range logits {
		if x-x != 0 { // NaN or infinite
			return 0, fmt.Errorf("sample: logit %d of %d is not finite", i, len(logits))
		}
		if x > logits[best] {
			best = i
		}
	}
	return Token(best), nil
}

func argmaxAdjusted(logits []float64) Token {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return Token(best)
}

// adjusts reports whether penalties or biases change any logit now.
func (s *Sampler) adjusts() bool {
	return len(s.seen) > 0 || len(s.counts) > 0 || len(s.biases) > 0
}

// adjust returns the logits after penalties and bias. Tokens outside the vocabulary are ignored.
func (s *Sampler) adjust(scratch *Scratch, logits []float32) []float64 {
	x := scratch.logits[:0]
	for _, l := range logits {
		x = append(x, float64(l))
	}
	scratch.logits = x
	for token := range s.seen {
		if int(token) >= len(x) || token < 0 {
			continue
		}
		if x[token] > 0 {
			x[token] /= s.config.RepetitionPenalty
		} else {
			x[token] *= s.config.RepetitionPenalty
		}
	}
	for token, count := range s.counts {
		x[token] -= float64(count)*s.config.FrequencyPenalty + s.config.PresencePenalty
	}
	for _, b := range s.biases {
		if int(b.token) < len(x) && b.token >= 0 {
			x[b.token] += b.amount
		}
	}
	return x
}

// accept counts a token as part of the answer.
func (s *Sampler) accept(token Token) {
	s.due.Index++
	if s.seen != nil {
		s.seen[token] = struct{}{}
	}
	if s.counts != nil {
		s.counts[token]++
	}
}

// report fills in the log-probabilities. most is the largest logit.
func (s *Sampler) report(choice *Choice, logits []float32, most float32) {
	var sum float64
	for _, x := range logits {
		sum += math.Exp(float64(x) - float64(most))
	}
	normalizer := float64(most) + math.Log(sum)
	choice.Logprob = float64(logits[choice.Token]) - normalizer
	if s.config.TopLogprobs == 0 {
		return
	}
	top := make([]Logprob, 0, s.config.TopLogprobs+1)
	for i, x := range logits {
		top = insert(top, Logprob{Token(i), float64(x)}, s.config.TopLogprobs)
	}
	for i := range top {
		top[i].Logprob -= normalizer
	}
	choice.Top = top
}

// insert puts l in its place in a list in descending order that keeps at most most entries, earlier ones before their
// equals.
func insert(top []Logprob, l Logprob, most int) []Logprob {
	if len(top) == most && l.Logprob <= top[most-1].Logprob {
		return top
	}
	top = append(top, l)
	for i := len(top) - 1; i > 0 && top[i-1].Logprob < l.Logprob; i-- {
		top[i-1], top[i] = top[i], top[i-1]
	}
	if len(top) > most {
		top = top[:most]
	}
	return top
}
