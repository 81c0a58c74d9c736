// Package sample chooses the next token from a model's logits.
//
// It is pure: the same configuration, seed and logits give the same tokens, whatever else runs in the batch. The
// order of operations is penalties, bias, temperature, min-p, top-k, top-p, draw; log-probabilities are those of the
// model, before any of it.
package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Token is the index of a token in the model's vocabulary.
type Token = int32

// TopLogprobsMax is the most alternatives a token can be reported with.
const TopLogprobsMax = 20

// LogitBiasMax is the most tokens a request can bias.
const LogitBiasMax = 1024

// Config says how tokens are chosen. Fields are named in errors as the API spells them.
type Config struct {
	// Temperature divides the logits, 0 to 2. 0 takes the most probable token always.
	Temperature float64
	// TopK keeps the K most probable tokens; 0 keeps all.
	TopK int
	// TopP keeps the fewest most probable tokens whose probabilities reach P, 0 to 1; 1 keeps all. At least one token
	// is kept.
	TopP float64
	// MinP drops tokens less probable than P times the most probable one, 0 to 1.
	MinP float64
	// RepetitionPenalty divides the logits above zero, and multiplies those below, of tokens that occur in the prompt or
	// the answer, above 0 to 10; 1 does nothing.
	RepetitionPenalty float64
	// FrequencyPenalty is subtracted from a token's logit once for each time that it occurs in the answer, -2 to 2.
	FrequencyPenalty float64
	// PresencePenalty is subtracted from the logit of tokens that occur in the answer, -2 to 2.
	PresencePenalty float64
	// LogitBias is added to the tokens' logits, -100 to 100 each, at most LogitBiasMax tokens.
	LogitBias map[Token]float64
	// Seed starts the random numbers.
	Seed uint64
	// Logprobs asks for each token's log-probability.
	Logprobs bool
	// TopLogprobs is how many of the most probable tokens to report beside it, 0 to TopLogprobsMax.
	TopLogprobs int
}

// Default is what a request gets that sets nothing.
func Default() Config {
	return Config{Temperature: 1, TopP: 1, RepetitionPenalty: 1}
}

// RangeError is a field outside its range.
type RangeError struct {
	Field string // as the API spells it
	Range string
	Value string
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s is %s, it must be %s", e.Field, e.Value, e.Range)
}

// Validate returns all mistakes, each a RangeError, joined. vocabulary is the model's number of tokens.
func (c Config) Validate(vocabulary int) error {
	var errs []error
	check := func(ok bool, field, allowed string, value any) {
		if !ok {
			errs = append(errs, &RangeError{Field: field, Range: allowed, Value: fmt.Sprint(value)})
		}
	}
	within := func(x, least, most float64) bool { return x >= least && x <= most } // false for NaN
	check(within(c.Temperature, 0, 2), "temperature", "from 0 to 2", c.Temperature)
	check(c.TopK >= 0, "top_k", "0 or more", c.TopK)
	check(within(c.TopP, 0, 1), "top_p", "from 0 to 1", c.TopP)
	check(within(c.MinP, 0, 1), "min_p", "from 0 to 1", c.MinP)
	check(within(c.RepetitionPenalty, math.SmallestNonzeroFloat64, 10), "repetition_penalty", "above 0, up to 10", c.RepetitionPenalty)
	check(within(c.FrequencyPenalty, -2, 2), "frequency_penalty", "from -2 to 2", c.FrequencyPenalty)
	check(within(c.PresencePenalty, -2, 2), "presence_penalty", "from -2 to 2", c.PresencePenalty)
	check(c.TopLogprobs >= 0 && c.TopLogprobs <= TopLogprobsMax, "top_logprobs", fmt.Sprintf("from 0 to %d", TopLogprobsMax), c.TopLogprobs)
	check(c.TopLogprobs == 0 || c.Logprobs, "top_logprobs", "0 unless logprobs is true", c.TopLogprobs)
	check(len(c.LogitBias) <= LogitBiasMax, "logit_bias", fmt.Sprintf("for at most %d tokens", LogitBiasMax), fmt.Sprintf("for %d", len(c.LogitBias)))
	for _, b := range c.biases() {
		field := fmt.Sprintf("logit_bias[%d]", b.token)
		check(b.token >= 0 && int(b.token) < vocabulary, field, fmt.Sprintf("for tokens from 0 to %d", vocabulary-1), "for another token")
		check(within(b.amount, -100, 100), field, "from -100 to 100", b.amount)
	}
	return errors.Join(errs...)
}

// bias is what is added to one token's logit.
type bias struct {
	token  Token
	amount float64
}

// biases lists the logit biases by token.
func (c Config) biases() []bias {
	list := make([]bias, 0, len(c.LogitBias))
	for token, amount := range c.LogitBias {
		list = append(list, bias{token, amount})
	}
	slices.SortFunc(list, func(a, b bias) int { return int(a.token) - int(b.token) })
	return list
}
