package cluster

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	pb "github.com/bulkhead-kv/bulkhead/internal/cluster/clusterpb"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// peersMax bounds the peers in a status.
const peersMax = 1024

func jobToWire(j *Job, now time.Time) *pb.Job {
	w := &pb.Job{
		GatewayBoot: j.GatewayBoot, Request: j.Request, Attempt: j.Attempt, Tenant: uint64(j.Tenant),
		Prefill: j.Prefill, Decode: j.Decode,
		PrefillEpoch: uint64(j.PrefillEpoch), DecodeEpoch: uint64(j.DecodeEpoch),
		Tokens: j.Tokens, MaxTokens: int64(j.MaxTokens), Stop: j.Stop, Probe: j.Probe,
		Sampling: samplingToWire(&j.Sampling),
	}
	if !j.Deadline.IsZero() {
		left := int64(j.Deadline.Sub(now))
		w.AllowedNs = &left
	}
	return w
}

func samplingToWire(s *Sampling) *pb.Sampling {
	w := &pb.Sampling{
		Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP, TopK: int32(s.TopK),
		Repetition: s.Repetition, Frequency: s.Frequency, Presence: s.Presence, LogitBias: s.LogitBias,
	}
	if s.HasSeed {
		w.Seed = &s.Seed
	}
	if s.Logprobs != NoLogprobs {
		n := int32(s.Logprobs)
		w.Logprobs = &n
	}
	return w
}

// jobFromWire gives a job that is valid, or the reason why it is not; even then
// the job's identity is filled in.
func jobFromWire(w *pb.Job, now time.Time) (Job, error) {
	j := Job{
		GatewayBoot: w.GetGatewayBoot(), Request: w.GetRequest(), Attempt: w.GetAttempt(), Tenant: kv.TenantTag(w.GetTenant()),
		Prefill: w.GetPrefill(), Decode: w.GetDecode(),
		PrefillEpoch: kv.Epoch(w.GetPrefillEpoch()), DecodeEpoch: kv.Epoch(w.GetDecodeEpoch()),
		Tokens: w.GetTokens(), MaxTokens: int(w.GetMaxTokens()), Stop: w.GetStop(), Probe: w.GetProbe(),
	}
	if w.Sampling == nil {
		return j, fault.New(fault.Invalid, "job: no sampling")
	}
	j.Sampling = samplingFromWire(w.Sampling)
	if w.AllowedNs != nil {
		j.Deadline = now.Add(time.Duration(w.GetAllowedNs()))
	}
	return j, j.Validate()
}

func samplingFromWire(w *pb.Sampling) Sampling {
	s := Sampling{
		Temperature: w.GetTemperature(), TopP: w.GetTopP(), MinP: w.GetMinP(), TopK: int(w.GetTopK()),
		Seed: w.GetSeed(), HasSeed: w.Seed != nil,
		Repetition: w.GetRepetition(), Frequency: w.GetFrequency(), Presence: w.GetPresence(), LogitBias: w.GetLogitBias(),
		Logprobs: NoLogprobs,
	}
	if w.Logprobs != nil {
		s.Logprobs = int(w.GetLogprobs())
	}
	return s
}

func eventToWire(e *Event) *pb.Event {
	w := &pb.Event{
		Kind: pb.EventKind(e.Kind), Request: e.Request, Attempt: e.Attempt, Epoch: uint64(e.Epoch),
		PromptTokens: int64(e.PromptTokens), Index: int64(e.Index), Token: e.Token,
	}
	switch e.Kind {
	case Computed, Committed:
		w.Transfer = &pb.TransferID{Epoch: uint64(e.X.Epoch), Sequence: e.X.Sequence, Rank: uint32(e.X.Rank)}
		w.TokenDigest, w.Root = e.TokenDigest[:], e.Root[:]
	case Token:
		w.Logprobs = logprobsToWire(e.Logprob)
	case Finished:
		w.Reason = e.Reason
	case Failed:
		w.Reason = cut(e.Reason)
		w.Fault = e.Fault.String()
	case Accepted, Progress: // carry nothing else
	}
	return w
}

func logprobsToWire(l *TokenLogprobs) *pb.TokenLogprobs {
	if l == nil {
		return nil
	}
	w := &pb.TokenLogprobs{Chosen: &pb.Logprob{Token: l.Token, Logprob: l.Logprob}}
	for _, t := range l.Top[:min(len(l.Top), LogprobsTopMax)] {
		w.Top = append(w.Top, &pb.Logprob{Token: t.Token, Logprob: t.Logprob})
	}
	return w
}

