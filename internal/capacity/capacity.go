// Package capacity computes, before start, whether a configuration fits the machine.
//
// The answer is a sum with one line a holder of memory, in the order in which
// they are taken:
//
//	memory - weights - prefill pools - decode pools - scratch - processes - requests = headroom
//
// The package is pure: it is told what the machine has.
package capacity

import (
	"fmt"
	"strings"

	"github.com/bulkhead-kv/bulkhead/kv"
)

const (
	// AutoContexts is the number of full contexts that a pool of automatic size holds.
	AutoContexts = 4
	// AutoShare bounds a pool of automatic size: one part in AutoShare of the memory.
	AutoShare = 8
	// HeadroomAdvised is the number of full contexts below which a pool is called
	// tight: one long prompt would leave no room for a second one.
	HeadroomAdvised = 2
	// ReservedPages is what a pool keeps for health probes, beside what it serves.
	ReservedPages = 4
	// ProcessBytes is what a process takes beside weights, pool and scratch.
	ProcessBytes = 40 << 20
	// RequestShare bounds what requests that are read or answered may make a gateway
	// hold: one part in RequestShare of the memory, and at most RequestBytesMax.
	RequestShare    = 8
	RequestBytesMax = 6 << 30
	// processesBeside are the supervisor and the gateway.
	processesBeside = 2
)

// Model is what a model takes.
type Model struct {
	Name          string
	WeightBytes   int64 // in memory; the workers of a machine share one copy
	ScratchBytes  int64 // activations of one worker
	ContextTokens int   // positions it was made for
	Layout        kv.Layout
}

// Machine is what there is.
type Machine struct {
	MemoryBytes int64
	Source      string // where the number comes from, for the report
}

// Demand is the configuration. Zero tokens mean: choose.
type Demand struct {
	ContextTokens int // served context
	Prefill       Workers
	Decode        Workers
}

// Workers are the workers of one role.
type Workers struct {
	Count      int // at least 1
	PoolTokens int // of each worker
}

// Pool is what one role's workers get.
type Pool struct {
	Role    string
	Workers int
	Pages   int // of each worker, without the reserved ones
}

// Tokens is what one worker's pool holds.
func (p Pool) Tokens() int { return p.Pages * kv.PageTokens }

// Line is one holder of memory.
type Line struct {
	Name  string
	Bytes int64
	Note  string
}

// Sum is the result.
type Sum struct {
	Model         Model
	Machine       Machine
	ContextTokens int // to be served
	Prefill       Pool
	Decode        Pool
	Lines         []Line // holders, in order
	HeadroomBytes int64  // what is left; negative if it does not fit
	Problems      []string
	Warnings      []string
}

// Fits reports whether the configuration may start.
func (s Sum) Fits() bool { return len(s.Problems) == 0 }

// TokenBytes is the KV of one token, without page headers.
func TokenBytes(l kv.Layout) int { return l.BodyBytes() / kv.PageTokens }

// AutoPages is the size of a pool for which nobody states one: room for
// AutoContexts contexts, as far as its share of the memory allows.
func AutoPages(l kv.Layout, contextTokens int, memoryBytes int64) int {
	affordable := memoryBytes / AutoShare / int64(l.StrideBytes())
	return int(max(1, min(int64(AutoContexts)*int64(kv.PagesFor(contextTokens)), affordable)))
}

// RequestBytes is what requests may make a gateway hold on a machine of so much memory.
func RequestBytes(memoryBytes int64) int64 { return min(memoryBytes/RequestShare, RequestBytesMax) }

// Compute makes the sum. It never fails: what can't be served is a problem in it.
func Compute(m Model, c Machine, d Demand) Sum {
	wanted := d.ContextTokens
	if wanted == 0 {
		wanted = m.ContextTokens
	}
	s := Sum{Model: m, Machine: c}
	s.Prefill = choosePool("prefill", d.Prefill, m, c, wanted)
	s.Decode = choosePool("decode", d.Decode, m, c, wanted)
	s.ContextTokens = wanted
	if d.ContextTokens == 0 {
		s.ContextTokens = min(wanted, s.Prefill.Tokens(), s.Decode.Tokens())
	}
	s.addUp()
	s.judge()
	return s
}

