package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// reference chooses a token the slow, obvious way: sort everything, then apply one rule after another.
func reference(c Config, prompt, answer []Token, logits []float32, u float64) Token {
	type entry struct {
		token  Token
		logit  float64
		weight float64
	}
	all := make([]entry, len(logits))
	for i, l := range logits {
		x := float64(l)
		inPrompt, inAnswer := 0, 0
		for _, token := range prompt {
			if token == Token(i) {
				inPrompt++
			}
		}
		for _, token := range answer {
			if token == Token(i) {
				inAnswer++
			}
		}
		if inPrompt+inAnswer > 0 {
			if x > 0 {
				x /= c.RepetitionPenalty
			} else {
				x *= c.RepetitionPenalty
			}
		}
		if inAnswer > 0 {
			x -= float64(inAnswer)*c.FrequencyPenalty + c.PresencePenalty
		}
		x += c.LogitBias[Token(i)]
		all[i] = entry{token: Token(i), logit: x}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].logit > all[j].logit })
	if c.Temperature == 0 {
		return all[0].token
	}
	most := all[0].logit
	kept := all[:0:0]
	for _, e := range all {
		e.weight = math.Exp((e.logit - most) / c.Temperature)
		if e.weight >= c.MinP {
			kept = append(kept, e)
		}
	}
	filtered := false
	if c.TopK > 0 && c.TopK < len(logits) {
		kept, filtered = kept[:min(len(kept), c.TopK)], true
	}
	if c.TopP < 1 {
		filtered = true
		var total, sum float64
		for _, e := range kept {
			total += e.weight
		}
		for i, e := range kept {
			if sum += e.weight; sum >= c.TopP*total {
				kept = kept[:i+1]
				break
			}
		}
	}
	// The number is laid along the tokens in order, or, where a filter has ranked them, from the least probable.
	sort.SliceStable(kept, func(i, j int) bool {
		if filtered {
			return kept[i].logit < kept[j].logit || kept[i].logit == kept[j].logit && kept[i].token > kept[j].token
		}
		return kept[i].token < kept[j].token
	})
	var sum float64
	for _, e := range kept {
		sum += e.weight
	}
	at := u * sum
	for _, e := range kept {
		if at < e.weight {
			return e.token
		}
		at -= e.weight
	}
	return kept[len(kept)-1].token
}

func drawConfig(t *rapid.T, vocabulary int) Config {
	c := Config{
		Temperature:       rapid.SampledFrom([]float64{0, 0.01, 0.3, 0.7, 1, 2}).Draw(t, "temperature"),
		TopK:              rapid.SampledFrom([]int{0, 0, 1, 2, 5, 40, 1000}).Draw(t, "top_k"),
		TopP:              rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.9, 0.99999, 1, 1}).Draw(t, "top_p"),
		MinP:              rapid.SampledFrom([]float64{0, 0, 1e-7, 0.05, 0.5, 1}).Draw(t, "min_p"),
		RepetitionPenalty: rapid.SampledFrom([]float64{0.5, 1, 1, 1.3}).Draw(t, "repetition_penalty"),
		FrequencyPenalty:  rapid.SampledFrom([]float64{-2, 0, 0, 0.5}).Draw(t, "frequency_penalty"),
		PresencePenalty:   rapid.SampledFrom([]float64{-1, 0, 0, 2}).Draw(t, "presence_penalty"),
		Seed:              rapid.Uint64().Draw(t, "seed"),
	}
	if rapid.Bool().Draw(t, "biased") {
		c.LogitBias = rapid.MapOfN(rapid.Int32Range(0, int32(vocabulary-1)), rapid.Float64Range(-100, 100), 0, 4).Draw(t, "logit_bias")
	}
	return c
}

// first is where the answers of these tests begin.
var first = kv.Origin{GatewayBoot: 9, Request: 4, Attempt: 1, Epoch: 7}

// next gives a sampler the logits that are due.
func next(s *Sampler, scratch *Scratch, logits []float32) (Choice, error) {
	return s.Next(scratch, Logits{s.due, logits})
}

