package gateway

import (
	"strings"
	"unicode/utf8"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// assembler turns the bytes of tokens into the text that may leave. It holds
// back two things: the bytes of a character that isn't complete, and a tail that
// is a proper prefix of a stop string. What it gives out never contains a stop
// string, and is the same text however it is cut into pieces.
type assembler struct {
	stops []string

	tail     []byte // of an incomplete character
	held     string // text that may be the beginning of a stop
	released int    // bytes of text given out
	chars    int    // characters of text seen
	waiting  []tokenText
}

// tokenText is a token with the place where its text begins.
type tokenText struct {
	bytes      []byte
	logprob    *cluster.TokenLogprobs
	start      int // in bytes of the choice's text
	charOffset int // in characters
}

// piece is what may leave now.
type piece struct {
	text   string
	tokens []tokenText // those whose text begins in it; only if logprobs are wanted
}

// push adds a token's bytes. stopped says that a stop string was completed; the
// piece ends before it, and nothing may be pushed any more.
func (a *assembler) push(bytes []byte, logprob *cluster.TokenLogprobs) (out piece, stopped bool) {
	if logprob != nil {
		a.waiting = append(a.waiting, tokenText{bytes, logprob, a.released + len(a.held), a.chars})
	}
	a.held += a.whole(bytes)
	if at := a.firstStop(); at >= 0 {
		out = a.release(at)
		a.held, a.tail, a.waiting = "", nil, nil
		return out, true
	}
	return a.release(len(a.held) - a.holdBack()), false
}

// flush gives out what is held when the answer has ended.
func (a *assembler) flush() piece {
	a.held += strings.Repeat(string(utf8.RuneError), len(a.tail))
	a.chars += len(a.tail)
	a.tail = nil
	out := a.release(len(a.held))
	out.tokens = append(out.tokens, a.waiting...)
	a.waiting = nil
	return out
}

// whole returns the complete characters of the tail and the new bytes; a byte
// that belongs to no character becomes U+FFFD.
func (a *assembler) whole(bytes []byte) string {
	data := append(a.tail, bytes...)
	var b strings.Builder
	for len(data) > 0 && utf8.FullRune(data) {
		r, size := utf8.DecodeRune(data)
		b.WriteRune(r)
		a.chars++
		data = data[size:]
	}
	a.tail = append([]byte(nil), data...)
	return b.String()
}

// firstStop is where the stop begins that is complete first; of those that are
// complete at one place, the longest. That doesn't depend on how the text came.
func (a *assembler) firstStop() int {
	first, end := -1, len(a.held)+1
	for _, stop := range a.stops {
		at := strings.Index(a.held, stop)
		if at >= 0 && (at+len(stop) < end || at+len(stop) == end && at < first) {
			first, end = at, at+len(stop)
		}
	}
	return first
}

// holdBack is the length of the longest tail that a stop begins with.
func (a *assembler) holdBack() int {
	longest := 0
	for _, stop := range a.stops {
		for n := min(len(stop)-1, len(a.held)); n > longest; n-- {
			if strings.HasSuffix(a.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

func (a *assembler) release(n int) piece {
	out := piece{text: a.held[:n]}
	a.held = a.held[n:]
	a.released += n
	for len(a.waiting) > 0 {
		t := a.waiting[0]
		if t.start > a.released || t.start == a.released && len(t.bytes) > 0 {
			break
		}
		out.tokens = append(out.tokens, t)
		a.waiting = a.waiting[1:]
	}
	return out
}
