package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestNothingButTextGoesToAFile(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	shown := New(file, func(string) string { return "" })
	bar := shown.Bar("download", 100)
	bar.Set(50)
	bar.End()
	info, err := file.Stat()
	if err != nil || info.Size() != 0 || shown.IsTerminal() || shown.Bold("x")+shown.Dim("y") != "xy" {
		t.Errorf("a file got %d bytes of decoration, error %v", info.Size(), err)
	}
}

func TestAPersonSeesSpeedAndRest(t *testing.T) {
	var out bytes.Buffer
	shown := &Terminal{out: &out, width: func() int { return widthUsual }, person: true, colour: true}
	bar := shown.Bar("download", 100<<20)
	bar.Set(50 << 20)
	bar.End()
	for _, want := range []string{"download", "50/100 MiB", "B/s", "50%"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the bar lacks %q: %q", want, out.String())
		}
	}
	if got := shown.Bold("x"); got != "\x1b[1mx\x1b[0m" {
		t.Errorf("bold is %q", got)
	}
	shown.colour = false
	if got := shown.Dim("x"); got != "x" {
		t.Errorf("dim without colour is %q", got)
	}
}
