package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/ledger"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// ledgerRoot is where "bulkhead serve" keeps the ledgers of its nodes.
func ledgerRoot(home string) string { return filepath.Join(home, "ledger") }

const ledgerLong = `Read ledgers. Each node keeps one: a record, chained by hashes, of what happened to
each page and request. It holds no text, token, key or page byte. To hold a worker's
ledger against the machines that serve, see "bulkhead check ledger".`

func newLedger() *cobra.Command {
	return group("ledger", "verify, anchor and show what nodes have recorded", ledgerLong,
		"  bulkhead ledger verify\n  bulkhead ledger show --request 17", newLedgerVerify(), newLedgerHead(), newLedgerShow())
}

const verifyLong = `Verify the chain of hashes of each ledger, and print its head. Whoever changes,
drops, adds or moves a line breaks the chain, but cutting off its end leaves it
whole: keep a head elsewhere, and give it as --head later, to see that the chain
still leads through it. Half a line at the end of the newest segment, which a killed
writer leaves, is said and is no fault.

PATH is a ledger's folder or a folder of ledgers (default: those of the data
folder). Exit codes: 0 intact, 1 broken, 3 nothing to verify: no ledger, one without
entries, or a newest segment without its header.`

func newLedgerVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [PATH]...",
		Short: "verify the chain of hashes of ledgers",
		Long:  verifyLong,
		Example: `  bulkhead ledger verify
  bulkhead ledger verify ./ledger/d0 --head v2dGtzUPHjcqL8Xl0TDOb2EFIrUVpZp7I2ZZqsmq1Qs`,
		Args: args(cobra.ArbitraryArgs),
	}
	head := cmd.Flags().String("head", "", "hash that was the head once and must still be in the chain")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		folders, err := ledgerFolders(cmd, args)
		if err != nil {
			return err
		}
		if err := printChains(cmd.OutOrStdout(), folders); err != nil || *head == "" {
			return err
		}
		if len(folders) != 1 {
			return usageError{fmt.Errorf("--head is of one ledger, %d are named", len(folders))}
		}
		return checkHead(folders[0], *head)
	}
	return cmd
}

func printChains(out io.Writer, folders []string) error {
	rows := [][]string{{"LEDGER", "SEGMENTS", "ENTRIES", "FIRST", "LAST", "VERDICT", "HEAD"}}
	var broken []error
	var nothing []string
	for _, dir := range folders {
		r, err := ledger.Visit(dir, func(ledger.Entry, ledger.Place) bool { return true })
		if err != nil && !errors.As(err, new(*ledger.BadEntry)) {
			return err
		}
		verdict := "intact"
		switch lack := lacks(r); {
		case err != nil:
			verdict = "BROKEN"
			broken = append(broken, err)
		case lack != "":
			verdict = "NOTHING"
			nothing = append(nothing, dir+" "+lack)
		case r.Torn:
			verdict = "intact, torn end"
		}
		rows = append(rows, []string{dir, strconv.Itoa(r.Segments), strconv.Itoa(r.Entries), strconv.FormatUint(r.First, 10), strconv.FormatUint(r.Last, 10), verdict, r.Head.String()})
	}
	if err := writeTable(out, rows); err != nil {
		return err
	}
	return ending(broken, nothing)
}

// lacks says why there is nothing to verify in a ledger or in its newest segment;
// empty if there is.
func lacks(r ledger.Report) string {
	switch {
	case r.Headless:
		return "has a newest segment without its header"
	case r.Segments == 0:
		return "has no segment"
	case r.Entries == 0:
		return "has no entry"
	}
	return ""
}

// ending is what is broken, else what there is nothing of, else nil.
func ending(broken []error, nothing []string) error {
	if len(broken) > 0 || len(nothing) == 0 {
		return errors.Join(broken...)
	}
	return inconclusive("nothing to verify: %s", strings.Join(nothing, "; "))
}

func checkHead(dir, text string) error {
	head, err := ledger.ParseHash(text)
	if err != nil {
		return usageError{fmt.Errorf("--head: %w", err)}
	}
	held, err := ledger.Holds(dir, head)
	if err == nil && !held {
		err = fmt.Errorf("ledger %s does not lead through %s: its end was cut off, or the chain was made anew", dir, text)
	}
	return err
}

