package transfer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The protocol's tables in docs/SPEC.md are made from the tables that the
// machines run on. With -rewrite they are written again.
func TestSpecIsMadeFromTheTables(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "SPEC.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(b)
	for name, table := range map[string]string{"decode": targetMarkdown(), "prefill": sourceMarkdown(), "ranks": joinMarkdown()} {
		want, err = between(want, name, table)
		if err != nil {
			t.Fatal(err)
		}
	}
	if flag.Lookup("rewrite").Value.String() == "true" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(b) {
		t.Errorf("%s is not what the tables say; write it again with: go test ./kv/transfer -run Spec -rewrite", path)
	}
}

// between puts text between a document's two marks of that name.
func between(document, name, text string) (string, error) {
	from, to := fmt.Sprintf("<!-- begin %s -->\n", name), fmt.Sprintf("<!-- end %s -->\n", name)
	head, rest, ok := strings.Cut(document, from)
	_, tail, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		return "", fmt.Errorf("the document has no marks %q", name)
	}
	return head + from + text + to + tail, nil
}

func targetMarkdown() string {
	var b strings.Builder
	b.WriteString("| state | input | does | next |\n|---|---|---|---|\n")
	b.WriteString("| - | open | open gate, send GRANT | granted |\n")
	for s := targetState(1); s < targetGone; s++ {
		for in := targetInput(1); in < targetInputs; in++ {
			row := targetTable[s][in]
			if row.acts == nil && row.next == 0 {
				continue
			}
			var acts []string
			for _, act := range row.acts {
				acts = append(acts, act.String())
			}
			fmt.Fprintf(&b, "| %v | %v | %s | %s |\n", s, in, strings.Join(acts, ", "), next(row.next.String()))
		}
	}
	return b.String()
}

func sourceMarkdown() string {
	var b strings.Builder
	b.WriteString("| state | input | does | next |\n|---|---|---|---|\n")
	for s := sourceState(1); s < sourceGone; s++ {
		for in := sourceInput(1); in < sourceInputs; in++ {
			row := sourceTable[s][in]
			if row.acts == nil && row.next == 0 {
				continue
			}
			var acts []string
			for _, act := range row.acts {
				acts = append(acts, act.String())
			}
			fmt.Fprintf(&b, "| %v | %v | %s | %s |\n", s, in, strings.Join(acts, ", "), next(row.next.String()))
		}
	}
	return b.String()
}

func joinMarkdown() string {
	var b strings.Builder
	b.WriteString("| state | input | does | next |\n|---|---|---|---|\n")
	for s := joinState(1); s < joinStates; s++ {
		for in := joinInput(1); in < joinInputs; in++ {
			row := joinTable[s][in]
			if row.acts == nil && row.next == 0 {
				continue
			}
			var acts []string
			for _, act := range row.acts {
				acts = append(acts, act.String())
			}
			fmt.Fprintf(&b, "| %v | %v | %s | %s |\n", s, in, strings.Join(acts, ", "), next(row.next.String()))
		}
	}
	return b.String()
}

func next(name string) string {
	if name == "" {
		return "same"
	}
	return name
}
