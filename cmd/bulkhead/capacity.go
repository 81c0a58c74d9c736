package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/capacity"
	"github.com/bulkhead-kv/bulkhead/internal/machine"
	"github.com/bulkhead-kv/bulkhead/internal/model"
)

const capacityLong = `Compute whether this machine can serve a model, before it is started: weights,
page pools of every worker, scratch and processes, line by line, against the
memory of the machine or of its control group. It exits with 1 if it does not
fit.`

func newCapacity() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "capacity MODEL",
		Short:             "compute whether a model fits this machine",
		Long:              capacityLong,
		Example:           "  bulkhead capacity smollm2:135m --context 8192 --decodes 2",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: modelNames,
	}
	context := cmd.Flags().String("context", "auto", `served context in tokens, or "auto": as much as model and pools allow`)
	prefills := cmd.Flags().Int("prefills", 1, "prefill workers on this machine")
	decodes := cmd.Flags().Int("decodes", 1, "decode workers on this machine")
	prefillPool := cmd.Flags().Int("prefill-pool", 0, "tokens of a prefill worker's pool (default: chosen)")
	decodePool := cmd.Flags().Int("decode-pool", 0, "tokens of a decode worker's pool (default: chosen)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		demand := capacity.Demand{
			Prefill: capacity.Workers{Count: *prefills, PoolTokens: *prefillPool},
			Decode:  capacity.Workers{Count: *decodes, PoolTokens: *decodePool},
		}
		var err error
		if demand.ContextTokens, err = contextTokens(*context); err != nil {
			return err
		}
		if err := atLeast(1, number{"prefills", *prefills}, number{"decodes", *decodes}); err != nil {
			return err
		}
		if err := atLeast(0, number{"prefill-pool", *prefillPool}, number{"decode-pool", *decodePool}); err != nil {
			return err
		}
		m, err := openNamed(cmd, args[0])
		if err != nil {
			return err
		}
		defer func() { _ = m.file.Close() }() // it was only read
		return printCapacity(cmd, m, demand)
	}
	return cmd
}

// number is the value of a flag.
type number struct {
	flag  string
	value int
}

// atLeast names the first flag whose value is too small.
func atLeast(least int, flags ...number) error {
	for _, f := range flags {
		if f.value < least {
			return usageError{fmt.Errorf("--%s is %d, must be %d or more", f.flag, f.value, least)}
		}
	}
	return nil
}

// notNegative names the first of the flags whose time is negative.
func notNegative(cmd *cobra.Command, flags ...string) error {
	for _, flag := range flags {
		if span, err := cmd.Flags().GetDuration(flag); err != nil || span < 0 {
			return usageError{errors.Join(err, fmt.Errorf("--%s is %s, must be 0 or more", flag, span))}
		}
	}
	return nil
}

// contextTokens reads a --context; 0 is "auto".
func contextTokens(text string) (int, error) {
	if text == "auto" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, usageError{fmt.Errorf("context is %q, want a number of tokens or auto", text)}
	}
	return n, nil
}

func printCapacity(cmd *cobra.Command, m named, demand capacity.Demand) error {
	layout, err := m.layout()
	if err != nil {
		return configError{fmt.Errorf("model %s: %w", m.name, err)}
	}
	memory, err := machine.ReadMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	weights, err := model.PackedBytes(m.file)
	if err != nil {
		return configError{fmt.Errorf("model %s: %w", m.name, err)}
	}
	sum := capacity.Compute(
		capacity.Model{Name: m.name, WeightBytes: int64(weights), ScratchBytes: scratchBytes(m), ContextTokens: m.ContextTokens, Layout: layout},
		capacity.Machine{MemoryBytes: memory.Bytes, Source: memory.Source}, demand)
	if _, err := fmt.Fprint(cmd.OutOrStdout(), sum); err != nil {
		return err
	}
	if !sum.Fits() {
		return verdictError{fmt.Errorf("model %s can't be served so (%s)", m.name, plural(len(sum.Problems), "problem")), exitFailure}
	}
	return nil
}

// scratchBytes is about what one worker's engine takes for a step of stepTokens:
// activations as floats and as quantized numbers, and the logits of a pass.
func scratchBytes(m named) int64 {
	const stepTokens, logitRows, floatBytes, quantizedBytes = 512, 16, 4, 3
	heads := (m.Heads+m.KVHeads)*m.KeyDim + m.KVHeads*m.ValueDim + m.Heads*m.ValueDim
	widest := max(m.Embedding, m.FeedForward, m.Heads*m.ValueDim)
	token := floatBytes*(m.Embedding+heads+m.FeedForward) + quantizedBytes*widest
	return int64(stepTokens)*int64(token) + logitRows*floatBytes*int64(m.Vocabulary)
}
