package transfer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/kv"
)

var recordX = kv.TransferID{Epoch: 1, Sequence: 2, Rank: 3}

func goodTargetEvents() []TargetEvent {
	open := Open{X: recordX, Peer: 1, Request: 2, Attempt: 3, GatewayBoot: 4, Tenant: 5, Tokens: 40, TokenDigest: kv.Sum{6}, Key: kv.Key{7},
		Prefix: []kv.PageRef{{Slot: 7, Generation: 8}}, Pages: []kv.PageRef{{Slot: 8, Generation: 9}, {Slot: 10, Generation: 11}}}
	events := []TargetEvent{PeerUp{Peer: 1, Hello: goodHello(), Places: true}, PeerUp{Peer: 2, Fences: true}, PeerLost{3}, Suspect{4},
		Cancel{recordX}, KernelStopped{recordX}, Tick{}, open, Open{}, Landed{recordX, 5}, PageRefused{recordX, 6}, Fenced{recordX},
		Verified{recordX, true}, Verified{recordX, false}, Finished{recordX}, Fault{recordX}}
	for _, m := range goodMessages() {
		events = append(events, Received{7, m})
	}
	return events
}

func goodSourceEvents() []SourceEvent {
	return []SourceEvent{PeerUp{Peer: 1, Hello: goodHello(), Fences: true}, PeerLost{2}, Suspect{3}, Received{4, goodGrant()}, Received{4, Closed{}},
		Cancel{recordX}, KernelStopped{recordX}, Tick{}, Admitted{recordX, 40, kv.Sum{1}}, Refused{recordX, ReasonBusy},
		Computed{recordX, 5, kv.Digest{2}}, Written{recordX, 6, true, false}, Written{recordX, 7, false, true}, Failed{recordX, ReasonCompute}}
}

func TestEventsSurviveTheirRecord(t *testing.T) {
	seen := map[byte]bool{}
	for _, want := range goodTargetEvents() {
		b := AppendTargetEvent(nil, want)
		seen[b[0]] = true
		got, err := ParseTargetEvent(b)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%T is read with error %v and differs (-want +got):\n%s", want, err, diff)
		}
		for n := range b {
			if got, err := ParseTargetEvent(b[:n]); err == nil {
				t.Errorf("%T cut to %d of %d bytes is read as %+v", want, n, len(b), got)
			}
		}
		if _, err := ParseTargetEvent(append(b, 0)); err == nil {
			t.Errorf("%T with a byte too many is read", want)
		}
	}
	for _, want := range goodSourceEvents() {
		b := AppendSourceEvent(nil, want)
		seen[b[0]] = true
		got, err := ParseSourceEvent(b)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%T is read with error %v and differs (-want +got):\n%s", want, err, diff)
		}
		for n := range b {
			if got, err := ParseSourceEvent(b[:n]); err == nil {
				t.Errorf("%T cut to %d of %d bytes is read as %+v", want, n, len(b), got)
			}
		}
	}
	for kind := recordPeerUp; kind <= recordFailed; kind++ {
		if !seen[kind] {
			t.Errorf("no event of kind %d was tried", kind)
		}
	}
}

// An Open without a prefix has the form that it had before there were any: records
// of that time are read.
func TestAnOpenWithoutAPrefixIsItsGrant(t *testing.T) {
	open := Open{X: recordX, Peer: 1, Request: 2, Attempt: 3, GatewayBoot: 4, Tenant: 5, Tokens: 20, TokenDigest: kv.Sum{6}, Key: kv.Key{7},
		Pages: []kv.PageRef{{Slot: 8, Generation: 9}, {Slot: 10, Generation: 11}}}
	want := Grant{X: open.X, Request: open.Request, Attempt: open.Attempt, GatewayBoot: open.GatewayBoot, Tenant: open.Tenant, Tokens: open.Tokens,
		TokenDigest: open.TokenDigest, Key: open.Key, Pages: open.Pages}.appendFields([]byte{recordOpen, 1, 0, 0, 0})
	if got := AppendTargetEvent(nil, open); !bytes.Equal(got, want) {
		t.Errorf("its form is %x, want %x", got, want)
	}
	open.Prefix = []kv.PageRef{{Slot: 12, Generation: 13}}
	if got := AppendTargetEvent(nil, open); len(got) != len(want)+pageRefBytes {
		t.Errorf("with a page of prefix it has %d bytes, want %d", len(got), len(want)+pageRefBytes)
	}
	// A first block without the page that stands for it is cut short.
	orphan := Grant{X: recordX, FirstBlock: 1}.appendFields([]byte{recordOpen, 1, 0, 0, 0})
	if got, err := ParseTargetEvent(orphan); err == nil {
		t.Errorf("a first block without a page is read as %+v", got)
	}
}

