package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

func TestAnswersAndPagesAreThoseOfASoloRun(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 60, context: testContext})
	for _, n := range []int{1, 15, 16, 17, 31, 32, 33, 96, 97, 300} {
		want, root := solo(t, m, promptOf(n), 20)
		o := p.run(t.Context(), p.job(promptOf(n), 20), nil)
		checkAnswer(t, fmt.Sprintf("prompt of %d", n), o, n, want, root)
	}
	p.idle(t)
}

func checkAnswer(t *testing.T, name string, o outcome, n int, want []int32, root kv.Digest) {
	t.Helper()
	if diff := cmp.Diff(want, o.tokens()); diff != "" {
		t.Errorf("%s: tokens differ from the solo run (-solo +served):\n%s\nprefill %+v\ndecode %+v", name, diff, last(o.prefill), last(o.decode))
		return
	}
	computed, ok1 := find(o.prefill, cluster.Computed)
	committed, ok2 := find(o.decode, cluster.Committed)
	if !ok1 || !ok2 || computed.PromptTokens != n || committed.PromptTokens != n {
		t.Errorf("%s: verdicts are %+v and %+v, want both of %d tokens", name, computed, committed, n)
	}
	if computed.Root != root || committed.Root != root || computed.TokenDigest != committed.TokenDigest || computed.X != committed.X {
		t.Errorf("%s: page roots or digests differ between prefill, decode and the solo run", name)
	}
}

// Many at once, over a pool that only holds a few of them: each is either answered
// as if it were alone or refused as busy, and in the end every page is free.
func TestConcurrentJobsDoNotTouchEachOther(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 30, decodePages: 60, context: testContext})
	const jobs = 60
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered, busy := 0, 0
	for i := range jobs {
		prompt := promptOf(1 + i*5%130)
		for k := range prompt {
			prompt[k] = int32((int(prompt[k]) + i*13) % testVocab)
		}
		j := p.job(prompt, 5+i%20)
		j.Tenant = kv.TenantTag(1 + i%2)
		want, root := solo(t, m, prompt, j.MaxTokens)
		wg.Go(func() {
			o := p.run(t.Context(), j, nil)
			mu.Lock()
			defer mu.Unlock()
			for _, e := range []cluster.Event{last(o.prefill), last(o.decode)} {
				if e.Kind == cluster.Failed && e.Fault == fault.Busy {
					busy++
					return
				}
			}
			answered++
			checkAnswer(t, fmt.Sprintf("job %d", i), o, len(prompt), want, root)
		})
	}
	wg.Wait()
	t.Logf("measured %d answered, %d busy", answered, busy)
	if answered < jobs/4 {
		t.Errorf("only %d of %d jobs were answered", answered, jobs)
	}
	p.idle(t)
}

// A job is cancelled at every event that it gives, at either worker: pages come
// back, and the next job gets its right answer from them.
func TestCancelAtEveryEvent(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 12, decodePages: 12, context: testContext})
	want, root := solo(t, m, promptOf(100), 10)
	for _, role := range []cluster.Role{cluster.Prefill, cluster.Decode} {
		for at := 1; at <= 14; at++ {
			ctx, cancel := context.WithCancel(t.Context())
			seen := 0
			p.run(ctx, p.job(promptOf(150), 40), func(r cluster.Role, _ cluster.Event) {
				if r == role {
					if seen++; seen == at {
						cancel()
					}
				}
			})
			cancel()
			p.idle(t)
			o := p.run(t.Context(), p.job(promptOf(100), 10), nil)
			checkAnswer(t, fmt.Sprintf("after a cancel at event %d of %v", at, role), o, 100, want, root)
		}
	}
	p.idle(t)
	if n := p.record.count("peer-lost"); n != 0 {
		t.Errorf("cancelled requests have ended %d links, which costs everybody else on them a retry", n)
	}
}

