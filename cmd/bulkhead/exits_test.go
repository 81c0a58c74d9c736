package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
)

// condition is what several commands may meet, with the one code that each of them
// ends with: the message shows that it was this one. In commands {taken} is an address where somebody listens, {web} that of a
// web server, and FILE.yaml a cluster file of clusterFiles.
type condition struct {
	name     string
	code     int
	says     string // expression that each message matches
	commands []string
}

var conditions = []condition{
	{"the model's file is not there", exitConfig, `absent.gguf`, []string{
		"show ./absent.gguf", "capacity ./absent.gguf", "serve ./absent.gguf", "pull ./absent.gguf", "rm ./absent.gguf", "run ./absent.gguf Hi --private",
		"chat ./absent.gguf --private", "gateway --cluster absent-model.yaml --tenants tenants.json", "prefill --cluster absent-model.yaml --name p0",
		"decode --cluster absent-model.yaml --name d0"}},
	{"nobody knows the model", exitConfig, `nosuch`, []string{
		"show nosuch", "capacity nosuch", "serve nosuch", "pull nosuch", "rm nosuch", "run nosuch Hi --private", "chat nosuch --private",
		"run nosuch Hi --url {parrot} --api-key good", "gateway --cluster no-model.yaml --tenants tenants.json", "prefill --cluster no-model.yaml --name p0",
		"decode --cluster no-model.yaml --name d0"}},
	{"the model is none", exitConfig, `hell|<htm|6 bytes, a header|5 bytes, a header`, []string{
		"show ./text.gguf", "capacity ./text.gguf", "serve ./text.gguf", "pull ./text.gguf", "run ./text.gguf Hi --private", "chat ./text.gguf --private",
		"gateway --cluster text-model.yaml --tenants tenants.json", "prefill --cluster text-model.yaml --name p0", "pull {web}/page.gguf"}},
	{"there is no cluster file", exitConfig, `read cluster file: .* no such file`, []string{
		"gateway --cluster absent.yaml", "prefill --cluster absent.yaml --name p0", "decode --cluster absent.yaml --name d0"}},
	{"there is no settings file", exitConfig, `read settings: .* no such file`, []string{
		"version --config absent.yaml", "list --config absent.yaml", "serve --config absent.yaml", "run tracer Hi --config absent.yaml"}},
	{"there is no tenants file", exitConfig, `there is no tenants file`, []string{
		"serve --listen 127.0.0.1:0 --tenants absent.json", "gateway --cluster good.yaml --tenants absent.json", "tenant list --tenants absent.json",
		"tenant rm acme --tenants absent.json", "tenant rotate acme --tenants absent.json"}},
	{"the tenants file is none", exitConfig, `not a tenants file`, []string{
		"serve --listen 127.0.0.1:0 --tenants text.gguf", "gateway --cluster good.yaml --tenants text.gguf", "tenant list --tenants text.gguf",
		"tenant add acme --tenants text.gguf", "tenant rm acme --tenants text.gguf"}},
	{"a certificate can't be read", exitConfig, `(absent/ca|absent).pem: no such file|no certificate in it|failed to find any PEM|no PEM block`, []string{
		"serve --listen 127.0.0.1:0 --tls-cert absent.pem --tls-key absent.pem", "serve --listen 127.0.0.1:0 --tls-cert text.gguf --tls-key text.gguf",
		"gateway --cluster public-certificate.yaml --tenants tenants.json", "gateway --cluster no-certificates.yaml --tenants tenants.json",
		"prefill --cluster no-certificates.yaml --name p0", "decode --cluster no-certificates.yaml --name d0", "certs broken prefill/p0"}},
	{"the key is wrong", exitConfig, `does not know the key`, []string{"run parrot Hi --url {parrot} --api-key bad", "chat parrot --url {parrot} --api-key bad"}},
	{"what is asked for does not fit", exitConfig, `can't be served so|pool holds|is demanded`, []string{
		"serve --listen 127.0.0.1:0 --context 2048 --decode-pool 512", "serve --listen 127.0.0.1:0 --context 4000000", "decode --cluster small-pool.yaml --name d0",
		"prefill --cluster large-context.yaml --name p0"}},
	{"an address is taken", exitFailure, `address already in use`, []string{
		"serve --listen {taken}", "serve --listen 127.0.0.1:0 --admin {taken}", "gateway --cluster taken.yaml --tenants tenants.json",
		"prefill --cluster taken.yaml --name p0", "decode --cluster taken.yaml --name d0"}},
	{"no server is at the address", exitFailure, `no server answers at http://127.0.0.1:0`, []string{
		"run tracer Hi --url http://127.0.0.1:0", "chat tracer --url http://127.0.0.1:0"}},
	{"another server is at the address", exitConfig, `what {web} answers is not the OpenAI API's: OK, "text/html"`, []string{
		"run tracer Hi --url {web}", "chat tracer --url {web}"}},
	{"a folder can't be made", exitFailure, `not a directory`, []string{
		"list --home text.gguf/x", "show nosuch --home text.gguf/x", "pull ./tiny.gguf --home text.gguf/x", "tenant list --home text.gguf/x",
		"serve --listen 127.0.0.1:0 --home text.gguf/x", "serve --listen 127.0.0.1:0 --context 512 --tenants= --ready-file text.gguf/x", "certs text.gguf/x prefill/p0", "gateway --cluster good.yaml --tenants tenants.json --home text.gguf/x",
		"prefill --cluster good.yaml --name p0 --home text.gguf/x"}},
	{"a check says no", exitFailure, `can't be served so`, []string{"capacity tracer --context 2048 --decode-pool 512"}},
	{"there is no ledger", exitInconclusive, `does not exist|is not a folder|holds no ledger`, []string{
		"ledger verify absent", "ledger head absent", "ledger show absent", "check ledger absent", "ledger verify text.gguf", "ledger head text.gguf",
		"ledger show text.gguf", "check ledger text.gguf", "ledger verify certs", "check ledger certs"}},
	{"there is no such flag", exitUsage, `unknown flag: --frob`, []string{
		"list --frob", "show --frob", "pull --frob", "capacity --frob", "serve --frob", "run --frob", "chat --frob", "gateway --frob", "prefill --frob", "decode --frob",
		"tenant add --frob", "certs --frob", "ledger show --frob", "check --frob", "sim --frob", "version --frob"}},
	{"a flag's value can't be", exitUsage, `see "bulkhead .*--help"`, []string{
		"serve --prefills x", "serve --prefills 0", "serve --context many", "serve --log-level loud", "serve --timeout -1s", "serve --drain -1s",
		"gateway --cluster good.yaml --reserve -1", "gateway --cluster good.yaml --queue-timeout -1s", "prefill --cluster good.yaml --name p0 --log-level loud",
		"prefill --cluster good.yaml --name p0 --drain -1s", "run tracer Hi --max-tokens -1", "run tracer Hi --url nowhere",
		"run tracer Hi --url http://127.0.0.1:1843500", "chat tracer --url http://127.0.0.1:65536", "pull x --as ../x",
		"tenant add acme --concurrency -1 --tenants absent.json", "tenant rotate acme --grace -1s --tenants tenants.json", "check --world nosuch",
		"ledger show --request x", "sim --runs 0"}},
	{"an argument can't be", exitUsage, `see "bulkhead .*--help"`, []string{
		"pull http://", "pull owner/", "pull tracer", "rm tracer", "tenant add Acme --tenants absent.json", "certs certs worker/x", "completion tcsh", "nosuch", "help nosuch",
		"prefill --cluster good.yaml --name nosuch"}},
}