func drawLogits(t *rapid.T, vocabulary int) []float32 {
	scale := rapid.SampledFrom([]float32{0, 0.01, 1, 8, 30}).Draw(t, "scale")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 0))
	logits := make([]float32, vocabulary)
	for i := range logits {
		logits[i] = scale * float32(r.NormFloat64())
	}
	return logits
}

func TestNextEqualsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocabulary := rapid.IntRange(1, 300).Draw(t, "vocabulary")
		config := drawConfig(t, vocabulary)
		if err := config.Validate(vocabulary); err != nil {
			t.Fatalf("drawn configuration is not valid: %v", err)
		}
		prompt := rapid.SliceOfN(rapid.Int32Range(0, int32(vocabulary-1)), 0, 8).Draw(t, "prompt")
		s := New(config, first, prompt)
		numbers := rand.NewPCG(config.Seed, stream)
		var scratch Scratch
		var answer []Token
		for range 8 {
			logits := drawLogits(t, vocabulary)
			u := 0.0
			if config.Temperature != 0 {
				u = float64(numbers.Uint64()>>11) / (1 << 53)
			}
			want := reference(config, prompt, answer, logits, u)
			got, err := next(s, &scratch, logits)
			if err != nil {
				t.Fatalf("Next failed on finite logits: %v", err)
			}
			if got.Token != want {
				t.Fatalf("token %d of the answer is %d, the reference chooses %d", len(answer), got.Token, want)
			}
			answer = append(answer, want)
		}
	})
}

func TestSameSeedSameText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t, 50)
		one, other := New(config, first, nil), New(config, first, nil)
		var shared Scratch // the scratch of a batch: what another sampler leaves in it must not matter
		stranger := New(Config{Temperature: 1, TopP: 0.3, RepetitionPenalty: 1, Seed: 7}, first, nil)
		for i := range 12 {
			logits := drawLogits(t, 50)
			want, err := next(one, new(Scratch), logits)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := next(stranger, &shared, drawLogits(t, 50)); err != nil {
				t.Fatal(err)
			}
			got, err := next(other, &shared, logits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("token %d of the same seed differs beside another sequence (-alone +beside):\n%s", i, diff)
			}
		}
	})
}

func TestCloneGoesItsOwnWay(t *testing.T) {
	config := Config{Temperature: 1.5, TopP: 0.95, RepetitionPenalty: 1.2, FrequencyPenalty: 0.5, Seed: 3}
	s := New(config, first, []Token{1, 2})
	logits := []float32{1, 2, 3, 2, 1, 0, 1, 2}
	run := func(s *Sampler) (tokens []Token) {
		for range 20 {
			c, err := next(s, new(Scratch), logits)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, c.Token)
		}
		return tokens
	}
	run(s)
	c := s.Clone()
	want := run(s)
	if diff := cmp.Diff(want, run(c)); diff != "" {
		t.Errorf("a clone's tokens differ from its original's (-original +clone):\n%s", diff)
	}
}

// Shares of 200,000 draws must lie within five standard deviations of the probabilities.
func TestDrawFollowsProbabilities(t *testing.T) {
	logits := []float32{2, 1, 0, -1, 1.5}
	for name, config := range map[string]Config{
		"plain":       {Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 11},
		"temperature": {Temperature: 0.5, TopP: 1, RepetitionPenalty: 1, Seed: 12},
		"top-k":       {Temperature: 1, TopK: 3, TopP: 1, RepetitionPenalty: 1, Seed: 13},
		"top-p":       {Temperature: 1, TopP: 0.8, RepetitionPenalty: 1, Seed: 14},
	} {
		t.Run(name, func(t *testing.T) {
			want := probabilities(config, logits)
			const draws = 200_000
			counts := make([]int, len(logits))
			s, scratch := New(config, first, nil), new(Scratch)
			for range draws {
				c, err := next(s, scratch, logits)
				if err != nil {
					t.Fatal(err)
				}
				counts[c.Token]++
			}
			for i, p := range want {
				got, margin := float64(counts[i])/draws, 5*math.Sqrt(p*(1-p)/draws)
				if math.Abs(got-p) > margin {
					t.Errorf("token %d came in %.4f of the draws, its probability is %.4f", i, got, p)
				}
			}
		})
	}
}

