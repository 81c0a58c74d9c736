package transfer

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// Canonical form of events, for records of a run that are re-executed later. It is
// little-endian, fields in the order of the structs, as in the wire form:
//
//	kind 1 | fields
//	a yes or no is 1 byte, 0 or 1; a message is its wire form, without its kind in
//	PeerUp; Open is its peer, the fields of the grant that it asks for, and the
//	pages before the grant's first block
//
// One event has one form, and one form is of one event. What a form says need not
// be valid: a machine takes whatever a peer sends it.
const (
	recordPeerUp byte = 1 + iota
	recordPeerLost
	recordSuspect
	recordReceived
	recordCancel
	recordKernelStopped
	recordTick
	recordOpen
	recordLanded
	recordPageRefused
	recordFenced
	recordVerified
	recordFinished
	recordFault
	recordAdmitted
	recordRefused
	recordComputed
	recordWritten
	recordFailed
)

const (
	// RecordVersion is the version of the recorded forms and of what the machines
	// answer to them. It stands in the form of a configuration.
	RecordVersion = 1
	// EventBytesMax bounds the form of an event.
	EventBytesMax = MessageBytesMax + 64
	// spanMax bounds what a recorded configuration counts: ticks, pages, tokens.
	spanMax = math.MaxInt32
)

// AppendTargetEvent appends the canonical form of an event, see ParseTargetEvent.
// Requires: a message is not nil, a node's name has at most NodeBytesMax bytes,
// Prefix and Pages of an Open together at most PagesMax pages.
// Keys stand in it in clear: see Veil.
func AppendTargetEvent(b []byte, event TargetEvent) []byte {
	switch e := event.(type) {
	case Open:
		b = binary.LittleEndian.AppendUint32(append(b, recordOpen), uint32(e.Peer))
		b = Grant{X: e.X, Request: e.Request, Attempt: e.Attempt, GatewayBoot: e.GatewayBoot, Tenant: e.Tenant, Tokens: e.Tokens,
			TokenDigest: e.TokenDigest, Key: e.Key, FirstBlock: uint32(len(e.Prefix)), Pages: e.Pages}.appendFields(b)
		return appendPages(b, e.Prefix)
	case Landed:
		return appendBlock(b, recordLanded, e.X, e.Block)
	case PageRefused:
		return appendBlock(b, recordPageRefused, e.X, e.Block)
	case Fenced:
		return appendTransfer(append(b, recordFenced), e.X)
	case Verified:
		return append(appendTransfer(append(b, recordVerified), e.X), bit(e.OK))
	case Finished:
		return appendTransfer(append(b, recordFinished), e.X)
	case Fault:
		return appendTransfer(append(b, recordFault), e.X)
	}
	return appendCommon(b, event)
}

// AppendSourceEvent appends the canonical form of an event, see ParseSourceEvent
// and, for what is required, AppendTargetEvent.
func AppendSourceEvent(b []byte, event SourceEvent) []byte {
	switch e := event.(type) {
	case Admitted:
		b = appendTransfer(append(b, recordAdmitted), e.X)
		return append(binary.LittleEndian.AppendUint32(b, e.Tokens), e.TokenDigest[:]...)
	case Refused:
		return append(appendTransfer(append(b, recordRefused), e.X), byte(e.Reason))
	case Computed:
		return append(appendBlock(b, recordComputed, e.X, e.Block), e.Root[:]...)
	case Written:
		return append(appendBlock(b, recordWritten, e.X, e.Block), bit(e.OK), bit(e.Refused))
	case Failed:
		return append(appendTransfer(append(b, recordFailed), e.X), byte(e.Reason))
	}
	return appendCommon(b, event)
}

func appendCommon(b []byte, event any) []byte {
	le := binary.LittleEndian
	switch e := event.(type) {
	case PeerUp:
		b = le.AppendUint32(append(b, recordPeerUp), uint32(e.Peer))
		return append(e.Hello.appendFields(b), bit(e.Places), bit(e.Fences))
	case PeerLost:
		return le.AppendUint32(append(b, recordPeerLost), uint32(e.Peer))
	case Suspect:
		return le.AppendUint32(append(b, recordSuspect), uint32(e.Peer))
	case Received:
		return e.Message.Append(le.AppendUint32(append(b, recordReceived), uint32(e.Peer)))
	case Cancel:
		return appendTransfer(append(b, recordCancel), e.X)
	case KernelStopped:
		return appendTransfer(append(b, recordKernelStopped), e.X)
	}
	return append(b, recordTick)
}

func appendBlock(b []byte, kind byte, x kv.TransferID, block uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendTransfer(append(b, kind), x), block)
}

// ParseTargetEvent reads the form of an event, which must fill b. What no
// AppendTargetEvent writes is an error.
func ParseTargetEvent(b []byte) (TargetEvent, error) {
	r, kind, err := eventReader(b)
	if err != nil {
		return nil, err
	}
	var event TargetEvent
	switch kind {
	case recordOpen:
		event = r.open()
	case recordLanded:
		event = Landed{r.transfer(), r.uint32()}
	case recordPageRefused:
		event = PageRefused{r.transfer(), r.uint32()}
	case recordFenced:
		event = Fenced{r.transfer()}
	case recordVerified:
		event = Verified{r.transfer(), r.bit()}
	case recordFinished:
		event = Finished{r.transfer()}
	case recordFault:
		event = Fault{r.transfer()}
	default:
		event, _ = r.common(kind).(TargetEvent)
	}
	return event, r.whole(b)
}

