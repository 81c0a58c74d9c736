package transfer

// Life of a transfer at prefill:
//
//	GRANT -> JOINING -> ACTIVE -> CLOSED(done) -> gone
//	            |          | abort, cancel, failure, link gone
//	            |          v
//	            |       DRAINING -> CLOSED(failed, aborted) -> gone
//	            +-- refused, abort ----^
//	ABORT of what was never seen ------^
//
// A write of which nobody knows whether it may still land makes CLOSED
// impossible: the link is torn down, and its end is decode's proof.
//
// CLOSED is kept, and said again when asked, until decode's low-water mark has
// passed it or the link has ended. Two things happen by themselves after any
// event: a draining transfer with no write in flight is closed, and one that
// ends with no write in flight and no kernel running gives its pages back.

type sourceState uint8

const (
	sourceUnknown  sourceState = 1 + iota // never seen, or forgotten
	sourceJoining                         // the worker looks for the job and for pages
	sourceActive                          // computing and writing
	sourceDraining                        // nothing is posted any more; writes may be in flight
	sourceClosed                          // CLOSED is said, and remembered
	sourceGone
	sourceStates
)

var sourceStateNames = [sourceStates]string{"", "unknown", "joining", "active", "draining", "closed", "gone"}

func (s sourceState) String() string { return sourceStateNames[s] }

type sourceInput uint8

const (
	sourceGrant          sourceInput = 1 + iota
	sourceGrantTooLarge              // more than this worker can ever hold
	sourceGrantMalformed             // contradicts itself
	sourceAbort
	sourceAdmitted
	sourceAdmittedWrong // the job's tokens are not the grant's
	sourceRefused
	sourceComputed
	sourceWritten
	sourceWrittenAll     // the last of all blocks, all well
	sourceWrittenRefused // one has not landed and never will
	sourceWrittenLost    // nobody knows what became of one
	sourceCancel
	sourceFailed
	sourceLowPassed // decode needs nothing of it any more
	sourcePeerLost
	sourceKernelStopped
	sourceDrained // by itself: no write in flight
	sourceIdle    // by itself: no write in flight, no kernel runs, pages are held
	sourceInputs
)

var sourceInputNames = [sourceInputs]string{"", "GRANT", "GRANT, too large", "GRANT, malformed", "ABORT", "admitted", "admitted, other tokens", "refused",
	"computed", "written", "written, last", "write refused", "write lost", "cancel", "failed", "low mark passed", "peer lost", "kernel stopped", "drained", "idle"}

func (i sourceInput) String() string { return sourceInputNames[i] }

type sourceAct uint8

const (
	sourceAdmit sourceAct = 1 + iota
	sourceWithdraw
	sourceCompute
	sourceWrite
	sourceStopKernel // where one runs
	sourceEnd        // outcome and reason are decided
	sourceSendClosed // where the link is up and no write of x was lost on it
	sourceFencePeer
	sourceRelease
	sourceActs
)

var sourceActNames = [sourceActs]string{"", "admit", "withdraw", "compute", "write", "stop kernel", "decide outcome", "send CLOSED", "fence peer", "release"}

func (a sourceAct) String() string { return sourceActNames[a] }

// sourceRow is one cell of the table. The zero row: nothing happens.
type sourceRow struct {
	acts []sourceAct
	next sourceState
}

// What several cells do.
var (
	sourceCloses  = sourceRow{[]sourceAct{sourceEnd, sourceSendClosed}, sourceClosed}
	sourceUnjoins = sourceRow{[]sourceAct{sourceEnd, sourceWithdraw, sourceSendClosed}, sourceClosed}
	sourceDrains  = sourceRow{[]sourceAct{sourceEnd, sourceStopKernel}, sourceDraining}
	sourceRepeats = sourceRow{[]sourceAct{sourceSendClosed}, sourceClosed}
	sourceFrees   = sourceRow{[]sourceAct{sourceRelease}, 0}
)

// sourceTable is prefill's side of the protocol. docs/SPEC.md is made from it.
var sourceTable = [sourceStates][sourceInputs]sourceRow{
	sourceUnknown: {
		sourceGrant:          {[]sourceAct{sourceAdmit}, sourceJoining},
		sourceGrantTooLarge:  sourceCloses,
		sourceGrantMalformed: sourceCloses,
		sourceAbort:          sourceCloses,
	},
	sourceJoining: {
		sourceAdmitted:      {[]sourceAct{sourceCompute}, sourceActive},
		sourceAdmittedWrong: sourceCloses,
		sourceRefused:       sourceCloses,
		sourceFailed:        sourceUnjoins,
		sourceCancel:        sourceUnjoins,
		sourceAbort:         sourceUnjoins,
		sourceLowPassed:     sourceUnjoins,
		sourcePeerLost:      sourceUnjoins,
	},
	sourceActive: {
		sourceComputed:       {[]sourceAct{sourceWrite}, 0},
		sourceWrittenAll:     sourceCloses,
		sourceWrittenRefused: sourceDrains,
		sourceWrittenLost:    {[]sourceAct{sourceEnd, sourceStopKernel, sourceFencePeer}, sourceDraining},
		sourceFailed:         sourceDrains,
		sourceCancel:         sourceDrains,
		sourceAbort:          sourceDrains,
		sourceLowPassed:      sourceDrains,
		sourcePeerLost:       sourceDrains,
	},
	sourceDraining: {
		sourceWrittenLost: {[]sourceAct{sourceFencePeer}, 0},
		sourceDrained:     {[]sourceAct{sourceSendClosed}, sourceClosed},
		sourceIdle:        sourceFrees,
	},
	sourceClosed: {
		sourceGrant:          sourceRepeats,
		sourceGrantTooLarge:  sourceRepeats,
		sourceGrantMalformed: sourceRepeats,
		sourceAbort:          sourceRepeats,
		sourceIdle:           sourceFrees,
	},
}
