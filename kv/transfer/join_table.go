package transfer

// Life of a request with several ranks at decode:
//
//	                all verified                  all finished
//	open -> WAITING ------------> RUNNING -------------------> ENDED
//	           |                     |                           ^
//	           +---------------------+-- one rank ends otherwise +
//
// A rank that is verified before the others waits in its Target's VERIFYING: no
// writer is left, and nothing reads its pages. What waits when the request ends is
// passed on, so that the Target lets go.

type joinState uint8

const (
	joinWaiting joinState = 1 + iota // some rank is not verified
	joinRunning                      // all ranks have started
	joinEnded                        // answered
	joinStates
)

var joinStateNames = [joinStates]string{"", "waiting", "running", "ended"}

func (s joinState) String() string { return joinStateNames[s] }

// joinInput is an event as far as all ranks are concerned.
type joinInput uint8

const (
	joinVerified    joinInput = 1 + iota // others are missing
	joinVerifiedAll                      // it was the last
	joinVerifiedBad
	joinDone    // a rank finished, others have not
	joinDoneAll // it was the last
	joinFailed  // a rank ended otherwise
	joinInputs
)

var joinInputNames = [joinInputs]string{"", "verified", "verified, last", "verified bad", "done", "done, last", "failed"}

func (i joinInput) String() string { return joinInputNames[i] }

// joinAct is one thing a transition does.
type joinAct uint8

const (
	joinPassOne      joinAct = 1 + iota // this rank's verdict
	joinPassHeld                        // every verdict that waits
	joinCancelOthers                    // every rank that has not ended
	joinAnswers
	joinActs
)

var joinActNames = [joinActs]string{"", "pass it on", "pass on what waits", "cancel the others", "answer"}

func (a joinAct) String() string { return joinActNames[a] }

// joinRow is one cell of the table. The zero row: nothing happens.
type joinRow struct {
	acts []joinAct
	next joinState
}

// What several cells do.
var (
	joinPasses = joinRow{[]joinAct{joinPassOne}, 0}
	joinEnds   = joinRow{[]joinAct{joinCancelOthers, joinPassHeld, joinAnswers}, joinEnded}
)

// joinTable is the ranks' side of the protocol at decode. docs/SPEC.md is made from it.
var joinTable = [joinStates][joinInputs]joinRow{
	joinWaiting: {
		joinVerifiedAll: {[]joinAct{joinPassHeld}, joinRunning},
		joinVerifiedBad: joinPasses, // its Target's answer ends them all
		joinFailed:      joinEnds,
	},
	joinRunning: {
		joinDoneAll: {[]joinAct{joinAnswers}, joinEnded},
		joinFailed:  joinEnds,
	},
	joinEnded: {
		joinVerified:    joinPasses,
		joinVerifiedAll: joinPasses,
		joinVerifiedBad: joinPasses,
	},
}
