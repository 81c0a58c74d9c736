package tokenizer

import "testing"

// The membership test stops at the first range that ends at or after a rune, so it needs them ascending.
func TestRangesAscend(t *testing.T) {
	for name, ranges := range map[string]runeRanges{"cjk": cjk, "cjkKana": cjkKana, "casedLetters": casedLetters, "widePunctuation": widePunctuation} {
		last := rune(-1)
		for i, pair := range ranges {
			touches := name == "cjk" && pair[0] == last // 一 ends one range and begins the next
			if pair[0] > pair[1] || pair[0] <= last && !touches {
				t.Errorf("%s: range %d (%U to %U) is empty or doesn't come after the one before it", name, i, pair[0], pair[1])
			}
			last = pair[1]
		}
	}
}
