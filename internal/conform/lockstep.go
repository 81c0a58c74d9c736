package conform

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
	"github.com/bulkhead-kv/bulkhead/kv/transfer/proved"
)

// Lockstep is what was found when the machines of all nodes were run beside the one
// that is proved.
type Lockstep struct {
	Steps   int           // of the shipped machines
	Tally   *proved.Tally // of what they are runs of
	Verdict Verdict
	Why     string   // it is inconclusive
	Finding *Finding // the first step that is no run of proved transitions
}

// InOrder runs the proved machine beside those of all nodes whose entries these are,
// in the order in which they happened. Node and Epoch say whose an entry is.
// Machines, which may be nil, is given each machine that re-executes: tests below kv
// take the guards away that the workers' machines lacked.
func InOrder(entries []ledger.Entry, machines func(*transfer.Source, *transfer.Target)) Lockstep {
	j := newJoint()
	runs := map[kv.Epoch]*run{}
	for i, e := range entries {
		at := ledger.Place{Path: "memory", Line: i + 1}
		e.Sequence = uint64(i + 1)
		r := runs[e.Epoch]
		if r == nil {
			r = newRun(e.Node, e.Epoch)
			r.machines = machines
			r.tell = func(m move) {
				if wait := j.waits(&m); wait != nil {
					j.differs(&m, fmt.Errorf("it needs %v, which has not happened", wait))
				} else {
					j.take(&m)
				}
			}
			runs[e.Epoch] = r
		}
		if r.entry(&e, at); r.over && j.result.Verdict == Conforms {
			j.inconclusive("the ledger of %s could not be re-executed whole", r.Node)
		}
		if j.result.Verdict != Conforms {
			break
		}
	}
	return j.conclude()
}

// Together runs the proved machine beside those of all nodes whose ledgers these are.
// Steps of different nodes are put in an order by what each needs: a message has been
// sent, a page has been posted. No clock is looked at.
func Together(dirs []string) (Lockstep, error) {
	j := newJoint()
	var feeds []*feed
	for _, dir := range dirs {
		f := newFeed(dir)
		defer f.stop()
		feeds = append(feeds, f)
	}
	for more := true; more && j.result.Verdict == Conforms; {
		more = false
		for _, f := range feeds {
			for f.have && j.result.Verdict == Conforms && j.waits(&f.move) == nil {
				j.take(&f.move)
				f.advance()
				more = true
			}
		}
	}
	for _, f := range feeds {
		if f.err != nil {
			return j.conclude(), f.err
		}
		if f.over != "" {
			j.inconclusive("%s", f.over)
		}
	}
	for _, f := range feeds {
		if f.have {
			j.stuck(f)
		}
	}
	return j.conclude(), nil
}

// feed is the steps of one ledger, one at a time.
type feed struct {
	move    move
	have    bool
	err     error
	over    string // why there are no more than these
	advance func()
	stop    func()
}

func newFeed(dir string) *feed {
	f := &feed{}
	next, stop := iter.Pull(f.moves(dir))
	f.stop = stop
	f.advance = func() { f.move, f.have = next() }
	f.advance()
	return f
}

// moves re-executes a ledger.
func (f *feed) moves(dir string) iter.Seq[move] {
	return func(yield func(move) bool) {
		c := checker{report: Report{Dir: dir}}
		more := true
		c.tell = func(m move) { more = more && yield(m) }
		_, err := ledger.Visit(dir, func(e ledger.Entry, at ledger.Place) bool { return more && c.visit(e, at) && !c.run.over })
		var bad *ledger.BadEntry
		switch {
		case errors.As(err, &bad):
			f.over = fmt.Sprintf("the chain of %s breaks", dir)
		case err != nil:
			f.err = err
		case c.run != nil && c.run.over:
			f.over = fmt.Sprintf("%s could not be re-executed whole", dir)
		}
	}
}

// move is a step of one machine, re-executed.
type move struct {
	node     string
	epoch    kv.Epoch
	role     transfer.Role
	at       ledger.Place
	sequence uint64
	name     string
	event    any // nil at the incarnation's start
	cells    []transfer.Cell
	effects  []transfer.Effect
	taken    []kv.PageRef // by the worker, for its own part of the transfer, before this step
	stage    func(kv.TransferID) string
}

// joint is the proved machine, and what orders the steps of the shipped ones.
type joint struct {
	state  *proved.State
	result Lockstep
	peers  map[end]peer
	sent   map[token]bool
	nodes  map[string]bool    // that have started
	begun  map[kv.Epoch]bool  // incarnations that have started
	made   kv.Slot            // source pages that no ledger names
	ended  map[proved.XG]bool // pages that are not on their way any more
}

// end is a link as one incarnation numbers it.
type end struct {
	epoch kv.Epoch
	peer  transfer.Peer
}

// peer is the other end of a link.
type peer struct {
	node  string
	epoch kv.Epoch
}

// token is something that one node's step brings about and another's needs.
type token struct {
	what  string
	x     kv.TransferID
	block uint32
	by    kv.Epoch // who brings it about
}