func probabilities(c Config, logits []float32) []float64 {
	p := make([]float64, len(logits))
	order := make([]int, len(logits))
	var total float64
	for i, l := range logits {
		p[i], order[i] = math.Exp(float64(l)/c.Temperature), i
		total += p[i]
	}
	sort.Slice(order, func(i, j int) bool { return p[order[i]] > p[order[j]] })
	var kept float64
	for rank, i := range order {
		if c.TopK > 0 && rank >= c.TopK || kept >= c.TopP*total {
			p[i] = 0
		}
		kept += p[i]
	}
	for i := range p {
		p[i] /= kept
	}
	return p
}

func TestTopPKeepsAtLeastOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits := drawLogits(t, rapid.IntRange(1, 40).Draw(t, "vocabulary"))
		config := Config{Temperature: 1, TopP: 0, RepetitionPenalty: 1, Seed: rapid.Uint64().Draw(t, "seed")}
		got, err := next(New(config, first, nil), new(Scratch), logits)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := argmax(logits); got.Token != want {
			t.Fatalf("top_p 0 chose token %d, the most probable is %d", got.Token, want)
		}
	})
}

func TestLogprobsAreOfTheRawDistribution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocabulary := rapid.IntRange(1, 60).Draw(t, "vocabulary")
		config := drawConfig(t, vocabulary)
		config.Logprobs, config.TopLogprobs = true, rapid.IntRange(0, TopLogprobsMax).Draw(t, "top_logprobs")
		logits := drawLogits(t, vocabulary)
		got, err := next(New(config, first, nil), new(Scratch), logits)
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, l := range logits {
			sum += math.Exp(float64(l))
		}
		close := func(token Token, logprob float64) bool {
			return math.Abs(logprob-(float64(logits[token])-math.Log(sum))) < 1e-9
		}
		if !close(got.Token, got.Logprob) {
			t.Fatalf("the chosen token's log-probability is %g", got.Logprob)
		}
		if want := min(config.TopLogprobs, vocabulary); len(got.Top) != want {
			t.Fatalf("%d alternatives, want %d", len(got.Top), want)
		}
		order := make([]int, vocabulary)
		for i := range order {
			order[i] = i
		}
		sort.SliceStable(order, func(i, j int) bool { return logits[order[i]] > logits[order[j]] })
		for i, top := range got.Top {
			if int(top.Token) != order[i] || !close(top.Token, top.Logprob) {
				t.Fatalf("alternative %d is token %d at %g, want token %d", i, top.Token, top.Logprob, order[i])
			}
		}
	})
}

// Logits of another token are refused whatever they hold, and nothing changes: the
// token that is due can still come.
func TestLogitsOfAnotherTokenAreRefused(t *testing.T) {
	s := New(Config{RepetitionPenalty: 1, FrequencyPenalty: 1}, first, nil)
	logits := []float32{0, 2, 1}
	if c, err := s.Next(new(Scratch), Logits{first, logits}); err != nil || c.From != first {
		t.Fatalf("the first token is %+v (%v), want one of %v", c, err, first)
	}
	for name, from := range map[string]kv.Origin{
		"the same again": first, "one too far": first.At(2), "nobody's": {}, "another request's": {GatewayBoot: 9, Request: 5, Attempt: 1, Epoch: 7, Index: 1},
		"another attempt's": {GatewayBoot: 9, Request: 4, Attempt: 2, Epoch: 7, Index: 1}, "another start's": {GatewayBoot: 9, Request: 4, Attempt: 1, Epoch: 8, Index: 1},
	} {
		if _, err := s.Next(new(Scratch), Logits{from, logits}); !errors.Is(err, ErrForeign) {
			t.Errorf("%s logits give %v, want ErrForeign", name, err)
		}
	}
	if c, err := s.Next(new(Scratch), Logits{first.At(1), logits}); err != nil || c.Token != 1 || c.From != first.At(1) {
		t.Errorf("the second token is %+v (%v), want 1 of %v", c, err, first.At(1))
	}
}

