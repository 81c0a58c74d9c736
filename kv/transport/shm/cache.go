package shm

import (
	"os"
	"strconv"
	"strings"
)

// cacheBytesDefault is assumed where the system doesn't say.
const cacheBytesDefault = 16 << 20

// cacheBytes is the size of the last level of cache.
func cacheBytes() int {
	for _, level := range []string{"3", "2"} {
		text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index" + level + "/size")
		if err != nil {
			continue // a machine need not have that level
		}
		if bytes, ok := parseSize(strings.TrimSpace(string(text))); ok {
			return bytes
		}
	}
	return cacheBytesDefault
}

// parseSize reads a size as sysfs writes it, such as 32768K.
func parseSize(text string) (int, bool) {
	unit := 1
	for suffix, bytes := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if rest, found := strings.CutSuffix(text, suffix); found {
			text, unit = rest, bytes
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<40/unit {
		return 0, false
	}
	return n * unit, true
}
