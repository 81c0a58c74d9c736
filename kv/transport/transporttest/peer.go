package transporttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// peerVariable tells the re-executed test binary that it is the peer, and with
// what pages.
const peerVariable = "BULKHEAD_TRANSPORT_PEER"

// shapes are the page layouts that a peer can be started with: pages of 64 KiB,
// and of 1 MiB, more of which are granted than buffers on the way hold.
var shapes = map[string]kv.Layout{"storm": {Layers: 4, KVHeads: 4, KeyDim: 64, ValueDim: 64}, "big": {Layers: 64, KVHeads: 4, KeyDim: 64, ValueDim: 64}}

// Main runs the tests, or the peer process if that is what the binary was
// started for. Its result is the exit status.
func Main(m *testing.M, tr Transport) int {
	shape, ok := shapes[os.Getenv(peerVariable)]
	if !ok {
		return m.Run()
	}
	if err := servePeer(tr, shape, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		return 1
	}
	return 0
}

// servePeer is a source that knows no abort: whatever it is granted it writes, to
// the last page, and then says CLOSED. It ends with its standard input.
func servePeer(tr Transport, layout kv.Layout, in io.Reader, out io.Writer) error {
	events := make(chan transport.Event, 16)
	config := transport.Default()
	config.Hello = hello(transfer.RolePrefill, "p", 0x50, layout)
	config.Events = events
	listener, err := tr.Listen(config)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	pages := newSourcePages(layout)
	for {
		select {
		case err := <-ended:
			return err
		case e := <-events:
			g, ok := e.Message.(transfer.Grant)
			if !ok {
				continue
			}
			// An error means that the link has ended: the target will see that too.
			_ = pages.writeAll(e.Link, g)
		}
	}
}

// sourceBytes is how much memory a source's pages take, more than caches hold.
const sourceBytes = 64 << 20

// sourcePages are what a source sends: different memory, the same bytes, whose
// root is known beforehand as it is for pages that were just computed.
type sourcePages struct {
	layout kv.Layout
	bodies [][]byte
	next   int
	root   kv.Digest
}

func newSourcePages(layout kv.Layout) *sourcePages {
	p := &sourcePages{layout: layout}
	memory := bytes.Repeat([]byte{lateByte}, sourceBytes)
	for ; len(memory) >= layout.BodyBytes(); memory = memory[layout.BodyBytes():] {
		p.bodies = append(p.bodies, memory[:layout.BodyBytes()])
	}
	p.root = rootOf(layout, p.bodies[0])
	return p
}

func rootOf(layout kv.Layout, body []byte) kv.Digest {
	leaves := make([]kv.Digest, layout.Layers)
	for l := range leaves {
		leaves[l] = kv.LeafDigest(body[l*layout.LeafBytes():][:layout.LeafBytes()])
	}
	return kv.Root(leaves)
}

func (p *sourcePages) writeAll(link transport.Link, g transfer.Grant) error {
	for i := range g.Pages {
		tag, _ := g.Tag(g.FirstBlock+uint32(i), p.layout.ID())
		body := p.bodies[p.next%len(p.bodies)]
		p.next++
		if err := link.Write(transport.Page{Tag: tag, Sum: kv.Bind(g.Key, tag, p.root), Body: body}); err != nil {
			return err
		}
	}
	return link.Send(transfer.Closed{X: g.X, SourceEpoch: g.SourceEpoch, Outcome: transfer.OutcomeAborted})
}

// message is the GRANT that tells the peer of a grant.
func (g grant) message() transfer.Grant {
	return transfer.Grant{X: g.X, Request: 1, Attempt: 1, GatewayBoot: 1, SourceEpoch: 0x50, Tenant: g.Tenant, Tokens: g.Tokens,
		TokenDigest: kv.Sum{1}, Key: kv.Key{1}, FirstBlock: g.FirstBlock, Pages: g.Pages}
}

// peer is the source in a process of its own.
type peer struct {
	t       testing.TB
	command *exec.Cmd
	stdin   io.Closer
	addr    string
}

func startPeer(t testing.TB, tr Transport, shape string) *peer {
	command := exec.Command(os.Args[0])
	command.Env = append(append(os.Environ(), tr.Environment...), peerVariable+"="+shape)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the peer said no address: %v", err)
	}
	return &peer{t: t, command: command, stdin: stdin, addr: strings.TrimSpace(line)}
}

func (p *peer) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatalf("sending the peer %v: %v", s, err)
	}
}

// end lets the peer go and waits for it. After a kill its status says so.
func (p *peer) end() error {
	return errors.Join(p.stdin.Close(), p.command.Wait())
}
