package kv

import (
	"strings"
	"testing"
)

// Whatever part of an origin differs, it is another one, and the error says both.
func TestOrigin(t *testing.T) {
	due := Origin{GatewayBoot: 1, Request: 2, Attempt: 3, Epoch: 4, Index: 5}
	if err := due.Expect(due.At(9).At(5)); err != nil {
		t.Errorf("an origin differs from itself: %v", err)
	}
	for name, got := range map[string]Origin{
		"gateway": {9, 2, 3, 4, 5}, "request": {1, 9, 3, 4, 5}, "attempt": {1, 2, 9, 4, 5}, "epoch": {1, 2, 3, 9, 5}, "index": {1, 2, 3, 4, 9}, "all": {},
	} {
		if err := due.Expect(got); err == nil || !strings.Contains(err.Error(), got.String()) || !strings.Contains(err.Error(), due.String()) {
			t.Errorf("with another %s: %v, want both origins", name, err)
		}
	}
}
