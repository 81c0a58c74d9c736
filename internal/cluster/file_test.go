package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/certs"
	"github.com/google/go-cmp/cmp"
)

const goodFile = `
# A comment, and one document.
---
model: smollm2:135m
context: auto
tls: {ca: certs/ca.pem, cert: "certs/{name}.pem", key: "/keys/{name}-key.pem"}
gateway:
  listen: 127.0.0.1:8080
  tls: {cert: public.pem, key: public-key.pem}
workers:
- {name: p1, role: prefill, control: "10.0.0.1:7001", transfer: "tcp://10.0.0.1:7101", pool: 65536}
- {name: p2, role: prefill, control: "unix:///run/p2", transfer: "shm:///run/p2-pages", pool: 3GiB}
- {name: d1, role: decode, control: "[::1]:7002", threads: 8}
`

func TestParseFile(t *testing.T) {
	got, err := ParseFile([]byte(goodFile), "/etc/bulkhead")
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Model:   "smollm2:135m",
		TLS:     TLS{CA: "/etc/bulkhead/certs/ca.pem", Cert: "/etc/bulkhead/certs/{name}.pem", Key: "/keys/{name}-key.pem"},
		Gateway: Gateway{Name: "gateway", Listen: "127.0.0.1:8080", TLS: &PublicTLS{"/etc/bulkhead/public.pem", "/etc/bulkhead/public-key.pem"}},
		Workers: []Worker{
			{Name: "p1", Role: Prefill, Control: "10.0.0.1:7001", Transfer: "tcp://10.0.0.1:7101", Pool: Pool{Tokens: 65536}},
			{Name: "p2", Role: Prefill, Control: "unix:///run/p2", Transfer: "shm:///run/p2-pages", Pool: Pool{Bytes: 3 << 30}},
			{Name: "d1", Role: Decode, Control: "[::1]:7002", Threads: 8},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	text, err := got.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseFile(text, "/elsewhere")
	if err != nil {
		t.Fatalf("a written file must be readable: %v\n%s", err, text)
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("written and read again (-want +got):\n%s", diff)
	}
	if network, address := got.Workers[1].ControlAddress(); network != "unix" || address != "/run/p2" {
		t.Errorf("control address is %s %s", network, address)
	}
	if transport, address := got.Workers[0].TransferAddress(); transport != "tcp" || address != "10.0.0.1:7101" {
		t.Errorf("transfer address is %s %s", transport, address)
	}
}

func TestParseFileRefuses(t *testing.T) {
	for _, tc := range []struct{ name, old, new, want string }{
		{"unknown key", "model:", "modell: x\nmodel:", `line 4: unknown key "modell"`},
		{"key twice", "model:", "model: x\nmodel:", `line 5: key "model" already set`},
		{"list for a map", "  listen: 127.0.0.1:8080\n  tls:", "- a\n#", "line 7: gateway: must be a map, found a list"},
		{"list for a text", "model: smollm2:135m", "model: [a]", "line 4: model: must be a text, found a list"},
		{"text for a number", "threads: 8", "threads: many", "line 13: workers.threads: must be a number, found a text"},
		{"no YAML", "model: smollm2:135m", "model: [", "line 5: "},
		{"plain HTTP to everybody", "listen: 127.0.0.1:8080\n  tls: {cert: public.pem, key: public-key.pem}", "listen: ':8080'", "plain HTTP is for loopback addresses only"},
		{"plain HTTP and TLS", "listen: 127.0.0.1:8080", "listen: 127.0.0.1:8080\n  plaintextRemote: true", "tls and plaintextRemote exclude each other"},
		{"second document", "workers:", "---\nworkers:", "more than one YAML document"},
		{"no model", "model: smollm2:135m", "", "model: is missing"},
		{"context zero", "auto", "0", "context 0: must be auto or 1 to"},
		{"context word", "auto", "large", "must be auto or 1 to"},
		{"plaintext and files", "tls: {", "tls: {plaintext: true, ", "exclude each other"},
		{"no files", `tls: {ca: certs/ca.pem, cert: "certs/{name}.pem", key: "/keys/{name}-key.pem"}`, "", "ca, cert and key are needed"},
		{"remote without plaintext", "tls: {", "tls: {plaintextRemote: true, ", "plaintextRemote needs plaintext"},
		{"no listen", "listen: 127.0.0.1:8080", "", `listen: "": must be host:port`},
		{"half a public certificate", ", key: public-key.pem", "", "gateway: tls: cert and key are needed"},
		{"unknown role", "role: decode", "role: both", `role "both": must be prefill or decode`},
		{"no role", "role: decode, ", "", "role is missing"},
		{"no decode", "role: decode", `role: prefill, transfer: "tcp://10.0.0.2:1"`, "no decode worker"},
		{"name twice", "name: p2", "name: p1", `name p1 is already that of workers[0] "p1"`},
		{"gateway's name", "name: p2", "name: gateway", "name gateway is already that of gateway"},
		{"bad name", "name: p2", "name: P_2", "must be 1 to 64 of"},
		{"control twice", "unix:///run/p2", "10.0.0.1:7001", "control 10.0.0.1:7001 is already that of"},
		{"transfer twice", "shm:///run/p2-pages", "tcp://10.0.0.1:7101", "transfer tcp://10.0.0.1:7101 is already that of"},
		{"no control", `control: "[::1]:7002"`, "threads: 1", "already set"},
		{"empty control", `"[::1]:7002"`, `""`, "control: \"\": must be host:port"},
		{"control without host", "10.0.0.1:7001", ":7001", "host is missing"},
		{"port zero", "10.0.0.1:7001", "10.0.0.1:0", "port must be 1 to 65535"},
		{"relative socket", "unix:///run/p2", "unix://run/p2", "must be an absolute path"},
		{"long socket", "unix:///run/p2", "unix:///" + strings.Repeat("x", 107), "path of 108 bytes, must be at most 107"},
		{"prefill without transfer", `, transfer: "tcp://10.0.0.1:7101"`, "", "transfer is missing"},
		{"unknown transport", "shm:///run/p2-pages", "rdma://x:1", `transfer: "rdma": must be tcp or shm`},
		{"pool of nothing", "65536", "0", "pool 0: must be"},
		{"pool of odd unit", "3GiB", "3GB", "must be a number of tokens, or bytes"},
		{"pool beyond all", "3GiB", "99999999TiB", "must be a number of tokens, or bytes"},
		{"too many threads", "threads: 8", "threads: 5000", "threads is 5000, must be 0 to 1024"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.Replace(goodFile, tc.old, tc.new, 1)
			if text == goodFile {
				t.Fatalf("%q is not in the file", tc.old)
			}
			if _, err := ParseFile([]byte(text), "/"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error must say %q: %v", tc.want, err)
			}
		})
	}
}