// A page of a running sequence changes its owner's tag under it: the token that
// read it never leaves.
func TestATagThatChangesDuringDecodeStopsTheAnswer(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 12, decodePages: 20, context: testContext})
	for name, spoil := range map[string]func(page []byte){
		"generation at the head":   func(page []byte) { page[16]++ },
		"generation at the tail":   func(page []byte) { page[len(page)-kv.TrailerBytes]++ },
		"transfer at the head":     func(page []byte) { page[32]++ },
		"extent":                   func(page []byte) { page[5]-- },
		"slot of another page":     func(page []byte) { page[40]++ },
		"tenant":                   func(page []byte) { page[24]++ },
		"whole header overwritten": func(page []byte) { clear(page[:kv.HeaderBytes]) },
	} {
		o := p.run(t.Context(), p.job(promptOf(40), 30), func(r cluster.Role, e cluster.Event) {
			if r == cluster.Decode && e.Kind == cluster.Token && e.Index == 3 {
				// Events are emitted by the loop, so this is between two steps.
				spoil(p.decode.slab.Page(p.decode.byX[e.X].refs[1].Slot))
			}
		})
		if got := len(o.tokens()); got != 4 {
			t.Errorf("%s: %d tokens left, want the 4 before the page changed", name, got)
		}
		if e := last(o.decode); e.Kind != cluster.Failed || e.Fault != fault.Corrupt {
			t.Errorf("%s: decode ended with %+v, want a corrupt failure", name, e)
		}
		p.idle(t)
	}
}

// A page arrives that differs in one bit from what prefill took its digests of:
// decode finds out before anything is committed.
func TestAPageThatChangesOnTheWayIsNotCommitted(t *testing.T) {
	m := smallModel(t)
	for _, block := range []uint32{0, 9, 18} {
		var wire tampering
		p := startPair(t, m, pairConfig{prefillPages: 40, decodePages: 60, context: testContext, wire: wire.plainTCP})
		wire.spoil(p.decode, block)
		o := p.run(t.Context(), p.job(promptOf(300), 5), nil)
		if _, committed := find(o.decode, cluster.Committed); committed {
			t.Fatalf("block %d was changed and is committed", block)
		}
		if e := last(o.decode); e.Kind != cluster.Failed || e.Fault != fault.Corrupt {
			t.Errorf("decode ended with %+v, want a corrupt failure", e)
		}
		p.idle(t)
	}
}

func TestOverTheLimitNothingIsTaken(t *testing.T) {
	m := smallModel(t)
	for _, c := range []struct {
		name  string
		pair  pairConfig
		limit int
	}{
		{"served context", pairConfig{prefillPages: 30, decodePages: 30, context: 160}, 160},
		{"prefill pool", pairConfig{prefillPages: 8, decodePages: 30, context: testContext}, 128},
		{"decode pool", pairConfig{prefillPages: 30, decodePages: 8, context: testContext}, 128},
	} {
		p := startPair(t, m, c.pair)
		want, root := solo(t, m, promptOf(c.limit), 1)
		checkAnswer(t, c.name+" at the limit", p.run(t.Context(), p.job(promptOf(c.limit), 1), nil), c.limit, want, root)
		p.idle(t)
		before, opened := p.generations(), p.record.count("open")
		o := p.run(t.Context(), p.job(promptOf(c.limit+1), 1), nil)
		var said bool
		for _, e := range []cluster.Event{last(o.prefill), last(o.decode)} {
			if e.Kind != cluster.Failed && e.Kind != 0 { // 0: let go before it said anything
				t.Errorf("%s over the limit: a worker ended with %+v", c.name, e)
			}
			said = said || e.Fault == fault.OverContext && strings.Contains(e.Reason, fmt.Sprint(c.limit)) && strings.Contains(e.Reason, fmt.Sprint(c.limit+1))
		}
		if p.generations() != before || p.record.count("open") != opened || p.record.count("grant") != opened {
			t.Errorf("%s over the limit: pages or a transfer were taken", c.name)
		}
		if !said {
			t.Errorf("%s over the limit: nobody says both numbers: %+v %+v", c.name, last(o.prefill), last(o.decode))
		}
		p.idle(t)
	}
}

