package proved

import "slices"

// open: its pages are held for x.
func (d DState) open() bool { return d != DNone && d != DClosed }

// dst is the condition that x is in one of these states at decode.
func (s *State) dst(x X, list ...DState) condition {
	return always("dst "+join(list), slices.Contains(list, s.Dst.Of(x)))
}

func (s *State) mine(x X) []G { return s.World.Of(x).Mine }

// Submit: decode has taken pages for x, and asks prefill for it.
func (s *State) Submit(x X) error {
	free := !slices.ContainsFunc(s.mine(x), func(g G) bool { return len(s.Own.Of(g)) > 0 })
	if err := s.allow("Submit", x, guarded(FreshID, s.Dst.Of(x) == DNone), guarded(Alloc, free)); err != nil {
		return err
	}
	for _, g := range s.mine(x) {
		s.Own.put(g, with(s.Own.Of(g), x))
	}
	s.Dst.put(x, DGranted)
	return nil
}

// Grow: x takes page g for what it generates, and finds v in it.
func (s *State) Grow(x X, g G, v Bytes) error {
	if err := s.allow("Grow", x, always("isopen (dst x)", s.Dst.Of(x).open()), guarded(Alloc, len(s.Own.Of(g)) == 0), guarded(Blank, v == Zero)); err != nil {
		return err
	}
	s.Own.put(g, with(s.Own.Of(g), x))
	s.Grn.put(x, with(s.Grn.Of(x), g))
	s.Cont.put(g, v)
	s.Tag.put(g, x)
	return nil
}

// Pin: y reads page g of x from the cache.
func (s *State) Pin(y X, g G, x X) error {
	if err := s.allow("Pin", y, s.dst(y, DGranted), always("own g x", slices.Contains(s.Own.Of(g), x)), always("ver x", s.Ver.Of(x)),
		always("node x = node y", s.World.Of(x).Node == s.World.Of(y).Node), guarded(Tenant, slices.Contains(s.World.Of(x).Share, y))); err != nil {
		return err
	}
	s.Rd.put(y, with(s.Rd.Of(y), Read{g, x}))
	return nil
}

// Revoke: x has ended, prefill may still write its pages.
func (s *State) Revoke(x X) error {
	if err := s.allow("Revoke", x, s.dst(x, DGranted)); err != nil {
		return err
	}
	s.Dst.put(x, DRevoking)
	return nil
}

// Quarantine: the proof takes too long.
func (s *State) Quarantine(x X) error {
	if err := s.allow("Quarantine", x, s.dst(x, DRevoking)); err != nil {
		return err
	}
	s.Dst.put(x, DQuarantined)
	return nil
}

// behind: CLOSED of x arrives behind the writes that were reported done.
func (s *State) behind(x X) condition {
	late := func(g G) bool { return s.Ws.Of(XG{x, g}) == WOk && len(s.Way.Of(XG{x, g})) > 0 }
	return guarded(Ordered, !slices.ContainsFunc(s.mine(x), late))
}

// arrived: what was reported done has landed.
func (s *State) arrived(x X) condition {
	lost := func(g G) bool { k := XG{x, g}; return s.Ws.Of(k) == WOk && !(s.Lb.Of(k) && s.Lt.Of(k)) }
	return guarded(Reports, !slices.ContainsFunc(s.mine(x), lost))
}

// covered: CLOSED names as many pages as were granted.
func (s *State) covered(x X) condition {
	missing := func(g G) bool { return s.Ws.Of(XG{x, g}) != WOk }
	return guarded(Coverage, s.Said.Of(x) == Done && !slices.ContainsFunc(s.mine(x), missing))
}

// leaves: x is closed, and reads nobody's pages any more.
func (s *State) leaves(x X) {
	s.Dst.put(x, DClosed)
	s.Rd.drop(x)
}

// HearClosed: CLOSED of x arrives, its pages have no writer any more.
func (s *State) HearClosed(x X) error {
	said := guarded(DeferRelease, s.Said.Of(x) != Quiet)
	behind := s.behind(x)
	behind.holds = behind.holds || !s.on.Has(DeferRelease)
	if err := s.allow("HearClosed", x, s.dst(x, DGranted, DFencing, DRevoking, DQuarantined), said, behind); err != nil {
		return err
	}
	s.leaves(x)
	return nil
}

// HearDone: CLOSED names what was granted, all of it is here, the fence is asked for.
func (s *State) HearDone(x X) error {
	if err := s.allow("HearDone", x, s.dst(x, DGranted), s.covered(x), s.behind(x), s.arrived(x)); err != nil {
		return err
	}
	s.Dst.put(x, DFencing)
	return nil
}

// HearDrained is HearDone where CLOSED is all the proof that there is.
func (s *State) HearDrained(x X) error {
	if err := s.allow("HearDrained", x, s.dst(x, DGranted), s.covered(x), s.behind(x), s.arrived(x)); err != nil {
		return err
	}
	s.Dst.put(x, DVerifying)
	return nil
}

