package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transport"
)

// gateLink is a decode worker's end of a link, without the link: the test says when
// its reader is in a page, and hands over the events.
type gateLink struct {
	namedLink
	t     *testing.T
	door  *transport.Door
	grant transfer.Grant    // the last that was sent
	owed  []transport.Event // not handed over yet
}

const sourceEpoch kv.Epoch = 9

func (l *gateLink) Peer() transfer.Hello {
	return transfer.Hello{Role: transfer.RolePrefill, Node: "p0", Epoch: sourceEpoch, PoolPages: 64, ContextTokens: testContext}
}

func (l *gateLink) Send(m transfer.Message) error {
	if g, ok := m.(transfer.Grant); ok {
		l.grant = g
	}
	return nil
}

func (l *gateLink) Open(g transport.Grant) error { return l.door.Open(g) }

func (l *gateLink) Shut(x kv.TransferID) (drained bool) {
	l.door.Shut(x, func() { drained = true })
	return drained
}

func (l *gateLink) Fence(x kv.TransferID) {
	l.door.Shut(x, func() { l.owed = append(l.owed, transport.Event{Kind: transport.Fenced, Link: l, X: x}) })
}

func (l *gateLink) Close() error { return nil }

// begin puts the link's reader into a page of the grant.
func (l *gateLink) begin(block uint32, layout uint16) {
	l.t.Helper()
	tag, _ := l.grant.Tag(block, layout)
	header := make([]byte, kv.HeaderBytes)
	tag.Put(header)
	if _, refusal := l.door.Begin(header); refusal != transport.None {
		l.t.Fatalf("a page of an open grant is refused as %v", refusal)
	}
}

func (l *gateLink) refused(r transport.Refusal) {
	l.owed = append(l.owed, transport.Event{Kind: transport.Refused, Link: l, X: l.grant.X, Refusal: r})
}

// driven is a decode worker that a test drives, with such a link.
type driven struct {
	*Driver
	t      *testing.T
	worker *Decode
	link   *gateLink
	events []cluster.Event
}

func driveDecode(t *testing.T, pages int) *driven {
	t.Helper()
	c := testConfig(smallModel(t), "d0", pages, testContext, &notes{})
	now := time.Unix(1_000_000, 0)
	c.Now = func() time.Time { // every status is due
		now = now.Add(time.Second)
		return now
	}
	w, err := NewDecode(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &driven{Driver: w.Driver(), t: t, worker: w, link: &gateLink{t: t}}
	d.link.door = w.gate.Door(func() {})
	t.Cleanup(func() { _ = d.Close() })
	d.handle(transport.Event{Kind: transport.Up, Link: d.link})
	return d
}

func (d *driven) handle(events ...transport.Event) {
	d.t.Helper()
	for _, e := range events {
		if err := d.Handle(e); err != nil {
			d.t.Fatal(err)
		}
	}
}

// deliver hands over what the link owes.
func (d *driven) deliver() {
	d.t.Helper()
	owed := d.link.owed
	d.link.owed = nil
	d.handle(owed...)
}

func (d *driven) submit(request uint64) {
	d.t.Helper()
	j := cluster.Job{GatewayBoot: 1, Request: request, Attempt: 1, Tenant: 3, Prefill: "p0", Decode: "d0", PrefillEpoch: sourceEpoch,
		DecodeEpoch: d.worker.Epoch, Tokens: promptOf(40), MaxTokens: 4, Sampling: cluster.Sampling{TopP: 1, Repetition: 1, Logprobs: cluster.NoLogprobs}}
	if err := d.Submit(j, func(e cluster.Event) error { d.events = append(d.events, e); return nil }); err != nil {
		d.t.Fatal(err)
	}
}

// closed is prefill's word that it has failed and writes nothing any more.
func (d *driven) closed() {
	d.t.Helper()
	d.handle(transport.Event{Kind: transport.Message, Link: d.link, Message: transfer.Closed{X: d.link.grant.X, SourceEpoch: sourceEpoch,
		Outcome: transfer.OutcomeFailed, Reason: transfer.ReasonCompute}})
}

// down is the link's end.
func (d *driven) down() {
	d.t.Helper()
	d.link.door.Close()
	d.handle(transport.Event{Kind: transport.Down, Link: d.link, Err: transport.ErrEnded})
}

// A source is in a page when its CLOSED is looked at, which no source of ours does:
// the request is answered, and the pages stay until nothing can write them.
func TestALatePageAfterClosedKeepsItsPages(t *testing.T) {
	for name, prove := range map[string]func(*driven){
		"the page's end": func(d *driven) {
			d.link.door.End(false, d.link.refused)
			d.deliver()
		},
		"the link's end": func(d *driven) {
			d.link.door.Cut(d.link.refused)
			d.link.owed = nil // the link ended before it could say more
			d.down()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := driveDecode(t, 4)
			d.submit(1)
			d.link.begin(1, d.worker.layoutID)
			d.closed()
			if e := last(d.events); e.Kind != cluster.Failed || e.Fault != fault.Unavailable {
				t.Fatalf("a transfer that prefill closed as failed ended with %+v", e)
			}
			d.deliver() // nothing may be owed yet
			if free := d.worker.pool.Counts()[pool.Free]; free == d.worker.pool.Len() {
				t.Fatal("pages are free while one of them is being written")
			}
			d.submit(2)
			if e := last(d.events); e.Kind != cluster.Failed || e.Fault != fault.Busy {
				t.Fatalf("a request that needs the pages which are being written got %+v", e)
			}
			prove(d)
			if err := d.Idle(); err != nil {
				t.Errorf("after the proof: %v", err)
			}
			if err := d.Audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A link that is cut in mid-page is a lost link, which a gateway tries again without,
// and no corrupt page, which it doesn't.
func TestALinkThatIsCutInMidPageIsALostLink(t *testing.T) {
	d := driveDecode(t, 4)
	d.submit(1)
	d.link.begin(1, d.worker.layoutID)
	d.link.door.Cut(d.link.refused)
	d.deliver()
	d.down()
	if e := last(d.events); e.Kind != cluster.Failed || e.Fault != fault.Unavailable {
		t.Errorf("a request whose link was cut in mid-page ended with %+v, want unavailable", e)
	}
	if err := d.Idle(); err != nil {
		t.Error(err)
	}
}

// A page with another's trailer is the fault of what sent it.
func TestATornPageIsCorrupt(t *testing.T) {
	d := driveDecode(t, 4)
	d.submit(1)
	d.link.begin(1, d.worker.layoutID)
	d.link.door.End(true, d.link.refused)
	d.deliver()
	if e := last(d.events); e.Kind != cluster.Failed || e.Fault != fault.Corrupt {
		t.Errorf("a request with a torn page ended with %+v, want corrupt", e)
	}
	d.closed()
	if err := d.Idle(); err != nil {
		t.Error(err)
	}
}

// Every refusal of the gate is in the worker's status, by its reason.
func TestRefusedPagesAreInTheStatus(t *testing.T) {
	d := driveDecode(t, 4)
	want := map[string]int{}
	for i, r := range transport.Refusals() {
		for range i + 1 {
			d.handle(transport.Event{Kind: transport.Refused, Link: d.link, X: kv.TransferID{Epoch: 1, Sequence: 1}, Refusal: r})
		}
		want[r.String()] = i + 1
	}
	if _, err := d.Step(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, d.Status().Refused); diff != "" {
		t.Errorf("refused pages by reason (-refused +status):\n%s", diff)
	}
}