// eventFromWire checks lengths and ranges; order and provenance are sequence's.
func eventFromWire(w *pb.Event) (Event, error) {
	e := Event{
		Request: w.GetRequest(), Attempt: w.GetAttempt(), Epoch: kv.Epoch(w.GetEpoch()),
		PromptTokens: int(w.GetPromptTokens()), Index: int(w.GetIndex()), Token: w.GetToken(),
		Reason: w.GetReason(), Fault: fault.ParseKind(w.GetFault()),
	}
	if k := w.GetKind(); k < pb.EventKind(Accepted) || k > pb.EventKind(Failed) {
		return e, fault.New(fault.Corrupt, "event of unknown kind %d", k)
	}
	e.Kind = EventKind(w.GetKind())
	if e.PromptTokens < 0 || e.Index < 0 || e.Token < 0 {
		return e, fault.New(fault.Corrupt, "%v event: a count, an index or an id is negative", e.Kind)
	}
	if t := w.GetTransfer(); t != nil {
		if t.GetRank() > math.MaxUint8 {
			return e, fault.New(fault.Corrupt, "%v event: rank %d, must be at most %d", e.Kind, t.GetRank(), math.MaxUint8)
		}
		e.X = kv.TransferID{Epoch: kv.Epoch(t.GetEpoch()), Sequence: t.GetSequence(), Rank: uint8(t.GetRank())}
	}
	if err := exactly(e.TokenDigest[:], w.GetTokenDigest()); err != nil {
		return e, fault.New(fault.Corrupt, "%v event: token digest: %w", e.Kind, err)
	}
	if err := exactly(e.Root[:], w.GetRoot()); err != nil {
		return e, fault.New(fault.Corrupt, "%v event: root: %w", e.Kind, err)
	}
	if l := w.GetLogprobs(); l != nil {
		if len(l.GetTop()) > LogprobsTopMax {
			return e, fault.New(fault.Corrupt, "%v event: %d alternatives, must be at most %d", e.Kind, len(l.GetTop()), LogprobsTopMax)
		}
		e.Logprob = logprobsFromWire(l)
	}
	return e, nil
}

func logprobsFromWire(w *pb.TokenLogprobs) *TokenLogprobs {
	l := &TokenLogprobs{Token: w.GetChosen().GetToken(), Logprob: w.GetChosen().GetLogprob()}
	for _, t := range w.GetTop() {
		l.Top = append(l.Top, Logprob{t.GetToken(), t.GetLogprob()})
	}
	return l
}

func statusToWire(s *Status, now time.Time) *pb.Status {
	w := &pb.Status{
		Node: s.Node, Role: pb.Role(s.Role), Epoch: uint64(s.Epoch), Model: s.Model, Fingerprint: s.Fingerprint[:],
		Vocab: int64(s.Vocab),
		Limits: &pb.Limits{
			ContextTokens: int64(s.Limits.ContextTokens), ServedTokens: int64(s.Limits.ServedTokens),
			PoolPages: int64(s.Limits.PoolPages), UsablePages: int64(s.Limits.UsablePages),
			ReservedPages: int64(s.Limits.ReservedPages), PageTokens: int64(s.Limits.PageTokens),
		},
		Running: int64(s.Running), Waiting: int64(s.Waiting), FreePages: int64(s.FreePages),
		QuarantinedPages: int64(s.QuarantinedPages), QueuedTokens: int64(s.QueuedTokens),
		Draining: s.Draining, LedgerFailed: s.LedgerFailed, CertificateFailures: int64(s.CertificateFailures), Build: s.Build,
	}
	if !s.LastTransfer.IsZero() {
		age := int64(max(0, now.Sub(s.LastTransfer)))
		w.TransferAgeNs = &age
	}
	for reason, n := range s.Refused {
		if w.Refused == nil {
			w.Refused = map[string]int64{}
		}
		w.Refused[reason] = int64(n)
	}
	for _, p := range s.Peers[:min(len(s.Peers), peersMax)] {
		w.Peers = append(w.Peers, &pb.Peer{Node: p.Node, Up: p.Up, Error: cutTo(p.Err, peerErrorBytesMax)})
	}
	return w
}