func TestBadLogitsAreErrorsAndChangeNothing(t *testing.T) {
	for name, bad := range map[string][]float32{
		"none": {}, "NaN": {0, float32(math.NaN()), 1}, "infinite": {0, float32(math.Inf(1))}, "minus infinite": {float32(math.Inf(-1)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Temperature: 1, TopP: 1, RepetitionPenalty: 1.5, PresencePenalty: 1, Seed: 5}
			s, twin := New(config, first, nil), New(config, first, nil)
			if _, err := next(s, new(Scratch), bad); err == nil {
				t.Fatal("logits that are not finite gave a token")
			}
			logits := []float32{1, 1, 1, 1, 1, 1, 1, 1}
			for range 10 {
				got, err := next(s, new(Scratch), logits)
				want, twinErr := next(twin, new(Scratch), logits)
				if err != nil || twinErr != nil || got.Token != want.Token {
					t.Fatalf("after an error the next token is %d (%v), without it %d (%v)", got.Token, err, want.Token, twinErr)
				}
			}
		})
	}
}

func TestValidateNamesEveryMistake(t *testing.T) {
	nan := math.NaN()
	err := Config{
		Temperature: -1, TopK: -1, TopP: nan, MinP: 2, RepetitionPenalty: 0, FrequencyPenalty: 3, PresencePenalty: -3,
		LogitBias: map[Token]float64{10: 0, 1: 101}, TopLogprobs: 21,
	}.Validate(10)
	if err == nil {
		t.Fatal("a configuration of mistakes is valid")
	}
	for _, want := range []string{
		"temperature is -1, it must be from 0 to 2", "top_k is -1", "top_p is NaN", "min_p is 2", "repetition_penalty is 0, it must be above 0",
		"frequency_penalty is 3", "presence_penalty is -3, it must be from -2 to 2", "logit_bias[1] is 101, it must be from -100 to 100",
		"logit_bias[10] is for another token, it must be for tokens from 0 to 9", "top_logprobs is 21, it must be from 0 to 20",
		"top_logprobs is 21, it must be 0 unless logprobs is true",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error doesn't say %q:\n%v", want, err)
		}
	}
	var first *RangeError
	if !errors.As(err, &first) || first.Field != "temperature" {
		t.Errorf("the first mistake is %+v, want temperature's", first)
	}
	if err := Default().Validate(10); err != nil {
		t.Errorf("the default configuration is not valid: %v", err)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	logits := make([]float32, 1000)
	logits[7] = 3
	for name, config := range map[string]Config{
		"greedy": {TopP: 1, RepetitionPenalty: 1},
		"drawn":  {Temperature: 0.8, TopK: 40, TopP: 0.9, RepetitionPenalty: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, scratch := New(config, first, nil), new(Scratch)
			allocated := testing.AllocsPerRun(100, func() {
				if _, err := next(s, scratch, logits); err != nil {
					t.Fatal(err)
				}
			})
			if allocated != 0 {
				t.Errorf("%v allocations a token", allocated)
			}
		})
	}
}

func BenchmarkNext(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 49152)
	for i := range logits {
		logits[i] = float32(3 * r.NormFloat64())
	}
	for name, config := range map[string]Config{
		"greedy": {TopP: 1, RepetitionPenalty: 1}, "plain": {Temperature: 1, TopP: 1, RepetitionPenalty: 1},
		"top-k-p": {Temperature: 0.8, TopK: 40, TopP: 0.9, RepetitionPenalty: 1}, "top-p": {Temperature: 1, TopP: 0.95, RepetitionPenalty: 1},
		"logprobs": {TopP: 1, RepetitionPenalty: 1, Logprobs: true, TopLogprobs: 5},
	} {
		b.Run(name, func(b *testing.B) {
			s, scratch := New(config, first, nil), new(Scratch)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := next(s, scratch, logits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
