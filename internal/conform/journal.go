package conform

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv/transfer"
)

// Form of a machine's entries, all of kind ledger.Transfer.
//
// The first one of an incarnation has the event "boot" and the machine's
// configuration as its Input. Each later one is a step: Input is the number of
// silent ticks since the last entry, as an unsigned varint, and the event's
// canonical form. A tick is silent when the machine answers nothing: it still ages
// transfers, so it is counted, but needs no entry of its own.
//
// Output is the front half of a SHA-256 over the entry before's Output (zeros at
// boot), the Input's length in 4 bytes, the Input and the canonical form of the
// machine's answer. So it covers everything since boot, and a step that is missing,
// doubled or moved shows as one that was changed.
//
// An Input that is longer than an entry may hold, or a list of pages, is continued:
// an entry without Output is a part of the next.
const (
	bootEvent = "boot"
	hashBytes = 16
	// ticksMax bounds the silent ticks of one entry; a tick that finds it reached is
	// an entry of its own. About nineteen days at ten a second.
	ticksMax = 1 << 24
	// inputBytesMax bounds an Input with all its parts.
	inputBytesMax = transfer.EventBytesMax + binary.MaxVarintLen64
)

// Journal writes the steps of one machine. Owner: the goroutine that steps the
// machine; every step is told, in order, before its effects are performed.
type Journal struct {
	put   func(ledger.Entry)
	veil  *transfer.Veil
	last  [hashBytes]byte
	ticks uint64
	input []byte // scratch
	form  []byte // scratch
}

// NewTargetJournal begins with a decode machine's configuration. build names the
// program, for people; put takes entries and must not block for long.
func NewTargetJournal(c transfer.TargetConfig, build string, veil *transfer.Veil, put func(ledger.Entry)) *Journal {
	j := &Journal{put: put, veil: veil, input: transfer.AppendTargetConfig(nil, c)}
	j.write(boot(transfer.RoleDecode, build), nil)
	return j
}

// NewSourceJournal begins with a prefill machine's configuration, as
// NewTargetJournal does.
func NewSourceJournal(c transfer.SourceConfig, build string, veil *transfer.Veil, put func(ledger.Entry)) *Journal {
	j := &Journal{put: put, veil: veil, input: transfer.AppendSourceConfig(nil, c)}
	j.write(boot(transfer.RolePrefill, build), nil)
	return j
}

func boot(role transfer.Role, build string) ledger.Entry {
	detail := role.String() + " " + build
	return ledger.Entry{Event: bootEvent, Detail: detail[:min(len(detail), ledger.WordBytesMax)]}
}

// Target writes a step of the decode machine.
func (j *Journal) Target(event transfer.TargetEvent, effects []transfer.Effect) {
	if _, tick := event.(transfer.Tick); tick && j.silent(effects) {
		return
	}
	j.input = transfer.AppendTargetEvent(j.spent(), j.veil.Target(event))
	j.write(describe(event), effects)
}

// Source writes a step of the prefill machine.
func (j *Journal) Source(event transfer.SourceEvent, effects []transfer.Effect) {
	if _, tick := event.(transfer.Tick); tick && j.silent(effects) {
		return
	}
	j.input = transfer.AppendSourceEvent(j.spent(), j.veil.Source(event))
	j.write(describe(event), effects)
}

// silent counts a tick that nothing came of.
func (j *Journal) silent(effects []transfer.Effect) bool {
	if len(effects) > 0 || j.ticks >= ticksMax {
		return false
	}
	j.ticks++
	return true
}

// spent begins an input with the ticks that were counted.
func (j *Journal) spent() []byte {
	b := binary.AppendUvarint(j.input[:0], j.ticks)
	j.ticks = 0
	return b
}

func (j *Journal) write(e ledger.Entry, effects []transfer.Effect) {
	j.last, j.form = follow(j.form, j.last, j.input, effects, j.veil)
	e.Kind = ledger.Transfer
	input, pages := slices.Clone(j.input), e.Pages
	for {
		n, m := min(len(input), ledger.InputBytesMax), min(len(pages), ledger.PagesMax)
		e.Input, e.Pages = input[:n:n], pages[:m:m]
		input, pages = input[n:], pages[m:]
		if len(input) == 0 && len(pages) == 0 {
			break
		}
		j.put(e)
	}
	e.Output = slices.Clone(j.last[:])
	j.put(e)
}

// follow is the hash that stands behind a step. scratch is written and given back.
func follow(scratch []byte, last [hashBytes]byte, input []byte, effects []transfer.Effect, veil *transfer.Veil) ([hashBytes]byte, []byte) {
	b := append(scratch[:0], last[:]...)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(input))), input...)
	b = veil.AppendEffects(b, effects)
	sum := sha256.Sum256(b)
	return [hashBytes]byte(sum[:hashBytes]), b
}
