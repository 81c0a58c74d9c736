package chatclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is its own server: with serverVariable set it behaves as that says.
const serverVariable = "CHATCLIENT_TEST_SERVER"

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(serverVariable); behaviour != "" {
		os.Exit(beServer(behaviour, os.Args[len(os.Args)-1]))
	}
	goleak.VerifyTestMain(m)
}

func beServer(behaviour, readyFile string) int {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	switch behaviour {
	case "fail":
		fmt.Println("first line")
		fmt.Println("model \"x\" is not here")
		return 1
	case "nonsense":
		writeReady(readyFile, "{")
	case "serve":
		writeReady(readyFile, `{"url":"http://127.0.0.1:1","keys":{"b":"key-b","a":"key-a"},"model":"m"}`)
	}
	<-ended
	return 0
}

func writeReady(path, text string) {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		panic(err)
	}
}

func startTestServer(ctx context.Context, t *testing.T, behaviour string) (*Private, error) {
	t.Helper()
	t.Setenv(serverVariable, behaviour)
	return StartPrivate(ctx, os.Args[0], "serve", "m")
}

func TestAPrivateServerLivesUntilStop(t *testing.T) {
	p, err := startTestServer(t.Context(), t, "serve")
	if err != nil {
		t.Fatal(err)
	}
	client, err := p.Client()
	if err != nil || p.Model != "m" || client.key != "key-a" || client.Address() != "http://127.0.0.1:1" {
		t.Errorf("model %q, address and key of %+v, error %v", p.Model, client, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the server still runs: %v", err)
	}
	if _, err := os.Stat(p.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

func TestAPrivateServerThatFailsSaysWhy(t *testing.T) {
	for behaviour, want := range map[string]string{
		"fail":     `it ended before it was ready: model "x" is not here`,
		"nonsense": "its ready file can't be read",
	} {
		if _, err := startTestServer(t.Context(), t, behaviour); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", behaviour, err, want)
		}
	}
	if _, err := StartPrivate(t.Context(), "/absent"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error is %v", err)
	}
}

func TestAPrivateServerThatIsNeverReadyCanBeGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := startTestServer(ctx, t, "silent"); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}
