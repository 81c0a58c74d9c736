package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The copy of a signal that comes with it is no second one.
func TestSecondSignalComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		signals := make(chan os.Signal)
		drains, kills := 0, 0
		go followSignals(ctx, signals, func() { drains++ }, func() { kills++ })
		for _, step := range []struct {
			after         time.Duration
			drains, kills int
		}{{0, 1, 0}, {0, 1, 0}, {secondAfter - 1, 1, 0}, {1, 1, 1}} {
			time.Sleep(step.after)
			signals <- syscall.SIGTERM
			synctest.Wait()
			if drains != step.drains || kills != step.kills {
				t.Errorf("%v later there are %d drains and %d kills, want %d and %d", step.after, drains, kills, step.drains, step.kills)
			}
		}
	})
}