// Decode holds a prompt against what prefill said of itself at the hand-shake, whatever
// prefill would answer: no id, no page, no message.
func TestDecodeHeedsThePeersLimits(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 30, context: testContext})
	before := p.generations()
	var end cluster.Event
	_ = p.decode.Handler().Run(t.Context(), p.job(promptOf(129), 1), func(e cluster.Event) error { end = e; return nil })
	if end.Kind != cluster.Failed || end.Fault != fault.OverContext || !strings.Contains(end.Reason, "129 tokens") || !strings.Contains(end.Reason, "128 tokens") {
		t.Errorf("decode ended with %+v, want both numbers of prefill's limit", end)
	}
	if p.generations() != before || p.record.count("open")+p.record.count("grant") != 0 {
		t.Error("pages were taken or a grant was sent for a prompt that prefill can't hold")
	}
	p.idle(t)
	o := p.run(t.Context(), p.job(promptOf(128), 1), nil)
	if e := last(o.decode); e.Kind != cluster.Finished || e.X.Sequence != 1 {
		t.Errorf("the next job ended with %+v, want an answer by the first transfer", e)
	}
}

// That pages are quarantined says nothing of a prompt within the limit that is served:
// another worker can take it. What no worker like this can hold is the client's to
// change, and is told without a node's name.
func TestQuarantineIsNoVerdictOnThePrompt(t *testing.T) {
	d, err := NewDecode(testConfig(smallModel(t), "d0", 8, testContext, &notes{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	driver := d.Driver()
	defer driver.Close()
	x := kv.TransferID{Epoch: d.Epoch, Sequence: 1}
	_, err = d.pool.Grant(x, 5, 2)
	if err := errors.Join(err, d.pool.Revoke(x), d.pool.Quarantine(x)); err != nil {
		t.Fatal(err)
	}
	prefill := transfer.Hello{PoolPages: 100, ContextTokens: 1600}
	for _, c := range []struct {
		prompt, output int
		admitted, fits fault.Kind
	}{{96, 1, fault.Unavailable, 0}, {97, 1, fault.Unavailable, fault.Unavailable}, {80, 20, fault.Unavailable, fault.Unavailable}, {128, 1, fault.Unavailable, fault.Unavailable},
		{128, 2, fault.Unavailable, fault.OverContext}, {129, 1, fault.OverContext, fault.OverContext}} {
		j := cluster.Job{GatewayBoot: 1, Request: 2, Attempt: 1, Tenant: 3, Prefill: "p0", Decode: "d0", PrefillEpoch: 9, DecodeEpoch: d.Epoch,
			Tokens: promptOf(c.prompt), MaxTokens: c.output}
		var e cluster.Event
		if err := driver.Submit(j, func(last cluster.Event) error { e = last; return nil }); err != nil {
			t.Fatal(err)
		}
		if e.Fault != c.admitted || e.Fault == fault.OverContext && strings.Contains(e.Reason, "d0") {
			t.Errorf("a prompt of %d is refused as %v, %q; want %v without a node's name", c.prompt, e.Fault, e.Reason, c.admitted)
		}
		err := d.fits(&sequence{job: &job{Job: j}}, prefill)
		if (err == nil) != (c.fits == 0) || err != nil && fault.Of(err) != c.fits || c.fits == fault.OverContext && strings.Contains(err.Error(), "d0") {
			t.Errorf("a prompt of %d and output of %d: %v, want %v", c.prompt, c.output, err, c.fits)
		}
	}
}

// generations is how many pages were ever taken, at both workers.
func (p *pair) generations() (sum kv.Generation) {
	for _, b := range []*base{p.prefill.base, p.decode.base} {
		for slot := range b.pool.Len() {
			sum += b.pool.Page(kv.Slot(slot)).Ref.Generation
		}
	}
	return sum
}

func TestAPoolBelowADemandedContextRefusesToStart(t *testing.T) {
	c := testConfig(smallModel(t), "p0", 10, 320, &notes{})
	c.Explicit = true
	_, err := NewPrefill(c)
	if err == nil || !strings.Contains(err.Error(), "160 tokens") || !strings.Contains(err.Error(), "320 tokens") || !strings.Contains(err.Error(), "add 10 pages") {
		t.Fatalf("error is %v, want both numbers and what to change", err)
	}
}

func TestWhatNoWorkerTakes(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 8, context: testContext})
	for name, c := range map[string]struct {
		change func(*cluster.Job)
		kind   fault.Kind
	}{
		"no tenant":               {func(j *cluster.Job) { j.Tenant = 0 }, fault.Internal},
		"no request":              {func(j *cluster.Job) { j.Request = 0 }, fault.Internal},
		"no prompt":               {func(j *cluster.Job) { j.Tokens = nil }, fault.Invalid},
		"no output":               {func(j *cluster.Job) { j.MaxTokens = 0 }, fault.Invalid},
		"token beyond vocabulary": {func(j *cluster.Job) { j.Tokens = []int32{testVocab} }, fault.Invalid},
		"old epochs":              {func(j *cluster.Job) { j.PrefillEpoch++; j.DecodeEpoch++ }, fault.Unavailable},
	} {
		j := p.job(promptOf(20), 2)
		c.change(&j)
		for _, h := range []cluster.Handler{p.prefill.Handler(), p.decode.Handler()} {
			var e cluster.Event
			_ = h.Run(t.Context(), j, func(last cluster.Event) error { e = last; return nil })
			if e.Kind != cluster.Failed || e.Fault != c.kind {
				t.Errorf("%s: ended with %v %v %q, want a failure of kind %v", name, e.Kind, e.Fault, e.Reason, c.kind)
			}
		}
	}
	p.idle(t)
}

// Only one of the two gets the job: the other side's half-open state goes away.
func TestAJobThatReachesOneWorkerOnly(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 8, context: testContext})
	var end cluster.Event
	_ = p.decode.Handler().Run(t.Context(), p.job(promptOf(20), 2), func(e cluster.Event) error { end = e; return nil })
	if end.Kind != cluster.Failed || end.Fault != fault.Unavailable {
		t.Errorf("decode alone ended with %+v, want unavailable", end)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_ = p.prefill.Handler().Run(ctx, p.job(promptOf(20), 2), func(e cluster.Event) error { end = e; cancel(); return nil })
	if end.Kind != cluster.Failed || end.Fault != fault.Cancelled {
		t.Errorf("prefill alone, cancelled, ended with %+v", end)
	}
	p.idle(t)
}

