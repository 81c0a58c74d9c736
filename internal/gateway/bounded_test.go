package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/tenant"
)

// Bodies that were announced and never come hold up neither their answer nor a stop.
func TestUnreadBodiesHoldUpNoStop(t *testing.T) {
	b := newBench(t, setup{limits: map[string]tenant.Limits{"bob": {RequestsPerMinute: 1}},
		config: func(c *Config) { c.BodyTimeout, c.DrainTimeout = time.Hour, time.Hour }})
	if status, text := b.read(b.doAs("bob", "/v1/chat/completions", chat("hi"))); status != 200 {
		t.Fatalf("status %d, body %s", status, text)
	}
	address, stop := b.serve(nil)
	for _, c := range []struct {
		name, line, key string
		status          int
	}{
		{"no key", "POST /v1/chat/completions", "", 401},
		{"over quota", "POST /v1/chat/completions", b.keys["bob"], 429},
		{"wrong method", "DELETE /v1/completions", "", 405},
		{"no such route", "POST /nowhere", "", 404},
		{"a path that isn't clean", "POST //tokenize", "", 307},
		{"a body where none belongs", "GET /healthz", "", 200},
		{"no path", "OPTIONS *", "", 400},
	} {
		for _, length := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", c.line, c.key, length)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%s, %s: the answer can't be read: %v", c.name, length, err)
			}
			if status, text := b.read(resp); status != c.status || !resp.Close {
				t.Errorf("%s, %s: status %d, closes %v, body %s; want %d and a close", c.name, length, status, resp.Close, text, c.status)
			}
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Errorf("Serve ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the stop waits for bodies that don't come")
	}
}

// A client without a key that asks again and again and reads no answer is cut off.
func TestAnswersThatNobodyReadsEnd(t *testing.T) {
	b := newBench(t, setup{config: func(c *Config) { c.WriteTimeout = 100 * time.Millisecond }})
	address, stop := b.serve(nil)
	conn := connect(t, address)
	questions := []byte(strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
	var err error
	for err == nil {
		_, err = conn.Write(questions)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection of a client that reads nothing stays open")
	}
	if err := stop(); err != nil {
		t.Errorf("Serve ended with %v", err)
	}
}

// A refusal whose body came in whole keeps its connection.
func TestReadBodiesKeepTheirConnection(t *testing.T) {
	b := newBench(t, setup{})
	resp := b.do("/v1/chat/completions", `{"model":"other","messages":[]}`)
	if status, text := b.read(resp); status < 400 || status >= 500 || resp.Close {
		t.Errorf("status %d, closes %v, body %s; want a refusal that keeps the connection", status, resp.Close, text)
	}
}
