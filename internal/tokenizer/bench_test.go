package tokenizer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// prose is a page of English with code and numbers.
var prose = strings.Repeat("The quick brown fox jumps over the lazy dog, and it didn't look back. In 1987 there were 1,204 of them.\n"+
	"func main() {\n\tfmt.Println(\"hello, world\") // prints a line\n}\n\nÜber den Wolken muss die Freiheit wohl grenzenlos sein: 人々は自由です。\n", 200)

// BenchmarkEncode reports the speed on prose, and on one letter repeated, the worst case of naive merging.
func BenchmarkEncode(b *testing.B) {
	paths := map[string]string{}
	if path := os.Getenv("BULKHEAD_SMOLLM2"); path != "" {
		paths["smollm2"] = path
	}
	if os.Getenv("BULKHEAD_ORACLE") != "" {
		o, err := loadOracle()
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"llama-bpe", "qwen2", "gpt-2", "llama-spm", "deepseek-coder"} {
			paths[name] = filepath.Join(o.models, "ggml-vocab-"+name+".gguf")
		}
	}
	texts := map[string]string{"prose": prose, "one letter": strings.Repeat("a", 1<<20), "spaces": strings.Repeat(" ", 1<<20), "chat turn": prose[:2000]}
	for name, path := range paths {
		tok := open(b, path)
		for kind, text := range texts {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(text)
				}
			})
		}
	}
}
