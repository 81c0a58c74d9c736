package tokenizer

import (
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The expressions that the matchers stand for, as the models' makers wrote them, but for \s, which they mean to be
// Unicode's.
const (
	expressionGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	expressionLlama3 = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	expressionCased  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	expressionGPT4o  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	expressionV3     = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)

var expressions = map[string][]string{
	"gpt-2":          {expressionGPT2},
	"smollm":         {`\p{N}`, expressionGPT2},
	"llama-bpe":      {expressionLlama3},
	"qwen2":          {strings.Replace(expressionLlama3, `{1,3}`, ``, 1)},
	"qwen35":         {strings.NewReplacer(`?\p{L}+|\p{N}{1,3}`, `?[\p{L}\p{M}]+|\p{N}`, `[^\s\p{L}\p{N}]+`, `[^\s\p{L}\p{M}\p{N}]+`).Replace(expressionLlama3)},
	"laguna":         {`[^\n]+|[\n]+`, strings.Replace(expressionLlama3, `{1,3}`, ``, 1)},
	"minicpm5":       {`\p{N}{1,3}`, strings.Replace(expressionLlama3, `{1,3}`, `+`, 1)},
	"seed-coder":     {strings.NewReplacer(`{1,3}`, ``, `[^\s\p{L}\p{N}]+[\r\n]*`, `[^\s\p{L}\p{N}\r\n]+`).Replace(expressionLlama3)},
	"bailingmoe":     {strings.NewReplacer(`{1,3}`, ``, `\s*[\r\n]+`, `\s*[\r\n]`).Replace(expressionLlama3)},
	"tekken":         {expressionCased},
	"gpt-4o":         {expressionGPT4o},
	"deepseek-v3":    {`\p{N}{1,3}`, "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", expressionV3},
	"deepseek-coder": {"[\r\n]", `\s?\p{L}+`, `\s?\p{P}+`, "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", `\p{N}`},
	"falcon":         {"[\\p{P}\\$\\+<=>\\^~\\|`]+", expressionGPT2, "[0-9][0-9][0-9]"},
	"default":        {"[\\p{P}\\$\\+<=>\\^~\\|]+", expressionGPT2, `\p{N}+`, "[0-9][0-9][0-9]"},
}

// splitByExpression cuts text as the tokenizers of the models' makers do.
func splitByExpression(t *rapid.T, stages []*regexp2.Regexp, text string) []string {
	words := []string{text}
	for _, re := range stages {
		var cut []string
		for _, w := range words {
			runes := []rune(w)
			gap := 0
			matches, err := re.FindAllRunesIndex(runes, -1)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range matches {
				if m[0] > gap {
					cut = append(cut, string(runes[gap:m[0]]))
				}
				cut = append(cut, string(runes[m[0]:m[1]]))
				gap = m[1]
			}
			if gap < len(runes) {
				cut = append(cut, string(runes[gap:]))
			}
		}
		words = cut
	}
	return words
}

func TestMatchersEqualTheirExpressions(t *testing.T) {
	pieces := []string{"a", "B", "Z", "é", "É", "ǅ", "ʰ", "日", "か", "ا", "\u0301", "\u0903", "1", "22", "٣", "Ⅻ", "'", "'s", "'LL", "'Re", " ", "  ", "\u00A0", "\u3000",
		"\t", "\n", "\r", "\r\n", ".", ",", "/", "$", "+", "=", "€", "«", "😀", "\u200D", "\u0000", "\u0085", "\uFFFD", "_", "<|", "|>", "ꙮ", "𝒳"}
	for name, list := range expressions {
		t.Run(name, func(t *testing.T) {
			var stages []*regexp2.Regexp
			for _, e := range list {
				stages = append(stages, regexp2.MustCompile(e))
			}
			rapid.Check(t, func(t *rapid.T) {
				text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 20).Draw(t, "text"), "")
				var got []string
				if text != "" {
					splitWords(classes(), preTokenizers[name].stages, text, func(word string) bool { got = append(got, word); return true })
				}
				want := splitByExpression(t, stages, text)
				if text == "" {
					want = nil
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("words of %q differ from the expression's (-want +got):\n%s", text, diff)
				}
			})
		})
	}
}