const headLong = `Print the head of each ledger, a line each: its folder, the number of entries that
were ever written to it, and the hash of its last line. Keep heads where nobody who
can change the ledger can change them: "bulkhead ledger verify --head" tells later
whether the chain still leads through one. The chain is verified on the way.

PATH is a ledger's folder or a folder of ledgers (default: those of the data
folder). Exit codes: 0 intact, 1 broken, 3 nothing to read: see "bulkhead ledger verify".`

func newLedgerHead() *cobra.Command {
	return &cobra.Command{
		Use:     "head [PATH]...",
		Short:   "print the heads of ledgers, to be kept elsewhere",
		Long:    headLong,
		Example: "  bulkhead ledger head >>/mnt/elsewhere/heads",
		Args:    args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			folders, err := ledgerFolders(cmd, args)
			if err != nil {
				return err
			}
			return printHeads(cmd.OutOrStdout(), cmd.ErrOrStderr(), folders)
		},
	}
}

func printHeads(out, remarks io.Writer, folders []string) error {
	var broken []error
	var nothing []string
	for _, dir := range folders {
		r, err := ledger.Visit(dir, func(ledger.Entry, ledger.Place) bool { return true })
		if err != nil {
			broken = append(broken, err)
			continue
		}
		if lack := lacks(r); lack != "" {
			nothing = append(nothing, dir+" "+lack)
		} else if r.Torn {
			_, _ = fmt.Fprintln(remarks, tornRemark(dir))
		}
		if r.Segments == 0 {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s %d %v\n", dir, r.Last, r.Head); err != nil {
			return err
		}
	}
	return ending(broken, nothing)
}

const showLong = `Show entries, of several ledgers in the order of their times. With --request only
those of one request, at every node: its jobs, its transfers and their pages.
--request takes the number, or the id of an answer as clients see it; --x takes a
transfer as entries show it. A gateway counts from 1 at each start: where a number
is of several starts, --boot names one.

PATH is a ledger's folder or a folder of ledgers (default: those of the data
folder). With --json each line is an object. Exit codes: 1 where the ledgers have
no entry of what was asked for, 3 nothing to read.`

func newLedgerShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [PATH]...",
		Short: "show entries of ledgers",
		Long:  showLong,
		Example: `  bulkhead ledger show ./ledger/d0
  bulkhead ledger show --request 17 --json`,
		Args: args(cobra.ArbitraryArgs),
	}
	request := cmd.Flags().String("request", "", "only this request: a number, or an answer's id")
	x := cmd.Flags().String("x", "", "only this transfer: EPOCH/SEQUENCE/RANK")
	boot := cmd.Flags().String("boot", "", "only requests of this start of the gateway, in hexadecimal")
	asJSON := cmd.Flags().Bool("json", false, "print a JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := newFilter(*request, *x, *boot)
		if err != nil {
			return usageError{err}
		}
		folders, err := ledgerFolders(cmd, args)
		if err == nil {
			err = f.oneStart(folders)
		}
		if err != nil {
			return err
		}
		write := printEntry
		if *asJSON {
			write = printEntryJSON
		}
		return f.show(folders, func(e *ledger.Entry) error { return write(cmd.OutOrStdout(), e) })
	}
	return cmd
}

// filter chooses entries. What belongs to an answer is learned from the entry of the
// gateway that names its request, and a request's transfers from those that name
// both: at each node these come first.
type filter struct {
	asked     []string // what the command line asks for, in words; empty: all
	request   uint64   // 0: any
	boot      uint64   // of the gateway that counted the request; 0: any
	answer    string   // empty: any
	x         kv.TransferID
	requests  map[requestName]bool // of the answer
	transfers map[kv.TransferID]bool
}

type requestName struct{ boot, request uint64 }

