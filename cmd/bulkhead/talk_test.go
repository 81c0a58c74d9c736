package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
)

func TestProbeDoesNotWaitForASilentServer(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	c, err := chatclient.New(silent.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = probe(t.Context(), c, "", 10*time.Millisecond)
	if want := "the server at " + silent.URL + " has not answered within 10ms"; err == nil || err.Error() != want {
		t.Errorf("the probe says %v, want %s", err, want)
	}
}

func TestOnlyAServerRefusesAKey(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{&chatclient.APIError{Status: 401}, true},
		{&chatclient.APIError{Status: 403}, true},
		{&chatclient.APIError{Status: 401, Foreign: true}, false},
		{&chatclient.APIError{Status: 404}, false},
		{chatclient.ErrNoServer, false},
	} {
		if got := keyRefused(test.err); got != test.want {
			t.Errorf("that %#v is a refused key is %v, want %v", test.err, got, test.want)
		}
	}
}

func TestWantsKeySaysWhatToSet(t *testing.T) {
	for key, want := range map[string]string{"": "the server at http://127.0.0.1:1 wants a key: set BULKHEAD_API_KEY to one", "bh_x": "does not know the key in BULKHEAD_API_KEY"} {
		if err := wantsKey("http://127.0.0.1:1", key); !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "bh_x") {
			t.Errorf("with the key %q the error is %v, want %q", key, err, want)
		}
	}
}
