//go:build !purego

package shm

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	lineBytes   = 128 // what streamAVX2 moves at a time
	alignBytes  = 32
	streamBytes = 4096 // less isn't worth the fence
)

//go:noescape
func streamAVX2(to, from *byte, n int)

// stream is copy that leaves the cache alone: what is copied is neither read into
// it before nor kept in it after. The result is the same.
func stream(to, from []byte) int {
	n := min(len(to), len(from))
	if !cpu.X86.HasAVX2 || n < streamBytes {
		return copy(to, from)
	}
	head := int(-uintptr(unsafe.Pointer(&to[0])) % alignBytes)
	copy(to[:head], from)
	body := (n - head) / lineBytes * lineBytes
	streamAVX2(&to[head], &from[head], body)
	copy(to[head+body:n], from[head+body:n])
	return n
}
