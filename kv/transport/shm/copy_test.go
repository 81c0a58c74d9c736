package shm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStreamIsCopy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	from := make([]byte, 3*streamTestBytes)
	for i := range from {
		from[i] = byte(random.Uint32())
	}
	for range 2000 {
		n, at, off := random.IntN(2*streamTestBytes), random.IntN(200), random.IntN(200)
		to := bytes.Repeat([]byte{0x77}, n+500)
		if got := stream(to[at:at+n], from[off:off+n]); got != n {
			t.Fatalf("%d of %d bytes were copied", got, n)
		}
		if !bytes.Equal(to[at:at+n], from[off:off+n]) {
			t.Fatalf("%d bytes from %d to %d were copied wrongly", n, off, at)
		}
		if bytes.Count(to[:at], []byte{0x77}) != at || bytes.Count(to[at+n:], []byte{0x77}) != 500-at {
			t.Fatalf("bytes around the %d at %d were changed", n, at)
		}
	}
	if got := stream(make([]byte, 10000), from[:5000]); got != 5000 {
		t.Errorf("%d bytes were copied of the shorter one's 5000", got)
	}
	if got := stream(nil, from); got != 0 {
		t.Errorf("%d bytes were copied to nowhere", got)
	}
}

const streamTestBytes = 8192

func TestCacheSizes(t *testing.T) {
	for text, want := range map[string]int{"32768K": 32 << 20, "512K": 512 << 10, "8M": 8 << 20, "1G": 1 << 30, "4096": 4096} {
		if got, ok := parseSize(text); !ok || got != want {
			t.Errorf("%q is %d bytes (%v), want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "K", "-1K", "0", "12X", "99999999999999999999G", "9999999999999G"} {
		if got, ok := parseSize(text); ok {
			t.Errorf("%q is taken for %d bytes", text, got)
		}
	}
	if got := cacheBytes(); got < 1<<10 {
		t.Errorf("the last level of cache has %d bytes", got)
	}
}

// BenchmarkCopy moves pages from a ring, which is in the cache, to a slab, which
// isn't, or which is as small as a prompt.
func BenchmarkCopy(b *testing.B) {
	const page = 64 << 10
	ring := mapMemory(b, 8<<20)
	for _, slabBytes := range []int{4 << 20, 256 << 20} {
		slab := mapMemory(b, slabBytes)
		for name, move := range map[string]func(to, from []byte) int{"copy": func(to, from []byte) int { return copy(to, from) }, "stream": stream} {
			b.Run(fmt.Sprintf("%s/slab=%dMiB", name, slabBytes>>20), func(b *testing.B) {
				b.SetBytes(page)
				for i := 0; b.Loop(); i++ {
					move(slab[i*page%slabBytes:][:page], ring[i*page%len(ring):][:page])
				}
			})
		}
	}
}

func mapMemory(b *testing.B, n int) []byte {
	memory, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := unix.Munmap(memory); err != nil {
			b.Error(err)
		}
	})
	for i := range memory {
		memory[i] = byte(i)
	}
	return memory
}