func (t token) String() string {
	if t.what == "page" {
		return fmt.Sprintf("page %d of %v to be posted by %016x", t.block, t.x, uint64(t.by))
	}
	return fmt.Sprintf("%s of %v to be sent by %016x", t.what, t.x, uint64(t.by))
}

func newJoint() *joint {
	return &joint{state: proved.New(proved.All()), result: Lockstep{Verdict: Conforms}, peers: map[end]peer{}, sent: map[token]bool{},
		nodes: map[string]bool{}, begun: map[kv.Epoch]bool{}, ended: map[proved.XG]bool{}}
}

// needs is what must have happened elsewhere before a step, or nil.
func (j *joint) needs(m *move) *token {
	switch e := m.event.(type) {
	case transfer.Received:
		return &token{what: messageName(e.Message), x: transfer.TransferOf(e.Message), by: j.peers[end{m.epoch, e.Peer}].epoch}
	case transfer.Landed:
		return j.posted(e.X, e.Block)
	case transfer.PageRefused:
		return j.posted(e.X, e.Block)
	}
	return nil
}

// posted is that a page of x is under way.
func (j *joint) posted(x kv.TransferID, block uint32) *token {
	return &token{what: "page", x: x, block: block, by: j.state.World.Of(x).Nonce}
}

// waits is what a step still waits for, or nil.
func (j *joint) waits(m *move) *token {
	if need := j.needs(m); need != nil && !j.sent[*need] {
		return need
	}
	return nil
}

func messageName(m transfer.Message) string {
	switch m.(type) {
	case transfer.Grant:
		return "GRANT"
	case transfer.Abort:
		return "ABORT"
	case transfer.Closed:
		return "CLOSED"
	}
	return "message"
}

// take follows a step, and holds the proved machine's state against the shipped one's.
func (j *joint) take(m *move) {
	err := j.follow(m)
	for _, c := range m.cells {
		if err == nil {
			err = j.agree(m, c.X)
			j.state.Prune(c.X)
		}
	}
	if err != nil {
		j.differs(m, err)
		return
	}
	for _, e := range m.effects {
		switch e.Kind {
		case transfer.DoSend:
			j.sent[token{what: messageName(e.Message), x: e.X, by: m.epoch}] = true
		case transfer.DoWrite:
			j.sent[token{what: "page", x: e.X, block: e.Block, by: m.epoch}] = true
		default:
		}
	}
	j.result.Steps++
}

func (j *joint) agree(m *move, x kv.TransferID) error {
	stage := m.stage(x)
	if m.role == transfer.RoleDecode {
		if got := j.state.Dst.Of(x); got != proved.AtDecode(stage) {
			return fmt.Errorf("%v is %v in the proved machine, %q here", x, got, stage)
		}
		return nil
	}
	if got := j.state.Pst.Of(x); got != proved.AtPrefill(stage) {
		return fmt.Errorf("%v is %v in the proved machine, %q here", x, got, stage)
	}
	return nil
}

func (j *joint) follow(m *move) error {
	switch e := m.event.(type) {
	case nil:
		return j.start(m)
	case transfer.PeerUp:
		j.peers[end{m.epoch, e.Peer}] = peer{node: e.Hello.Node, epoch: e.Hello.Epoch}
	case transfer.Open:
		j.open(m, e)
	case transfer.Landed:
		if err := j.landed(e); err != nil {
			return err
		}
	case transfer.PageRefused:
		if err := j.over(e.X, e.Block); err != nil {
			return err
		}
	case transfer.Written:
		if err := j.written(e); err != nil {
			return err
		}
	}
	for _, c := range m.cells {
		if err := j.cell(m, c); err != nil {
			return err
		}
	}
	return nil
}

// start is a worker's: the end of the incarnation before it, if there was one.
func (j *joint) start(m *move) error {
	again := j.nodes[m.node]
	j.nodes[m.node], j.begun[m.epoch] = true, true
	switch {
	case m.role == transfer.RolePrefill && again:
		return j.state.CrashP(m.node, m.epoch)
	case m.role == transfer.RolePrefill:
		j.state.Boot(m.node, m.epoch)
	case again:
		var old []kv.TransferID
		for x, t := range j.state.World.All() {
			if t.Node == m.node {
				old = append(old, x)
			}
		}
		return j.state.CrashD(m.node, old...)
	}
	return nil
}

// open tells the proved machine what a transfer is made with.
func (j *joint) open(m *move, e transfer.Open) {
	source := j.peers[end{m.epoch, e.Peer}]
	if len(e.Prefix) > 0 {
		j.inconclusive("%v opens %v behind a prefix of the cache, which is not followed", m.at, e.X)
	}
	t := proved.Transfer{Peer: source.node, Nonce: source.epoch, Node: m.node}
	for _, ref := range e.Pages {
		t.Mine = append(t.Mine, proved.G{Node: m.node, Slot: ref.Slot})
	}
	j.state.Make(e.X, t)
}

// page is a block of x.
func (j *joint) page(x kv.TransferID, block uint32) (k proved.XG, known bool) {
	mine := j.state.World.Of(x).Mine
	if int64(block) >= int64(len(mine)) {
		return k, false
	}
	return proved.XG{X: x, G: mine[block]}, true
}

