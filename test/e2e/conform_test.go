package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// conforms re-executes the ledgers of all that this server's workers did, those that
// were killed included, on the machines that serve.
func (s *server) conforms(t *testing.T) {
	t.Helper()
	out, err := exec.Command(binary, "check", "ledger", filepath.Join(s.home, "ledger")).CombinedOutput()
	if err != nil {
		t.Errorf("the ledgers do not conform: %v\n%s", err, out)
		return
	}
	t.Logf("measured conformance\n%s", tail(string(out)))
}
