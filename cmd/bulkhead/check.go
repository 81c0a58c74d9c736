package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bulkhead-kv/bulkhead/internal/conform"
	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
)

// exitInconclusive is the exit code of a check that could not come to a verdict.
const exitInconclusive = 3

// verdictError is a check's outcome, with the exit code that scripts read.
type verdictError struct {
	err  error
	code int
}

func (v verdictError) Error() string { return v.err.Error() }
func (v verdictError) Unwrap() error { return v.err }

func inconclusive(format string, args ...any) error {
	return verdictError{fmt.Errorf(format, args...), exitInconclusive}
}

const checkLedgerLong = `Re-execute ledgers on the machines that serve. A worker's ledger holds each step
of its transfer machine: what went in, and a hash of what came out. This command
gives the same to a machine of its own and names the first entry that it would not
have produced: file, line, event, expected and found. A worker that runs without
one of its guards, or has skipped, repeated or invented a step, is found.

Then the ledgers of all workers are followed together, beside the machine that is
proved (docs/PROOF.md): each step must be a run of its transitions. That needs the
ledgers of both ends of each transfer; where one is missing, the check says up to
which step it could follow, and its verdict is that of the ledgers by themselves.

PATH is a ledger's folder or a folder of ledgers, such as DATA/ledger where
"bulkhead serve" keeps them (the default). A server may be running meanwhile.

Exit codes: 0 all conform, 1 one does not, 3 inconclusive: nothing to check, older
segments deleted, a newest segment without its header, or entries lost. A 3 is
never a pass.`

func newCheckLedger() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger [PATH]...",
		Short: "re-execute ledgers on the machines that serve",
		Long:  checkLedgerLong,
		Example: `  bulkhead check ledger                          all ledgers of the data folder
  bulkhead check ledger ./ledger/d0 --json       one of them, for a program`,
		Args: args(cobra.ArbitraryArgs),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		folders, err := ledgerFolders(cmd, args)
		if err != nil {
			return err
		}
		reports, err := checkFolders(folders)
		if err != nil {
			return err
		}
		together, err := conform.Together(folders)
		if err != nil {
			return err
		}
		write := printChecks
		if *asJSON {
			write = printChecksJSON
		}
		if err := write(cmd.OutOrStdout(), reports, together); err != nil {
			return err
		}
		return verdict(reports, together)
	}
	return cmd
}

// ledgerFolders finds the ledgers at the paths, or those of the data folder. A path that
// is no folder, such as the lock beside the ledgers, is passed over and named.
func ledgerFolders(cmd *cobra.Command, paths []string) (all []string, err error) {
	if len(paths) == 0 {
		home, err := homeOf(cmd)
		if err != nil {
			return nil, err
		}
		paths = []string{ledgerRoot(home)}
	}
	for _, path := range paths {
		folders, err := ledger.Folders(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil, inconclusive("%s does not exist: name a ledger's folder", path)
		case errors.Is(err, unix.ENOTDIR):
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s is not a folder, so no ledger: passed over\n", path)
			continue
		case err != nil:
			return nil, err
		case len(folders) == 0:
			return nil, inconclusive("%s holds no ledger", path)
		}
		all = append(all, folders...)
	}
	if len(all) == 0 {
		return nil, inconclusive("no ledger is named: name a ledger's folder")
	}
	return all, nil
}