func TestAnEventOfTheOtherMachineIsAnError(t *testing.T) {
	if e, err := ParseTargetEvent(AppendSourceEvent(nil, Failed{recordX, ReasonCompute})); err == nil {
		t.Errorf("a target reads %+v", e)
	}
	if e, err := ParseSourceEvent(AppendTargetEvent(nil, Fenced{recordX})); err == nil {
		t.Errorf("a source reads %+v", e)
	}
	for _, b := range [][]byte{nil, {0}, {recordFailed + 1}, append(AppendTargetEvent(nil, Fenced{recordX}), 2), make([]byte, EventBytesMax+1)} {
		if e, err := ParseTargetEvent(b); err == nil {
			t.Errorf("%d bytes are read as %+v", len(b), e)
		}
	}
	yes := AppendTargetEvent(nil, Verified{recordX, true})
	yes[len(yes)-1] = 2
	if e, err := ParseTargetEvent(yes); err == nil {
		t.Errorf("a yes of 2 is read as %+v", e)
	}
}

// Runs of random events, as the machines' other tests draw them, survive too.
func TestRandomEventsSurviveTheirRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, peers := NewTarget(TargetConfig{Epoch: 0xd}), Peer(1)
		for range 20 {
			want := drawTargetEvent(t, m, &peers)
			got, err := ParseTargetEvent(AppendTargetEvent(nil, want))
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("%T is read with error %v and differs (-want +got):\n%s", want, err, diff)
			}
			source := drawSourceEvent(t, &peers)
			back, err := ParseSourceEvent(AppendSourceEvent(nil, source))
			if diff := cmp.Diff(source, back, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("%T is read with error %v and differs (-want +got):\n%s", source, err, diff)
			}
		}
	})
}

