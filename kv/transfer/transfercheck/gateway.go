package transfercheck

import (
	"fmt"
	"slices"

	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Fronting is the part of a world that has a gateway as a machine. Without it a
// request is just submitted, up to Attempts times.
type Fronting struct {
	Gateway        bool // clients connect to a gateway, which submits, retries once and answers
	GatewayCrashes int
	AnyBoot        bool // broken: an answer is matched by its number alone
	KeepOrphans    bool // broken: workers go on with what a lost gateway owned
}

// triesMax is how often a gateway submits one client's request.
const triesMax = 2

// ticket names one attempt of a gateway. Workers keep it with the job and put it on
// the answer; numbers begin again with each boot.
type ticket struct{ boot, number, try uint8 }

// stream is a client's connection, as long as this boot of the gateway lives.
type stream struct {
	ticket       // of the newest attempt
	waiting bool // for the answer to that
	outcome transfer.Code
}

// gateway is what it knows. A crash loses all of it.
type gateway struct {
	boot    uint8
	numbers uint8    // given out in this boot
	streams []stream // by request; the zero ticket is no connection
}

// reply is an answer on its way to whatever boot of the gateway is there.
type reply struct {
	ticket
	request uint8 // whose text it is
	code    transfer.Code
}

// waits reports whether a request's client or its gateway wants nothing started now.
func (w *World) waits(r int) bool {
	if !w.config.Gateway {
		return w.requests[r].open > 0 && !w.config.Twice
	}
	s := &w.gateway.streams[r]
	return s.waiting || s.try == triesMax
}

// issue is the ticket of a new attempt: a client that has no connection makes one.
func (w *World) issue(r int) ticket {
	if !w.config.Gateway {
		return ticket{boot: 1}
	}
	g := &w.gateway
	g.streams = slices.Clone(g.streams)
	s := &g.streams[r]
	if s.ticket == (ticket{}) {
		g.numbers++
		s.ticket = ticket{boot: g.boot, number: g.numbers}
	}
	s.try++
	s.waiting = true
	return s.ticket
}

// reply sends a transfer's answer to the gateway.
func (w *World) reply(j *job, code transfer.Code) {
	w.replies = append(slices.Clip(w.replies), reply{j.ticket, j.request, code})
	slices.SortFunc(w.replies, func(a, b reply) int { return slices.Compare(a.order(), b.order()) })
}

func (r reply) order() []uint8 { return []uint8{r.boot, r.number, r.try, r.request, uint8(r.code)} }

// hear takes an answer for the attempt that it names, if that is the one a client
// waits for. Everything else is dropped.
func (w *World) hear(k int) {
	r := w.replies[k]
	w.replies = slices.Delete(slices.Clone(w.replies), k, k+1)
	i := slices.IndexFunc(w.gateway.streams, func(s stream) bool {
		return s.waiting && s.number == r.number && (s.boot == r.boot || w.config.AnyBoot) && s.try == r.try
	})
	if i < 0 {
		return
	}
	s := &w.gateway.streams[i]
	if int(r.request) != i+1 {
		w.fail(fmt.Sprintf("OwnStream: the client of request %d gets the answer of request %d", i+1, r.request))
	}
	s.waiting, s.outcome = false, r.code
	w.requests[i].done = r.code == transfer.CodeDone || r.code == transfer.CodeTooLarge || s.try == triesMax
}

// crashGateway loses every stream. Clients whose request is not done connect again.
func (w *World) crashGateway() {
	w.gateway = gateway{boot: w.gateway.boot + 1, streams: make([]stream, len(w.requests))}
}

// orphaned reports whether a boot of the gateway is gone. Workers see their session
// with it end.
func (w *World) orphaned(boot uint8) bool {
	return w.config.Gateway && boot != w.gateway.boot
}

// gatewayActions lists what its machine and its clients can do beside submitting.
func (w *World) gatewayActions(list []Action) []Action {
	if !w.config.Gateway {
		return list
	}
	for k := range w.replies {
		list = append(list, Action{kind: hear, a: k})
	}
	if int(w.used.gatewayCrashes) < w.config.GatewayCrashes {
		list = append(list, Action{kind: crashGateway})
	}
	if w.config.KeepOrphans {
		return list
	}
	for i, d := range w.decodes {
		for k := range d.jobs {
			if j := &d.jobs[k]; !j.answered && w.orphaned(j.ticket.boot) {
				list = append(list, Action{kind: orphan, a: i, x: j.x})
			}
		}
	}
	for i, p := range w.prefills {
		for k := range p.jobs {
			if j := &p.jobs[k]; !j.cancelled && w.orphaned(uint8(j.grant.GatewayBoot)) {
				list = append(list, Action{kind: orphanSource, a: i, x: j.x})
			}
		}
	}
	return list
}

func (w *World) applyGateway(a Action) {
	switch a.kind {
	case hear:
		w.gateway.streams = slices.Clone(w.gateway.streams)
		w.hear(a.a)
	case crashGateway:
		w.used.gatewayCrashes++
		w.crashGateway()
	case orphan:
		w.stepTarget(uint8(a.a), transfer.Cancel{X: a.x})
	case orphanSource:
		w.mutPrefill(uint8(a.a)).job(a.x).cancelled = true
		w.stepSource(uint8(a.a), transfer.Cancel{X: a.x})
	default:
	}
}

// forgetReplies drops answers that no boot will take any more.
func (w *World) forgetReplies() {
	if w.config.Gateway && !w.config.AnyBoot {
		w.replies = slices.DeleteFunc(slices.Clone(w.replies), func(r reply) bool { return r.boot != w.gateway.boot })
	}
}

// unanswered says which client waits for an answer that is not on its way.
func (w *World) unanswered() error {
	for r := range w.gateway.streams {
		if s := &w.gateway.streams[r]; s.waiting {
			return fmt.Errorf("the client of request %d waits for try %d", r+1, s.try)
		}
	}
	return nil
}

// gatewayKey is the form of the gateway and of what is on its way to it.
func (w *World) gatewayKey(key []byte) []byte {
	if !w.config.Gateway {
		return key
	}
	key = append(key, 0xf0, w.gateway.boot, w.gateway.numbers, w.used.gatewayCrashes)
	for _, s := range w.gateway.streams {
		key = append(key, s.number, s.try, bit(s.waiting), uint8(s.outcome))
	}
	for _, r := range w.replies {
		key = append(append(key, 0xf1), r.order()...)
	}
	return key
}

// gatewayProofs are worlds in which something about the gateway is broken, and what
// breaks with it. They are no guards of this module: what they stand for is the
// gateway's and the workers' own.
func gatewayProofs() map[string]Config {
	worlds := GatewayWorlds(OneSided)
	anyBoot, keep := worlds[1], worlds[0]
	anyBoot.AnyBoot, keep.KeepOrphans = true, true
	return map[string]Config{"OwnStream": anyBoot, "Rest": keep}
}

// GatewayWorlds are the configurations with the gateway as a machine.
func GatewayWorlds(t Transport) []Config {
	front := func(name string, vary func(*Config)) Config {
		return small(name, t, func(c *Config) {
			c.Gateway, c.GatewayCrashes, c.Cancels, c.Attempts, c.Pages, c.SourcePages = true, 1, false, 2, 1, 1
			vary(c)
		})
	}
	return []Config{
		front("gateway crashes", func(c *Config) { c.Requests, c.Pages, c.SourcePages = []int{1}, 2, 2 }),
		front("gateway crashes, two clients", func(*Config) {}),
		front("gateway crashes and retries", func(c *Config) { c.Requests, c.Attempts, c.Cancels = []int{1}, 3, true }),
		front("gateway and prefill crash", func(c *Config) { c.Requests, c.PrefillCrashes = []int{1}, 1 }),
		front("gateway crashes, false suspicion", func(c *Config) { c.Requests, c.Suspicions = []int{1}, 1 }),
	}
}
