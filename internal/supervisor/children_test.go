package supervisor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary a child.
const roleEnv = "BULKHEAD_SUPERVISOR_TEST_ROLE"

// as is a child that plays a role.
func as(role string, c Child) Child {
	c.Env = append(c.Env, roleEnv+"="+role)
	return c
}

// play is the child's main.
func play(role string) {
	p, err := FindParent()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	switch role {
	case "serve": // ready, alive, ends when told
		ready(p, fmt.Sprintf("epoch %016x", uint64(p.Epoch())))
		beat := time.NewTicker(5 * time.Millisecond)
		for {
			select {
			case <-told:
				if name := os.Getenv("NAME"); name != "" {
					fmt.Fprintf(os.Stderr, "{\"msg\":\"drained\",\"name\":\"%s\"}\n", name)
				}
				os.Exit(0)
			case <-beat.C:
				if p.Alive() != nil {
					os.Exit(1)
				}
			}
		}
	case "crash":
		os.Exit(3)
	case "config":
		os.Exit(ExitConfig)
	case "end":
		ready(p, "")
		os.Exit(0)
	case "hang": // never ready
		<-told
		os.Exit(0)
	case "silent": // ready, then nothing
		ready(p, "")
		<-told
		os.Exit(0)
	case "deaf": // does not end when told
		signal.Ignore(syscall.SIGTERM)
		ready(p, "")
		select {}
	case "chatty": // says more than it may
		_, _ = unix.Write(pipeFD, []byte(strings.Repeat("x", 3*readyBytesMax)))
		<-told
	case "nice":
		ready(p, niceOfThreads())
		<-told
	case "file":
		text, err := io.ReadAll(File(0, "given"))
		ready(p, fmt.Sprintf("%s %v", text, err))
		<-told
	case "supervisor": // with two children of its own, until it is killed
		supervise(p)
	}
}

func ready(p *Parent, text string) {
	if err := p.Ready(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// niceOfThreads is the set of nice values of all the process's threads.
func niceOfThreads() string {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err.Error()
	}
	seen := map[string]bool{}
	for _, task := range tasks {
		stat, err := os.ReadFile("/proc/self/task/" + task.Name() + "/stat")
		if err != nil {
			return err.Error()
		}
		_, fields, _ := strings.Cut(string(stat), ") ")
		seen[strings.Fields(fields)[16]] = true // nice is field 19, behind the name's field 2
	}
	return fmt.Sprint(seen)
}

func supervise(p *Parent) {
	s, err := New(Config{Children: []Child{as("serve", Child{Name: "a"}), as("deaf", Child{Name: "b"})}})
	if err != nil {
		os.Exit(1)
	}
	go func() { _ = s.Run(context.Background()) }()
	states, err := s.AwaitReady(context.Background())
	if err != nil {
		os.Exit(1)
	}
	ready(p, fmt.Sprint(states[0].PID, states[1].PID))
	select {}
}