func FuzzParseTargetEvent(f *testing.F) {
	for _, e := range goodTargetEvents() {
		f.Add(AppendTargetEvent(nil, e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseTargetEvent(b); err == nil && !bytes.Equal(AppendTargetEvent(nil, e), b) {
			t.Fatalf("%x is read as %+v, whose form is %x", b, e, AppendTargetEvent(nil, e))
		}
	})
}

func FuzzParseSourceEvent(f *testing.F) {
	for _, e := range goodSourceEvents() {
		f.Add(AppendSourceEvent(nil, e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseSourceEvent(b); err == nil && !bytes.Equal(AppendSourceEvent(nil, e), b) {
			t.Fatalf("%x is read as %+v, whose form is %x", b, e, AppendSourceEvent(nil, e))
		}
	})
}

var (
	recordTarget = TargetConfig{Epoch: 1, Rank: 2, RepeatTicks: 3, FenceTicks: 4, QuarantineTicks: 5}
	recordSource = SourceConfig{Epoch: 1, PagesMax: 2, TokensMax: 3, TransfersMax: 4}
)

func TestConfigurationsSurviveTheirRecord(t *testing.T) {
	ranked := recordSource
	ranked.Rank = 1
	if _, _, source, err := ParseConfig(AppendSourceConfig(nil, ranked)); err != nil || source != ranked {
		t.Errorf("the configuration of rank 1 is read as %+v, error %v", source, err)
	}
	for want, b := range map[Role][]byte{RoleDecode: AppendTargetConfig(nil, recordTarget), RolePrefill: AppendSourceConfig(nil, recordSource)} {
		role, target, source, err := ParseConfig(b)
		if err != nil || role != want || (role == RoleDecode) != (target == recordTarget) || (role == RolePrefill) != (source == recordSource) {
			t.Errorf("configuration of %v is read as %v, %+v, %+v, error %v", want, role, target, source, err)
		}
		for n := range b {
			if _, _, _, err := ParseConfig(b[:n]); err == nil {
				t.Errorf("configuration of %v cut to %d of %d bytes is read", want, n, len(b))
			}
		}
		if _, _, _, err := ParseConfig(append(b, 0)); err == nil {
			t.Errorf("configuration of %v with a byte too many is read", want)
		}
		b[0]++
		if _, _, _, err := ParseConfig(b); err == nil {
			t.Error("a configuration of another version is read")
		}
	}
	if _, _, _, err := ParseConfig(AppendTargetConfig(nil, TargetConfig{})); err == nil {
		t.Error("a configuration without an epoch is read")
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(AppendTargetConfig(nil, recordTarget))
	f.Add(AppendSourceConfig(nil, recordSource))
	f.Add(AppendSourceConfig(nil, SourceConfig{Epoch: 1, Rank: 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		role, target, source, err := ParseConfig(b)
		if err != nil {
			return
		}
		again := AppendTargetConfig(nil, target)
		if role == RolePrefill {
			again = AppendSourceConfig(nil, source)
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x is read as %v, whose form is %x", b, role, again)
		}
	})
}

// A run on veiled events is the run under the veil: what is recorded can be
// re-executed without what was hidden.
func TestAVeiledRunAnswersTheSame(t *testing.T) {
	veil := NewVeil(kv.Key{1, 2, 3})
	var plain *Veil
	rapid.Check(t, func(t *rapid.T) {
		m, again := NewTarget(TargetConfig{Epoch: 0xd, RepeatTicks: 1, FenceTicks: 2, QuarantineTicks: 3}), NewTarget(TargetConfig{Epoch: 0xd, RepeatTicks: 1, FenceTicks: 2, QuarantineTicks: 3})
		peers := Peer(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			event := drawTargetEvent(t, m, &peers)
			if open, ok := event.(Open); ok && !again.Skip(open.X) {
				t.Fatalf("%v cannot be opened again", open.X)
			}
			want, got := veil.AppendEffects(nil, m.Step(event)), plain.AppendEffects(nil, again.Step(veil.Target(event)))
			if !bytes.Equal(want, got) {
				t.Fatalf("a target answers %T otherwise when it is veiled", event)
			}
		}
		s, twin := NewSource(SourceConfig{Epoch: 0xa, PagesMax: 4, TokensMax: 64, TransfersMax: 5}), NewSource(SourceConfig{Epoch: 0xa, PagesMax: 4, TokensMax: 64, TransfersMax: 5})
		peers = 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			event := drawSourceEvent(t, &peers)
			want, got := veil.AppendEffects(nil, s.Step(event)), plain.AppendEffects(nil, twin.Step(veil.Source(event)))
			if !bytes.Equal(want, got) {
				t.Fatalf("a source answers %T otherwise when it is veiled", event)
			}
		}
	})
}

// No key, digest or root of an event or an effect stands in its veiled form.
func TestTheVeilHidesEverySecret(t *testing.T) {
	secret := [16]byte([]byte("sixteen secrets!"))
	veil := NewVeil(kv.Key{9})
	grant := goodGrant()
	grant.Key, grant.TokenDigest = secret, secret
	closed := goodClosed()
	closed.TokenDigest, closed.Roots = secret, []kv.Digest{secret, secret}
	forms := [][]byte{
		AppendTargetEvent(nil, veil.Target(Open{Key: secret, TokenDigest: secret})),
		AppendTargetEvent(nil, veil.Target(Received{1, closed})), AppendSourceEvent(nil, veil.Source(Received{1, grant})),
		AppendSourceEvent(nil, veil.Source(Admitted{TokenDigest: secret})), AppendSourceEvent(nil, veil.Source(Computed{Root: secret})),
		veil.AppendEffects(nil, []Effect{{Kind: DoSend, Message: grant}, {Kind: DoSend, Message: closed}, {Kind: DoOpenGate, Grant: &grant},
			{Kind: DoWrite, Grant: &grant, Block: 1}, {Kind: DoVerify, Grant: &grant, Roots: closed.Roots}}),
	}
	for i, form := range forms {
		if bytes.Contains(form, secret[:]) {
			t.Errorf("form %d holds a secret in clear", i)
		}
	}
	if closed.Roots[0] != kv.Digest(secret) || grant.Key != kv.Key(secret) {
		t.Error("the veil has changed what it was given")
	}
	if veil.Target(Open{}).(Open).Key != (kv.Key{}) {
		t.Error("a zero key is hidden, so that a machine would take it for one")
	}
}

// Each field of an effect tells two answers apart.
func TestTheHashCoversEveryFieldOfAnEffect(t *testing.T) {
	other := goodGrant()
	other.Pages = []kv.PageRef{{Slot: 10, Generation: 11}, {Slot: 12, Generation: 14}}
	grant := goodGrant()
	base := Effect{Kind: DoWrite, X: recordX, Peer: 1, Message: goodClosed(), Block: 2, Code: CodeBusy, Reason: ReasonBusy, Grant: &grant, Roots: []kv.Digest{{1}}}
	changes := map[string]func(*Effect){
		"Kind": func(e *Effect) { e.Kind = DoAdmit }, "X": func(e *Effect) { e.X.Sequence++ }, "Peer": func(e *Effect) { e.Peer++ },
		"Message": func(e *Effect) { e.Message = nil }, "Block": func(e *Effect) { e.Block-- }, "Code": func(e *Effect) { e.Code++ },
		"Reason": func(e *Effect) { e.Reason++ }, "Grant": func(e *Effect) { e.Grant = &other }, "Roots": func(e *Effect) { e.Roots = []kv.Digest{{2}} }, "Prefix": func(e *Effect) { e.Prefix = []kv.PageRef{{Slot: 1, Generation: 2}} },
	}
	hash := HashEffects([]Effect{base})
	for i := range reflect.TypeFor[Effect]().NumField() {
		name := reflect.TypeFor[Effect]().Field(i).Name
		change, ok := changes[name]
		if !ok {
			t.Errorf("nothing shows that the hash covers %s", name)
			continue
		}
		e := base
		change(&e)
		if HashEffects([]Effect{e}) == hash {
			t.Errorf("the hash is the same for another %s", name)
		}
	}
	if HashEffects([]Effect{base, base}) == hash || HashEffects(nil) == hash {
		t.Error("the hash does not tell how many effects there are")
	}
}

func TestSkipGivesWhatNextCouldHaveGiven(t *testing.T) {
	m := NewTarget(TargetConfig{Epoch: 0xd})
	id := func(sequence uint64) kv.TransferID { return kv.TransferID{Epoch: 0xd, Sequence: sequence} }
	for _, c := range []struct {
		x    kv.TransferID
		want bool
	}{{id(3), true}, {id(3), false}, {id(2), false}, {kv.TransferID{Epoch: 0xe, Sequence: 4}, false}, {kv.TransferID{Epoch: 0xd, Sequence: 4, Rank: 1}, false},
		{id(1<<64 - 1), false}, {id(4), true}} {
		if got := m.Skip(c.x); got != c.want {
			t.Errorf("skipping to %v is %v, want %v", c.x, got, c.want)
		}
	}
	if got := m.Next(); got != id(5) {
		t.Errorf("the next id is %v, want %v", got, id(5))
	}
}

// A ledger is re-executed on the machines of its own version. When the tables
// change, older ledgers no longer conform: raise RecordVersion, and write the new
// sum here.
func TestRecordVersionIsOfTheseTables(t *testing.T) {
	const version, want = 1, "c73a669d61918cf9"
	sum := sha256.Sum256([]byte(targetMarkdown() + sourceMarkdown()))
	if got := hex.EncodeToString(sum[:8]); RecordVersion != version || got != want {
		t.Errorf("version %d has tables with the sum %s, written down is version %d with %s", RecordVersion, got, version, want)
	}
}

func BenchmarkAppendEffects(b *testing.B) {
	veil, buffer := NewVeil(kv.Key{1}), []byte(nil)
	effects := []Effect{{Kind: DoWriterGone, X: recordX}, {Kind: DoRelease, X: recordX}}
	b.ReportAllocs()
	for b.Loop() {
		buffer = veil.AppendEffects(buffer[:0], effects)
	}
}