func newFilter(request, x, boot string) (f filter, err error) {
	f.requests, f.transfers = map[requestName]bool{}, map[kv.TransferID]bool{}
	if request != "" {
		f.asked = append(f.asked, "request "+request)
		f.request, f.answer, err = parseRequest(request)
	}
	if x != "" && err == nil {
		f.asked = append(f.asked, "transfer "+x)
		f.x, err = parseTransfer(x)
		f.transfers[f.x] = true
	}
	if boot != "" && err == nil {
		f.asked = append(f.asked, "start "+boot)
		if f.boot, err = strconv.ParseUint(boot, 16, 64); err != nil || f.boot == 0 || f.request == 0 {
			err = fmt.Errorf("--boot is %q, want a number in hexadecimal beside the number of a --request", boot)
		}
	}
	return f, err
}

// oneStart is an error if the request's number alone is that of several requests.
func (f *filter) oneStart(folders []string) error {
	if f.request == 0 || f.boot != 0 {
		return nil
	}
	var starts []string // in the order of their times
	seen := map[uint64]bool{}
	for e, err := range merged(folders) {
		if err != nil {
			return err
		}
		if e.Request == f.request && !seen[e.GatewayBoot] {
			seen[e.GatewayBoot] = true
			starts = append(starts, fmt.Sprintf("%s (its request came at %s)", hex64(e.GatewayBoot), e.Time.UTC().Format(time.RFC3339)))
		}
	}
	if len(starts) < 2 {
		return nil
	}
	return usageError{fmt.Errorf("request %d is of %d starts of the gateway, name one with --boot: %s", f.request, len(starts), strings.Join(starts, ", "))}
}

// answerID is the id of an answer as the gateway makes it.
var answerID = regexp.MustCompile(`^(?:chat)?cmpl-([0-9a-f]{32})$`)

// parseRequest reads a number, or an answer's id, of which it gives the random part.
func parseRequest(text string) (request uint64, answer string, err error) {
	if id := answerID.FindStringSubmatch(text); id != nil {
		return 0, id[1], nil
	}
	request, err = strconv.ParseUint(text, 10, 64)
	if err != nil || request == 0 {
		return 0, "", fmt.Errorf("--request is %q, want a number from 1 or the id of an answer: chatcmpl- or cmpl- and 32 hexadecimal digits", text)
	}
	return request, "", nil
}

// parseTransfer reads what kv.TransferID.String writes.
func parseTransfer(text string) (x kv.TransferID, err error) {
	part := strings.Split(text, "/")
	if len(part) == 3 {
		epoch, err1 := strconv.ParseUint(part[0], 16, 64)
		sequence, err2 := strconv.ParseUint(part[1], 10, 64)
		rank, err3 := strconv.ParseUint(part[2], 10, 8)
		if x = (kv.TransferID{Epoch: kv.Epoch(epoch), Sequence: sequence, Rank: uint8(rank)}); errors.Join(err1, err2, err3) == nil && !x.IsZero() {
			return x, nil
		}
	}
	return kv.TransferID{}, fmt.Errorf("--x is %q, want EPOCH/SEQUENCE/RANK, the epoch in hexadecimal", text)
}

// show gives each entry that is wanted to write. That there is none of what was asked
// for is an error.
func (f *filter) show(folders []string, write func(*ledger.Entry) error) error {
	shown := false
	for e, err := range merged(folders) {
		if err != nil {
			return err
		}
		if !f.wants(&e) {
			continue
		}
		shown = true
		if err := write(&e); err != nil {
			return err
		}
	}
	if !shown && len(f.asked) > 0 {
		return fmt.Errorf("no entry of %s is in these ledgers: %s", strings.Join(f.asked, ", "), strings.Join(folders, ", "))
	}
	return nil
}

func (f *filter) wants(e *ledger.Entry) bool {
	if f.request == 0 && f.answer == "" {
		return f.x.IsZero() || e.X == f.x
	}
	name := requestName{e.GatewayBoot, e.Request}
	if f.answer != "" && e.Kind == ledger.Request && strings.HasSuffix(e.Detail, ", answer "+f.answer) {
		f.requests[name] = true
	}
	ours := f.request != 0 && e.Request == f.request && (f.boot == 0 || e.GatewayBoot == f.boot) || f.requests[name]
	if ours && !e.X.IsZero() && f.x.IsZero() {
		f.transfers[e.X] = true
	}
	return (ours || e.Request == 0 && f.transfers[e.X]) && (f.x.IsZero() || e.X == f.x)
}

