package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// connect opens a connection that is closed at the test's end, and within 20 s at most.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// alive asks for the server's health on a connection, which stays open.
func alive(conn net.Conn) error {
	fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return err
}

// Strangers who hold connections, silent ones or such that asked once, keep nobody out.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	secure, _ := certificate(t)
	for _, c := range []struct {
		name   string
		secure *tls.Config
		asks   bool
		state  string
	}{{"asked once", nil, true, "idle"}, {"silent", nil, false, "new"}, {"silent over TLS", secure, false, "new"}} {
		t.Run(c.name, func(t *testing.T) {
			const most = 64
			b := newBench(t, setup{config: func(c *Config) { c.ConnectionsMax = most }})
			address, stop := b.serve(c.secure)
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			url := "http://" + address + "/healthz"
			if c.secure != nil {
				url = strings.Replace(url, "http", "https", 1)
			}
			var strangers []net.Conn
			for i := range 4 * most {
				conn := connect(t, address)
				strangers = append(strangers, conn)
				if c.asks {
					if err := alive(conn); err != nil {
						t.Fatalf("stranger %d asks: %v", i, err)
					}
				}
				if i%most == most-1 {
					resp, err := client.Get(url)
					if err != nil {
						t.Fatalf("among %d strangers an honest client gets %v", i+1, err)
					}
					if status, text := b.read(resp); status != 200 {
						t.Errorf("among %d strangers an honest client gets %d, %s", i+1, status, text)
					}
				}
			}
			for i, conn := range strangers[:2*most] { // the next ones may have become idle in another order
				if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 || strings.Contains(err.Error(), "timeout") {
					t.Fatalf("stranger %d of %d is not sent away: read %d bytes, %v", i, len(strangers), n, err)
				}
			}
			if n := b.metric(`bulkhead_closed_connections_total{state="` + c.state + `"}`); n == "" {
				t.Error("no metric counts those sent away")
			}
			if said := strings.Count(b.logs.String(), "too many connections"); said < 1 || said > 8 {
				t.Errorf("the log says it %d times, want once every %s", said, connectionsSayEvery)
			}
			for _, conn := range strangers {
				_ = conn.Close()
			}
			if err := stop(); err != nil {
				t.Errorf("Serve ended with %v", err)
			}
		})
	}
}

// A connection in a request is not closed for a new one; when all are, the new one is.
func TestConnectionsInARequestStay(t *testing.T) {
	const most = 2
	b := newBench(t, setup{config: func(c *Config) { c.ConnectionsMax = most }})
	address, stop := b.serve(nil)
	reached, release := make(chan struct{}, most), make(chan struct{})
	b.cluster.setHook(func(ctx context.Context, _ cluster.Job, role cluster.Role, e *cluster.Event) error {
		if role == cluster.Decode && e.Kind == cluster.Finished {
			reached <- struct{}{}
			wait(ctx, release)
		}
		return nil
	})
	other := b.url
	b.url = "http://" + address
	answered := make(chan int, most)
	for range most {
		go func() {
			status, _, _ := b.ask("ada", chat("hello"))
			answered <- status
		}()
		<-reached
	}
	for range 2 * most {
		if err := alive(connect(t, address)); err == nil {
			t.Errorf("one connection over %d that are in a request is served", most)
		}
	}
	close(release)
	for range most {
		if status := <-answered; status != 200 {
			t.Errorf("a request among too many connections gets %d, want 200", status)
		}
	}
	b.client.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("Serve ended with %v", err)
	}
	b.url = other
}
