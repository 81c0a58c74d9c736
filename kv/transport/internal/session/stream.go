package session

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

const (
	messageMagic uint32 = 0x314d4b42 // "BKM1"
	noteMagic    uint32 = 0x314e4b42 // "BKN1"
	headBytes           = 8

	// NoteBytesMax bounds a carrier's note.
	NoteBytesMax = 64
	// aheadBytes is how much is read ahead, so that a page's header doesn't cost
	// a system call of its own.
	aheadBytes = 4096
	// flushBytes is how much is gathered for a connection that can't gather by
	// itself.
	flushBytes = 64 << 10
)

// Input is the receiving half of a stream. It belongs to the reader, but for
// heard.
type Input struct {
	r       *bufio.Reader
	heard   atomic.Uint64 // rises with everything that arrives
	scratch []byte
	payload bytes.Buffer
}

// meter counts what a connection yields.
type meter struct {
	conn  net.Conn
	heard *atomic.Uint64
}

func (m meter) Read(b []byte) (int, error) {
	n, err := m.conn.Read(b)
	if n > 0 {
		m.heard.Add(1)
	}
	return n, err
}

func newInput(conn net.Conn) *Input {
	in := &Input{}
	in.r = bufio.NewReaderSize(meter{conn, &in.heard}, aheadBytes)
	return in
}

// peek reads a frame's first eight bytes and leaves them in place.
func (in *Input) peek() (magic, length uint32, err error) {
	head, err := in.r.Peek(headBytes)
	if err != nil {
		return 0, 0, whole(err, len(head))
	}
	return binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:]), nil
}

// message reads a message frame's rest; nil is a heartbeat.
func (in *Input) message(length uint32, max int) (transfer.Message, error) {
	if uint64(length) > uint64(max) {
		return nil, fmt.Errorf("%w: a message of %d bytes, at most %d are allowed", transport.ErrProtocol, length, max)
	}
	if _, err := in.r.Discard(headBytes); err != nil || length == 0 {
		return nil, err
	}
	// The buffer grows with what arrives, not with what was announced.
	in.payload.Reset()
	if _, err := io.CopyN(&in.payload, in.r, int64(length)); err != nil {
		return nil, whole(err, 1)
	}
	m, err := transfer.Parse(in.payload.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrProtocol, err)
	}
	return m, nil
}

func (in *Input) note(length uint32) ([]byte, error) {
	if length > NoteBytesMax {
		return nil, fmt.Errorf("%w: a note of %d bytes, at most %d are allowed", transport.ErrProtocol, length, NoteBytesMax)
	}
	if _, err := in.r.Discard(headBytes); err != nil {
		return nil, err
	}
	in.payload.Reset()
	if _, err := io.CopyN(&in.payload, in.r, int64(length)); err != nil {
		return nil, whole(err, 1)
	}
	return in.payload.Bytes(), nil
}

// Header reads a page's header.
func (in *Input) Header(header []byte) error {
	n, err := io.ReadFull(in.r, header[:kv.HeaderBytes])
	return whole(err, n)
}

// Fill reads into b for as long as live says so, and returns how much it put
// there. A reader parked here is woken by a read deadline in the past.
func (in *Input) Fill(b []byte, live func() bool) (int, error) {
	filled := 0
	for filled < len(b) && live() {
		n, err := in.r.Read(b[filled:])
		filled += n
		if err != nil && (live() || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return filled, whole(err, 1)
		}
	}
	return filled, nil
}

// Skip reads n bytes to nowhere.
func (in *Input) Skip(n int) error {
	if in.scratch == nil {
		in.scratch = make([]byte, flushBytes)
	}
	for n > 0 {
		got, err := in.r.Read(in.scratch[:min(n, len(in.scratch))])
		n -= got
		if err != nil {
			return whole(err, 1)
		}
	}
	return nil
}

// whole turns an end of the stream within a frame into io.ErrUnexpectedEOF.
func whole(err error, got int) error {
	if errors.Is(err, io.EOF) && got > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Output is the sending half of a stream. It belongs to the writer. What is
// appended leaves with Flush and must not change until then.
type Output struct {
	conn   net.Conn
	gather bool // the connection takes many buffers in one call
	joined *bufio.Writer
	parts  [][]byte
	vector net.Buffers
}

func newOutput(conn net.Conn) *Output {
	out := &Output{conn: conn}
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
		out.gather = true
	default:
		out.joined = bufio.NewWriterSize(conn, flushBytes)
	}
	return out
}

// Append adds bytes to what the next Flush sends.
func (out *Output) Append(parts ...[]byte) { out.parts = append(out.parts, parts...) }

// Message appends a message in its wire form; an empty one is a heartbeat.
func (out *Output) Message(message []byte) { out.frame(messageMagic, message) }

// Note appends a carrier's note.
func (out *Output) Note(note []byte) { out.frame(noteMagic, note) }

func (out *Output) frame(magic uint32, payload []byte) {
	head := make([]byte, headBytes, headBytes+NoteBytesMax)
	binary.LittleEndian.PutUint32(head, magic)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(payload)))
	if len(payload) <= NoteBytesMax {
		out.Append(append(head, payload...))
		return
	}
	out.Append(head, payload)
}

// Flush sends all that was appended.
func (out *Output) Flush() error {
	defer func() {
		clear(out.parts)
		out.parts = out.parts[:0]
	}()
	if out.gather {
		out.vector = append(out.vector[:0], out.parts...)
		_, err := out.vector.WriteTo(out.conn)
		return err
	}
	for _, part := range out.parts {
		if _, err := out.joined.Write(part); err != nil {
			return err
		}
	}
	return out.joined.Flush()
}
