package transfer

// Life of a transfer at decode:
//
//	                   closed done,                 fence           verified
//	open -> GRANTED -> pages missing -> LANDING ->  FENCING -> VERIFYING -> DECODING -> gone
//	           |                           |           |          |           |
//	           | cancel, doubt, fault      |           |          | cancel    | cancel, fault
//	           v                           v           v          v           v
//	       REVOKING ---- closed, fence, link gone --> gone <---- STOPPING <---+
//	           |                                       ^
//	           +-- too long --> QUARANTINED -----------+
//
// Every failure is answered at once; what remains is to prove that the pages
// have no writer left.

type targetState uint8

const (
	targetGranted     targetState = 1 + iota // prefill may write the pages
	targetLanding                            // CLOSED done is here, landings are missing
	targetFencing                            // all is here, the fence is not proved
	targetVerifying                          // no writer is left, pages are being read
	targetDecoding                           // pages are verified and in use
	targetStopping                           // answered; local work on the pages still runs
	targetRevoking                           // answered; prefill may still write the pages
	targetQuarantined                        // as revoking, for too long
	targetGone                               // nothing is left
	targetStates
)

var targetStateNames = [targetStates]string{"", "granted", "landing", "fencing", "verifying", "decoding", "stopping", "revoking", "quarantined", "gone"}

func (s targetState) String() string { return targetStateNames[s] }

// targetInput is an event as far as one transfer is concerned.
type targetInput uint8

const (
	targetLandedAll     targetInput = 1 + iota // the last block landed, the transport can fence
	targetLandedDrained                        // the last block landed, the transport cannot fence
	targetPageRefused                          // a block was not placed
	targetClosedDone                           // manifest = grant, all landed, the transport can fence
	targetClosedDrained                        // manifest = grant, the transport cannot fence: CLOSED is the proof
	targetClosedEarly                          // manifest = grant, landings are missing
	targetClosedWrong                          // done, but not what was granted
	targetClosedFailed                         // failed or aborted
	targetFenced
	targetPeerDoubted
	targetPeerLost
	targetVerifiedOK
	targetVerifiedBad
	targetFinished
	targetFault
	targetCancel
	targetKernelStopped
	targetOverdue // in this state for QuarantineTicks
	targetInputs
)

var targetInputNames = [targetInputs]string{"", "all landed", "all landed, no fence", "page refused", "closed done", "closed done, no fence", "closed done, pages missing",
	"closed done, not as granted", "closed failed", "fenced", "peer doubted", "peer lost", "verified", "verified bad", "finished", "fault",
	"cancel", "kernel stopped", "overdue"}

func (i targetInput) String() string { return targetInputNames[i] }

// targetAct is one thing a transition does.
type targetAct uint8

const (
	targetAnswer targetAct = 1 + iota
	targetRevoke
	targetAbort
	targetFence // where the transport can
	targetWriterGone
	targetVerify
	targetStart
	targetStopKernel
	targetRelease
	targetQuarantine
	targetActs
)

var targetActNames = [targetActs]string{"", "answer", "revoke", "send ABORT", "fence", "writer gone", "verify", "start", "stop kernel", "release", "quarantine"}

func (a targetAct) String() string { return targetActNames[a] }

// targetRow is one cell of the table. The zero row: nothing happens.
type targetRow struct {
	acts []targetAct
	next targetState
}

// What several cells do.
var (
	targetEnds   = targetRow{[]targetAct{targetAnswer, targetWriterGone, targetRelease}, targetGone}
	targetFails  = targetRow{[]targetAct{targetAnswer, targetRevoke, targetAbort, targetFence}, targetRevoking}
	targetProved = targetRow{[]targetAct{targetWriterGone, targetRelease}, targetGone}
	targetChecks = targetRow{[]targetAct{targetWriterGone, targetVerify}, targetVerifying}
	targetHalts  = targetRow{[]targetAct{targetAnswer, targetStopKernel}, targetStopping}
	targetFreed  = targetRow{[]targetAct{targetRelease}, targetGone}
)

// targetTable is decode's side of the protocol. docs/SPEC.md is made from it.
var targetTable = [targetStates][targetInputs]targetRow{
	targetGranted: {
		targetPageRefused:   targetFails,
		targetClosedDone:    {[]targetAct{targetFence}, targetFencing},
		targetClosedDrained: targetChecks,
		targetClosedEarly:   {nil, targetLanding},
		targetClosedWrong:   targetFails, // a peer that contradicts itself is not believed about its drain
		targetClosedFailed:  targetEnds,
		targetPeerDoubted:   targetFails,
		targetPeerLost:      targetEnds,
		targetCancel:        targetFails,
	},
	targetLanding: {
		targetLandedAll:     {[]targetAct{targetFence}, targetFencing},
		targetLandedDrained: targetChecks,
		targetPageRefused:   targetFails,
		targetPeerDoubted:   targetFails,
		targetPeerLost:      targetEnds,
		targetCancel:        targetFails,
		targetOverdue:       targetFails,
	},
	targetFencing: {
		targetFenced:   targetChecks,
		targetPeerLost: targetChecks, // the link's end is a fence, and all is here
		targetCancel:   targetEnds,   // CLOSED is here: nothing can write
	},
	targetVerifying: {
		targetVerifiedOK:  {[]targetAct{targetStart}, targetDecoding},
		targetVerifiedBad: {[]targetAct{targetAnswer, targetRelease}, targetGone},
		targetCancel:      {[]targetAct{targetAnswer}, targetStopping}, // the reader of the pages is still at work
	},
	targetDecoding: {
		targetFinished: {[]targetAct{targetAnswer, targetRelease}, targetGone},
		targetFault:    targetHalts,
		targetCancel:   targetHalts,
	},
	targetStopping: {
		targetVerifiedOK:    targetFreed,
		targetVerifiedBad:   targetFreed,
		targetFinished:      targetFreed, // was on its way when the stop was asked for
		targetKernelStopped: targetFreed,
	},
	targetRevoking: {
		targetClosedDone:    targetProved,
		targetClosedDrained: targetProved,
		targetClosedEarly:   targetProved,
		targetClosedWrong:   targetProved,
		targetClosedFailed:  targetProved,
		targetFenced:        targetProved,
		targetPeerLost:      targetProved,
		targetOverdue:       {[]targetAct{targetQuarantine}, targetQuarantined},
	},
	targetQuarantined: {
		targetClosedDone:    targetProved,
		targetClosedDrained: targetProved,
		targetClosedEarly:   targetProved,
		targetClosedWrong:   targetProved,
		targetClosedFailed:  targetProved,
		targetFenced:        targetProved,
		targetPeerLost:      targetProved,
	},
}
