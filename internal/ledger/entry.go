package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Kind is what an entry is about.
type Kind string

// The kinds.
const (
	Transfer Kind = "transfer" // an input of a transfer machine and the hash of its outputs
	Pool     Kind = "pool"     // a change of state of a transfer's pages
	Request  Kind = "request"  // a step in a request's life
	Note     Kind = "note"     // of the ledger about itself
)

// Bounds of one entry.
const (
	InputBytesMax = 16 << 10
	PagesMax      = 1024 // pages of one entry; a longer list is several entries
	WordBytesMax  = 256  // Event and Detail
	lineBytesMax  = 128 << 10
)

// Hash is the SHA-256 that ends an entry: over the previous entry's hash and the
// entry itself.
type Hash [sha256.Size]byte

// String is the hash as it stands in the file: base64 without padding.
func (h Hash) String() string { return base64.RawStdEncoding.EncodeToString(h[:]) }

// hashChars is the length of a Hash's String.
const hashChars = 43

func parseHash(s []byte) (h Hash, err error) {
	var b [hashChars + 4]byte
	if len(s) != hashChars {
		return h, fmt.Errorf("hash of %d characters, must be %d", len(s), hashChars)
	}
	n, err := base64.RawStdEncoding.Strict().Decode(b[:], s)
	if err != nil || n != len(h) {
		return h, fmt.Errorf("hash is not base64 of %d bytes", len(h))
	}
	copy(h[:], b[:])
	return h, nil
}

// Entry is one thing that happened. Tenants appear by their tag and page
// contents by digests only: no text, key, token or page byte is ever in it.
type Entry struct {
	// Node, Epoch, Sequence and Time are the ledger's to fill in. Sequence
	// rises by one over all segments of a folder.
	Node     string
	Epoch    kv.Epoch
	Sequence uint64
	Time     time.Time

	Kind        Kind
	Event       string // what happened, one word of the kind's own
	GatewayBoot uint64
	Request     uint64
	Attempt     uint32
	Tenant      kv.TenantTag
	X           kv.TransferID
	Pages       []kv.PageRef
	Input       []byte // Transfer: the machine's input in its canonical encoding
	Output      []byte // Transfer: hash of what the machine answered
	Detail      string // a number or a reason; never content
}

func (e *Entry) validate() error {
	switch e.Kind {
	case Transfer, Pool, Request, Note:
	default:
		return fault.New(fault.Internal, "ledger: unknown kind %.40q", string(e.Kind))
	}
	for _, b := range []struct {
		what string
		n    int
		max  int
	}{
		{"bytes of event", len(e.Event), WordBytesMax}, {"bytes of detail", len(e.Detail), WordBytesMax},
		{"bytes of input", len(e.Input), InputBytesMax}, {"bytes of output", len(e.Output), WordBytesMax},
		{"pages", len(e.Pages), PagesMax},
	} {
		if b.n > b.max {
			return fault.New(fault.Internal, "ledger: %s entry with %d %s, must be at most %d", e.Kind, b.n, b.what, b.max)
		}
	}
	return nil
}

// line is an entry in the file. 64-bit names are hexadecimal, because many JSON
// readers keep 53 bits only.
type line struct {
	Sequence uint64      `json:"s"`
	Nanos    int64       `json:"t"`
	Kind     Kind        `json:"k"`
	Event    string      `json:"e,omitempty"`
	Boot     hex64       `json:"b,omitzero"`
	Request  uint64      `json:"r,omitempty"`
	Attempt  uint32      `json:"a,omitempty"`
	Tenant   hex64       `json:"n,omitzero"`
	X        *xline      `json:"x,omitempty"`
	Pages    [][2]uint64 `json:"p,omitempty"` // slot, generation
	Input    []byte      `json:"i,omitempty"`
	Output   []byte      `json:"o,omitempty"`
	Detail   string      `json:"d,omitempty"`
}

type xline struct {
	Epoch    hex64  `json:"e"`
	Sequence uint64 `json:"s"`
	Rank     uint8  `json:"k,omitempty"`
}

type hex64 uint64

func (h hex64) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

func (h *hex64) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	*h = hex64(n)
	return err
}

