package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A build for looking at guards tells, without one of them, the shortest way to a
// leak, and without one that has another behind it what it holds up.
func TestUnguardedBuildTellsTheStory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a command")
	}
	program := filepath.Join(t.TempDir(), "bulkhead")
	if out, err := exec.Command("go", "build", "-tags", "unguarded", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, k := range []struct {
		args string
		code int
		want string
	}{
		{"--without DeferRelease --transport torn", 1, `(?s)^NoLeak: request 2 decodes page 0 of D0, which holds bytes of request 1\n.*without: DeferRelease\n   1  submit r1 .*\n  \d+  body lands: `},
		{"--without Tombstone,TagStep --transport drain-only", 1, `(?s)^NoLeak: .*without: Tombstone TagStep\n   1  submit `},
		{"--without KernelStop --transport receiver", 1, `(?s)^Nothing leaks without KernelStop alone: .*\nReleaseHeld: .*without: KernelStop\n   1  submit `},
		{"--without SumVerify,TagStep --transport receiver", 0, `^nothing leaks without SumVerify TagStep: other guards stand behind\n$`},
		{"--without Belt", 2, `unknown guard "Belt", there are: .*"DeferRelease", .*"Tombstone"`},
		{"--without Gate --transport pigeon", 2, `unknown transport "pigeon"`},
	} {
		args := append([]string{"check"}, strings.Fields(k.args)...)
		out, err := exec.Command(program, args...).CombinedOutput()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		if code != k.code || !regexp.MustCompile(k.want).Match(out) {
			t.Errorf("check %s ends with %d, want %d, and says\n%s\nwant %s", k.args, code, k.code, out, k.want)
		}
	}
}
