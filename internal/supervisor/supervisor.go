// Package supervisor starts a node's processes and ends them, without leaving one behind.
//
// Life of a child:
//
//	starting --ready--> ready --exit--> waiting --backoff--> starting
//	    \------exit or too slow------------^  \--too many in a row--> Run fails
//
// Each start has a new epoch, which the child finds in its environment. A child
// reports that it is ready, and then that it lives, over a pipe (Parent). One
// that stays silent is killed: a stopped process is fenced, not waited for.
//
// Nothing outlives the supervisor: the kernel kills the children when the thread
// that started them ends, and each of these threads stays as long as its child.
// Signals go through pidfds, so that they can't reach a stranger under a reused
// number, and a child counts as dead when the kernel says so.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// ExitConfig is the exit status of a child that no new start would cure, such as
// one with a wrong configuration (EX_CONFIG of sysexits.h): it is not restarted.
const ExitConfig = 78

// Child is one process. The zero values of all but Name and Args are usable.
type Child struct {
	Name  string
	Args  []string   // behind the program's name
	Env   []string   // KEY=value, added to the supervisor's own
	Files []*os.File // the child opens them with File(0), File(1), ...
	Nice  int        // 0 to 19, set before the program starts, so that all its threads have it
	// Wave orders the end: children of the lowest wave are drained first, those
	// of the next when they are gone.
	Wave int
	// Silence is how long a ready child may go without a sign of life; 0: for ever.
	Silence time.Duration
}

