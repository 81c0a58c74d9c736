package pool

import "fmt"

// State is what a page is.
//
//	local:    FREE -> OPEN -> SEALED <-> CACHED
//	remote:   FREE -> GRANTED -> FENCED -> VERIFIED -> SEALED, or OPEN for a tail that decode goes on writing
//	failure:  GRANTED -> REVOKING -> FENCED, or QUARANTINED -> FENCED once the writer is proved gone
//	at last:  OPEN, SEALED, FENCED, VERIFIED, CACHED -> FREE when no holder is left
type State uint8

// The states.
const (
	Free        State = iota // nobody's
	Open                     // one local writer; written up to its extent
	Sealed                   // written, sum known; nobody writes
	Granted                  // a remote writer may write it at any time
	Revoking                 // the transfer has ended, the remote writer is not proved gone
	Fenced                   // the remote writer is proved gone; what is in it is unknown
	Verified                 // its bytes are what was granted
	Quarantined              // revoking for too long: not counted on, not reused
	Cached                   // the tenant's cache has it
	States                   // the number of states
)

var stateNames = [States]string{"free", "open", "sealed", "granted", "revoking", "fenced", "verified", "quarantined", "cached"}

// String names the state.
func (s State) String() string { return stateNames[s] }

// Action is what is done to a page.
type Action uint8

// The actions.
const (
	ActAlloc      Action = iota // by AllocLocal
	ActGrant                    // by Grant: the remote writer becomes a holder
	ActWrite                    // raise the written extent
	ActSeal                     // nobody writes any more
	ActRevoke                   // the transfer has ended
	ActFence                    // the remote writer is proved gone
	ActVerify                   // the bytes are what was granted
	ActAdopt                    // take into a page table
	ActAdoptTail                // take into a page table and go on writing
	ActQuarantine               // stop counting on it
	ActCache                    // give to the tenant's cache
	ActEvict                    // take from the tenant's cache
	ActHold                     // a local holder begins
	ActPin                      // a transfer maps it as part of its prefix
	ActFree                     // give back; refused while any holder is left
	Actions                     // the number of actions
)

var actionNames = [Actions]string{"alloc", "grant", "write", "seal", "revoke", "fence", "verify", "adopt", "adopt tail", "quarantine", "cache", "evict", "hold", "pin", "free"}

// String names the action.
func (a Action) String() string { return actionNames[a] }

// refused marks a cell whose action is not for its state.
const refused = States

// table says what each action makes of a page in each state. Rows are states,
// columns are actions.
var table = [States][Actions]State{
	//             alloc    grant    write    seal     revoke    fence    verify    adopt    adoptTail quarantine   cache    evict    hold      pin      free
	Free:        {Open, Granted, refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, refused},
	Open:        {refused, refused, Open, Sealed, refused, refused, refused, refused, refused, refused, refused, refused, Open, refused, Free},
	Sealed:      {refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, Cached, refused, Sealed, refused, Free},
	Granted:     {refused, refused, refused, refused, Revoking, Fenced, refused, refused, refused, refused, refused, refused, refused, refused, refused},
	Revoking:    {refused, refused, refused, refused, refused, Fenced, refused, refused, refused, Quarantined, refused, refused, refused, refused, refused},
	Fenced:      {refused, refused, refused, refused, refused, refused, Verified, refused, refused, refused, refused, refused, Fenced, refused, Free},
	Verified:    {refused, refused, refused, refused, refused, refused, refused, Sealed, Open, refused, refused, refused, Verified, refused, Free},
	Quarantined: {refused, refused, refused, refused, refused, Fenced, refused, refused, refused, refused, refused, refused, refused, refused, refused},
	Cached:      {refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, Free, Cached, Cached, refused},
}

// Next is the table's cell: the state that follows, or ok false.
func Next(s State, a Action) (next State, ok bool) {
	next = table[s][a]
	return next, next != refused
}

// Holder is somebody who may read or write a page's bytes.
type Holder uint8

// The holders. RemoteWriter comes and goes with Grant and Fenced, Reader with Pin
// and Free; the others with Hold and Unhold.
const (
	RemoteWriter Holder = iota // a transfer's source may write
	Kernel                     // a running step reads or writes
	Sender                     // a transport reads it to send it
	Reader                     // another sequence maps it through the prefix cache
	Scrub                      // verification or the patrol scrub reads
	Offload                    // a copy to another tier reads
	Holders                    // the number of holders
)

var holderNames = [Holders]string{"remote writer", "kernel", "sender", "reader", "scrub", "offload"}

// byHold reports whether Hold and Unhold are for this holder.
func (h Holder) byHold() bool { return h != RemoteWriter && h != Reader && h < Holders }

// String names the holder.
func (h Holder) String() string { return holderNames[h] }

// Refusal says that a page's state or its holders do not allow an action.
type Refusal struct {
	Ref    string
	Action Action
	State  State
	Holder string // who still holds the page, if that is the reason
}

// Error gives page, action, and why not.
func (r *Refusal) Error() string {
	if r.Holder != "" {
		return fmt.Sprintf("page %s: %v refused, it is %v and held by %s", r.Ref, r.Action, r.State, r.Holder)
	}
	return fmt.Sprintf("page %s: %v refused, it is %v", r.Ref, r.Action, r.State)
}
