// Package terminal shows progress and colour where a person looks.
//
// On anything but a terminal it shows nothing of its own: output that goes to a
// file or a program has no bars and no escape sequences. Colour follows
// NO_COLOR (https://no-color.org) and TERM=dumb.
package terminal

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

const (
	barInterval = 100 * time.Millisecond // between two drawings
	widthUsual  = 80                     // columns, where nobody can tell
)

// Terminal is an output and what it can show.
type Terminal struct {
	out    io.Writer
	width  func() int
	person bool
	colour bool
}

// New looks at a file, usually os.Stderr or os.Stdout.
func New(file *os.File, getenv func(string) string) *Terminal {
	person := term.IsTerminal(int(file.Fd())) && getenv("TERM") != "dumb"
	return &Terminal{out: file, width: func() int { return widthOf(file) }, person: person, colour: person && getenv("NO_COLOR") == ""}
}

func widthOf(file *os.File) int {
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 1 {
		return widthUsual
	}
	return width
}

// IsTerminal reports whether a person looks at the output.
func (t *Terminal) IsTerminal() bool { return t.person }

// Bold and Dim are the text, with that weight where there is colour.
func (t *Terminal) Bold(text string) string { return t.paint("1", text) }

// Dim is for text of lesser importance.
func (t *Terminal) Dim(text string) string { return t.paint("2", text) }

func (t *Terminal) paint(code, text string) string {
	if !t.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bar is a progress bar, with speed and remaining time. Its methods do nothing
// where no person looks. It belongs to one goroutine.
type Bar struct {
	bar   *progressbar.ProgressBar // nil: not shown
	total int64
}

// Bar draws a bar for total bytes; zero is an unknown number.
func (t *Terminal) Bar(what string, total int64) *Bar {
	if !t.person {
		return &Bar{}
	}
	if total == 0 {
		total = -1
	}
	return &Bar{total: total, bar: progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(t.out),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionShowCount(),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(barInterval),
		progressbar.OptionSetWidth(min(40, max(10, t.width()-len(what)-60))),
		progressbar.OptionClearOnFinish(),
	)}
}

// Set moves the bar to done bytes.
func (b *Bar) Set(done int64) {
	if b.bar != nil {
		_ = b.bar.Set64(done) // drawing may fail when the terminal goes away; the work goes on
	}
}

// End takes the bar away.
func (b *Bar) End() {
	if b.bar != nil {
		_ = b.bar.Finish()
		_ = b.bar.Clear()
	}
}
