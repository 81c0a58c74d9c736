// Package fault classifies errors by what the caller should do.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what the one who gets an error should do.
type Kind uint8

// The kinds. Unknown errors are Internal.
const (
	Internal        Kind = iota // a mistake of ours: report it
	Invalid                     // the request is wrong: change it
	Unauthenticated             // the key is missing or wrong: use another
	Forbidden                   // the key is known but may not do this
	NotFound                    // the named thing does not exist
	OverContext                 // the prompt is longer than the served context: shorten it
	TooLarge                    // the body is over its limit: send less
	OverQuota                   // the tenant's budget is used up: wait
	Busy                        // no room now: try again soon
	Unavailable                 // nobody can do it now: try again later
	Cancelled                   // the one who asked went away
	Deadline                    // the time allowed is over
	Corrupt                     // a check on pages or tokens failed: the answer must not be used
)

var names = [...]string{"internal", "invalid", "unauthenticated", "forbidden", "not_found", "over_context", "too_large",
	"over_quota", "busy", "unavailable", "cancelled", "deadline", "corrupt"}

// String is the kind's name in logs and metrics.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return "internal"
}

// ParseKind is the inverse of String.
func ParseKind(s string) Kind {
	for i, n := range names {
		if n == s {
			return Kind(i)
		}
	}
	return Internal
}

type fault struct {
	kind Kind
	err  error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// New makes an error of a kind from a format; %w wraps.
func New(k Kind, format string, args ...any) error {
	return &fault{k, fmt.Errorf(format, args...)}
}

// Of is the kind of the outermost classified error in err's chain, Internal when none is.
func Of(err error) Kind {
	var f *fault
	if errors.As(err, &f) {
		return f.kind
	}
	return Internal
}
