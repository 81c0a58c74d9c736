package conform

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// run re-executes one incarnation.
type run struct {
	Epoch
	machine machine // nil until boot
	last    [hashBytes]byte
	scratch []byte
	over    bool // differs or is inconclusive
	cut     bool // its beginning may have been deleted
	lossy   bool // entries were lost, and nothing has shown since that they were not the machine's

	first *ledger.Entry // part that is continued
	input []byte        // of the parts so far
	pages []kv.PageRef

	owed map[kv.TransferID]uint32 // what a machine has said of a transfer's pages, as bits of effect kinds; of a prefill worker's, those taken

	tell     func(move)                               // is told each step that conforms; may be nil
	machines func(*transfer.Source, *transfer.Target) // is given the machine; may be nil
	cells    []transfer.Cell                          // of the step
	taken    map[kv.TransferID][]kv.PageRef           // by the worker for its own part of a transfer that has not begun
	at       ledger.Place
}

func newRun(node string, epoch kv.Epoch) *run {
	return &run{Epoch: Epoch{Node: node, Epoch: epoch}, owed: map[kv.TransferID]uint32{}, taken: map[kv.TransferID][]kv.PageRef{}}
}

// entry takes the next entry of the incarnation, of any kind.
func (r *run) entry(e *ledger.Entry, at ledger.Place) {
	r.Entries++
	if r.over {
		return
	}
	r.at = at
	var err error
	switch e.Kind {
	case ledger.Transfer:
		err = r.transfer(e)
	case ledger.Pool:
		err = r.pool(e)
	case ledger.Note:
		if e.Event == "lost" {
			r.lossy, r.first = true, nil
		}
	case ledger.Request:
	}
	if err != nil {
		r.stop(e, at, err)
	}
}

// stop ends the run: it differs, unless something missing explains that.
func (r *run) stop(e *ledger.Entry, at ledger.Place, err error) {
	r.over = true
	switch {
	case r.machine == nil && r.cut:
		r.Verdict, r.Why = Inconclusive, "the ledger's older segments are gone, and with them how this incarnation began"
	case r.machine == nil && errors.Is(err, errVersion):
		r.Verdict, r.Why = Inconclusive, err.Error()
	case r.lossy:
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("entries before %v were lost, the ledger's queue was full", at)
	default:
		r.Verdict = Differs
		r.Finding = &Finding{Place: at, Sequence: e.Sequence, Event: e.Event, X: e.X, Why: err.Error()}
		var d *difference
		if errors.As(err, &d) {
			r.Finding.Expected, r.Finding.Found = d.expected, d.found
		}
	}
}

// conclude gives the verdict on a run that has come to its end.
func (r *run) conclude() {
	switch {
	case r.over:
	case r.machine == nil:
		r.Verdict = NoMachine
	case r.lossy:
		r.Verdict, r.Why = Inconclusive, "entries were lost at the end, the ledger's queue was full"
	default:
		r.Verdict = Conforms
	}
}

var (
	errVersion = errors.New("written by another version")
	errNoBoot  = errors.New("the incarnation does not begin with its machine's configuration")
)

// difference is an answer that is not the machine's.
type difference struct{ expected, found string }

func (d *difference) Error() string { return "the answer is not the machine's" }

// transfer takes an entry of the machine, or a part of one.
func (r *run) transfer(e *ledger.Entry) error {
	if r.first == nil {
		r.input, r.pages = r.input[:0], r.pages[:0]
	} else if !alike(r.first, e) {
		return fmt.Errorf("it continues entry %d, which is about something else", r.first.Sequence)
	}
	r.input, r.pages = append(r.input, e.Input...), append(r.pages, e.Pages...)
	if len(r.input) > inputBytesMax {
		return fmt.Errorf("its input has %d bytes and more, at most %d are possible", len(r.input), inputBytesMax)
	}
	if len(e.Output) == 0 {
		if r.first == nil {
			first := *e
			r.first = &first
		}
		return nil
	}
	r.first = nil
	whole := *e
	whole.Pages = r.pages
	if e.Event == bootEvent {
		return r.boot(&whole)
	}
	if r.machine == nil {
		return errNoBoot
	}
	return r.step(&whole)
}

// alike reports whether two entries are about the same event.
func alike(a, b *ledger.Entry) bool {
	return a.Event == b.Event && a.X == b.X && a.GatewayBoot == b.GatewayBoot && a.Request == b.Request && a.Attempt == b.Attempt && a.Tenant == b.Tenant
}

func (r *run) boot(e *ledger.Entry) error {
	switch {
	case r.machine != nil:
		return errors.New("the incarnation begins twice")
	case !alike(&ledger.Entry{Event: bootEvent}, e) || len(e.Pages) > 0:
		return errors.New("a configuration is about no request")
	}
	if len(r.input) > 0 && r.input[0] != transfer.RecordVersion {
		return fmt.Errorf("%w of the records, %d, this one reads %d", errVersion, r.input[0], transfer.RecordVersion)
	}
	role, target, source, err := transfer.ParseConfig(r.input)
	if err != nil {
		return err
	}
	epoch := target.Epoch
	if role == transfer.RolePrefill {
		epoch = source.Epoch
	}
	if epoch != r.Epoch.Epoch {
		return fmt.Errorf("the machine is of epoch %016x, the ledger of %016x", uint64(epoch), uint64(r.Epoch.Epoch))
	}
	if role == transfer.RoleDecode {
		r.machine = decode{transfer.NewTarget(target)}
	} else {
		r.machine = prefill{transfer.NewSource(source)}
	}
	r.Role, r.Boot = role, e.Detail
	if r.tell != nil {
		r.watch()
	}
	if err := r.compare(e, nil); err != nil {
		return err
	}
	r.told(e, nil, nil)
	return nil
}