// leave has a page leave its sender, unless it has before.
func (j *joint) leave(k proved.XG) error {
	if len(j.state.Way.Of(k)) > 0 || j.ended[k] || j.state.Ws.Of(k) != proved.WFlying {
		return nil
	}
	return j.state.Leave(k.X, k.G)
}

// landed follows a page's arrival. One that is reported behind its transfer's end had
// landed before that.
func (j *joint) landed(e transfer.Landed) error {
	k, known := j.page(e.X, e.Block)
	if !known {
		return nil
	}
	if err := j.leave(k); err != nil {
		return err
	}
	d := j.state.Dst.Of(e.X)
	if !j.state.Dead.Of(e.X) && (d == proved.DRevoking || d == proved.DQuarantined) {
		return j.over(e.X, e.Block)
	}
	var bytes proved.Bytes
	if way := j.state.Way.Of(k); len(way) > 0 {
		bytes = way[0]
	}
	if err := j.state.LandBody(k.X, k.G, bytes); err != nil {
		return err
	}
	if err := j.state.LandTag(k.X, k.G, bytes); err != nil {
		return err
	}
	return j.over(e.X, e.Block)
}

// over: nothing of a page is on its way any more.
func (j *joint) over(x kv.TransferID, block uint32) error {
	k, known := j.page(x, block)
	if !known {
		return nil
	}
	j.ended[k] = true
	for _, v := range j.state.Way.Of(k) {
		if err := j.state.Vanish(k.X, k.G, v); err != nil {
			return err
		}
	}
	return nil
}

// written: what was not certainly taken back may be on its way for long.
func (j *joint) written(e transfer.Written) error {
	k, known := j.page(e.X, e.Block)
	if !known || e.Refused && !e.OK {
		return nil
	}
	return j.leave(k)
}

// cell follows a cell of the machine's table.
func (j *joint) cell(m *move, c transfer.Cell) error {
	a := proved.Args{X: c.X, Silent: !slices.ContainsFunc(c.Effects, func(e transfer.Effect) bool { return e.Kind == transfer.DoSend })}
	if m.role == transfer.RoleDecode {
		for _, ref := range m.taken {
			a.Output = append(a.Output, proved.G{Node: m.node, Slot: ref.Slot})
		}
		return j.state.Decode(c.State, c.Input, a)
	}
	switch e := m.event.(type) {
	case transfer.Admitted:
		a.Source = j.sources(m, e.X)
	case transfer.Computed:
		k, _ := j.page(e.X, e.Block)
		a.G, a.Value = k.G, proved.Val(k.X, k.G)
		if kw := j.state.Kw.Of(e.X); len(kw) > 0 {
			a.H = kw[0]
		}
	case transfer.Written:
		k, _ := j.page(e.X, e.Block)
		a.G = k.G
	}
	return j.state.Prefill(c.State, c.Input, a)
}

// sources are the source pages of x. A ledger that does not say which were taken
// gives ones that nothing else is.
func (j *joint) sources(m *move, x kv.TransferID) (pages []proved.H) {
	for _, ref := range m.taken {
		pages = append(pages, proved.H{Node: m.node, Epoch: m.epoch, Slot: ref.Slot})
	}
	for range j.state.World.Of(x).Mine[min(len(pages), len(j.state.World.Of(x).Mine)):] {
		j.made++
		pages = append(pages, proved.H{Node: m.node, Epoch: m.epoch, Slot: ^j.made})
	}
	return pages
}

func (j *joint) differs(m *move, err error) {
	if j.result.Verdict != Conforms {
		return
	}
	j.result.Verdict = Differs
	f := &Finding{Place: m.at, Sequence: m.sequence, Event: m.name, Why: fmt.Sprintf("no run of proved transitions at %s: %v", m.node, err)}
	if len(m.cells) > 0 {
		f.X = m.cells[0].X
	}
	j.result.Finding = f
}

func (j *joint) inconclusive(format string, args ...any) {
	if j.result.Verdict == Conforms {
		j.result.Verdict, j.result.Why = Inconclusive, fmt.Sprintf(format, args...)
	}
}

// stuck says what a ledger's next step waits for.
func (j *joint) stuck(f *feed) {
	need := j.waits(&f.move)
	if need == nil {
		return
	}
	where := "whose ledger does not have it"
	if !j.begun[need.by] {
		where = "whose ledger is missing"
	}
	j.inconclusive("%v waits for %v, %s", f.move.at, need, where)
}

func (j *joint) conclude() Lockstep {
	j.result.Tally = j.state.Tally
	return j.result
}

// String is the result in a line.
func (l Lockstep) String() string {
	switch l.Verdict {
	case Conforms:
		return fmt.Sprintf("lockstep: %d steps of all workers together are runs of %d proved transitions", l.Steps, l.Tally.Sum())
	case Differs:
		return fmt.Sprintf("lockstep: after %d steps, %v", l.Steps, l.Finding)
	default:
	}
	return strings.TrimSpace(fmt.Sprintf("lockstep: followed for %d steps, then not possible: %s", l.Steps, l.Why))
}