func checkFolders(folders []string) ([]conform.Report, error) {
	var reports []conform.Report
	term := terminal.New(os.Stderr, os.Getenv)
	for _, dir := range folders {
		size, err := ledger.Bytes(dir)
		if err != nil {
			return nil, err
		}
		bar := term.Bar(dir, size)
		r, err := conform.Check(dir, bar.Set)
		bar.End()
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

func printChecks(out io.Writer, reports []conform.Report, together conform.Lockstep) error {
	rows := [][]string{{"NODE", "INCARNATION", "ROLE", "ENTRIES", "STEPS", "TICKS", "VERDICT"}}
	var remarks []string
	for _, r := range reports {
		for _, e := range r.Epochs {
			role := "-"
			if e.Role != 0 {
				role = e.Role.String()
			}
			rows = append(rows, []string{e.Node, hex64(uint64(e.Epoch)), role, strconv.Itoa(e.Entries), strconv.Itoa(e.Steps),
				strconv.FormatUint(e.Ticks, 10), string(e.Verdict)})
		}
		remarks = append(remarks, remarksOn(r)...)
	}
	if err := writeTable(out, rows); err != nil {
		return err
	}
	for _, remark := range append(remarks, together.String()) {
		if _, err := fmt.Fprintln(out, remark); err != nil {
			return err
		}
	}
	return nil
}

// remarksOn is what a table has no room for.
func remarksOn(r conform.Report) (remarks []string) {
	for _, e := range r.Epochs {
		if e.Finding != nil {
			remarks = append(remarks, e.Finding.String())
		}
		if e.Why != "" {
			remarks = append(remarks, fmt.Sprintf("%s: %s", r.Dir, e.Why))
		}
	}
	lack := lacks(r.Chain)
	switch {
	case r.Broken != nil:
		remarks = append(remarks, fmt.Sprintf("%s:%d: the chain breaks: %v", r.Broken.Path, r.Broken.Line, r.Broken.Err))
	case lack != "":
		remarks = append(remarks, r.Dir+" "+lack)
	case r.Chain.Torn:
		remarks = append(remarks, tornRemark(r.Dir))
	}
	return remarks
}

func tornRemark(dir string) string {
	return dir + ": the last line is half there: a writer is at it, or was killed; all before it was checked"
}

func printChecksJSON(out io.Writer, reports []conform.Report, together conform.Lockstep) error {
	type epoch struct {
		Node, Incarnation, Role, Boot string
		Entries, Steps                int
		Ticks                         uint64
		Verdict, Why, Finding         string
	}
	type report struct {
		Path, Verdict, Broken string
		Lockstep              string // of all ledgers together
		Torn, Headless        bool
		Incarnations          []epoch
	}
	all := []report{}
	for _, r := range reports {
		one := report{Path: r.Dir, Verdict: string(r.Verdict()), Lockstep: together.String(), Torn: r.Chain.Torn, Headless: r.Chain.Headless}
		if r.Broken != nil {
			one.Broken = r.Broken.Error()
		}
		for _, e := range r.Epochs {
			view := epoch{Node: e.Node, Incarnation: hex64(uint64(e.Epoch)), Boot: e.Boot, Entries: e.Entries, Steps: e.Steps, Ticks: e.Ticks,
				Verdict: string(e.Verdict), Why: e.Why}
			if e.Role != 0 {
				view.Role = e.Role.String()
			}
			if e.Finding != nil {
				view.Finding = e.Finding.String()
			}
			one.Incarnations = append(one.Incarnations, view)
		}
		all = append(all, one)
	}
	return writeJSON(out, all)
}

// verdict is the worst of all ledgers, and nil only if at least one was re-executed
// and nothing stands against any.
func verdict(reports []conform.Report, together conform.Lockstep) error {
	count := map[conform.Verdict]int{}
	for _, r := range reports {
		count[r.Verdict()]++
	}
	switch {
	case count[conform.Differs] > 0:
		return verdictError{fmt.Errorf("%d of %d ledgers do not conform", count[conform.Differs], len(reports)), exitFailure}
	case count[conform.Inconclusive] > 0:
		return inconclusive("%d of %d ledgers could not be checked whole", count[conform.Inconclusive], len(reports))
	case count[conform.Conforms] == 0:
		return inconclusive("no ledger of a worker among %d", len(reports))
	case together.Verdict == conform.Differs:
		return verdictError{errors.New("the ledgers conform one by one, and together they are no run of what is proved"), exitFailure}
	}
	return nil
}

func hex64(n uint64) string { return fmt.Sprintf("%016x", n) }