// peerErrorBytesMax keeps a status of many peers within EventBytesMax.
const peerErrorBytesMax = 200

func statusFromWire(w *pb.Status, now time.Time) (Status, error) {
	l := w.GetLimits()
	s := Status{
		Node: w.GetNode(), Epoch: kv.Epoch(w.GetEpoch()), Model: w.GetModel(), Vocab: int(w.GetVocab()),
		Limits: Limits{
			ContextTokens: int(l.GetContextTokens()), ServedTokens: int(l.GetServedTokens()),
			PoolPages: int(l.GetPoolPages()), UsablePages: int(l.GetUsablePages()),
			ReservedPages: int(l.GetReservedPages()), PageTokens: int(l.GetPageTokens()),
		},
		Running: int(w.GetRunning()), Waiting: int(w.GetWaiting()), FreePages: int(w.GetFreePages()),
		QuarantinedPages: int(w.GetQuarantinedPages()), QueuedTokens: int(w.GetQueuedTokens()),
		Draining: w.GetDraining(), LedgerFailed: w.GetLedgerFailed(), CertificateFailures: int(w.GetCertificateFailures()), Build: w.GetBuild(),
	}
	if r := w.GetRole(); r == pb.Role_ROLE_PREFILL || r == pb.Role_ROLE_DECODE {
		s.Role = Role(r)
	}
	if s.Role == 0 || s.Epoch == 0 {
		return s, fault.New(fault.Corrupt, "status of %.80q: role or epoch is missing", s.Node)
	}
	for _, n := range []int{s.Vocab, leastLimit(s.Limits), s.Running, s.Waiting, s.FreePages, s.QuarantinedPages, s.QueuedTokens, s.CertificateFailures} {
		if n < 0 {
			return s, fault.New(fault.Corrupt, "status of %.80q: a count is negative", s.Node)
		}
	}
	if err := exactly(s.Fingerprint[:], w.GetFingerprint()); err != nil {
		return s, fault.New(fault.Corrupt, "status of %.80q: fingerprint: %w", s.Node, err)
	}
	var err error
	if s.Refused, err = refusedFromWire(w.GetRefused()); err != nil {
		return s, fault.New(fault.Corrupt, "status of %.80q: %w", s.Node, err)
	}
	if len(w.GetPeers()) > peersMax {
		return s, fault.New(fault.Corrupt, "status of %.80q: %d peers, must be at most %d", s.Node, len(w.GetPeers()), peersMax)
	}
	for _, p := range w.GetPeers() {
		s.Peers = append(s.Peers, PeerStatus{p.GetNode(), p.GetUp(), p.GetError()})
	}
	if w.TransferAgeNs != nil {
		s.LastTransfer = now.Add(-time.Duration(max(0, w.GetTransferAgeNs())))
	}
	return s, nil
}

// reasonsMax bounds the reasons of a status, and with them what metrics have series of.
const reasonsMax = 32

var reasonName = regexp.MustCompile(`^[a-z_]{1,40}$`)

func refusedFromWire(w map[string]int64) (map[string]int, error) {
	if len(w) > reasonsMax {
		return nil, fmt.Errorf("pages refused for %d reasons, must be at most %d", len(w), reasonsMax)
	}
	var refused map[string]int
	for reason, n := range w {
		if !reasonName.MatchString(reason) || n < 0 {
			return nil, fmt.Errorf("%d pages refused for the reason %.40q: that is none", n, reason)
		}
		if refused == nil {
			refused = map[string]int{}
		}
		refused[reason] = int(n)
	}
	return refused, nil
}

// leastLimit is the smallest of the limits, to be held against zero.
func leastLimit(l Limits) int {
	return min(l.ContextTokens, l.ServedTokens, l.PoolPages, l.UsablePages, l.ReservedPages, l.PageTokens)
}

// exactly copies src to dst; src is empty (nothing was said) or of dst's length.
func exactly(dst, src []byte) error {
	if len(src) != 0 && len(src) != len(dst) {
		return fmt.Errorf("%d bytes, must be %d", len(src), len(dst))
	}
	copy(dst, src)
	return nil
}

func cut(s string) string { return cutTo(s, ReasonBytesMax) }

// cutTo bounds a text and makes it fit for a protobuf string.
func cutTo(s string, bytesMax int) string {
	if len(s) > bytesMax {
		s = s[:bytesMax]
	}
	return strings.ToValidUTF8(s, "")
}
