package transfer

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Veil hides what may not stand in a record: a grant's key; digests of token ids,
// with which somebody who had the key could confirm a guessed prompt; body roots,
// with which somebody who had the model could. Each is replaced by its
// SipHash-2-4-128 under a secret that only lives as long as the process, zero by zero.
//
// The machines compare these values for equality, or with zero, and pass them on;
// they compute nothing from them. So a run on veiled events is the run on the events
// themselves, under the veil: its effects are the veiled effects. A record of veiled
// events is re-executed exactly, without the secret.
//
// The nil Veil hides nothing: what it is given is veiled already, or never recorded.
type Veil struct{ low, high uint64 }

// NewVeil makes a veil. Requires: a random secret, used for nothing else.
func NewVeil(secret kv.Key) *Veil {
	return &Veil{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])}
}

// Target is the event as it may be recorded.
func (v *Veil) Target(event TargetEvent) TargetEvent {
	switch e := event.(type) {
	case Open:
		e.Key, e.TokenDigest = kv.Key(v.hide(e.Key)), kv.Sum(v.hide(e.TokenDigest))
		return e
	case Received:
		e.Message = v.message(e.Message)
		return e
	}
	return event
}

// Source is the event as it may be recorded.
func (v *Veil) Source(event SourceEvent) SourceEvent {
	switch e := event.(type) {
	case Received:
		e.Message = v.message(e.Message)
		return e
	case Admitted:
		e.TokenDigest = kv.Sum(v.hide(e.TokenDigest))
		return e
	case Computed:
		e.Root = kv.Digest(v.hide(e.Root))
		return e
	}
	return event
}

func (v *Veil) message(m Message) Message {
	switch m := m.(type) {
	case Grant:
		return v.grant(m)
	case Closed:
		m.TokenDigest, m.Roots = kv.Sum(v.hide(m.TokenDigest)), v.roots(m.Roots)
		return m
	}
	return m
}

func (v *Veil) grant(g Grant) Grant {
	g.Key, g.TokenDigest = kv.Key(v.hide(g.Key)), kv.Sum(v.hide(g.TokenDigest))
	return g
}

func (v *Veil) roots(roots []kv.Digest) []kv.Digest {
	if v == nil || len(roots) == 0 {
		return roots
	}
	hidden := make([]kv.Digest, len(roots))
	for i, r := range roots {
		hidden[i] = kv.Digest(v.hide(r))
	}
	return hidden
}

func (v *Veil) hide(value [digestBytes]byte) [digestBytes]byte {
	if v == nil || value == [digestBytes]byte{} {
		return value
	}
	low, high := siphash.Hash128(v.low, v.high, value[:])
	binary.LittleEndian.PutUint64(value[:], low)
	binary.LittleEndian.PutUint64(value[8:], high)
	return value
}

// Forms of what an effect says of its grant.
const (
	effectNoGrant byte = iota
	effectWholeGrant
	effectPlace
	effectNoPlace
)

// AppendEffects appends the canonical form of what a machine answered, under a
// veil. Little-endian, for each effect:
//
//	kind 1 | x 17 | peer 4 | block 4 | code 1 | reason 1
//	0, or the message's wire form
//	0; 1 and the grant's fields; for DoWrite: 2 and the page header it asks for, or 3 if the grant has no such block
//	number of roots 4, roots 16 each
//	slot 4 and generation 8 of each page of Prefix, as many as the grant's first block says
func (v *Veil) AppendEffects(b []byte, effects []Effect) []byte {
	le := binary.LittleEndian
	for i := range effects {
		e := &effects[i]
		b = appendTransfer(append(b, byte(e.Kind)), e.X)
		b = le.AppendUint32(le.AppendUint32(b, uint32(e.Peer)), e.Block)
		b = append(b, byte(e.Code), byte(e.Reason))
		if e.Message == nil {
			b = append(b, 0)
		} else {
			b = v.message(e.Message).Append(b)
		}
		b = v.appendEffectGrant(b, e)
		b = le.AppendUint32(b, uint32(len(e.Roots)))
		for _, r := range e.Roots {
			hidden := v.hide(r)
			b = append(b, hidden[:]...)
		}
		b = appendPages(b, e.Prefix)
	}
	return b
}

// appendEffectGrant writes no whole grant for DoWrite, of which there is one a
// page: the place that it names is all that the shell takes from it.
func (v *Veil) appendEffectGrant(b []byte, e *Effect) []byte {
	switch {
	case e.Grant == nil:
		return append(b, effectNoGrant)
	case e.Kind != DoWrite:
		return v.grant(*e.Grant).appendFields(append(b, effectWholeGrant))
	}
	tag, ok := e.Grant.Tag(e.Block, 0)
	if !ok {
		return append(b, effectNoPlace)
	}
	var header [kv.HeaderBytes]byte
	tag.Put(header[:])
	return append(append(b, effectPlace), header[:]...)
}

// HashEffects is the front half of the SHA-256 over the canonical form of what a
// machine answered, as it is. Machines that were given the same events answer with
// the same hash.
func HashEffects(effects []Effect) [16]byte {
	var none *Veil
	sum := sha256.Sum256(none.AppendEffects(nil, effects))
	return [16]byte(sum[:16])
}
