package transport

// Refusal says why a page wasn't placed.
type Refusal uint8

// The reasons. None means that the page was accepted.
const (
	None            Refusal = iota
	ForeignTransfer         // the transfer was not open on this link lately: never was, or is another's
	TransferEnded           // the transfer was open on this link and was shut: pages on their way come late
	ForeignTenant           // the tag names another tenant than the grant
	StaleGeneration         // the slot has been allocated anew since
	WrongSlot               // the block belongs elsewhere
	WrongBlock              // the block was never granted
	WrongLayout             // the page has another shape
	WrongExtent             // the page claims more or fewer written tokens than the prompt puts there
	Duplicate               // the block has landed before
	Torn                    // the page ended early, or its trailer is another page's
	Cut                     // the link ended in the middle of the page
	BadHeader               // not a page header of this version
	refusals
)

var refusalNames = [refusals]string{"none", "foreign_transfer", "transfer_ended", "foreign_tenant", "stale_generation", "wrong_slot", "wrong_block",
	"wrong_layout", "wrong_extent", "duplicate", "torn", "cut", "bad_header"}

// String is the name under which the reason is counted.
func (r Refusal) String() string {
	if r >= refusals {
		return "unknown"
	}
	return refusalNames[r]
}

// Refusals are all reasons but None, for tables and counters.
func Refusals() []Refusal {
	all := make([]Refusal, 0, refusals-1)
	for r := None + 1; r < refusals; r++ {
		all = append(all, r)
	}
	return all
}
