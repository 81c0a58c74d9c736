package openai

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// The bounds of a request's fields.
const (
	ChoicesMax        = 32      // n times the prompts of one request
	StopsMax          = 4       // stop strings
	StopBytesMax      = 1024    // bytes of one stop string
	LogprobsMax       = 20      // alternatives reported a token
	LogitBiasMax      = 1024    // entries of logit_bias
	OutputTokensMax   = 1 << 30 // max_tokens; admission gives less
	TopKMax           = 1 << 20
	TokenMax          = math.MaxInt32
	RepetitionMax     = 10.0
	ModelNameBytesMax = 256
	ValuesMax         = 1 << 19 // members of all objects and arrays of a body
)

// Options is what chat and text completions share.
type Options struct {
	Model        string
	Stream       bool
	IncludeUsage bool // stream_options.include_usage
	MaxTokens    int  // 0: not given. max_completion_tokens wins over max_tokens
	N            int  // 1 to ChoicesMax
	Stop         []string
	Sampling     Sampling
	Dropped      []string // steering fields that were in the body, sorted
}

// Sampling says how the next token is chosen.
type Sampling struct {
	Temperature float32 // 0 to 2, 0 is greedy
	TopP        float32 // over 0, to 1
	MinP        float32 // 0 to 1
	TopK        int     // 0: all
	Seed        int64
	HasSeed     bool
	Repetition  float32 // over 0, to RepetitionMax; 1: off
	Frequency   float32 // -2 to 2
	Presence    float32 // -2 to 2
	LogitBias   map[int32]float32
	Logprobs    int // -1: none; 0 to LogprobsMax alternatives a token
}

func (o *object) options() Options {
	dropped := o.dropSteering()
	o.refuseUnsupported()
	opt := Options{N: 1, Dropped: dropped, Model: o.model(), Stream: o.boolean("stream"), Stop: o.stops()}
	if n, ok := o.integer("n", 1, ChoicesMax); ok {
		opt.N = int(n)
	}
	if best, ok := o.integer("best_of", 1, ChoicesMax); ok && int(best) != opt.N {
		o.fail(invalid(CodeUnsupported, "best_of", "best_of must equal n (%d)", opt.N))
	}
	opt.MaxTokens = o.maxTokens()
	opt.IncludeUsage = o.includeUsage(opt.Stream)
	opt.Sampling = o.sampling()
	return opt
}

func (o *object) model() string {
	model, ok := o.text("model")
	switch {
	case !ok || model == "":
		o.fail(invalid(CodeMissing, "model", "model is required: a string of 1 to %d bytes", ModelNameBytesMax))
	case len(model) > ModelNameBytesMax:
		o.fail(invalid(CodeOutOfRange, "model", "model must be a string of 1 to %d bytes, it has %d", ModelNameBytesMax, len(model)))
	}
	return model
}

func (o *object) maxTokens() int {
	tokens, _ := o.integer("max_tokens", 1, OutputTokensMax)
	if v, ok := o.integer("max_completion_tokens", 1, OutputTokensMax); ok {
		tokens = v
	}
	return int(tokens)
}

func (o *object) includeUsage(stream bool) bool {
	raw, ok := o.get("stream_options")
	if !ok {
		return false
	}
	if !stream {
		o.fail(invalid(CodeInvalidValue, "stream_options", "stream_options is only allowed when stream is true"))
		return false
	}
	options, ok := o.child("stream_options", raw)
	if !ok {
		return false
	}
	include := options.boolean("include_usage")
	o.adopt(options)
	return include
}

func (o *object) stops() []string {
	raw, ok := o.get("stop")
	if !ok {
		return nil
	}
	var stops []string
	var one string
	if json.Unmarshal(raw, &one) == nil {
		stops = []string{one}
	} else if json.Unmarshal(raw, &stops) != nil || slices.Contains(kindsOf(raw), "null") {
		o.wrongType("stop", "a string or an array of 1 to 4 strings", raw)
		return nil
	}
	if len(stops) > StopsMax {
		o.fail(invalid(CodeOutOfRange, "stop", "stop must have 1 to %d strings, it has %d", StopsMax, len(stops)))
		return nil
	}
	for i, s := range stops {
		if len(s) == 0 || len(s) > StopBytesMax {
			o.fail(invalid(CodeOutOfRange, "stop", "stop string %d must have 1 to %d bytes, it has %d", i, StopBytesMax, len(s)))
		}
	}
	return stops
}

func kindsOf(raw json.RawMessage) (kinds []string) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil
	}
	for _, item := range items {
		kinds = append(kinds, kindOf(item))
	}
	return kinds
}

func (o *object) sampling() Sampling {
	s := Sampling{Temperature: 1, TopP: 1, Repetition: 1, Logprobs: -1}
	o.float("temperature", 0, 2, &s.Temperature)
	o.float("top_p", 0, 1, &s.TopP)
	o.float("min_p", 0, 1, &s.MinP)
	o.float("frequency_penalty", -2, 2, &s.Frequency)
	o.float("presence_penalty", -2, 2, &s.Presence)
	o.float("repetition_penalty", 0.01, RepetitionMax, &s.Repetition)
	// -1 is what several clients send for "all".
	if k, ok := o.integer("top_k", -1, TopKMax); ok {
		s.TopK = int(max(k, 0))
	}
	if s.TopP == 0 {
		// The mass of 0 keeps the likeliest token alone.
		s.TopP, s.TopK = 1, 1
	}
	s.Seed, s.HasSeed = o.integer("seed", math.MinInt64, math.MaxInt64)
	s.LogitBias = o.logitBias()
	return s
}

func (o *object) float(name string, lo, hi float64, to *float32) {
	if v, ok := o.number(name, lo, hi); ok {
		*to = float32(v)
	}
}

func (o *object) logitBias() map[int32]float32 {
	raw, ok := o.get("logit_bias")
	if !ok {
		return nil
	}
	entries, ok := o.child("logit_bias", raw)
	if !ok {
		return nil
	}
	if len(entries.fields) > LogitBiasMax {
		o.fail(invalid(CodeOutOfRange, "logit_bias", "logit_bias must have at most %d entries, it has %d", LogitBiasMax, len(entries.fields)))
		return nil
	}
	bias := make(map[int32]float32, len(entries.fields))
	for name, value := range entries.fields {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != name { // "+5" and "05" would be another 5
			o.fail(invalid(CodeInvalidValue, "logit_bias", "the keys of logit_bias must be token ids from 0 to %d, in plain digits", TokenMax))
			return nil
		}
		v, bad := numberOf("logit_bias", value, -100, 100)
		if bad != nil {
			o.fail(bad)
			return nil
		}
		bias[int32(id)] = float32(v)
	}
	return bias
}
