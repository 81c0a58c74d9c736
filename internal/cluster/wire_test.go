package cluster

import (
	"strings"
	"testing"
	"time"

	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

func TestJobSurvivesTheWire(t *testing.T) {
	now := time.Now()
	plain, full := testJob(), testJob()
	plain.Sampling = Sampling{Logprobs: NoLogprobs}
	full.Probe, full.Deadline = true, now.Add(time.Second)
	full.Sampling = Sampling{Temperature: 0.5, TopP: 0.9, MinP: 0.1, TopK: 40, Seed: 0, HasSeed: true,
		Repetition: 1.1, Frequency: 0.2, Presence: -0.2, LogitBias: map[int32]float32{3: -100, 4: 5}, Logprobs: 0}
	for _, job := range []Job{plain, full} {
		b, err := proto.Marshal(jobToWire(&job, now))
		if err != nil {
			t.Fatal(err)
		}
		w := new(pb.Job)
		if err := proto.Unmarshal(b, w); err != nil {
			t.Fatal(err)
		}
		got, err := jobFromWire(w, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(job, got); diff != "" {
			t.Errorf("job (-sent +received):\n%s", diff)
		}
	}
}

func TestLongReasonsAreCut(t *testing.T) {
	e := Event{Kind: Failed, Reason: strings.Repeat("ä", ReasonBytesMax) + "\xff", Fault: fault.Busy}
	w := eventToWire(&e)
	if len(w.Reason) > ReasonBytesMax {
		t.Errorf("reason has %d bytes, must be at most %d", len(w.Reason), ReasonBytesMax)
	}
	if _, err := proto.Marshal(w); err != nil {
		t.Errorf("a cut reason must be a valid text: %v", err)
	}
}

func TestImpossibleMessagesAreCorrupt(t *testing.T) {
	event := func(set func(*pb.Event)) error {
		w := &pb.Event{Kind: pb.EventKind_EVENT_COMPUTED}
		set(w)
		_, err := eventFromWire(w)
		return err
	}
	state := func(set func(*pb.Status)) error {
		w := &pb.Status{Node: "p1", Role: pb.Role_ROLE_PREFILL, Epoch: 1, Fingerprint: make([]byte, 32)}
		set(w)
		_, err := statusFromWire(w, time.Now())
		return err
	}
	if err := event(func(*pb.Event) {}); err != nil {
		t.Fatalf("the plain event must be accepted: %v", err)
	}
	if err := state(func(*pb.Status) {}); err != nil {
		t.Fatalf("the plain status must be accepted: %v", err)
	}
	for name, err := range map[string]error{
		"unknown kind":        event(func(w *pb.Event) { w.Kind = 99 }),
		"no kind":             event(func(w *pb.Event) { w.Kind = 0 }),
		"negative count":      event(func(w *pb.Event) { w.PromptTokens = -1 }),
		"negative index":      event(func(w *pb.Event) { w.Index = -1 }),
		"negative token":      event(func(w *pb.Event) { w.Token = -1 }),
		"wide rank":           event(func(w *pb.Event) { w.Transfer = &pb.TransferID{Rank: 256} }),
		"short root":          event(func(w *pb.Event) { w.Root = make([]byte, 15) }),
		"long digest":         event(func(w *pb.Event) { w.TokenDigest = make([]byte, 17) }),
		"many alternatives":   event(func(w *pb.Event) { w.Logprobs = &pb.TokenLogprobs{Top: make([]*pb.Logprob, 21)} }),
		"no role":             state(func(w *pb.Status) { w.Role = 0 }),
		"no epoch":            state(func(w *pb.Status) { w.Epoch = 0 }),
		"short fingerprint":   state(func(w *pb.Status) { w.Fingerprint = make([]byte, 31) }),
		"negative free pages": state(func(w *pb.Status) { w.FreePages = -1 }),
		"negative limit":      state(func(w *pb.Status) { w.Limits = &pb.Limits{UsablePages: -1} }),
		"negative failures":   state(func(w *pb.Status) { w.CertificateFailures = -1 }),
		"negative refusals":   state(func(w *pb.Status) { w.Refused = map[string]int64{"torn": -1} }),
		"no name of a reason": state(func(w *pb.Status) { w.Refused = map[string]int64{"tenant 7": 1} }),
		"many reasons": state(func(w *pb.Status) {
			w.Refused = map[string]int64{}
			for i := range reasonsMax + 1 {
				w.Refused[strings.Repeat("a", i+1)] = 1
			}
		}),
		"many peers": state(func(w *pb.Status) { w.Peers = make([]*pb.Peer, peersMax+1) }),
	} {
		if fault.Of(err) != fault.Corrupt {
			t.Errorf("%s must be of kind corrupt: %v", name, err)
		}
	}
}

func FuzzEventFromWire(f *testing.F) {
	job := testJob()
	for _, s := range []Status{{Role: Prefill, Epoch: 11}, {Role: Decode, Epoch: 22}} {
		for _, e := range honestEvents(&job, s) {
			b, err := proto.Marshal(eventToWire(&e))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := new(pb.Event)
		if proto.Unmarshal(b, w) != nil {
			return
		}
		e, err := eventFromWire(w)
		if err != nil {
			return
		}
		for _, role := range []Role{Prefill, Decode} {
			seq := &sequence{role: role, request: e.Request, attempt: e.Attempt, epoch: e.Epoch, tokens: 1}
			if seq.step(&e) == nil && (e.Kind == Computed || e.Kind == Committed) && e.X == (kv.TransferID{}) {
				t.Errorf("a verdict without a transfer was admitted at %v: %+v", role, e)
			}
		}
		again, err := eventFromWire(eventToWire(&e))
		if err != nil {
			t.Errorf("an accepted event must be sendable: %v", err)
		}
		if again.Kind != e.Kind || again.Request != e.Request || again.Index != e.Index {
			t.Errorf("event changed on the way: %+v, %+v", e, again)
		}
	})
}

func FuzzJobFromWire(f *testing.F) {
	job := testJob()
	b, err := proto.Marshal(jobToWire(&job, time.Now()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		w := new(pb.Job)
		if proto.Unmarshal(b, w) != nil {
			return
		}
		j, err := jobFromWire(w, time.Unix(0, 0))
		if err == nil && (len(j.Tokens) == 0 || j.MaxTokens < 1 || j.GatewayBoot == 0 || j.Tenant == 0) {
			t.Errorf("an impossible job was accepted: %+v", j.ID())
		}
	})
}