// Config configures a Supervisor.
type Config struct {
	Children     []Child
	Program      string        // default: the running one
	Stdout       *os.File      // of all children, unchanged; default os.Stdout
	Stderr       *os.File      // of all children, unchanged; default os.Stderr
	ReadyMax     time.Duration // a child that is not ready by then is killed, default 60 s
	Grace        time.Duration // from SIGTERM to SIGKILL, for each wave, default 10 s
	BackoffFirst time.Duration // before the first restart, doubled each time, default 100 ms
	BackoffMax   time.Duration // default 5 s
	FailuresMax  int           // ends in a row that make Run give up, default 8
	Stable       time.Duration // ready for so long ends a row of failures, default 30 s
	Log          *slog.Logger  // default: none
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.ReadyMax, time.Minute)
	set(&c.Grace, 10*time.Second)
	set(&c.BackoffFirst, 100*time.Millisecond)
	set(&c.BackoffMax, 5*time.Second)
	set(&c.Stable, 30*time.Second)
	if c.FailuresMax == 0 {
		c.FailuresMax = 8
	}
	if c.Program == "" {
		c.Program = "/proc/self/exe" // the same file, even if it was replaced since
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate lists all mistakes.
func (c Config) Validate() error {
	var mistakes []error
	names := map[string]bool{}
	if len(c.Children) == 0 {
		mistakes = append(mistakes, errors.New("no children"))
	}
	for i, child := range c.Children {
		if child.Name == "" || names[child.Name] {
			mistakes = append(mistakes, fmt.Errorf("child %d: name %q is missing or another's", i, child.Name))
		}
		names[child.Name] = true
		if child.Nice < 0 || child.Nice > 19 {
			mistakes = append(mistakes, fmt.Errorf("child %s: nice is %d, must be 0 to 19", child.Name, child.Nice))
		}
	}
	return errors.Join(mistakes...)
}

// Phase is where a child is in its life.
type Phase uint8

// The phases.
const (
	Waiting  Phase = iota // not running: not yet, or until the next try
	Starting              // running, not ready
	Ready                 // running and ready
	Ended                 // not running, for good
)

// String is the phase's name in logs.
func (p Phase) String() string { return [...]string{"waiting", "starting", "ready", "ended"}[p] }

// State is a child as it is now.
type State struct {
	Name     string
	Phase    Phase
	Epoch    kv.Epoch // of the running or the last process; 0 before the first
	PID      int      // 0 if it is not running
	Ready    string   // what the child said with Ready
	Starts   int
	LastExit string // how the last process ended; empty if none did
}

// Supervisor runs a set of children.
type Supervisor struct {
	config Config
	hurry  chan struct{} // closed by Kill

	mu       sync.Mutex
	children []*child      // immutable; what they hold is protected by mu
	changed  chan struct{} // closed at the next change; protected by mu
	hurried  bool          // protected by mu
}

// child is one of the supervisor's children.
type child struct {
	Child
	stop    chan struct{} // closed when the child is to end
	state   State         // protected by Supervisor.mu
	process *process      // the running one, or nil; protected by Supervisor.mu
	forced  bool          // it had to be killed at the end; protected by Supervisor.mu
}

// New makes a supervisor.
func New(c Config) (*Supervisor, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Supervisor{config: c.withDefaults(), changed: make(chan struct{}), hurry: make(chan struct{})}
	for _, spec := range c.Children {
		s.children = append(s.children, &child{Child: spec, stop: make(chan struct{}), state: State{Name: spec.Name}})
	}
	return s, nil
}

// Run keeps the children running until ctx ends or one of them can't be kept
// running; then it drains them, wave by wave, and kills what is left after
// Grace. When it returns all children are dead. The error names children that
// failed for good or had to be killed. Run can be called once.
func (s *Supervisor) Run(ctx context.Context) error {
	failed := make(chan error, len(s.children))
	var all sync.WaitGroup
	ended := map[*child]chan struct{}{}
	for _, c := range s.children {
		done := make(chan struct{})
		ended[c] = done
		all.Go(func() {
			defer close(done)
			if err := s.tend(c); err != nil {
				failed <- err
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
		s.config.Log.Info("children are drained", "grace", s.config.Grace)
	case err = <-failed:
		s.config.Log.Error("a child can't be kept running: all are drained", "err", err)
	}
	for _, wave := range s.waves() {
		for _, c := range wave {
			close(c.stop)
		}
		for _, c := range wave {
			<-ended[c]
		}
	}
	all.Wait()
	return errors.Join(err, s.killedError())
}

// waves groups the children by Wave, the lowest first.
func (s *Supervisor) waves() (out [][]*child) {
	sorted := slices.Clone(s.children)
	slices.SortStableFunc(sorted, func(a, b *child) int { return a.Wave - b.Wave })
	for i, c := range sorted {
		if i == 0 || sorted[i-1].Wave != c.Wave {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], c)
	}
	return out
}

func (s *Supervisor) killedError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, c := range s.children {
		if c.forced {
			names = append(names, c.Name)
		}
	}
	if names == nil {
		return nil
	}
	if s.hurried {
		return fmt.Errorf("killed without grace: %s", strings.Join(names, ", "))
	}
	return fmt.Errorf("not ended within %v of SIGTERM and killed: %s", s.config.Grace, strings.Join(names, ", "))
}

// Kill ends all grace: children that are being drained, or will be, are killed.
// It does not itself begin to drain.
func (s *Supervisor) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hurried {
		s.hurried = true
		close(s.hurry)
	}
}

// State is all children in the configuration's order.
func (s *Supervisor) State() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]State, len(s.children))
	for i, c := range s.children {
		out[i] = c.state
	}
	return out
}

// Changed is closed when any child's state changes. Take it before State to miss
// nothing.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// AwaitReady waits until all children are ready at once.
func (s *Supervisor) AwaitReady(ctx context.Context) ([]State, error) {
	for {
		changed := s.Changed()
		states := s.State()
		if !slices.ContainsFunc(states, func(st State) bool { return st.Phase != Ready }) {
			return states, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return states, fmt.Errorf("wait for children: %w", context.Cause(ctx))
		}
	}
}

// update changes a child under the lock and tells those who watch.
func (s *Supervisor) update(c *child, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}
