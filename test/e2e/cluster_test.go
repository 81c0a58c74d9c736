package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// recipe is the section "A cluster" of README.md: what a reader types, and the file
// that one of the commands writes.
type recipe struct {
	commands [][]string // arguments behind bin/bulkhead
	file     string
}

var (
	heredoc  = regexp.MustCompile(`(?ms)^cat > cluster\.yaml <<'EOF'\n(.*?)^EOF$`)
	loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

func readRecipe(t *testing.T) (r recipe) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## A cluster\n")
	_, section, _ = strings.Cut(section, "```sh\n")
	section, _, found := strings.Cut(section, "```")
	file := heredoc.FindStringSubmatch(section)
	if !found || file == nil {
		t.Fatal("README.md has no section \"A cluster\" with commands and a cluster file")
	}
	r.file = file[1]
	for line := range strings.Lines(heredoc.ReplaceAllString(section, "")) {
		line, _, _ = strings.Cut(line, " #")
		words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), "&"))
		if len(words) > 0 && words[0] == "bin/bulkhead" {
			r.commands = append(r.commands, words[1:])
		}
	}
	return r
}

// command finds the one that begins so.
func (r recipe) command(t *testing.T, name string) []string {
	t.Helper()
	i := slices.IndexFunc(r.commands, func(words []string) bool { return words[0] == name })
	if i < 0 {
		t.Fatalf("README.md's cluster has no command %q", name)
	}
	return r.commands[i]
}

// second is a text of the first pair of workers as one of the second pair.
var second = strings.NewReplacer("p0", "p1", "d0", "d1")

// cluster is a running cluster of separate processes in a folder of its own.
type cluster struct {
	*server
	t       *testing.T
	dir     string
	running map[string]*exec.Cmd
	ended   map[string]chan struct{}
}

// bulkhead runs a command in the cluster's folder and gives what it prints.
func (c *cluster) bulkhead(args ...string) string {
	c.t.Helper()
	cmd := c.cmd(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("bulkhead %v: %v\n%s", args, err, &stderr)
	}
	return string(out)
}

func (c *cluster) cmd(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), "BULKHEAD_HOME="+c.home)
	return cmd
}

// start begins a node's process, which ends with the test.
func (c *cluster) start(node string, args []string) {
	c.t.Helper()
	cmd := c.cmd(args...)
	cmd.Stdout, cmd.Stderr = lockedWriter{c.logMu, c.log}, lockedWriter{c.logMu, c.log}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // its end is the process', too
		defer close(ended)
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	c.running[node], c.ended[node] = cmd, ended
}

// kill ends a node's process without a warning.
func (c *cluster) kill(node string) {
	c.t.Helper()
	if err := c.running[node].Process.Kill(); err != nil {
		c.t.Errorf("kill %s: %v", node, err)
	}
	<-c.ended[node]
	delete(c.running, node)
}

// drain ends all processes as Ctrl-C does, the gateway first.
func (c *cluster) drain() {
	c.t.Helper()
	for _, node := range []string{"gateway", "p0", "d0", "p1", "d1"} {
		cmd := c.running[node]
		if cmd == nil {
			continue
		}
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-c.ended[node]:
			if code := cmd.ProcessState.ExitCode(); code != 0 {
				c.t.Errorf("%s ended with status %d\n%s", node, code, tail(c.output()))
			}
		case <-time.After(60 * time.Second):
			_ = cmd.Process.Kill()
			c.t.Errorf("%s does not end after SIGINT\n%s", node, tail(c.output()))
		}
		delete(c.running, node)
	}
}

// awaitWorkers waits until the gateway gives requests to these workers.
func (c *cluster) awaitWorkers(nodes ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	if !c.await(ctx, func(page string) bool {
		return !slices.ContainsFunc(nodes, func(node string) bool {
			role := map[byte]string{'p': "prefill", 'd': "decode"}[node[0]]
			return value(page, fmt.Sprintf(`bulkhead_worker_routable{node="%s",role="%s"}`, node, role)) != 1
		})
	}) {
		c.t.Fatalf("%v don't all get requests after 30 s\n%s", nodes, tail(c.output()))
	}
}

// newCluster does what README.md says, with two pairs of workers for its one, free
// ports for its own, the built-in model, and a certificate for the public listener.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	r := readRecipe(t)
	dir := t.TempDir()
	c := &cluster{t: t, dir: dir, running: map[string]*exec.Cmd{}, ended: map[string]chan struct{}{},
		server: &server{home: filepath.Join(dir, "home"), log: new(bytes.Buffer), logMu: new(sync.Mutex), Model: "tracer", Keys: map[string]string{}}}
	makeCerts := r.command(t, "certs")
	c.bulkhead(makeCerts...)
	c.bulkhead(strings.Fields(second.Replace("certs " + makeCerts[1] + " prefill/p0 decode/d0"))...)
	c.bulkhead("certs", makeCerts[1], "gateway/public")
	for _, tenant := range []string{"tenant-a", "tenant-b"} {
		c.Keys[tenant] = lastWord(c.bulkhead("tenant", "add", tenant, "--tenants", "tenants.json"))
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster.yaml"), []byte(c.clusterFile(r)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.client = c.trusting(filepath.Join(dir, makeCerts[1], "ca.pem"))
	t.Cleanup(func() {
		c.drain()
		c.conforms(t)
	})
	for _, node := range []string{"p0", "d0", "p1", "d1"} {
		c.startWorker(node)
	}
	c.start("gateway", r.command(t, "gateway"))
	c.awaitWorkers(workers...)
	return c
}

