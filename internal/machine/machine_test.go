package machine

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

const meminfo = "MemTotal:       24683520 kB\nMemFree:        1000 kB\n"

func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

func TestTheTightestLimitCounts(t *testing.T) {
	const (
		v2mount = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		v1mount = "13 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n14 31 0:34 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	)
	tests := []struct {
		name string
		root fstest.MapFS
		want Memory
	}{
		{"no groups", files(), Memory{24683520 << 10, "physical memory"}},
		{"version 2, own limit", files("proc/self/cgroup", "0::/a/b\n", "proc/self/mountinfo", v2mount,
			"sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/b/memory.max", "1073741824\n"),
			Memory{1 << 30, "/sys/fs/cgroup/a/b/memory.max"}},
		{"version 2, an ancestor's limit", files("proc/self/cgroup", "0::/a/b\n", "proc/self/mountinfo", v2mount,
			"sys/fs/cgroup/a/memory.max", "1000\n", "sys/fs/cgroup/a/b/memory.max", "2000\n"),
			Memory{1000, "/sys/fs/cgroup/a/memory.max"}},
		{"version 2, larger than the machine", files("proc/self/cgroup", "0::/a\n", "proc/self/mountinfo", v2mount,
			"sys/fs/cgroup/a/memory.max", "99999999999999\n"), Memory{24683520 << 10, "physical memory"}},
		{"version 1", files("proc/self/cgroup", "8:pids:/\n4:memory:/x\n0::/\n", "proc/self/mountinfo", v1mount,
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
			Memory{5000, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes"}},
		{"version 1, no limit", files("proc/self/cgroup", "4:memory:/x\n", "proc/self/mountinfo", v1mount,
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"), Memory{24683520 << 10, "physical memory"}},
		{"version 1 in a container", files("proc/self/cgroup", "4:memory,cpu:/docker/id\n",
			"proc/self/mountinfo", "14 31 0:34 /docker/id /sys/fs/cgroup/memory ro - cgroup cgroup rw,cpu,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n"),
			Memory{7000, "/sys/fs/cgroup/memory/memory.limit_in_bytes"}},
		{"a group outside of the mount", files("proc/self/cgroup", "0::/../../x\n", "proc/self/mountinfo", v2mount,
			"sys/fs/cgroup/memory.max", "3000\n"), Memory{3000, "/sys/fs/cgroup/memory.max"}},
		{"nonsense", files("proc/self/cgroup", "nonsense\n::\n", "proc/self/mountinfo", "x - \n - cgroup2\n"), Memory{24683520 << 10, "physical memory"}},
	}
	for _, test := range tests {
		got, err := ReadMemory(test.root)
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, error %v; want %+v", test.name, got, err, test.want)
		}
	}
}

func TestUnreadableMemoryIsAnError(t *testing.T) {
	for _, text := range []string{"", "MemTotal: many kB\n", "MemTotal: -5 kB\n", "MemTotal: 99999999999999999999 kB\n"} {
		_, err := ReadMemory(fstest.MapFS{"proc/meminfo": {Data: []byte(text)}})
		if err == nil || !strings.Contains(err.Error(), "MemTotal") {
			t.Errorf("%q: error is %v", text, err)
		}
	}
	if _, err := ReadMemory(fstest.MapFS{}); err == nil {
		t.Error("no /proc should be an error")
	}
}

func TestThisMachine(t *testing.T) {
	got, err := ReadMemory(os.DirFS("/"))
	if err != nil || got.Bytes < 1<<20 || got.Source == "" {
		t.Errorf("got %+v, error %v", got, err)
	}
}
