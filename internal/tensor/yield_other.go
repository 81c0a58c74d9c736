//go:build !linux

package tensor

import "runtime"

// osYield lets other goroutines run.
func osYield() { runtime.Gosched() }