// header is a segment's first line.
type header struct {
	Version  int    `json:"v"`
	Segment  uint64 `json:"segment"`
	Node     string `json:"node"`
	Epoch    hex64  `json:"epoch"`
	Sequence uint64 `json:"sequence"` // of the last entry before
	Previous string `json:"previous"` // hash of the last line before; of nothing in the first segment
}

// seal appends to buf a value as a line that ends with the chain's next hash:
//
//	{ ... ,"h":"<43 characters>"}\n
//
// The hash is over the previous one and the bytes before `,"h"`.
func seal(buf []byte, previous Hash, v any) ([]byte, Hash, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return buf, previous, err
	}
	text = text[:len(text)-1] // the closing brace
	h := chain(previous, text)
	buf = append(append(buf, text...), sealOpen...)
	buf = base64.RawStdEncoding.AppendEncode(buf, h[:])
	return append(buf, sealClose...), h, nil
}

const (
	sealOpen  = `,"h":"`
	sealClose = "\"}\n"
	sealBytes = len(sealOpen) + hashChars + len(sealClose)
)

func chain(previous Hash, text []byte) (next Hash) {
	d := sha256.New()
	d.Write(previous[:])
	d.Write(text)
	d.Sum(next[:0])
	return next
}

// unseal checks a whole line, its newline included, against the chain. text is
// the JSON object without the hash, and is written over the line.
func unseal(previous Hash, l []byte) (text []byte, next Hash, err error) {
	body, said, err := parts(l)
	if err != nil {
		return nil, next, err
	}
	if next = chain(previous, body); next != said {
		return nil, next, fmt.Errorf("hash is %v, the chain gives %v", said, next)
	}
	// The brace takes the place of the comma before the hash.
	l[len(body)] = '}'
	return l[:len(body)+1], next, nil
}

// parts gives of a line what the hash at its end is of, and that hash, unchecked.
func parts(l []byte) (body []byte, said Hash, err error) {
	if len(l) <= sealBytes || !bytes.HasSuffix(l, []byte(sealClose)) {
		return nil, said, fmt.Errorf("line of %d bytes does not end as an entry does", len(l))
	}
	body, tail := l[:len(l)-sealBytes], l[len(l)-sealBytes:]
	if !bytes.HasPrefix(tail, []byte(sealOpen)) {
		return nil, said, fmt.Errorf("line of %d bytes has no hash at its end", len(l))
	}
	said, err = parseHash(tail[len(sealOpen) : len(sealOpen)+hashChars])
	return body, said, err
}

func (e *Entry) toLine() line {
	l := line{
		Sequence: e.Sequence, Nanos: e.Time.UnixNano(), Kind: e.Kind, Event: e.Event,
		Boot: hex64(e.GatewayBoot), Request: e.Request, Attempt: e.Attempt, Tenant: hex64(e.Tenant),
		Input: e.Input, Output: e.Output, Detail: e.Detail,
	}
	if !e.X.IsZero() {
		l.X = &xline{hex64(e.X.Epoch), e.X.Sequence, e.X.Rank}
	}
	for _, p := range e.Pages {
		l.Pages = append(l.Pages, [2]uint64{uint64(p.Slot), uint64(p.Generation)})
	}
	return l
}

func (l *line) entry(h *header) Entry {
	e := Entry{
		Node: h.Node, Epoch: kv.Epoch(h.Epoch), Sequence: l.Sequence, Time: time.Unix(0, l.Nanos), Kind: l.Kind, Event: l.Event,
		GatewayBoot: uint64(l.Boot), Request: l.Request, Attempt: l.Attempt, Tenant: kv.TenantTag(l.Tenant),
		Input: l.Input, Output: l.Output, Detail: l.Detail,
	}
	if l.X != nil {
		e.X = kv.TransferID{Epoch: kv.Epoch(l.X.Epoch), Sequence: l.X.Sequence, Rank: l.X.Rank}
	}
	for _, p := range l.Pages {
		e.Pages = append(e.Pages, kv.PageRef{Slot: kv.Slot(p[0]), Generation: kv.Generation(p[1])})
	}
	return e
}