// watch has the machine tell the cells that it comes to.
func (r *run) watch() {
	see := func(c transfer.Cell) { r.cells = append(r.cells, c) }
	switch m := r.machine.(type) {
	case decode:
		m.Watch(see)
		if r.machines != nil {
			r.machines(nil, m.Target)
		}
	case prefill:
		m.Watch(see)
		if r.machines != nil {
			r.machines(m.Source, nil)
		}
	}
}

// told passes a step on.
func (r *run) told(e *ledger.Entry, event any, effects []transfer.Effect) {
	if r.tell == nil {
		return
	}
	m := move{node: r.Node, epoch: r.Epoch.Epoch, role: r.Role, at: r.at, sequence: e.Sequence, name: e.Event, event: event,
		cells: r.cells, effects: effects, stage: r.machine.Stage}
	r.cells = nil
	switch event.(type) {
	case transfer.Open, transfer.Admitted:
		m.taken = r.taken[e.X]
		delete(r.taken, e.X)
	}
	r.tell(m)
}

// step gives an event to the machine.
func (r *run) step(e *ledger.Entry) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("no machine takes this event: %v", v)
		}
	}()
	ticks, n := binary.Uvarint(r.input)
	if n <= 0 || ticks > ticksMax || n > 1 && r.input[n-1] == 0 {
		return errors.New("its input does not begin with a number of ticks")
	}
	event, err := r.machine.parse(r.input[n:])
	if err != nil {
		return err
	}
	said := identify(event)
	if !alike(&said, e) || !slices.Equal(said.Pages, e.Pages) {
		return fmt.Errorf("it says that it is %s of %v, its input is %s of %v", e.Event, e.X, said.Event, said.X)
	}
	for i := range ticks {
		if effects := r.machine.step(transfer.Tick{}); len(effects) > 0 {
			return &difference{fmt.Sprintf("%s at tick %d of %d before it", kinds(effects), i+1, ticks), "nothing"}
		}
	}
	r.Ticks += ticks
	effects := r.machine.step(event)
	if err := r.compare(e, effects); err != nil {
		return err
	}
	r.Steps++
	r.lossy = false
	r.note(effects)
	r.told(e, event, effects)
	return nil
}

// compare holds the answer against the record.
func (r *run) compare(e *ledger.Entry, effects []transfer.Effect) error {
	r.last, r.scratch = follow(r.scratch, r.last, r.input, effects, nil)
	if string(e.Output) != string(r.last[:]) {
		return &difference{fmt.Sprintf("%s (%s)", hex.EncodeToString(r.last[:]), kinds(effects)), hex.EncodeToString(e.Output)}
	}
	return nil
}

// kinds lists effects for people.
func kinds(effects []transfer.Effect) string {
	const shown = 8
	if len(effects) == 0 {
		return "nothing"
	}
	var list []string
	for i := range effects[:min(len(effects), shown)] {
		list = append(list, effects[i].Kind.String())
	}
	if len(effects) > shown {
		list = append(list, fmt.Sprintf("%d more", len(effects)-shown))
	}
	return strings.Join(list, ", ")
}

// note remembers what a machine has said of a transfer's pages. A prefill worker has
// none for a transfer that it refused.
func (r *run) note(effects []transfer.Effect) {
	for i := range effects {
		x := effects[i].X
		if !r.holds(x) {
			continue
		}
		switch k := effects[i].Kind; k {
		case transfer.DoStart, transfer.DoQuarantine, transfer.DoRelease:
			r.owed[x] |= 1 << k
		default:
		}
	}
}

// holds reports whether the worker may have pages for a transfer.
func (r *run) holds(x kv.TransferID) bool {
	_, taken := r.owed[x]
	return taken || r.Role == transfer.RoleDecode
}

// pool holds what became of a worker's pages against the machine's word.
func (r *run) pool(e *ledger.Entry) error {
	if r.machine == nil {
		return errNoBoot
	}
	if e.Event == "taken" {
		r.owed[e.X] |= 0 // from here on the machine's word is waited for
		if r.tell != nil {
			r.taken[e.X] = append(r.taken[e.X], e.Pages...)
		}
		return nil
	}
	if !r.holds(e.X) {
		return nil
	}
	var word transfer.EffectKind
	switch e.Event {
	case "adopted":
		word = transfer.DoStart
	case "quarantined":
		word = transfer.DoQuarantine
	case "free":
		word = transfer.DoRelease
	default:
		return nil
	}
	if r.owed[e.X]>>word&1 == 0 {
		return fmt.Errorf("the machine has not said %q", word)
	}
	r.owed[e.X] &^= 1 << word
	if word == transfer.DoRelease {
		delete(r.owed, e.X)
	}
	return nil
}

// machine is one of the two that serve.
type machine interface {
	parse(form []byte) (event any, err error)
	step(event any) []transfer.Effect
	Stage(x kv.TransferID) string
}

type decode struct{ *transfer.Target }

func (d decode) parse(form []byte) (any, error) { return transfer.ParseTargetEvent(form) }

func (d decode) step(event any) []transfer.Effect {
	if open, ok := event.(transfer.Open); ok && !d.Skip(open.X) {
		panic(fmt.Sprintf("transfer %v cannot be the next one", open.X))
	}
	return d.Step(event.(transfer.TargetEvent))
}

type prefill struct{ *transfer.Source }

func (p prefill) parse(form []byte) (any, error) { return transfer.ParseSourceEvent(form) }

func (p prefill) step(event any) []transfer.Effect { return p.Step(event.(transfer.SourceEvent)) }
