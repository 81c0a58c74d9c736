package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"bulkhead": func() { os.Exit(execute(os.Args[1:], os.Stderr)) },
	})
}

// The scripts run the real command in an empty home directory.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("BULKHEAD_HOME", env.WorkDir+"/home")
			return nil
		},
	})
}
