package ledger

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
)

// parseLine reads an entry's JSON. Lines as seal writes them, which is nearly all,
// are read without reflection; others, with escapes in a string say, as any JSON.
func parseLine(text []byte) (*line, error) {
	l := new(line)
	if l.parse(text) {
		return l, nil
	}
	l = new(line)
	return l, json.Unmarshal(text, l)
}

// parse reads the one form that seal gives an entry without escapes, or reports false.
func (l *line) parse(text []byte) bool {
	c := cursor{rest: text}
	c.must(`{"s":`)
	l.Sequence = c.number()
	c.must(`,"t":`)
	l.Nanos = c.signed()
	c.must(`,"k":`)
	l.Kind = kindOf(c.text())
	if c.has(`,"e":`) {
		l.Event = string(c.text())
	}
	if c.has(`,"b":`) {
		l.Boot = c.hex()
	}
	if c.has(`,"r":`) {
		l.Request = c.number()
	}
	if c.has(`,"a":`) {
		n := c.number()
		c.bad = c.bad || n > math.MaxUint32
		l.Attempt = uint32(n)
	}
	if c.has(`,"n":`) {
		l.Tenant = c.hex()
	}
	if c.has(`,"x":{"e":`) {
		l.X = c.transfer()
	}
	if c.has(`,"p":[`) {
		l.Pages = c.pages()
	}
	if c.has(`,"i":`) {
		l.Input = c.bytes()
	}
	if c.has(`,"o":`) {
		l.Output = c.bytes()
	}
	if c.has(`,"d":`) {
		l.Detail = string(c.text())
	}
	c.must("}")
	return !c.bad && len(c.rest) == 0
}

func kindOf(b []byte) Kind {
	switch Kind(b) { // the constants cost no allocation
	case Transfer:
		return Transfer
	case Pool:
		return Pool
	case Request:
		return Request
	default:
	}
	return Kind(b)
}

// cursor takes values off the front of rest; once bad, it gives zeros.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) has(prefix string) bool {
	if c.bad || len(c.rest) < len(prefix) || string(c.rest[:len(prefix)]) != prefix {
		return false
	}
	c.rest = c.rest[len(prefix):]
	return true
}

func (c *cursor) must(prefix string) { c.bad = !c.has(prefix) || c.bad }

// number reads digits without a sign, a leading zero or an overflow.
func (c *cursor) number() uint64 {
	const digitsMax = 19 // more could overflow
	n, i := uint64(0), 0
	for i < len(c.rest) && c.rest[i] >= '0' && c.rest[i] <= '9' && i <= digitsMax {
		n = n*10 + uint64(c.rest[i]-'0')
		i++
	}
	if i == 0 || i > digitsMax || i > 1 && c.rest[0] == '0' {
		c.bad = true
		return 0
	}
	c.rest = c.rest[i:]
	return n
}

func (c *cursor) signed() int64 {
	n := c.number()
	c.bad = c.bad || n > math.MaxInt64
	return int64(n)
}

// text reads a string of printable ASCII without escapes.
func (c *cursor) text() []byte {
	if !c.has(`"`) {
		c.bad = true
		return nil
	}
	end := bytes.IndexByte(c.rest, '"')
	if end < 0 {
		c.bad = true
		return nil
	}
	s := c.rest[:end]
	for _, b := range s {
		c.bad = c.bad || b < ' ' || b > '~' || b == '\\'
	}
	c.rest = c.rest[end+1:]
	return s
}

func (c *cursor) hex() (n hex64) {
	s := c.text()
	c.bad = c.bad || len(s) != 16
	for _, b := range s {
		switch {
		case b >= '0' && b <= '9':
			n = n<<4 | hex64(b-'0')
		case b >= 'a' && b <= 'f':
			n = n<<4 | hex64(b-'a'+10)
		default:
			c.bad = true
		}
	}
	return n
}

func (c *cursor) transfer() *xline {
	x := &xline{Epoch: c.hex()}
	c.must(`,"s":`)
	x.Sequence = c.number()
	if c.has(`,"k":`) {
		n := c.number()
		c.bad = c.bad || n > math.MaxUint8
		x.Rank = uint8(n)
	}
	c.must("}")
	return x
}

func (c *cursor) pages() (pages [][2]uint64) {
	for {
		c.must("[")
		slot := c.number()
		c.must(",")
		pages = append(pages, [2]uint64{slot, c.number()})
		c.must("]")
		if !c.has(",") {
			break
		}
	}
	c.must("]")
	return pages
}

func (c *cursor) bytes() []byte {
	s := c.text()
	b := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Decode(b, s)
	c.bad = c.bad || err != nil || n == 0
	return b[:n]
}
