package proved

import (
	"fmt"
	"slices"
	"strings"
)

// gated: a receiver that places asks whose the page is first.
func (s *State) gated(x X, g G) condition {
	return guarded(Gate, slices.Contains(s.mine(x), g) && slices.Contains(s.Own.Of(g), x) && (s.Dst.Of(x) == DGranted || s.Dst.Of(x) == DFencing))
}

// Leave: the bytes of a write leave, as they are now.
func (s *State) Leave(x X, g G) error {
	k := XG{x, g}
	if err := s.allow("Leave", x, s.ws(k, WFlying)); err != nil {
		return err
	}
	s.Way.put(k, with(s.Way.Of(k), s.Scont.Of(s.From.Of(k))))
	return nil
}

func (s *State) ws(k XG, want WState) condition {
	return always("ws x g = "+want.String(), s.Ws.Of(k) == want)
}

// LandBody: the body of a write lands.
func (s *State) LandBody(x X, g G, v Bytes) error {
	k := XG{x, g}
	if err := s.allow("LandBody", x, always("way x g v", slices.Contains(s.Way.Of(k), v)), guarded(FenceHolds, !s.Dead.Of(x)), s.gated(x, g)); err != nil {
		return err
	}
	s.Cont.put(g, v)
	s.Lb.put(k, true)
	return nil
}

// LandTag: its tags land.
func (s *State) LandTag(x X, g G, v Bytes) error {
	k := XG{x, g}
	if err := s.allow("LandTag", x, always("way x g v", slices.Contains(s.Way.Of(k), v)), guarded(FenceHolds, !s.Dead.Of(x)), s.gated(x, g)); err != nil {
		return err
	}
	s.Tag.put(g, x)
	s.Lt.put(k, true)
	return nil
}

// Vanish: what has left will not land again.
func (s *State) Vanish(x X, g G, w Bytes) error {
	k := XG{x, g}
	s.Way.put(k, without(s.Way.Of(k), func(v Bytes) bool { return v == w }))
	return s.allow("Vanish", x)
}

// ReportOK: the source is told that a write has landed.
func (s *State) ReportOK(x X, g G) error {
	k := XG{x, g}
	if err := s.allow("ReportOK", x, s.ws(k, WFlying)); err != nil {
		return err
	}
	s.Ws.put(k, WOk)
	return nil
}

// ReportRefused: it is told that a write has not landed and never will.
func (s *State) ReportRefused(x X, g G) error {
	k := XG{x, g}
	if err := s.allow("ReportRefused", x, s.ws(k, WFlying), guarded(Refusals, len(s.Way.Of(k)) == 0)); err != nil {
		return err
	}
	s.Ws.put(k, WRefused)
	return nil
}

// ReportLost: it is told that nobody knows.
func (s *State) ReportLost(x X, g G) error {
	k := XG{x, g}
	if err := s.allow("ReportLost", x, s.ws(k, WFlying)); err != nil {
		return err
	}
	s.Ws.put(k, WLost)
	return nil
}

// WildWrite: a sender that is not ours sends v to page g in the name of x.
func (s *State) WildWrite(x X, g G, v Bytes) error {
	if err := s.allow("WildWrite", x, always("~ on Honest", !s.on.Has(Honest))); err != nil {
		return err
	}
	k := XG{x, g}
	s.Way.put(k, with(s.Way.Of(k), v))
	return nil
}

// WildClosed: a sender that is not ours says CLOSED of x.
func (s *State) WildClosed(x X, c Closed) error {
	if err := s.allow("WildClosed", x, always("~ on Honest", !s.on.Has(Honest))); err != nil {
		return err
	}
	s.Said.put(x, c)
	return nil
}

// join names states: one, or one of several.
func join[T fmt.Stringer](list []T) string {
	var names []string
	for _, v := range list {
		names = append(names, v.String())
	}
	return "x = " + strings.Join(names, " \\/ ")
}