// clusterFiles are cluster files by what is wrong with them. Their sockets are files
// of the test's folder.
func clusterFiles(dir, taken string) map[string]string {
	file := func(model, tls, listen, prefill, decode string) string {
		return fmt.Sprintf("model: %s\ntls: {ca: %[2]s/ca.pem, cert: \"%[2]s/{name}.pem\", key: \"%[2]s/{name}-key.pem\"}\ngateway: {%s}\n"+
			"workers:\n- {name: p0, role: prefill, %s}\n- {name: d0, role: decode, %s}\n", model, tls, listen, prefill, decode)
	}
	const listen = `listen: "127.0.0.1:1"`
	prefill := fmt.Sprintf(`control: "unix://%[1]s/p0.control", transfer: "shm://%[1]s/p0.transfer"`, dir)
	decode := fmt.Sprintf(`control: "unix://%s/d0.control"`, dir)
	return map[string]string{
		"good":               file("tracer", "certs", listen, prefill, decode),
		"absent-model":       file("./absent.gguf", "certs", listen, prefill, decode),
		"no-model":           file("nosuch", "certs", listen, prefill, decode),
		"text-model":         file("./text.gguf", "certs", listen, prefill, decode),
		"no-certificates":    file("tracer", "absent", listen, prefill, decode),
		"public-certificate": file("tracer", "certs", listen+", tls: {cert: absent.pem, key: absent.pem}", prefill, decode),
		"small-pool":         file("tracer", "certs", listen, prefill, decode+", pool: 512") + "context: 2048\n",
		"large-context":      file("tracer", "certs", listen, prefill, decode) + "context: 4000000\n",
		"taken": file("tracer", "certs", `listen: "`+taken+`"`, `control: "unix://`+dir+`/p0.control", transfer: "tcp://`+taken+`"`,
			`control: "`+taken+`"`),
	}
}