// merged gives the entries of ledgers by time, each ledger in its own order.
func merged(folders []string) iter.Seq2[ledger.Entry, error] {
	type reader struct {
		next  func() (ledger.Entry, error, bool)
		entry ledger.Entry
	}
	return func(yield func(ledger.Entry, error) bool) {
		var readers []*reader
		for _, dir := range folders {
			next, stop := iter.Pull2(whole(dir))
			defer stop()
			readers = append(readers, &reader{next: next})
		}
		for i := 0; ; {
			// Readers that stand before i have an entry.
			for i < len(readers) {
				e, err, ok := readers[i].next()
				switch {
				case !ok:
					readers = append(readers[:i], readers[i+1:]...)
				case err != nil:
					yield(ledger.Entry{}, err)
					return
				default:
					readers[i].entry = e
					i++
				}
			}
			if len(readers) == 0 {
				return
			}
			first := 0
			for k, r := range readers {
				if r.entry.Time.Before(readers[first].entry.Time) {
					first = k
				}
			}
			if !yield(readers[first].entry, nil) {
				return
			}
			// The one that was shown goes to the end, to be read on.
			i = len(readers) - 1
			readers[first], readers[i] = readers[i], readers[first]
		}
	}
}

// whole gives a ledger's entries, but no error for a half line at its end.
func whole(dir string) iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		stopped := false
		_, err := ledger.Visit(dir, func(e ledger.Entry, _ ledger.Place) bool {
			stopped = !yield(e, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(ledger.Entry{}, err)
		}
	}
}

func printEntry(out io.Writer, e *ledger.Entry) error {
	fields := []string{e.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), fmt.Sprintf("%-8s %6d %-8s %-14s", e.Node, e.Sequence, e.Kind, e.Event)}
	if e.Request != 0 {
		fields = append(fields, fmt.Sprintf("request %d.%d", e.Request, e.Attempt))
	}
	if !e.X.IsZero() {
		fields = append(fields, "x "+e.X.String())
	}
	if len(e.Pages) > 0 {
		fields = append(fields, fmt.Sprintf("%d pages", len(e.Pages)))
	}
	if e.Detail != "" {
		fields = append(fields, e.Detail)
	}
	_, err := fmt.Fprintln(out, strings.TrimRight(strings.Join(fields, "  "), " "))
	return err
}

// entryView is an entry in JSON. 64-bit names are hexadecimal, because many JSON
// readers keep 53 bits only.
type entryView struct {
	Time        time.Time
	Node, Epoch string
	Sequence    uint64
	Kind        ledger.Kind
	Event       string
	GatewayBoot string      `json:",omitempty"`
	Request     uint64      `json:",omitempty"`
	Attempt     uint32      `json:",omitempty"`
	Tenant      string      `json:",omitempty"`
	X           string      `json:",omitempty"`
	Pages       [][2]uint64 `json:",omitempty"` // slot, generation
	Input       []byte      `json:",omitempty"` // base64
	Output      []byte      `json:",omitempty"` // base64
	Detail      string      `json:",omitempty"`
}

func printEntryJSON(out io.Writer, e *ledger.Entry) error {
	v := entryView{Time: e.Time.UTC(), Node: e.Node, Epoch: hex64(uint64(e.Epoch)), Sequence: e.Sequence, Kind: e.Kind, Event: e.Event,
		Request: e.Request, Attempt: e.Attempt, Input: e.Input, Output: e.Output, Detail: e.Detail}
	if e.GatewayBoot != 0 {
		v.GatewayBoot = hex64(e.GatewayBoot)
	}
	if e.Tenant != 0 {
		v.Tenant = hex64(uint64(e.Tenant))
	}
	if !e.X.IsZero() {
		v.X = e.X.String()
	}
	for _, p := range e.Pages {
		v.Pages = append(v.Pages, [2]uint64{uint64(p.Slot), uint64(p.Generation)})
	}
	return json.NewEncoder(out).Encode(v)
}
