package transfercheck

import (
	"fmt"
	"strings"

	"github.com/bulkhead-kv/bulkhead/kv/internal/guard"
	"github.com/bulkhead-kv/bulkhead/modelcheck"
)

// Story is a violation as a script: what broke, in which world, and the way to it,
// one action a line.
func Story(c Config, v *modelcheck.Violation[Action]) string {
	var b strings.Builder
	what := v.Error()
	if v.Property == "Step" {
		what = v.Err.Error()
	}
	fmt.Fprintf(&b, "%s\nworld: %s; %s\ntransport: %s\n", what, c.Name, c.Size(), c.Transport.Name)
	if c.Without != (guard.Set{}) {
		fmt.Fprintf(&b, "without: %v\n", c.Without)
	}
	for i, line := range v.Trace {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, line)
	}
	return b.String()
}
