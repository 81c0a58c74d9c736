package main

import (
	"strings"
	"testing"
)

func TestWantsKeySaysWhatToSet(t *testing.T) {
	for key, want := range map[string]string{"": "wants a key: set BULKHEAD_API_KEY to one", "bh_x": "does not know the key in BULKHEAD_API_KEY"} {
		if err := wantsKey(key); !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "bh_x") {
			t.Errorf("with the key %q the error is %v, want %q", key, err, want)
		}
	}
}
