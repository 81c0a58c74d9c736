package transfercheck

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/pool"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transfer/proved"
)

// Lockstep has the proved machine follow a world: each action must be a run of its
// transitions, and afterwards the two must agree.
type Lockstep struct {
	But   []proved.Guard // not asked for, because the world breaks them
	Tally *proved.Tally  // counts what is taken; one goroutine explores
}

// shadow is the proved machine beside a world.
type shadow struct {
	*proved.State
	made []made // in the order of their opening
}

// made is what a world knows of a transfer and the proof does not ask.
type made struct {
	x       kv.TransferID
	request uint8
	link    transfer.Peer
}

func newShadow(w *World) *shadow {
	s := &shadow{State: proved.New(asked(w.config))}
	s.Tally = w.config.Lockstep.Tally
	if c := w.config; c.DecodeCache || c.SourceCache || c.Scrub || c.Ranks > 1 {
		w.fail("Lockstep: caches, scrub and ranks are not followed")
	}
	for i, p := range w.prefills {
		s.Boot(prefillNode(uint8(i)), p.epoch)
	}
	return s
}

// asked are the guards that the proof asks for in such a world. A receiver that
// does not place does not look first whose the page is, and what a world breaks of
// a transport's promises is not trusted.
func asked(c *Config) proved.Set {
	but := slices.Clone(c.Lockstep.But)
	if !c.Transport.Places {
		but = append(but, proved.Gate)
	}
	if c.LostWrites > 0 && !c.Transport.Places {
		but = append(but, proved.Reports)
	}
	if c.LateWrites > 0 {
		but = append(but, proved.Reports, proved.Ordered)
	}
	return proved.All(but...)
}

func (s *shadow) clone() *shadow {
	if s == nil {
		return nil
	}
	return &shadow{s.Clone(), slices.Clone(s.made)}
}

// of is what the world knows of x.
func (s *shadow) of(x kv.TransferID) made {
	i := slices.IndexFunc(s.made, func(m made) bool { return m.x == x })
	if i < 0 {
		return made{}
	}
	return s.made[i]
}

func decodeNode(i uint8) string  { return string('a' + rune(i)) }
func prefillNode(i uint8) string { return string('p' + rune(i)) }

// follow takes transitions of the proved machine, where there is one.
func (w *World) follow(take func(s *shadow) error) {
	if w.shadow == nil {
		return
	}
	if err := take(w.shadow); err != nil {
		w.fail("Lockstep: " + err.Error())
	}
}

// followTarget has the proved machine take what decode's machine will do.
func (w *World) followTarget(i uint8, d *decode) {
	if w.shadow == nil {
		return
	}
	d.target.Watch(func(c transfer.Cell) {
		if c.Input == "open" {
			w.make(i, d.job(c.X))
		}
		w.follow(func(s *shadow) error { return s.Decode(c.State, c.Input, proved.Args{X: c.X}) })
	})
}

// make tells the proved machine what a transfer is made with.
func (w *World) make(i uint8, j *job) {
	l := w.link(j.link)
	t := proved.Transfer{Peer: prefillNode(l.prefill), Nonce: l.source, Node: decodeNode(i)}
	for _, ref := range j.pages {
		t.Mine = append(t.Mine, proved.G{Node: t.Node, Slot: ref.Slot})
	}
	w.shadow.Make(j.x, t)
	w.shadow.made = append(w.shadow.made, made{j.x, j.request, j.link})
	if l.sourceGone && w.prefills[l.prefill].epoch == l.source {
		w.follow(func(s *shadow) error { return s.Pass(j.x) })
	}
}

// followSource has the proved machine take what prefill's machine will do.
func (w *World) followSource(i uint8, p *prefill, e transfer.SourceEvent) {
	if w.shadow == nil {
		return
	}
	w.pass(p, e)
	p.source.Watch(func(c transfer.Cell) {
		w.follow(func(s *shadow) error { return s.Prefill(c.State, c.Input, w.sourceArgs(i, p, e, c)) })
	})
}

