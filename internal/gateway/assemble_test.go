package gateway

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

func TestAssemble(t *testing.T) {
	for _, c := range []struct {
		name   string
		stops  []string
		pieces []string
		want   []string // what each push gives out, then the flush
	}{
		{"plain", nil, []string{"a", "b"}, []string{"a", "b", ""}},
		{"a character over three tokens", nil, []string{"\xe2", "\x82", "\xac", "!"}, []string{"", "", "€", "!", ""}},
		{"a character that never ends", nil, []string{"a\xe2\x82"}, []string{"a", "\uFFFD\uFFFD"}},
		{"bytes of no character", nil, []string{"\xff", "b"}, []string{"\uFFFD", "b", ""}},
		{"a broken character before a whole one", nil, []string{"\xe2", "x"}, []string{"", "\uFFFDx", ""}},
		{"stop in one token", []string{"STOP"}, []string{"a", "bSTOPc"}, []string{"a", "b"}},
		{"stop over tokens", []string{"STOP"}, []string{"aS", "TO", "P"}, []string{"a", "", ""}},
		{"a prefix of a stop is held, then let go", []string{"STOP"}, []string{"aST", "x"}, []string{"a", "STx", ""}},
		{"a prefix of a stop at the end", []string{"STOP"}, []string{"aST"}, []string{"a", "ST"}},
		{"a prefix that begins again", []string{"aab"}, []string{"a", "a", "a", "b"}, []string{"", "", "a", ""}},
		{"the stop that is complete first", []string{"cd", "bc"}, []string{"abcd"}, []string{"a"}},
		{"a short stop within a longer one", []string{"aba", "b"}, []string{"xaba"}, []string{"xa"}},
		{"two stops with one end", []string{"b", "ab"}, []string{"xab"}, []string{"x"}},
		{"a stop of one character", []string{"\n"}, []string{"a\nb"}, []string{"a"}},
		{"a stop within a split character", []string{"€"}, []string{"a\xe2", "\x82\xacb"}, []string{"a", ""}},
	} {
		a, got, stopped := assembler{stops: c.stops}, []string(nil), false
		for _, p := range c.pieces {
			var out piece
			out, stopped = a.push([]byte(p), nil)
			got = append(got, out.text)
		}
		if !stopped {
			got = append(got, a.flush().text)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func lp(id int32) *cluster.TokenLogprobs { return &cluster.TokenLogprobs{Token: id} }

// A token's logprobs leave with the text that it begins; those of a token at or
// behind the stop don't.
func TestLogprobsFollowText(t *testing.T) {
	a := assembler{stops: []string{"XY"}}
	var got [][]int32
	take := func(p piece) {
		ids := []int32{}
		for _, t := range p.tokens {
			ids = append(ids, t.logprob.Token)
		}
		got = append(got, ids)
	}
	for i, p := range []string{"a", "", "\xc3", "\xa9", "X", "b", "cX", "Y"} {
		out, _ := a.push([]byte(p), lp(int32(i)))
		take(out)
	}
	want := [][]int32{{0}, {1}, {}, {2, 3}, {}, {4, 5}, {6}, {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens given out (-want +got):\n%s", diff)
	}
}

// However the bytes are cut, what is given out is the same: the text up to the
// first stop, with each bad byte replaced, and never a part of a stop that follows.
func TestAssembleIsIndependentOfCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := []byte(rapid.StringOfN(rapid.RuneFrom([]rune("ab€\n")), 0, 30, -1).Draw(t, "text"))
		for i := range bytes {
			if rapid.IntRange(0, 12).Draw(t, "break") == 0 {
				bytes[i] ^= 0x80
			}
		}
		stops := rapid.SliceOfNDistinct(rapid.StringOfN(rapid.RuneFrom([]rune("ab€")), 1, 4, -1), 0, 3, rapid.ID).Draw(t, "stops")
		want := reference(bytes, stops)
		a, got, stopped := assembler{stops: stops}, "", false
		for len(bytes) > 0 && !stopped {
			n := rapid.IntRange(0, len(bytes)).Draw(t, "cut")
			var out piece
			out, stopped = a.push(bytes[:n], lp(1))
			got += out.text
			bytes = bytes[n:]
		}
		if !stopped {
			got += a.flush().text
		}
		if got != want || !utf8.ValidString(got) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

func reference(bytes []byte, stops []string) string {
	text := string([]rune(string(bytes)))
	for end := range len(text) + 1 {
		shortest := text
		for _, s := range stops {
			if before, ok := strings.CutSuffix(text[:end], s); ok && len(before) < len(shortest) {
				shortest = before
			}
		}
		if len(shortest) < len(text) {
			return shortest
		}
	}
	return text
}