func TestParseFileListsAllMistakes(t *testing.T) {
	_, err := ParseFile([]byte("gateway: {listen: x}\nworkers: [{name: a, role: prefill, control: b, threads: -1}]"), "/")
	for _, want := range []string{"model: is missing", "tls: ca, cert", "listen: ", "control: ", "transfer is missing", "threads is -1", "no decode worker"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error must list %q too: %v", want, err)
		}
	}
}

func TestPlaintextFileIsForLoopback(t *testing.T) {
	text := func(tls, host string) []byte {
		return []byte("model: tracer\ntls: {" + tls + "}\ngateway: {listen: 'localhost:8080'}\nworkers:\n" +
			"- {name: p1, role: prefill, control: 'unix:///p1', transfer: 'tcp://" + host + ":1'}\n" +
			"- {name: d1, role: decode, control: '" + host + ":2'}\n")
	}
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]"} {
		f, err := ParseFile(text("plaintext: true", host), "/")
		if err != nil {
			t.Errorf("plaintext at %s must be accepted: %v", host, err)
			continue
		}
		if s, err := f.Security("p1"); err != nil || s != Plaintext() || s.Material() != nil {
			t.Errorf("security must be plaintext: %v, %v", s, err)
		}
	}
	_, err := ParseFile(text("plaintext: true", "192.0.2.1"), "/")
	if err == nil || strings.Count(err.Error(), "plaintext is for loopback addresses only") != 2 {
		t.Errorf("both remote addresses must be refused: %v", err)
	}
	if _, err := ParseFile(text("plaintext: true, plaintextRemote: true", "192.0.2.1"), "/"); err != nil {
		t.Errorf("remote plaintext must be accepted by name: %v", err)
	}
}

func TestSecurityIsTheNodesOwn(t *testing.T) {
	dir := t.TempDir()
	ca, _, err := certs.OpenAuthority(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []certs.Identity{{Role: certs.Prefill, Name: "p1"}, {Role: certs.Prefill, Name: "d1"}} {
		if _, err := ca.Issue(id, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "cluster.yaml")
	text := "model: tracer\ntls: {ca: ca.pem, cert: '{name}.pem', key: '{name}-key.pem'}\ngateway: {listen: 'localhost:8080'}\nworkers:\n" +
		"- {name: p1, role: prefill, control: 'localhost:1', transfer: 'tcp://localhost:2'}\n- {name: d1, role: decode, control: 'localhost:3'}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := f.Security("p1"); err != nil || s.Material().Identity().Name != "p1" {
		t.Errorf("p1's own certificate must be loaded: %v", err)
	}
	if _, err := f.Security("d1"); err == nil || !strings.Contains(err.Error(), "certificate is of bulkhead://prefill/d1, the cluster file makes this node bulkhead://decode/d1") {
		t.Errorf("a certificate of another role must be refused: %v", err)
	}
	if _, err := f.Security("x1"); err == nil || !strings.Contains(err.Error(), "not in the cluster file") {
		t.Errorf("an unknown node must be refused: %v", err)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte("model: tracer\ntls: {plaintext: true}\ngateway: {listen: ':1'}\nworkers: [{name: a, role: decode, control: 'unix:///a', pool: 1KiB}]"))
	f.Add([]byte("--- \n---\n%YAML 1.2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ParseFile(data, "/")
		if err != nil {
			return
		}
		text, err := first.Marshal()
		if err != nil {
			t.Fatalf("an accepted file must be writable: %v", err)
		}
		second, err := ParseFile(text, "/")
		if err != nil {
			t.Fatalf("a written file must be readable: %v\n%s", err, text)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("written and read again (-first +second):\n%s", diff)
		}
	})
}
