package cluster

import (
	"math"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Bounds of one job and one event.
const (
	JobBytesMax    = 16 << 20 // encoded job
	EventBytesMax  = 1 << 20  // encoded event or status
	TokensMax      = 4 << 20  // prompt tokens
	StopMax        = 256      // stop ids
	LogitBiasMax   = 4096     // entries
	LogprobsTopMax = 20       // alternatives
	ReasonBytesMax = 4 << 10  // an event's reason; longer ones are cut
)

// NoLogprobs in Sampling.Logprobs asks for none.
const NoLogprobs = -1

// Sampling says how decode chooses tokens. The gateway checks ranges and fills
// in defaults; here only what no sampler can work with is refused.
type Sampling struct {
	Temperature float32
	TopP        float32
	MinP        float32
	TopK        int // 0: all
	Seed        uint64
	HasSeed     bool
	Repetition  float32
	Frequency   float32
	Presence    float32
	LogitBias   map[int32]float32
	Logprobs    int // NoLogprobs, or the number of alternatives, 0 to LogprobsTopMax
}

// Job is one attempt at one request. Both workers of the pair get the same.
type Job struct {
	// GatewayBoot, Request and Attempt name the attempt. The gateway makes them;
	// nothing of them comes from a client. Boot and Request are never zero.
	GatewayBoot uint64
	Request     uint64
	Attempt     uint32

	Tenant kv.TenantTag

	// The pair, by name and by the epochs that the gateway saw. A worker of
	// another epoch refuses.
	Prefill, Decode           string
	PrefillEpoch, DecodeEpoch kv.Epoch

	Tokens    []int32   // prompt ids, 1 to TokensMax
	MaxTokens int       // granted output, at least 1
	Stop      []int32   // ids that end the answer
	Sampling  Sampling  //
	Deadline  time.Time // zero: none; travels as time left
	Probe     bool      // health probe on reserved pages
}

// ID names the attempt among all jobs of all gateways.
type ID struct {
	GatewayBoot uint64
	Request     uint64
	Attempt     uint32
}

// ID is the job's name.
func (j *Job) ID() ID { return ID{j.GatewayBoot, j.Request, j.Attempt} }

// Part is the role and the expected epoch of the named node in the job; ok is
// false if the node has no part in it.
func (j *Job) Part(node string) (role Role, epoch kv.Epoch, ok bool) {
	switch node {
	case j.Prefill:
		return Prefill, j.PrefillEpoch, true
	case j.Decode:
		return Decode, j.DecodeEpoch, true
	}
	return 0, 0, false
}

// Validate reports the first thing that makes the job impossible. Its kind is
// fault.Invalid.
func (j *Job) Validate() error {
	refuse := func(format string, args ...any) error { return fault.New(fault.Invalid, "job: "+format, args...) }
	switch {
	case j.GatewayBoot == 0 || j.Request == 0:
		return refuse("gateway boot and request must not be zero")
	case j.Tenant == 0:
		return refuse("tenant must not be zero")
	case j.Prefill == j.Decode:
		return refuse("prefill and decode are the same node %.80q", j.Prefill)
	case certs.CheckName(j.Prefill) != nil || certs.CheckName(j.Decode) != nil:
		return refuse("prefill %.80q and decode %.80q must be node names", j.Prefill, j.Decode)
	case j.PrefillEpoch == 0 || j.DecodeEpoch == 0:
		return refuse("epochs must not be zero")
	case len(j.Tokens) < 1 || len(j.Tokens) > TokensMax:
		return refuse("%d prompt tokens, must be 1 to %d", len(j.Tokens), TokensMax)
	case j.MaxTokens < 1 || j.MaxTokens > TokensMax:
		return refuse("%d output tokens granted, must be 1 to %d", j.MaxTokens, TokensMax)
	case len(j.Stop) > StopMax:
		return refuse("%d stop ids, must be at most %d", len(j.Stop), StopMax)
	}
	for i, id := range j.Tokens {
		if id < 0 {
			return refuse("prompt token %d has a negative id", i)
		}
	}
	return j.Sampling.validate()
}

func (s *Sampling) validate() error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "job: sampling: "+format, args...)
	}
	for _, v := range []struct {
		name  string
		value float32
	}{
		{"temperature", s.Temperature}, {"top_p", s.TopP}, {"min_p", s.MinP},
		{"repetition", s.Repetition}, {"frequency", s.Frequency}, {"presence", s.Presence},
	} {
		if !finite(v.value) {
			return refuse("%s must be finite", v.name)
		}
	}
	if s.Temperature < 0 || s.TopK < 0 || s.TopK > math.MaxInt32 {
		return refuse("temperature %g and top_k %d must not be negative", s.Temperature, s.TopK)
	}
	if s.Logprobs < NoLogprobs || s.Logprobs > LogprobsTopMax {
		return refuse("%d logprobs, must be %d to %d", s.Logprobs, NoLogprobs, LogprobsTopMax)
	}
	if len(s.LogitBias) > LogitBiasMax {
		return refuse("%d logit biases, must be at most %d", len(s.LogitBias), LogitBiasMax)
	}
	for _, bias := range s.LogitBias {
		if !finite(bias) {
			return refuse("logit biases must be finite")
		}
	}
	return nil
}

func finite(v float32) bool {
	f := float64(v)
	return !math.IsNaN(f) && !math.IsInf(f, 0)
}
