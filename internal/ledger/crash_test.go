package ledger

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a child that writes a ledger: "ROLE DIR".
const childEnv = "BULKHEAD_LEDGER_TEST_CHILD"

func child(arg string) {
	role, dir, _ := strings.Cut(arg, " ")
	l, err := Open(Config{Dir: dir, Node: "d1", Epoch: 1, SegmentBytes: 64 << 10, Window: time.Millisecond, Retry: time.Millisecond})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	switch role {
	case "endless":
		for n := 1; ; n++ {
			if err := l.Append(sample(n)); err != nil {
				continue // the queue is full
			}
			if n%100 == 0 && l.Sync(context.Background()) == nil {
				fmt.Println(n)
			}
		}
	case "full":
		fullDisk(l)
	}
}

// fullDisk fills a ledger whose files may not grow, then lets them grow again.
func fullDisk(l *Ledger) {
	signal.Ignore(syscall.SIGXFSZ)
	var old unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 10_000, Max: old.Max})
	}
	if err != nil {
		fmt.Println("limit:", err)
		os.Exit(1)
	}
	taken := 0
	for l.Err() == nil {
		if l.Append(sample(taken+1)) == nil {
			taken++
		}
		_ = l.Sync(context.Background()) // its error is Err's
	}
	fmt.Println("stopped:", l.Err())
	if l.Append(sample(taken+1)) == nil { // waits in the queue
		taken++
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		fmt.Println("limit:", err)
		os.Exit(1)
	}
	for l.Err() != nil {
		time.Sleep(time.Millisecond) // in a child, until its next try
	}
	fmt.Println("close:", l.Close())
	fmt.Println("taken:", taken)
}

func startChild(t *testing.T, role, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role+" "+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func TestKilledInMidWrite(t *testing.T) {
	for kill := range 5 {
		dir := t.TempDir()
		cmd, out := startChild(t, "endless", dir)
		confirmed := 0
		for range 3 + 7*kill {
			if !out.Scan() {
				t.Fatal("the child ended by itself")
			}
			n, err := strconv.Atoi(out.Text())
			if err != nil {
				t.Fatal(err)
			}
			confirmed = n
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // its error is the kill
		l := open(t, Config{Dir: dir, Epoch: 2})
		closed(t, l)
		if _, err := Verify(dir); err != nil {
			t.Fatalf("the chain must be whole after Open: %v", err)
		}
		last := 0
		for _, e := range readAll(t, dir) {
			if e.Kind != Note {
				last = int(e.Request)
			}
		}
		if last < confirmed {
			t.Errorf("%d entries were confirmed, %d are there", confirmed, last)
		}
	}
}

func TestFullDiskStopsAndRecovers(t *testing.T) {
	dir := t.TempDir()
	cmd, out := startChild(t, "full", dir)
	said := map[string]string{}
	for out.Scan() {
		key, value, _ := strings.Cut(out.Text(), ": ")
		said[key] = value
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("child: %v, it said %v", err, said)
	}
	if !strings.Contains(said["stopped"], "file too large") || said["close"] != "<nil>" {
		t.Errorf("the error must be the disk's, and go away with room: %v", said)
	}
	r, err := Verify(dir)
	if err != nil {
		t.Fatalf("a failed write must leave no trace: %v", err)
	}
	if taken, _ := strconv.Atoi(said["taken"]); taken < 10 || r.Entries != taken {
		t.Errorf("%d entries were taken, %d are there", taken, r.Entries)
	}
}
