package proved

import (
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// pst is the condition that x is in one of these states at prefill.
func (s *State) pst(x X, list ...PState) condition {
	return always("pst "+join(list), slices.Contains(list, s.Pst.Of(x)))
}

// current: a message of x is for the incarnation that runs.
func (s *State) current(x X) condition {
	return guarded(Epochs, s.World.Of(x).Nonce == s.Inc.Of(s.World.Of(x).Peer))
}

// drained: the source may say CLOSED.
func (s *State) drained(x X) (drain, lost condition) {
	some := func(w WState) bool {
		return slices.ContainsFunc(s.mine(x), func(g G) bool { return s.Ws.Of(XG{x, g}) == w })
	}
	return guarded(Drain, !some(WFlying)), guarded(LostWrite, !some(WLost))
}

// closes: CLOSED of x is said.
func (s *State) closes(x X, c Closed) {
	s.Pst.put(x, PClosed)
	s.Said.put(x, c)
}

// HearGrant: GRANT of x arrives. It is there from Submit on, as is its ABORT.
func (s *State) HearGrant(x X) error {
	if err := s.allow("HearGrant", x, always("dst x <> DNone", s.Dst.Of(x) != DNone), s.pst(x, PNone), s.current(x), guarded(LowMark, !s.Past.Of(x))); err != nil {
		return err
	}
	s.Pst.put(x, PJoining)
	return nil
}

// CloseNew: a transfer that was never seen is closed.
func (s *State) CloseNew(x X) error {
	if err := s.allow("CloseNew", x, always("dst x <> DNone", s.Dst.Of(x) != DNone), s.pst(x, PNone), s.current(x), guarded(LowMark, !s.Past.Of(x))); err != nil {
		return err
	}
	s.closes(x, Failed)
	return nil
}

// Admit: x has its job and its pages.
func (s *State) Admit(x X) error {
	if err := s.allow("Admit", x, s.pst(x, PJoining)); err != nil {
		return err
	}
	s.Pst.put(x, PActive)
	return nil
}

// TakeSource: h is x's source page, and its kernel's.
func (s *State) TakeSource(x X, h H) error {
	if err := s.allow("TakeSource", x, always("hold h = None", s.Hold.Of(h).IsZero())); err != nil {
		return err
	}
	s.Hold.put(h, x)
	s.Kw.put(x, with(s.Kw.Of(x), h))
	return nil
}

// KernelP: a step writes v into source page h.
func (s *State) KernelP(x X, h H, v Bytes) error {
	if err := s.allow("KernelP", x, always("kw x h", slices.Contains(s.Kw.Of(x), h))); err != nil {
		return err
	}
	s.Scont.put(h, v)
	return nil
}

// Post: a write of source page h to page g is posted. No step of x writes h any more.
func (s *State) Post(x X, g G, h H) error {
	k := XG{x, g}
	if err := s.allow("Post", x, guarded(Silence, s.Pst.Of(x) == PActive), always("mine x g", slices.Contains(s.mine(x), g)),
		always("ws x g = WNone", s.Ws.Of(k) == WNone), always("hold h = Some x", s.Hold.Of(h) == x),
		guarded(Complete, s.Scont.Of(h) == Val(x, g))); err != nil {
		return err
	}
	s.Ws.put(k, WFlying)
	s.From.put(k, h)
	s.Kw.put(x, without(s.Kw.Of(x), func(k H) bool { return k == h }))
	return nil
}

// EndP: nothing more is posted.
func (s *State) EndP(x X) error {
	if err := s.allow("EndP", x, s.pst(x, PActive)); err != nil {
		return err
	}
	s.Pst.put(x, PDraining)
	return nil
}

// CloseFailed: CLOSED(failed) is said.
func (s *State) CloseFailed(x X) error {
	drain, lost := s.drained(x)
	if err := s.allow("CloseFailed", x, s.pst(x, PJoining, PActive, PDraining), drain, lost); err != nil {
		return err
	}
	s.closes(x, Failed)
	return nil
}

// CloseDone: CLOSED(done) is said.
func (s *State) CloseDone(x X) error {
	drain, lost := s.drained(x)
	if err := s.allow("CloseDone", x, s.pst(x, PActive), drain, lost); err != nil {
		return err
	}
	s.closes(x, Done)
	return nil
}

// CloseSilent: x has ended, and nothing is said of it.
func (s *State) CloseSilent(x X) error {
	if err := s.allow("CloseSilent", x, s.pst(x, PJoining, PActive, PDraining)); err != nil {
		return err
	}
	s.Pst.put(x, PClosed)
	return nil
}

// Pass: x is below the low mark, or its link is gone at prefill.
func (s *State) Pass(x X) error {
	s.Past.put(x, true)
	return s.allow("Pass", x)
}

// Forget: nothing is remembered of x.
func (s *State) Forget(x X) error {
	if err := s.allow("Forget", x, s.pst(x, PClosed), guarded(Tombstone, s.Past.Of(x))); err != nil {
		return err
	}
	s.Pst.drop(x)
	return nil
}

// StopP: no step writes pages of x.
func (s *State) StopP(x X) error {
	s.Kw.drop(x)
	return s.allow("StopP", x)
}

// FreeSource: h is nobody's source page any more.
func (s *State) FreeSource(x X, h H) error {
	sends := func(g G) bool { k := XG{x, g}; return s.Ws.Of(k) == WFlying && s.From.Of(k) == h }
	if err := s.allow("FreeSource", x, always("hold h = Some x", s.Hold.Of(h) == x), guarded(SourceHold, !slices.ContainsFunc(s.mine(x), sends)),
		guarded(SourceKernel, !slices.Contains(s.Kw.Of(x), h))); err != nil {
		return err
	}
	s.Hold.drop(h)
	return nil
}

// CrashP: prefill node p starts again, as incarnation e.
func (s *State) CrashP(p string, e kv.Epoch) error {
	if err := s.allow("CrashP", X{}, guarded(FreshNonce, !slices.Contains(s.Used.Of(p), e))); err != nil {
		return err
	}
	s.Inc.put(p, e)
	s.Used.put(p, with(s.Used.Of(p), e))
	for x := range s.Past.All() {
		if s.World.Of(x).Peer == p {
			s.Past.drop(x)
		}
	}
	for x := range s.Pst.All() {
		if s.World.Of(x).Peer == p {
			s.Pst.drop(x)
		}
	}
	return nil
}