// ParseSourceEvent reads the form of an event, which must fill b. What no
// AppendSourceEvent writes is an error.
func ParseSourceEvent(b []byte) (SourceEvent, error) {
	r, kind, err := eventReader(b)
	if err != nil {
		return nil, err
	}
	var event SourceEvent
	switch kind {
	case recordAdmitted:
		event = Admitted{r.transfer(), r.uint32(), kv.Sum(r.digest())}
	case recordRefused:
		event = Refused{r.transfer(), Reason(r.byte())}
	case recordComputed:
		event = Computed{r.transfer(), r.uint32(), kv.Digest(r.digest())}
	case recordWritten:
		event = Written{r.transfer(), r.uint32(), r.bit(), r.bit()}
	case recordFailed:
		event = Failed{r.transfer(), Reason(r.byte())}
	default:
		event, _ = r.common(kind).(SourceEvent)
	}
	return event, r.whole(b)
}

func eventReader(b []byte) (*reader, byte, error) {
	if len(b) > EventBytesMax {
		return nil, 0, fmt.Errorf("event of %d bytes, at most %d are allowed", len(b), EventBytesMax)
	}
	r := &reader{rest: b}
	return r, r.byte(), nil
}

// common reads an event that both machines know; nil, and the reader is short, for
// any other kind.
func (r *reader) common(kind byte) any {
	switch kind {
	case recordPeerUp:
		return PeerUp{Peer: Peer(r.uint32()), Hello: r.hello(), Places: r.bit(), Fences: r.bit()}
	case recordPeerLost:
		return PeerLost{Peer(r.uint32())}
	case recordSuspect:
		return Suspect{Peer(r.uint32())}
	case recordReceived:
		return Received{Peer(r.uint32()), r.message()}
	case recordCancel:
		return Cancel{r.transfer()}
	case recordKernelStopped:
		return KernelStopped{r.transfer()}
	case recordTick:
		return Tick{}
	}
	r.short = true
	return nil
}

func (r *reader) open() Open {
	peer, g := Peer(r.uint32()), r.grant()
	// What a grant has and an Open has not is written as zeros.
	r.short = r.short || g.SourceEpoch != 0 || g.Low != 0
	return Open{X: g.X, Peer: peer, Request: g.Request, Attempt: g.Attempt, GatewayBoot: g.GatewayBoot, Tenant: g.Tenant, Tokens: g.Tokens,
		TokenDigest: g.TokenDigest, Key: g.Key, Prefix: r.pages(g.FirstBlock), Pages: g.Pages}
}

// bit reads a yes or no.
func (r *reader) bit() bool {
	v := r.byte()
	r.short = r.short || v > 1
	return v == 1
}

func (r *reader) digest() (d [digestBytes]byte) {
	copy(d[:], r.take(digestBytes))
	return d
}

func (r *reader) whole(b []byte) error {
	switch {
	case r.short:
		return fmt.Errorf("event of %d bytes is cut short or malformed", len(b))
	case len(r.rest) != 0:
		return fmt.Errorf("event of %d bytes has %d bytes too many", len(b), len(r.rest))
	}
	return nil
}

// AppendTargetConfig appends the canonical form of a Target's configuration, with
// which the record of its run begins: version 1, role 1, then the fields, counts as
// 4 bytes.
func AppendTargetConfig(b []byte, c TargetConfig) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, RecordVersion, byte(RoleDecode)), uint64(c.Epoch))
	return appendCounts(append(b, c.Rank), c.RepeatTicks, c.FenceTicks, c.QuarantineTicks)
}

// AppendSourceConfig appends the canonical form of a Source's configuration, as
// AppendTargetConfig does. A rank of 0 is not written, any other stands at the end.
func AppendSourceConfig(b []byte, c SourceConfig) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, RecordVersion, byte(RolePrefill)), uint64(c.Epoch))
	b = appendCounts(b, c.PagesMax, c.TokensMax, c.TransfersMax)
	if c.Rank != 0 {
		b = append(b, c.Rank)
	}
	return b
}

func appendCounts(b []byte, counts ...int) []byte {
	for _, n := range counts {
		b = binary.LittleEndian.AppendUint32(b, uint32(min(max(n, 0), spanMax)))
	}
	return b
}

// ParseConfig reads a form of AppendTargetConfig or AppendSourceConfig, which must
// fill b. The role says which of the two it is; the other is zero.
func ParseConfig(b []byte) (role Role, target TargetConfig, source SourceConfig, err error) {
	r := reader{rest: b}
	if version := r.byte(); version != RecordVersion {
		return 0, target, source, fmt.Errorf("configuration of version %d, this is version %d", version, RecordVersion)
	}
	role = Role(r.byte())
	epoch := kv.Epoch(r.uint64())
	switch role {
	case RoleDecode:
		target = TargetConfig{Epoch: epoch, Rank: r.byte(), RepeatTicks: r.span(), FenceTicks: r.span(), QuarantineTicks: r.span()}
	case RolePrefill:
		source = SourceConfig{Epoch: epoch, PagesMax: r.span(), TokensMax: r.span(), TransfersMax: r.span()}
		if len(r.rest) > 0 {
			source.Rank = r.byte()
			r.short = r.short || source.Rank == 0
		}
	default:
		r.short = true
	}
	if r.short || epoch == 0 || len(r.rest) != 0 {
		return 0, TargetConfig{}, SourceConfig{}, fmt.Errorf("configuration of %d bytes is malformed", len(b))
	}
	return role, target, source, nil
}

func (r *reader) span() int {
	n := r.uint32()
	r.short = r.short || n > spanMax
	return int(n)
}