func TestABrokenLedgerStopsAdmission(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 8, context: testContext})
	p.record.fail(errors.New("no space left on device"))
	for _, h := range []cluster.Handler{p.prefill.Handler(), p.decode.Handler()} {
		var e cluster.Event
		_ = h.Run(t.Context(), p.job(promptOf(20), 2), func(last cluster.Event) error { e = last; return nil })
		if e.Kind != cluster.Failed || e.Fault != fault.Unavailable {
			t.Errorf("%s ended with %+v, want unavailable", h.Status().Node, e)
		}
	}
	p.await(t, "failed ledger", func(s cluster.Status) bool { return s.LedgerFailed })
	p.record.fail(nil)
	p.await(t, "ledger that can be written again", func(s cluster.Status) bool { return !s.LedgerFailed })
}

func TestStopTokenEndsTheAnswer(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 8, context: testContext})
	want, _ := solo(t, m, promptOf(20), 10)
	stop := want[4]
	at := 0
	for want[at] != stop {
		at++
	}
	j := p.job(promptOf(20), 10)
	j.Stop = []int32{stop}
	o := p.run(t.Context(), j, nil)
	if diff := cmp.Diff(want[:at], o.tokens()); diff != "" || last(o.decode).Reason != cluster.ReasonStop {
		t.Errorf("answer with a stop id ended with %+v, tokens differ (-want +got):\n%s", last(o.decode), diff)
	}
	p.idle(t)
}

func TestDrainFinishesWhatRunsAndRefusesTheRest(t *testing.T) {
	m := smallModel(t)
	p := startPair(t, m, pairConfig{prefillPages: 8, decodePages: 20, context: testContext})
	want, root := solo(t, m, promptOf(20), 40)
	j, late := p.job(promptOf(20), 40), p.job(promptOf(20), 5)
	var refused cluster.Event
	done := make(chan struct{})
	o := p.run(t.Context(), j, func(r cluster.Role, e cluster.Event) {
		if r == cluster.Decode && e.Kind == cluster.Token && e.Index == 5 {
			go func() {
				defer close(done)
				if err := p.decode.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				_ = p.decode.Handler().Run(t.Context(), late, func(e cluster.Event) error { refused = e; return nil })
			}()
		}
	})
	<-done
	checkAnswer(t, "job that ran when the drain began", o, 20, want, root)
	if refused.Kind == cluster.Finished || refused.Kind == cluster.Token {
		t.Errorf("job that came into the drain: %+v, want a refusal", refused)
	}
}
