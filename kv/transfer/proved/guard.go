package proved

// Guard is a condition that a transition waits for.
type Guard uint8

// The guards. None stands for a condition that has no name and is always asked for.
const (
	None Guard = iota
	// Decode: the target machine, its pool, its worker.
	FreshID
	Alloc
	DeferRelease
	Coverage
	FenceFirst
	FencePeer
	Checks
	KernelStop
	Holders
	Readers
	Tenant
	Blank
	// The receiver, where it places the bytes.
	Gate
	// Prefill: the source machine and its worker.
	Epochs
	LowMark
	Tombstone
	Silence
	Drain
	LostWrite
	SourceHold
	SourceKernel
	// What is trusted of transports, workers and nonces.
	FreshNonce
	CrashTears
	FenceHolds
	Ordered
	Reports
	Refusals
	Complete
	Honest
	guards
)

var guardNames = [guards]string{"", "FreshID", "Alloc", "DeferRelease", "Coverage", "FenceFirst", "FencePeer", "Checks", "KernelStop", "Holders", "Readers",
	"Tenant", "Blank", "Gate", "Epochs", "LowMark", "Tombstone", "Silence", "Drain", "LostWrite", "SourceHold", "SourceKernel", "FreshNonce",
	"CrashTears", "FenceHolds", "Ordered", "Reports", "Refusals", "Complete", "Honest"}

// String is the guard's name in the proof.
func (g Guard) String() string { return guardNames[g] }

// Set is a set of guards that are asked for.
type Set struct{ missing uint32 }

// All is the set of all guards but these.
func All(but ...Guard) (s Set) {
	for _, g := range but {
		s.missing |= 1 << g
	}
	return s
}

// Has reports whether g is asked for.
func (s Set) Has(g Guard) bool { return g == None || s.missing>>g&1 == 0 }
