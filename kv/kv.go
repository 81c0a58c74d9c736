// Package kv names pages, owners, layouts and digests.
//
// A page is the unit that is owned, written, sent, checked and freed:
//
//	0        64                                 64+body    +16     stride
//	| header | leaf 0 | leaf 1 | ... | leaf L-1 | trailer  | zeros |
//
// One leaf holds one layer's K and V of PageTokens tokens. The header names the
// page's owner and carries the bound sum; the trailer repeats the generation
// and the transfer, so that a torn or late write cannot change the body and
// leave both tags as they were.
//
// The package is pure: no clock, no I/O, no goroutine.
package kv

import (
	"encoding/hex"
	"fmt"
)

const (
	// PageTokens is the number of tokens in a page.
	PageTokens = 16
	// HeaderBytes is the size of a page header, which is also the frame header
	// of a page on a byte stream.
	HeaderBytes = 64
	// TrailerBytes is the size of the tag behind the body.
	TrailerBytes = 16
	// WireVersion is the version of the page header and of the transfer messages.
	WireVersion = 1
)

// Slot is the physical index of a page in its slab.
type Slot uint32

// Generation counts the allocations of a slot. It rises at each of them and
// never repeats within an epoch; zero is no generation.
type Generation uint64

// Epoch is the random boot nonce of a worker. Epochs are compared for equality
// only; zero is no epoch.
type Epoch uint64

// TenantTag is the number under which a tenant appears in pages and records. It
// is derived from the tenant's secret by the gateway, never by a client; zero is
// no tenant.
type TenantTag uint64

// PageRef is a page-table entry: it names the page only while the slot is still
// in that generation.
type PageRef struct {
	Slot       Slot
	Generation Generation
}

// TransferID names one transfer attempt for ever: the epoch of the decode worker
// that made it, its sequence number there, and the rank of the shard.
// Locally written pages carry an id of their own worker's epoch.
type TransferID struct {
	Epoch    Epoch
	Sequence uint64
	Rank     uint8
}

// IsZero reports whether x names nothing. A zero id is an error wherever it arrives.
func (x TransferID) IsZero() bool { return x == TransferID{} }

// String gives epoch, sequence and rank for errors and logs.
func (x TransferID) String() string {
	return fmt.Sprintf("%016x/%d/%d", uint64(x.Epoch), x.Sequence, x.Rank)
}

// Fingerprint identifies all that makes two workers' pages mean the same:
// weights, tokenizer, template, rope, adapter, dtype, layout and wire version.
type Fingerprint [32]byte

// String is the hexadecimal form.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// PagesFor is the number of pages that hold the given number of tokens.
func PagesFor(tokens int) int { return (tokens + PageTokens - 1) / PageTokens }

// ExtentAt is the number of tokens written in page index when the first tokens
// positions of a sequence are: PageTokens for full pages, less for the last one,
// 0 for pages behind it.
func ExtentAt(tokens, index int) int {
	return min(PageTokens, max(0, tokens-index*PageTokens))
}