func choosePool(role string, w Workers, m Model, c Machine, contextTokens int) Pool {
	p := Pool{Role: role, Workers: max(1, w.Count), Pages: w.PoolTokens / kv.PageTokens}
	if w.PoolTokens == 0 {
		p.Pages = AutoPages(m.Layout, contextTokens, c.MemoryBytes)
	}
	return p
}

func (s *Sum) addUp() {
	workers := s.Prefill.Workers + s.Decode.Workers
	s.Lines = []Line{
		{"weights", s.Model.WeightBytes, "one copy for all workers of the machine"},
		s.poolLine(s.Prefill),
		s.poolLine(s.Decode),
		{"scratch", int64(workers) * s.Model.ScratchBytes, fmt.Sprintf("activations, %d x %s", workers, mebibytes(s.Model.ScratchBytes))},
		{"processes", int64(workers+processesBeside) * ProcessBytes, fmt.Sprintf("%d workers, gateway, supervisor: %s each", workers, mebibytes(ProcessBytes))},
		{"requests", RequestBytes(s.Machine.MemoryBytes), "bodies and whole answers at the gateway, at most"},
	}
	s.HeadroomBytes = s.Machine.MemoryBytes
	for _, l := range s.Lines {
		s.HeadroomBytes -= l.Bytes
	}
}

func (s *Sum) poolLine(p Pool) Line {
	return Line{p.Role + " pool", int64(p.Workers) * s.poolBytes(p.Pages), fmt.Sprintf("%d x (%d + %d reserved pages of %d bytes), %d tokens, %.1f x the context",
		p.Workers, p.Pages, ReservedPages, s.Model.Layout.StrideBytes(), p.Tokens(), s.headroom(p))}
}

func (s *Sum) poolBytes(pages int) int64 {
	return int64(pages+ReservedPages) * int64(s.Model.Layout.StrideBytes())
}

// headroom is how many full contexts a pool holds.
func (s *Sum) headroom(p Pool) float64 {
	return float64(p.Tokens()) / float64(max(1, s.ContextTokens))
}

func (s *Sum) judge() {
	if s.ContextTokens > s.Model.ContextTokens {
		s.problem("context of %d tokens: model %s was made for %d, ask for at most that", s.ContextTokens, s.Model.Name, s.Model.ContextTokens)
	}
	if s.ContextTokens < 1 {
		s.problem("no context can be served: a pool holds less than one page of %d tokens", kv.PageTokens)
	}
	for _, p := range []Pool{s.Prefill, s.Decode} {
		need := kv.PagesFor(s.ContextTokens)
		switch {
		case p.Pages < need:
			s.problem("%s pool of %d tokens can't hold the context of %d: add %d tokens (%s) or ask for a context of %d",
				p.Role, p.Tokens(), s.ContextTokens, (need-p.Pages)*kv.PageTokens,
				mebibytes(s.poolBytes(need)-s.poolBytes(p.Pages)), p.Tokens())
		case p.Pages < HeadroomAdvised*need:
			s.warn("%s pool holds %.1f x the context, %d x is advised: one long prompt leaves no room for a second",
				p.Role, s.headroom(p), HeadroomAdvised)
		}
	}
	if s.HeadroomBytes < 0 {
		s.problem("needs %s, %s has %s: lower the pools or the context by %s", mebibytes(s.Machine.MemoryBytes-s.HeadroomBytes),
			s.Machine.Source, mebibytes(s.Machine.MemoryBytes), mebibytes(-s.HeadroomBytes))
	}
}

func (s *Sum) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *Sum) warn(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// String is the report: the sum line by line, then what is wrong with it.
func (s Sum) String() string {
	var b strings.Builder
	l := s.Model.Layout
	fmt.Fprintf(&b, "model %s: %d tokens of context, %d bytes of KV a token, %d tokens a page\n",
		s.Model.Name, s.Model.ContextTokens, TokenBytes(l), kv.PageTokens)
	row := func(sign, name string, bytes int64, note string) {
		fmt.Fprintf(&b, "%s %-13s %14s  %s\n", sign, name, mebibytes(bytes), note)
	}
	row(" ", "memory", s.Machine.MemoryBytes, s.Machine.Source)
	for _, line := range s.Lines {
		row("-", line.Name, line.Bytes, line.Note)
	}
	row("=", "headroom", s.HeadroomBytes, "for the system's file cache and everything else")
	fmt.Fprintf(&b, "served context: %d tokens\n", s.ContextTokens)
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
