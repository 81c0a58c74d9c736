package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// rewrite turns a template's chunks into source for the engine behind, so that
//   - text stands in string literals, so that only this package decides about whitespace;
//   - whatever can grow a value, print it or go round a loop reports to the budget of the rendering;
//   - filters whose output must equal Python's are ours.
//
// Names that rewrite adds end in an underscore and can't be spelled in a template.
func rewrite(chunks []chunk) (string, error) {
	w := &rewriter{}
	for _, c := range chunks {
		if err := w.chunk(c); err != nil {
			return "", fmt.Errorf("chat template, line %d: %w", c.line, err)
		}
	}
	if len(w.open) > 0 {
		return "", fmt.Errorf("chat template: %q has no end", w.open[len(w.open)-1].keyword)
	}
	return w.assemble(), nil
}

// rewriter collects pieces of the new source. A block's cost is known at its end, so a piece may be a block's.
type rewriter struct {
	pieces []piece
	open   []*block
}

type piece struct {
	text  string
	block *block // whose cost text is a format for; nil if none
}

// block is a statement that has an end.
type block struct {
	keyword string
	cost    int // bytes of text inside
}

func (w *rewriter) assemble() string {
	var b strings.Builder
	for _, p := range w.pieces {
		if p.block != nil {
			fmt.Fprintf(&b, p.text, p.block.cost)
		} else {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

func (w *rewriter) emit(text string) { w.pieces = append(w.pieces, piece{text: text}) }

func (w *rewriter) chunk(c chunk) error {
	switch c.kind {
	case chunkText:
		for _, b := range w.open {
			b.cost += len(c.text)
		}
		w.emit("{{ " + quote(c.text) + " }}")
		return nil
	case chunkPrint:
		if len(c.tokens) == 0 {
			return errors.New("a print tag is empty")
		}
		expr, err := expression(c.tokens)
		if err != nil {
			return err
		}
		w.emit("{{ (" + expr + ") | print_ }}")
		return nil
	case chunkStatement:
	}
	if len(c.tokens) == 0 || c.tokens[0].kind != tokenName {
		return errors.New("a statement has no keyword")
	}
	return w.statement(c.tokens[0].text, c.tokens[1:])
}

// blockKeywords open a block that end with the keyword after "end" closes.
var blockKeywords = []string{"for", "if", "macro", "call", "filter", "generation"}

func (w *rewriter) statement(keyword string, rest []token) error {
	if closing, ok := strings.CutPrefix(keyword, "end"); ok {
		return w.end(closing)
	}
	if keyword == "set" {
		return w.set(rest)
	}
	expr, err := expression(rest)
	if err != nil {
		return err
	}
	w.emit("{% " + keyword + " " + expr + " %}")
	if slices.Contains(blockKeywords, keyword) {
		return w.begin(keyword)
	}
	if !slices.Contains([]string{"elif", "else", "break", "continue"}, keyword) {
		return fmt.Errorf("statement %q is not supported", keyword)
	}
	return nil
}

func (w *rewriter) begin(keyword string) error {
	b := &block{keyword: keyword}
	if w.open = append(w.open, b); len(w.open) > nestingMax {
		return fmt.Errorf("statements nest deeper than %d", nestingMax)
	}
	switch keyword {
	case "for":
		w.pieces = append(w.pieces, piece{"{{ step_(%d) }}", b})
	case "macro", "call":
		w.pieces = append(w.pieces, piece{"{{ enter_(%d) }}", b})
	}
	return nil
}

func (w *rewriter) end(keyword string) error {
	last := len(w.open) - 1
	if last < 0 || w.open[last].keyword != keyword {
		return fmt.Errorf("%q closes nothing", "end"+keyword)
	}
	w.open = w.open[:last]
	if keyword == "macro" || keyword == "call" {
		w.emit("{{ leave_() }}")
	}
	w.emit("{% end" + keyword + " %}")
	return nil
}

// set rewrites an assignment, or opens the block whose text is assigned.
func (w *rewriter) set(tokens []token) error {
	equals := slices.IndexFunc(tokens, func(t token) bool { return t.is("=") })
	if equals < 0 {
		if len(tokens) != 1 || tokens[0].kind != tokenName {
			return errors.New("a set block must name one variable")
		}
		w.emit("{% set " + tokens[0].text + " %}")
		return w.begin("set")
	}
	target := tokens[:equals]
	expr, err := expression(tokens[equals+1:])
	if err != nil {
		return err
	}
	switch {
	case len(target) == 1 && target[0].kind == tokenName:
		w.emit("{% set " + target[0].text + " = (" + expr + ") | keep_ %}")
	case len(target) == 3 && target[0].kind == tokenName && target[1].is(".") && target[2].kind == tokenName:
		w.emit("{% set " + target[0].text + "." + target[2].text + " = (" + expr + ") | keep_(" + target[0].text + ") %}")
	default:
		return errors.New("set assigns to one variable or one attribute")
	}
	return nil
}

// ourFilters are filters that this package has in place of the engine's.
var ourFilters = []string{"tojson", "replace", "join", "indent", "string", "trim"}

// ourMethods are methods that become filters of this package.
var ourMethods = []string{"replace", "append", "insert", "update", "format", "strip", "lstrip", "rstrip", "split"}

// concatenationsMax bounds the values that one tag can add up.
const concatenationsMax = 64

// numberMax bounds a template's integers.
const numberMax = 1_000_000

// expression rewrites the tokens of an expression, or of several with keywords between.
func expression(tokens []token) (string, error) {
	var b strings.Builder
	sums, division := 0, false
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		if t.is("+") || t.is("~") {
			if sums++; sums > concatenationsMax {
				return "", fmt.Errorf("a tag adds up more than %d values", concatenationsMax)
			}
		}
		if t.is("/") || t.is("//") || t.is("%") {
			division = true
		}
		switch {
		case t.is("**"):
			return "", errors.New("powers are not supported")
		case t.is("*") && division:
			return "", errors.New("a product after a division is not supported")
		case t.is("*"):
			end := operandEnd(tokens, i+1)
			if end == i+1 {
				return "", errors.New("a product lacks an operand")
			}
			operand, err := expression(tokens[i+1 : end])
			if err != nil {
				return "", err
			}
			b.WriteString("| times_(" + operand + ") ")
			i = end - 1
		case t.is("|") && i+1 < len(tokens) && slices.Contains(ourFilters, tokens[i+1].text):
			b.WriteString("| " + tokens[i+1].text + "_ ")
			i++
		case t.is(".") && i+2 < len(tokens) && tokens[i+2].is("(") && slices.Contains(ourMethods, tokens[i+1].text):
			b.WriteString("| method_" + tokens[i+1].text + "_ ")
			i++
		default:
			text, err := spell(t)
			if err != nil {
				return "", err
			}
			b.WriteString(text + " ")
		}
	}
	return strings.TrimSuffix(b.String(), " "), nil
}

func spell(t token) (string, error) {
	switch t.kind {
	case tokenString:
		return quote(t.text), nil
	case tokenName:
		if strings.HasSuffix(t.text, "_") {
			return "", fmt.Errorf("name %q ends in an underscore", t.text)
		}
	case tokenNumber:
		if n, err := strconv.ParseFloat(t.text, 64); err != nil || n > numberMax {
			return "", fmt.Errorf("number %s is over %d", t.text, numberMax)
		}
	case tokenOperator:
	}
	return t.text, nil
}

// operandEnd returns the index after the operand of a product that begins at i: signs, an atom and what is applied to it.
func operandEnd(tokens []token, i int) int {
	for i < len(tokens) && (tokens[i].is("-") || tokens[i].is("+")) {
		i++
	}
	if i < len(tokens) {
		i = atomEnd(tokens, i)
	}
	for i < len(tokens) {
		switch {
		case tokens[i].is("(") || tokens[i].is("["):
			i = atomEnd(tokens, i)
		case (tokens[i].is(".") || tokens[i].is("|")) && i+1 < len(tokens):
			i += 2
		default:
			return i
		}
	}
	return i
}

// atomEnd returns the index after a bracketed group, or after one token.
func atomEnd(tokens []token, i int) int {
	depth := 0
	for ; i < len(tokens); i++ {
		if depth += nesting(tokens[i]); depth <= 0 {
			return i + 1
		}
	}
	return i
}

// quote spells text as a literal of the engine, which reads only these two escapes as Python does.
func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}