func (c *cluster) startWorker(node string) {
	c.t.Helper()
	args := strings.Join(readRecipe(c.t).command(c.t, map[byte]string{'p': "prefill", 'd': "decode"}[node[0]]), " ")
	if strings.HasSuffix(node, "1") {
		args = second.Replace(args)
	}
	c.start(node, strings.Fields(args))
}

// clusterFile is the recipe's with what newCluster changes, and sets the URL.
func (c *cluster) clusterFile(r recipe) string {
	var text strings.Builder
	for line := range strings.Lines(r.file) {
		text.WriteString(line)
		if strings.HasPrefix(line, "- {name: ") {
			text.WriteString(second.Replace(line))
		}
	}
	file := loopback.ReplaceAllStringFunc(text.String(), func(string) string { return freePort(c.t) })
	file = regexp.MustCompile(`(?m)^model: .*$`).ReplaceAllString(file, "model: tracer")
	gateway := regexp.MustCompile(`gateway: \{listen: "(127[^"]*)"\}`)
	found := gateway.FindStringSubmatch(file)
	if found == nil {
		c.t.Fatalf("the recipe's file names no gateway:\n%s", file)
	}
	c.URL = "https://" + found[1]
	return gateway.ReplaceAllString(file, `gateway: {listen: "$1", tls: {cert: certs/public.pem, key: certs/public-key.pem}}`)
}

// freePort is an address that was free a moment ago, and that the system gives to
// nobody who asks for any.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)) // below the ephemeral ports
		if ln, err := net.Listen("tcp", address); err == nil {
			ln.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

func lastWord(text string) string {
	words := strings.Fields(text)
	return words[len(words)-1]
}

// trusting is a client that takes certificates of that authority.
func (c *cluster) trusting(ca string) *http.Client {
	c.t.Helper()
	pem, err := os.ReadFile(ca)
	if err != nil {
		c.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		c.t.Fatalf("%s holds no certificate", ca)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{RootCAs: roots}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: 5 * time.Minute, Transport: transport}
}

// shown is the serial number of the certificate that the public listener shows now.
func (c *cluster) shown() string {
	c.t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(c.URL, "https://"), c.client.Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// askBoth asks for both tenants and demands their own answers.
func (c *cluster) askBoth(n int) {
	c.t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		prompt, want := planted(i%2, i, 200+i*311%2000)
		wg.Go(func() {
			if text, done, err := c.stream(c.t.Context(), c.key(i), prompt, len(want), always); !done || text != want {
				c.t.Errorf("request %d of tenant %d got %q, %v, want %q", i, i%2, text, err, want)
			}
		})
	}
	wg.Wait()
}

// What README.md tells a reader to type makes a cluster of separate processes that
// serves over TLS, survives the death of a worker of either role, takes it back as a
// new incarnation, uses renewed certificates, and ends when it is told to.
func TestTheClusterOfTheReadme(t *testing.T) {
	c := newCluster(t)
	c.askBoth(20)
	first := c.shown()
	c.bulkhead("certs", "certs", "gateway/public", "gateway/gateway", "prefill/p0", "decode/d0", "prefill/p1", "decode/d1")
	for _, victim := range []string{"p0", "d1"} {
		before := c.incarnation(t, victim)
		c.kill(victim)
		c.next(t, victim)
		c.startWorker(victim)
		c.awaitWorkers(workers...)
		if now := c.incarnation(t, victim); now == before || now == "" {
			t.Errorf("%s is back as incarnation %s, was %s", victim, now, before)
		}
	}
	// All that is left are the two that came back: they link with each other.
	c.kill("p1")
	c.kill("d0")
	c.next(t, "p1 and d0")
	c.startWorker("p1")
	c.startWorker("d0")
	c.awaitWorkers(workers...)
	c.askBoth(20)
	for deadline := time.Now().Add(30 * time.Second); c.shown() == first; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the public listener still shows its old certificate\n%s", tail(c.output()))
		}
	}
	for _, wrong := range []string{"certificate not loaded", "is not what was granted", "page refused"} {
		if out := c.output(); strings.Contains(out, wrong) {
			t.Errorf("a log says %q:\n%s", wrong, tail(out))
		}
	}
	c.idle(t)
}
