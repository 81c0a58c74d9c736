// Package machine reads how much memory this process may use.
//
// It follows proc(5) for /proc/meminfo, /proc/self/cgroup and
// /proc/self/mountinfo, and the kernel's documents of control groups: version 1
// (memory.limit_in_bytes) and version 2 (memory.max). A group's limit holds for
// all groups below it, so every ancestor counts.
package machine

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Memory is a bound on memory and where it comes from.
type Memory struct {
	Bytes  int64
	Source string // "physical memory", or the control group's file
}

// noLimit is the least value that version 1 shows for "none": the largest
// multiple of the page size, for pages of up to 64 KiB.
const noLimit = math.MaxInt64 - 64<<10

// ReadMemory gives the tightest bound. root is the root of the file system:
// os.DirFS("/") outside of tests.
func ReadMemory(root fs.FS) (Memory, error) {
	least, err := physical(root)
	if err != nil {
		return Memory{}, err
	}
	for _, group := range groups(root) {
		for dir := group.dir; ; dir = path.Dir(dir) {
			name := path.Join(dir, group.file)
			if limit, ok := readLimit(root, name); ok && limit < least.Bytes {
				least = Memory{limit, "/" + name}
			}
			if dir == group.top || dir == "." {
				break
			}
		}
	}
	return least, nil
}

func physical(root fs.FS) (Memory, error) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("read physical memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err == nil && kib > 0 && kib < math.MaxInt64>>10 {
				return Memory{kib << 10, "physical memory"}, nil
			}
		}
	}
	return Memory{}, fmt.Errorf("read physical memory: /proc/meminfo has no usable line MemTotal")
}

// group is a control group's folder, the folder where its hierarchy is mounted,
// and the name of the file with the limit.
type group struct{ dir, top, file string }

// groups finds this process's memory groups, of either version. What can't be
// read is no limit: most machines have one version only.
func groups(root fs.FS) []group {
	own, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []group
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy, controllers, path
		if len(fields) != 3 {
			continue
		}
		switch {
		case fields[1] == "":
			out = appendGroup(out, mounts, "cgroup2", "", fields[2], "memory.max")
		case hasOption(fields[1], "memory"):
			out = appendGroup(out, mounts, "cgroup", "memory", fields[2], "memory.limit_in_bytes")
		}
	}
	return out
}

// appendGroup finds the mount of a hierarchy and, below it, the group's folder.
func appendGroup(out []group, mounts []byte, kind, option, own, file string) []group {
	for lines := bufio.NewScanner(bytes.NewReader(mounts)); lines.Scan(); {
		mount, super, found := strings.Cut(lines.Text(), " - ")
		fields, superFields := strings.Fields(mount), strings.Fields(super)
		if !found || len(fields) < 5 || len(superFields) < 3 || superFields[0] != kind {
			continue
		}
		if option != "" && !hasOption(superFields[2], option) {
			continue
		}
		// A container may see the mount of its own group alone: then the mount's
		// root is the group, or above it.
		below := own
		if rest, inside := strings.CutPrefix(own, fields[3]); inside && (rest == "" || rest[0] == '/' || fields[3] == "/") {
			below = rest
		}
		top := strings.TrimPrefix(path.Clean(fields[4]), "/")
		dir := path.Join(top, path.Clean("/"+below))
		return append(out, group{dir, top, file})
	}
	return out
}

func hasOption(list, option string) bool {
	return strings.Contains(","+list+",", ","+option+",")
}

func readLimit(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
	return limit, err == nil && limit > 0 && limit < noLimit
}
