package capacity

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// smol has the shape of SmolLM2-135M.
func smol() Model {
	return Model{Name: "smol", WeightBytes: 110 << 20, ScratchBytes: 12 << 20, ContextTokens: 8192,
		Layout: kv.Layout{Layers: 30, KVHeads: 3, KeyDim: 64, ValueDim: 64}}
}

// The transcripts say what a user asks for and show the sum that results:
//
//	sum memory=MiB context=N prefill=(workers,tokens) decode=(workers,tokens)
func TestSums(t *testing.T) {
	datadriven.RunTest(t, "testdata/sums.txt", func(t *testing.T, d *datadriven.TestData) string {
		memory := int64(24105)
		var demand Demand
		demand.Prefill.Count, demand.Decode.Count = 1, 1
		d.MaybeScanArgs(t, "memory", &memory)
		d.MaybeScanArgs(t, "context", &demand.ContextTokens)
		d.MaybeScanArgs(t, "prefill", &demand.Prefill.Count, &demand.Prefill.PoolTokens)
		d.MaybeScanArgs(t, "decode", &demand.Decode.Count, &demand.Decode.PoolTokens)
		s := Compute(smol(), Machine{memory << 20, "physical memory"}, demand)
		return fmt.Sprintf("%sfits: %v\n", s, s.Fits())
	})
}

func TestSumProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := smol()
		c := Machine{rapid.Int64Range(0, 1<<36).Draw(t, "memory"), "memory"}
		d := Demand{
			ContextTokens: rapid.IntRange(0, 20_000).Draw(t, "context"),
			Prefill:       Workers{rapid.IntRange(1, 4).Draw(t, "prefills"), rapid.IntRange(0, 100_000).Draw(t, "prefill tokens")},
			Decode:        Workers{rapid.IntRange(1, 4).Draw(t, "decodes"), rapid.IntRange(0, 100_000).Draw(t, "decode tokens")},
		}
		s := Compute(m, c, d)
		total := s.HeadroomBytes
		for _, l := range s.Lines {
			if l.Bytes < 0 {
				t.Fatalf("line %s has %d bytes", l.Name, l.Bytes)
			}
			total += l.Bytes
		}
		if total != c.MemoryBytes {
			t.Fatalf("lines and headroom add up to %d bytes, the machine has %d", total, c.MemoryBytes)
		}
		served := s.ContextTokens >= 1 && s.ContextTokens <= min(m.ContextTokens, s.Prefill.Tokens(), s.Decode.Tokens())
		if s.Fits() != (served && s.HeadroomBytes >= 0) {
			t.Fatalf("fits is %v for context %d, pools %d and %d, headroom %d", s.Fits(), s.ContextTokens, s.Prefill.Tokens(), s.Decode.Tokens(), s.HeadroomBytes)
		}
		if d.ContextTokens != 0 && s.ContextTokens != d.ContextTokens {
			t.Fatalf("context %d was asked for, %d is served: it may not shrink silently", d.ContextTokens, s.ContextTokens)
		}
	})
}

func TestEveryProblemSaysWhatToChange(t *testing.T) {
	s := Compute(smol(), Machine{1 << 20, "cgroup"}, Demand{ContextTokens: 9000, Prefill: Workers{1, 8000}, Decode: Workers{1, 4096}})
	all := strings.Join(s.Problems, "\n")
	for _, want := range []string{
		"model smol was made for 8192, ask for at most that",
		"prefill pool of 8000 tokens can't hold the context of 9000: add 1008 tokens (22.2 MiB) or ask for a context of 8000",
		"decode pool of 4096 tokens can't hold the context of 9000",
		"cgroup has 1.0 MiB: lower the pools or the context by",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("problems lack %q:\n%s", want, all)
		}
	}
}
