package tcp_test

import (
	"context"
	"fmt"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
	"github.com/bulkhead-kv/bulkhead/kv/transport/tcp"
)

// A decode worker lets one page of a transfer land, and takes the grant back.
func Example() {
	layout := kv.Layout{Layers: 2, KVHeads: 1, KeyDim: 64, ValueDim: 64}
	hello := transfer.Hello{Version: kv.WireVersion, Fingerprint: kv.Fingerprint{1}, Layout: layout, PoolPages: 4, ContextTokens: 64}

	// Prefill listens.
	prefill := make(chan transport.Event)
	source := transport.Default()
	source.Hello, source.Events = hello, prefill
	source.Hello.Role, source.Hello.Node, source.Hello.Epoch = transfer.RolePrefill, "prefill-0", 0x5eed
	listener, err := tcp.Listen("127.0.0.1:0", source, tcp.Plaintext())
	if err != nil {
		fmt.Println(err)
		return
	}

	// Decode has a slab, a gate before it, and dials.
	slab := make([]byte, 4*layout.StrideBytes())
	page := func(slot kv.Slot) []byte { return slab[int(slot)*layout.StrideBytes():][:layout.FrameBytes()] }
	decode := make(chan transport.Event, 1)
	target := transport.Default()
	target.Hello, target.Events, target.Gate = hello, decode, transport.NewGate(layout, 4, page)
	target.Hello.Role, target.Hello.Node, target.Hello.Epoch = transfer.RoleDecode, "decode-0", 0xdec0de
	link, err := tcp.Dial(context.Background(), listener.Addr().String(), target, tcp.Plaintext())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("decode:", (<-decode).Kind, "with", link.Peer().Node)
	up := <-prefill
	fmt.Println("prefill:", up.Kind, "with", up.Link.Peer().Node)

	// Slot 2 is granted for a prompt of 16 tokens; prefill writes its page.
	x := kv.TransferID{Epoch: target.Hello.Epoch, Sequence: 1}
	ref := kv.PageRef{Slot: 2, Generation: 1}
	if err := link.Open(transport.Grant{X: x, Tenant: 7, Tokens: 16, Pages: []kv.PageRef{ref}}); err != nil {
		fmt.Println(err)
		return
	}
	tag := kv.Tag{Layout: layout.ID(), Tokens: 16, Transfer: x, Generation: ref.Generation, Tenant: 7, Slot: ref.Slot}
	if err := up.Link.Write(transport.Page{Tag: tag, Body: make([]byte, layout.BodyBytes())}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("prefill:", (<-prefill).Kind)
	fmt.Println("decode:", (<-decode).Kind, tag.Matches(page(ref.Slot)))

	// After the fence nothing of x lands any more.
	link.Fence(x)
	fmt.Println("decode:", (<-decode).Kind)
	if err := up.Link.Write(transport.Page{Tag: tag, Body: make([]byte, layout.BodyBytes())}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("prefill:", (<-prefill).Kind)
	late := <-decode
	fmt.Println("decode:", late.Kind, late.Refusal)

	if err := link.Close(); err != nil {
		fmt.Println(err)
	}
	fmt.Println("decode:", (<-decode).Kind)
	fmt.Println("prefill:", (<-prefill).Kind)
	if err := listener.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// decode: up with prefill-0
	// prefill: up with decode-0
	// prefill: written
	// decode: landed true
	// decode: fenced
	// prefill: written
	// decode: refused transfer_ended
	// decode: down
	// prefill: down
}