func TestOneConditionHasOneExitCode(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer web.Close()
	parrot := httptest.NewServer(http.HandlerFunc(serveParrot))
	defer parrot.Close()
	write := func(name string, text []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("text.gguf", []byte("hello"))
	write("tiny.gguf", tinyModel(t))
	write("broken/ca.pem", []byte("hello"))
	write("broken/ca-key.pem", []byte("hello"))
	for name, text := range clusterFiles(dir, taken.Addr().String()) {
		write(name+".yaml", []byte(text))
	}
	addresses := strings.NewReplacer("{taken}", taken.Addr().String(), "{web}", web.URL, "{parrot}", parrot.URL)
	run := func(line string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], strings.Fields(addresses.Replace(line))...)
		cmd.Args[0], cmd.Dir, cmd.Env = "bulkhead", dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "BULKHEAD_HOME=" + dir + "/home"}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // its exit code is what is looked at
		return cmd.ProcessState.ExitCode(), stderr.String()
	}
	for _, line := range []string{"certs certs gateway/gateway prefill/p0 decode/d0", "tenant add acme --tenants tenants.json"} {
		if code, stderr := run(line); code != 0 {
			t.Fatalf("%s ends with %d: %s", line, code, stderr)
		}
	}
	documented, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range conditions {
		if !strings.Contains(string(documented), fmt.Sprintf("\n| %d |", c.code)) {
			t.Errorf("README.md does not say what exit code %d means", c.code)
		}
		for _, line := range c.commands {
			if code, stderr := run(line); code != c.code || !regexp.MustCompile(addresses.Replace(c.says)).MatchString(stderr) {
				t.Errorf("where %s, %q ends with %d and says %q, want %d and %q", c.name, line, code, stderr, c.code, c.says)
			}
		}
	}
}

// A disk that is full, and the like, ends with 1 even where it stops what else would
// end with 78: it passes.
func TestExitCodeOfAnError(t *testing.T) {
	for _, row := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("unknown"), exitFailure},
		{fmt.Errorf("write: %w", unix.ENOSPC), exitFailure},
		{configError{fmt.Errorf("write: %w", unix.ENOSPC)}, exitFailure},
		{fault.New(fault.Invalid, "open: %w", unix.EMFILE), exitFailure},
		{fault.New(fault.Unavailable, "later"), exitFailure},
		{fault.New(fault.NotFound, "nowhere"), exitConfig},
		{&chatclient.APIError{Status: 404}, exitConfig},
		{&chatclient.APIError{Status: 429}, exitFailure},
		{&chatclient.APIError{Status: 503}, exitFailure},
		{usageError{fault.New(fault.NotFound, "nowhere")}, exitUsage},
		{inconclusive("cut off"), exitInconclusive},
		{fmt.Errorf("pull: %w", context.Canceled), exitInterrupted},
	} {
		if code := exitCode(row.err); code != row.code {
			t.Errorf("the exit code of %v is %d, want %d", row.err, code, row.code)
		}
	}
}

// A command whose output has no room has failed, whatever it did.
func TestFullOutputIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer full.Close()
	for _, line := range []string{"list", "version", "show tracer", "capacity tracer", "check --list", "completion bash", "list --catalog --json"} {
		cmd := exec.Command(os.Args[0], strings.Fields(line)...)
		cmd.Args[0], cmd.Stdout, cmd.Env = "bulkhead", full, []string{"HOME=" + t.TempDir()}
		_ = cmd.Run() // its exit code is what is looked at
		if code := cmd.ProcessState.ExitCode(); code != exitFailure {
			t.Errorf("%q into a full disk ends with %d, want %d", line, code, exitFailure)
		}
	}
}