// FenceProved: no write of x can land, its pages are verified.
func (s *State) FenceProved(x X) error {
	if err := s.allow("FenceProved", x, s.dst(x, DFencing), guarded(FenceFirst, s.Dead.Of(x))); err != nil {
		return err
	}
	s.Dst.put(x, DVerifying)
	return nil
}

// DropFenced: no write of x can land, and nothing of it is wanted.
func (s *State) DropFenced(x X) error {
	if err := s.allow("DropFenced", x, s.dst(x, DGranted, DRevoking, DQuarantined), guarded(FencePeer, s.Dead.Of(x))); err != nil {
		return err
	}
	s.leaves(x)
	return nil
}

// VerifyOK: the pages of x are what was granted.
func (s *State) VerifyOK(x X) error {
	wrong := func(g G) bool { return s.Cont.Of(g) != Val(x, g) || s.Tag.Of(g) != x }
	if err := s.allow("VerifyOK", x, s.dst(x, DVerifying), guarded(Checks, !slices.ContainsFunc(s.mine(x), wrong))); err != nil {
		return err
	}
	s.Ver.put(x, true)
	s.Dst.put(x, DDecoding)
	return nil
}

// VerifyBad: they are not.
func (s *State) VerifyBad(x X) error {
	if err := s.allow("VerifyBad", x, s.dst(x, DVerifying)); err != nil {
		return err
	}
	s.leaves(x)
	return nil
}

// StopVerify: x has ended while its pages are read.
func (s *State) StopVerify(x X) error {
	if err := s.allow("StopVerify", x, s.dst(x, DVerifying)); err != nil {
		return err
	}
	s.Dst.put(x, DStopping)
	return nil
}

// StartKernel: a step runs on the pages of x.
func (s *State) StartKernel(x X) error {
	if err := s.allow("StartKernel", x, s.dst(x, DDecoding)); err != nil {
		return err
	}
	s.Kd.put(x, true)
	return nil
}

// KernelD: it writes page g.
func (s *State) KernelD(x X, g G) error {
	if err := s.allow("KernelD", x, always("kd x", s.Kd.Of(x)), always("mine x g \\/ grn x g", slices.Contains(s.mine(x), g) || slices.Contains(s.Grn.Of(x), g))); err != nil {
		return err
	}
	s.Cont.put(g, Val(x, g))
	return nil
}

// EndKernel: no step runs on the pages of x.
func (s *State) EndKernel(x X) error {
	s.Kd.drop(x)
	return s.allow("EndKernel", x)
}

// Stop: x has ended while it decodes.
func (s *State) Stop(x X) error {
	if err := s.allow("Stop", x, s.dst(x, DDecoding)); err != nil {
		return err
	}
	s.Dst.put(x, DStopping)
	return nil
}

// Release: decode lets x go.
func (s *State) Release(x X) error {
	if err := s.allow("Release", x, s.dst(x, DDecoding, DStopping), guarded(KernelStop, !s.Kd.Of(x))); err != nil {
		return err
	}
	s.leaves(x)
	return nil
}

// FreePage: page g of x is nobody's any more.
func (s *State) FreePage(g G, x X) error {
	if err := s.allow("FreePage", x, always("own g x", slices.Contains(s.Own.Of(g), x)), s.dst(x, DClosed), guarded(Holders, !s.Kd.Of(x)),
		guarded(Readers, !s.read(g))); err != nil {
		return err
	}
	s.setOwn(g, without(s.Own.Of(g), func(y X) bool { return y == x }))
	return nil
}

func (s *State) setOwn(g G, owners []X) {
	if len(owners) == 0 {
		s.Own.drop(g)
		return
	}
	s.Own.put(g, owners)
}

// read reports whether anybody reads page g.
func (s *State) read(g G) bool {
	for _, list := range s.Rd.All() {
		if slices.ContainsFunc(list, func(r Read) bool { return r.G == g }) {
			return true
		}
	}
	return false
}

// Fence: nothing of these can land any more.
func (s *State) Fence(f ...X) error {
	for _, x := range f {
		s.Dead.put(x, true)
	}
	return s.allow("Fence", X{})
}

// CrashD: decode node d starts again. Nothing of f can land any more.
func (s *State) CrashD(d string, f ...X) error {
	var old []X
	for x, state := range s.Dst.All() {
		if state != DNone && s.World.Of(x).Node == d {
			old = append(old, x)
		}
	}
	if err := s.allow("CrashD", X{}, guarded(CrashTears, !slices.ContainsFunc(old, func(x X) bool { return !slices.Contains(f, x) }))); err != nil {
		return err
	}
	for _, x := range f {
		s.Dead.put(x, true)
	}
	for g, owners := range s.Own.All() {
		s.setOwn(g, without(owners, func(x X) bool { return s.World.Of(x).Node == d }))
	}
	for _, x := range old {
		s.Dst.put(x, DClosed)
		s.Rd.drop(x)
		s.Kd.drop(x)
	}
	return nil
}
