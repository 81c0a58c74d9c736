// Package assert stops the program when an invariant is broken.
//
// An assertion checks our own mistakes and stays on in production: an outage is
// better than a leak. What a peer or a user can cause is never an assertion.
package assert

// Violation is the value that a failed assertion panics with. The process that
// hosts a worker lets it end the process; the new epoch of the next start is the
// fence.
type Violation struct{ Sentence string }

// Error gives the sentence.
func (v Violation) Error() string { return "invariant broken: " + v.Sentence }

// That panics with a Violation unless cond holds. The sentence says what must
// hold and carries no data.
func That(cond bool, sentence string) {
	if !cond {
		panic(Violation{sentence})
	}
}
