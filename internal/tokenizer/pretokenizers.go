package tokenizer

// preTokenizer is how text is cut into words before byte-level BPE.
type preTokenizer struct {
	stages []matcher
	// wholeWords: a word that is a token is that token, whatever the merges say.
	wholeWords bool
	addBOS     bool // the default, where the file doesn't say
}

// preTokenizers are the values of tokenizer.ggml.pre.
var preTokenizers = byName(
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchGPT2}},
		[]string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
			"mellum", "modern-bert", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchDigits(1), matchGPT2}},
		[]string{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{wordRule{letter, 3, "\r\n"}.match}, wholeWords: true, addBOS: true},
		[]string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{wordRule{letter, 3, "\r\n"}.match}},
		[]string{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{wordRule{letter, 1, "\r\n"}.match}},
		[]string{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
			"bailingmoe", "bailingmoe2", "llada-moe"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{wordRule{letter | mark, 1, "\r\n"}.match}},
		[]string{"qwen35"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchLinesApart, wordRule{letter, 1, "\r\n"}.match}},
		[]string{"laguna"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchDigits(3), wordRule{letter, anyDigits, "\r\n"}.match}, wholeWords: true},
		[]string{"minicpm5"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{wordRule{letter, 1, ""}.match}},
		[]string{"seed-coder"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{casedRule{contractions: false, digitsMax: 1}.match}, wholeWords: true, addBOS: true},
		[]string{"tekken"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{casedRule{contractions: true, digitsMax: 3}.match}},
		[]string{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchDigits(3), matchRanges(cjkKana, false), matchDeepSeekV3}},
		[]string{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchLineBreak, matchSpaced(letter), matchSpaced(punctuation), matchRanges(cjk, false), matchDigits(1)}},
		[]string{"deepseek-coder"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchLineBreak, matchRanges(casedLetters, true), matchRanges(widePunctuation, true),
			matchSpacesAtEnd, matchRanges(cjk, false), matchDigits(anyDigits)}},
		[]string{"deepseek-llm"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchMarks("$+<=>^~|`"), matchGPT2, matchThreeDigits}},
		[]string{"falcon"},
	},
	preTokenizerNames{
		preTokenizer{stages: []matcher{matchMarks("$+<=>^~|"), matchGPT2, matchDigits(anyDigits), matchThreeDigits}},
		[]string{"", "default"},
	},
)

type preTokenizerNames struct {
	pre   preTokenizer
	names []string
}

func byName(rows ...preTokenizerNames) map[string]preTokenizer {
	table := map[string]preTokenizer{}
	for _, row := range rows {
		for _, name := range row.names {
			table[name] = row.pre
		}
	}
	return table
}