// pass takes the transfers that a message's low mark passes, or whose link ends.
func (w *World) pass(p *prefill, e transfer.SourceEvent) {
	var peer transfer.Peer
	var below uint64
	switch e := e.(type) {
	case transfer.PeerLost:
		peer, below = e.Peer, ^uint64(0)
	case transfer.Received:
		l := w.link(e.Peer)
		x, to := addressee(e.Message)
		if to == p.epoch && x.Epoch == l.target && !l.sourceDoubt {
			peer, below = e.Peer, lowOf(e.Message)
		}
	default:
	}
	w.follow(func(s *shadow) error {
		for _, m := range s.made {
			if m.link == peer && m.x.Sequence < below {
				if err := s.Pass(m.x); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func addressee(m transfer.Message) (x kv.TransferID, to kv.Epoch) {
	switch m := m.(type) {
	case transfer.Grant:
		return m.X, m.SourceEpoch
	case transfer.Abort:
		return m.X, m.SourceEpoch
	}
	return x, to
}

func (w *World) sourceArgs(i uint8, p *prefill, e transfer.SourceEvent, c transfer.Cell) proved.Args {
	a := proved.Args{X: c.X, Silent: !slices.ContainsFunc(c.Effects, func(e transfer.Effect) bool { return e.Kind == transfer.DoSend })}
	switch e := e.(type) {
	case transfer.Admitted:
		for _, ref := range p.job(e.X).pages {
			a.Source = append(a.Source, w.sourcePage(i, p, ref.Slot))
		}
	case transfer.Computed:
		j := p.job(e.X)
		slot := j.pages[e.Block].Slot
		a.G, a.H = w.granted(e.X, e.Block), w.sourcePage(i, p, slot)
		a.Value = valueOf(e.X, a.G, p.memory[slot], content{j.request, uint8(e.Block)})
	case transfer.Written:
		a.G = w.granted(e.X, e.Block)
	default:
	}
	return a
}

func (w *World) sourcePage(i uint8, p *prefill, slot kv.Slot) proved.H {
	return proved.H{Node: prefillNode(i), Epoch: p.epoch, Slot: slot}
}

// granted is the page that a block of x goes to.
func (w *World) granted(x kv.TransferID, block uint32) (g proved.G) {
	if mine := w.shadow.World.Of(x).Mine; int(block) < len(mine) {
		g = mine[block]
	}
	return g
}

// valueOf is what the proof calls a page's content.
func valueOf(x kv.TransferID, g proved.G, got, want content) (v proved.Bytes) {
	if got == want {
		v = proved.Val(x, g)
	}
	return v
}

// followCompute: a step writes a block, whatever the machine makes of it.
func (w *World) followCompute(i uint8, p *prefill, x kv.TransferID, block uint8) {
	w.follow(func(s *shadow) error {
		a := w.sourceArgs(i, p, transfer.Computed{X: x, Block: uint32(block)}, transfer.Cell{X: x})
		return s.KernelP(x, a.H, a.Value)
	})
}

// leave has the bytes of a write leave, once, and says what they are.
func (s *shadow) leave(k proved.XG) (v proved.Bytes, err error) {
	if len(s.Way.Of(k)) == 0 {
		err = s.Leave(k.X, k.G)
	}
	if err == nil {
		v = s.Way.Of(k)[0]
	}
	return v, err
}

// vanish ends what is on its way of a write.
func (s *shadow) vanish(k proved.XG) error {
	for _, v := range s.Way.Of(k) {
		if err := s.Vanish(k.X, k.G, v); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) pageOf(r *write) proved.XG {
	return proved.XG{X: r.x, G: proved.G{Node: decodeNode(w.link(r.link).decode), Slot: r.to.Slot}}
}

// followLeave: the bytes of a write leave their sender, unless the write is over.
func (w *World) followLeave(r *write) {
	if r.landed || r.refused {
		return
	}
	w.follow(func(s *shadow) error {
		_, err := s.leave(w.pageOf(r))
		return err
	})
}

// followLand: a part of a write lands, or both.
func (w *World) followLand(r *write, body, tags bool) {
	w.follow(func(s *shadow) error {
		k := w.pageOf(r)
		v, err := s.leave(k)
		if err == nil && body {
			err = s.LandBody(k.X, k.G, v)
		}
		if err == nil && tags {
			err = s.LandTag(k.X, k.G, v)
		}
		return err
	})
}

// followEnd: nothing of a write is on its way any more.
func (w *World) followEnd(r *write) {
	w.follow(func(s *shadow) error { return s.vanish(w.pageOf(r)) })
}

// followFence: nothing of these transfers lands any more.
func (w *World) followFence(which func(made) bool) {
	w.follow(func(s *shadow) error { return s.Fence(s.those(which)...) })
}

// those lists transfers.
func (s *shadow) those(which func(made) bool) (list []kv.TransferID) {
	for _, m := range s.made {
		if which(m) {
			list = append(list, m.x)
		}
	}
	return list
}

// followGrow: a sequence takes a page, zeroed, and writes it.
func (w *World) followGrow(i uint8, x kv.TransferID, slot kv.Slot) {
	w.follow(func(s *shadow) error {
		g := proved.G{Node: decodeNode(i), Slot: slot}
		if err := s.Grow(x, g, proved.Zero); err != nil {
			return err
		}
		return s.KernelD(x, g)
	})
}

// followCrashPrefill: an incarnation begins.
func (w *World) followCrashPrefill(i uint8) {
	w.follow(func(s *shadow) error { return s.CrashP(prefillNode(i), w.prefills[i].epoch) })
}

// followCrashDecode: an incarnation has ended, and its links with it.
func (w *World) followCrashDecode(i uint8) {
	w.follow(func(s *shadow) error {
		return s.CrashD(decodeNode(i), s.those(func(m made) bool { return s.World.Of(m.x).Node == decodeNode(i) })...)
	})
}

// agree holds the proved machine's state against the world.
func (w *World) agree() {
	if w.shadow == nil {
		return
	}
	for _, m := range w.shadow.made {
		w.follow(func(s *shadow) error { return w.sameAtDecode(s, m) })
		w.follow(func(s *shadow) error { return w.sameAtPrefill(s, m) })
		w.follow(func(s *shadow) error { return w.sameOnTheWay(s, m) })
	}
	for i := range w.decodes {
		w.follow(func(s *shadow) error { return w.sameDecodePages(s, uint8(i)) })
	}
	for i := range w.prefills {
		w.follow(func(s *shadow) error { return w.samePrefillPages(s, uint8(i)) })
	}
	w.follow(w.sameWrites)
	w.follow(w.sameLetters)
}

// differ is a difference between the world and the proved machine.
func differ(field string, x kv.TransferID, proved, world any) error {
	return fmt.Errorf("%s of %s is %v in the proved machine, %v in the world", field, showX(x), proved, world)
}

func (w *World) sameAtDecode(s *shadow, m made) error {
	x, l := m.x, w.link(m.link)
	d := w.decodes[l.decode]
	stage, j := "", (*job)(nil)
	if d.epoch == x.Epoch {
		stage, j = d.target.Stage(x), d.job(x)
	}
	if s.Dst.Of(x) != proved.AtDecode(stage) {
		return differ("dst", x, s.Dst.Of(x), stage)
	}
	if j == nil {
		if s.Kd.Of(x) {
			return differ("kd", x, true, "gone")
		}
		return nil
	}
	kernel := d.pool.Page(j.pages[0].Slot).Holders[pool.Kernel] > 0
	var grown []proved.G
	for _, ref := range j.grown {
		grown = append(grown, proved.G{Node: decodeNode(l.decode), Slot: ref.Slot})
	}
	switch {
	case s.Kd.Of(x) != kernel || kernel != j.kernel:
		return differ("kd", x, s.Kd.Of(x), kernel)
	case s.Ver.Of(x) != j.started:
		return differ("ver", x, s.Ver.Of(x), j.started)
	case !slices.Equal(s.Grn.Of(x), grown):
		return differ("grn", x, s.Grn.Of(x), grown)
	}
	for n, g := range s.World.Of(x).Mine {
		if landed := j.landed>>n&1 != 0; s.Lb.Of(proved.XG{X: x, G: g}) != landed && !w.config.Transport.Torn {
			return differ("lb", x, !landed, landed)
		}
	}
	return nil
}

func (w *World) sameAtPrefill(s *shadow, m made) error {
	x, l := m.x, w.link(m.link)
	p := w.prefills[l.prefill]
	stage := p.source.Stage(x)
	if s.Pst.Of(x) != proved.AtPrefill(stage) {
		return differ("pst", x, s.Pst.Of(x), stage)
	}
	if s.Inc.Of(prefillNode(l.prefill)) != p.epoch {
		return differ("inc", x, s.Inc.Of(prefillNode(l.prefill)), p.epoch)
	}
	if p.epoch != l.source {
		return nil
	}
	if past := l.sourceGone || x.Sequence < l.low; s.Past.Of(x) != past {
		return differ("past", x, s.Past.Of(x), past)
	}
	j := p.job(x)
	if j == nil || len(j.pages) == 0 {
		if len(s.Kw.Of(x)) > 0 {
			return differ("kw", x, s.Kw.Of(x), "none")
		}
		return nil
	}
	for n, ref := range j.pages {
		may := slices.Contains(s.Kw.Of(x), w.sourcePage(l.prefill, p, ref.Slot))
		kernel := p.pool.Page(ref.Slot).Holders[pool.Kernel] > 0
		if may && !kernel || kernel && n >= j.computed && !may {
			return differ("kw", x, may, kernel)
		}
	}
	return nil
}

// sameOnTheWay compares what can still land of a transfer.
func (w *World) sameOnTheWay(s *shadow, m made) error {
	x, l := m.x, w.link(m.link)
	up := w.decodes[l.decode].epoch == x.Epoch
	fenced := l.torn || !up || slices.Contains(w.decodes[l.decode].fenced, x)
	if fenced && !s.Dead.Of(x) || s.Dead.Of(x) && !fenced && w.mayWrite(x) {
		return differ("dead", x, s.Dead.Of(x), fenced)
	}
	for n, g := range s.World.Of(x).Mine {
		k := proved.XG{X: x, G: g}
		i := slices.IndexFunc(w.writes, func(r write) bool { return r.x == x && int(r.block) == n })
		flying := i >= 0 && !w.writes[i].reported
		if s.Ws.Of(k) == proved.WFlying && !flying && w.prefills[l.prefill].epoch == l.source {
			return differ("ws", x, s.Ws.Of(k), "reported")
		}
		if way := i >= 0 && !w.writes[i].landed && !w.writes[i].refused; len(s.Way.Of(k)) > 0 && !way {
			return differ("way", x, s.Way.Of(k), "over")
		}
	}
	return nil
}

// sameWrites compares each write with what the proved machine knows of it.
func (w *World) sameWrites(s *shadow) error {
	for i := range w.writes {
		r := &w.writes[i]
		k := w.pageOf(r)
		if flying := s.Ws.Of(k) == proved.WFlying; flying == r.reported {
			return differ("ws", r.x, s.Ws.Of(k), map[bool]string{false: "flying", true: "reported"}[r.reported])
		}
		if !r.left || r.landed || r.refused {
			continue
		}
		want := valueOf(r.x, k.G, r.bytes, content{s.of(r.x).request, r.block})
		if len(s.Way.Of(k)) != 1 || s.Way.Of(k)[0] != want {
			return differ("way", r.x, s.Way.Of(k), r.bytes)
		}
	}
	return nil
}

// sameLetters compares CLOSED messages with what the proved machine has said.
func (w *World) sameLetters(s *shadow) error {
	heard := map[kv.TransferID]bool{}
	for i := range w.letters {
		c, ok := w.letters[i].message.(transfer.Closed)
		if !ok {
			continue
		}
		want := proved.Failed
		if c.Outcome == transfer.OutcomeDone {
			want = proved.Done
		}
		if s.Said.Of(c.X) != want {
			return differ("said", c.X, s.Said.Of(c.X), want)
		}
		heard[c.X] = true
	}
	for _, m := range s.made {
		if said := s.Said.Of(m.x); said != proved.Quiet && !heard[m.x] && w.has(m.x) && w.targetUp(w.link(m.link)) {
			return differ("said", m.x, said, "no letter")
		}
	}
	return nil
}

// sameDecodePages compares owners, and the bytes and tags that the proof knows.
func (w *World) sameDecodePages(s *shadow, i uint8) error {
	d := w.decodes[i]
	for slot := range d.memory {
		g, page, m := proved.G{Node: decodeNode(i), Slot: kv.Slot(slot)}, d.pool.Page(kv.Slot(slot)), d.memory[slot]
		var owner []kv.TransferID
		if page.State != pool.Free {
			owner = append(owner, page.X)
		}
		if !slices.Equal(s.Own.Of(g), owner) {
			return fmt.Errorf("own of page %d of D%d is %v in the proved machine, %v in the world", slot, i, s.Own.Of(g), owner)
		}
		if x, of, computed := s.Cont.Of(g).Of(); computed && m.body != w.contentOf(s, x, of) {
			return differ("cont", x, s.Cont.Of(g), m.body)
		}
		// A tag that is poisoned stands for no tag of the proof.
		if x := s.Tag.Of(g); !x.IsZero() && m.header.x != x && !m.header.x.IsZero() {
			return differ("tag", x, x, m.header.x)
		}
	}
	return nil
}

// contentOf is what is computed for a page of x.
func (w *World) contentOf(s *shadow, x kv.TransferID, g proved.G) content {
	pages := slices.Concat(s.World.Of(x).Mine, s.Grn.Of(x))
	return content{s.of(x).request, uint8(slices.Index(pages, g))}
}

func (w *World) samePrefillPages(s *shadow, i uint8) error {
	p := w.prefills[i]
	for slot := range p.memory {
		h, page := w.sourcePage(i, p, kv.Slot(slot)), p.pool.Page(kv.Slot(slot))
		var holder kv.TransferID
		if page.State != pool.Free {
			holder = page.X
		}
		if s.Hold.Of(h) != holder {
			return fmt.Errorf("hold of page %d of P%d is %v in the proved machine, %v in the world", slot, i, s.Hold.Of(h), holder)
		}
		if x, of, computed := s.Scont.Of(h).Of(); computed && p.memory[slot] != w.contentOf(s, x, of) {
			return differ("scont", x, s.Scont.Of(h), p.memory[slot])
		}
	}
	return nil
}

// appendKey appends what the proved machine knows and no comparison pins down, of
// the transfers that can still matter: of others nothing is asked any more.
func (s *shadow) appendKey(key []byte, e *encoder) []byte {
	for _, x := range s.those(func(m made) bool { return e.w.has(m.x) || e.w.mayWrite(m.x) }) {
		key = append(e.x(append(key, 0xe0), x), byte(s.Dst.Of(x)), byte(s.Pst.Of(x)), byte(s.Said.Of(x)), bit(s.Dead.Of(x))|bit(s.Past.Of(x))<<1|bit(s.Kd.Of(x))<<2|bit(s.Ver.Of(x))<<3)
		for _, g := range s.World.Of(x).Mine {
			k := proved.XG{X: x, G: g}
			of, at, computed := s.Cont.Of(g).Of()
			key = append(key, byte(s.Ws.Of(k)), bit(s.Lb.Of(k))|bit(s.Lt.Of(k))<<1|bit(s.Tag.Of(g) == x)<<2|bit(computed && of == x && at == g)<<3, byte(len(s.Way.Of(k))))
		}
	}
	return key
}
