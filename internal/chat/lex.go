package chat

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// chunkKind says what a stretch of a template is.
type chunkKind uint8

const (
	chunkText chunkKind = iota
	chunkPrint
	chunkStatement
)

// chunk is a stretch of a template, whitespace control already applied.
type chunk struct {
	kind   chunkKind
	text   string  // of chunkText
	tokens []token // of the others
	line   int     // 1-based
}

// tokenKind says what a token inside a tag is.
type tokenKind uint8

const (
	tokenName tokenKind = iota
	tokenNumber
	tokenString // text is the string's value
	tokenOperator
)

type token struct {
	kind tokenKind
	text string
}

func (t token) is(operator string) bool { return t.kind == tokenOperator && t.text == operator }
func (t token) named(name string) bool  { return t.kind == tokenName && t.text == name }

// lexer cuts a template as Jinja 2 does with trim_blocks and lstrip_blocks.
type lexer struct {
	source     string
	at         int
	lineStarts bool // what came before at ended a line
	chunks     []chunk
}

// lex returns the template's chunks.
func lex(source string) ([]chunk, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{source: source, lineStarts: true}
	for l.at < len(l.source) {
		if err := l.next(); err != nil {
			return nil, fmt.Errorf("chat template, line %d: %w", l.line(), err)
		}
		if len(l.chunks) > chunksMax {
			return nil, fmt.Errorf("chat template has more than %d tags and texts", chunksMax)
		}
	}
	return l.chunks, nil
}

func (l *lexer) line() int { return 1 + strings.Count(l.source[:min(l.at, len(l.source))], "\n") }

// next takes the text up to the next tag, and the tag.
func (l *lexer) next() error {
	rest := l.source[l.at:]
	open := nextTag(rest)
	if open < 0 {
		l.text(rest)
		l.at = len(l.source)
		return nil
	}
	text, kind := rest[:open], rest[open+1]
	body := l.at + open + 2
	sign := byte(0)
	if body < len(l.source) && (l.source[body] == '-' || l.source[body] == '+') {
		sign = l.source[body]
		body++
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && kind != '{':
		lineAt := strings.LastIndexByte(text, '\n') + 1
		if (lineAt > 0 || l.lineStarts) && strings.TrimLeftFunc(text[lineAt:], isSpace) == "" {
			text = text[:lineAt]
		}
	}
	l.text(text)
	l.at = body
	switch kind {
	case '#':
		return l.comment()
	case '{':
		return l.tag(chunkPrint, "}}")
	}
	if end, ok := keywordTag(l.source[body:], "raw"); ok {
		return l.raw(body + end)
	}
	return l.tag(chunkStatement, "%}")
}

// nextTag returns the index of the first "{{", "{%" or "{#", or -1.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// isSpace is Python's str.isspace for the runes that templates hold.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }

func (l *lexer) text(text string) {
	if text != "" {
		l.chunks = append(l.chunks, chunk{kind: chunkText, text: text, line: l.line()})
	}
}

func (l *lexer) comment() error {
	end := strings.Index(l.source[l.at:], "#}")
	if end < 0 {
		return errors.New("a comment has no end")
	}
	sign := byte(0)
	if end > 0 {
		sign = l.source[l.at+end-1]
	}
	l.at += end + 2
	l.afterTag(sign, true)
	return nil
}

// afterTag applies the closing mark's sign to what follows. trims tells whether the tag swallows a line break after it.
func (l *lexer) afterTag(sign byte, trims bool) {
	start := l.at
	switch {
	case sign == '-':
		rest := l.source[l.at:]
		l.at += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign != '+' && trims && strings.HasPrefix(l.source[l.at:], "\n"):
		l.at++
	}
	l.lineStarts = l.at > start && l.source[l.at-1] == '\n'
}

// keywordTag reports whether s begins with a statement that is only the keyword, and where it ends.
func keywordTag(s, keyword string) (int, bool) {
	rest := strings.TrimLeftFunc(s, isSpace)
	if !strings.HasPrefix(rest, keyword) {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest[len(keyword):], isSpace)
	for _, end := range []string{"%}", "-%}", "+%}"} {
		if strings.HasPrefix(rest, end) {
			return len(s) - len(rest) + len(end), true
		}
	}
	return 0, false
}

// raw takes text up to {% endraw %} as it is.
func (l *lexer) raw(at int) error {
	l.at = at
	l.afterTag(l.source[at-3], true)
	for i := l.at; i+1 < len(l.source); i++ {
		if l.source[i] != '{' || l.source[i+1] != '%' {
			continue
		}
		body, sign := i+2, byte(0)
		if body < len(l.source) && (l.source[body] == '-' || l.source[body] == '+') {
			sign = l.source[body]
			body++
		}
		end, ok := keywordTag(l.source[body:], "endraw")
		if !ok {
			continue
		}
		text := l.source[l.at:i]
		if sign == '-' {
			text = strings.TrimRightFunc(text, isSpace)
		}
		l.text(text)
		l.at = body + end
		l.afterTag(l.source[l.at-3], true)
		return nil
	}
	return errors.New("a raw block has no end")
}

// Bounds of a template's tags. They keep the parser behind, which recurses, shallow.
const (
	nestingMax = 100     // brackets, and statements inside statements
	tokensMax  = 2000    // of one tag
	chunksMax  = 8192    // tags, and texts between them
	sourceMax  = 1 << 18 // bytes of a template
)

// tag takes the tokens of a tag up to its closing mark.
func (l *lexer) tag(kind chunkKind, closing string) error {
	c := chunk{kind: kind, line: l.line()}
	depth := 0
	for {
		rest := l.source[l.at:]
		l.at += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
		rest = l.source[l.at:]
		if rest == "" {
			return errors.New("a tag has no end")
		}
		if depth == 0 {
			if sign, ok := closes(rest, closing); ok {
				l.at += len(closing)
				if sign != 0 {
					l.at++
				}
				l.afterTag(sign, kind == chunkStatement)
				l.chunks = append(l.chunks, c)
				return nil
			}
		}
		t, size, err := nextToken(rest)
		if err != nil {
			return err
		}
		l.at += size
		if depth += nesting(t); depth < 0 || depth > nestingMax {
			return fmt.Errorf("brackets don't match, or nest deeper than %d", nestingMax)
		}
		if last := len(c.tokens) - 1; last >= 0 && t.kind == tokenString && c.tokens[last].kind == tokenString {
			c.tokens[last].text += t.text
			continue
		}
		if c.tokens = append(c.tokens, t); len(c.tokens) > tokensMax {
			return fmt.Errorf("a tag has more than %d tokens", tokensMax)
		}
	}
}

// closes reports whether rest begins with the closing mark, and its sign.
func closes(rest, closing string) (byte, bool) {
	if strings.HasPrefix(rest, closing) {
		return 0, true
	}
	if (rest[0] == '-' || rest[0] == '+' && closing == "%}") && strings.HasPrefix(rest[1:], closing) {
		return rest[0], true
	}
	return 0, false
}

func nesting(t token) int {
	if t.kind != tokenOperator {
		return 0
	}
	switch t.text {
	case "(", "[", "{":
		return 1
	case ")", "]", "}":
		return -1
	}
	return 0
}

var operators = []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ".", ",", ":", "|"}

func nextToken(s string) (token, int, error) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r == '\'' || r == '"':
		return stringToken(s)
	case r >= '0' && r <= '9':
		n := numberSize(s)
		return token{tokenNumber, strings.ReplaceAll(s[:n], "_", "")}, n, nil
	case isNameRune(r):
		n := size
		for n < len(s) {
			r, size := utf8.DecodeRuneInString(s[n:])
			if !isNameRune(r) && (r < '0' || r > '9') {
				break
			}
			n += size
		}
		return token{tokenName, s[:n]}, n, nil
	}
	for _, op := range operators {
		if strings.HasPrefix(s, op) {
			return token{tokenOperator, op}, len(op), nil
		}
	}
	return token{}, 0, fmt.Errorf("character %q stands where none may", r)
}

func isNameRune(r rune) bool {
	return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

func numberSize(s string) int {
	n := 0
	digits := func() {
		for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_') {
			n++
		}
	}
	digits()
	if n+1 < len(s) && s[n] == '.' && s[n+1] >= '0' && s[n+1] <= '9' {
		n++
		digits()
	}
	return n
}

// stringToken reads a literal with Python's escapes.
func stringToken(s string) (token, int, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case s[0]:
			return token{tokenString, b.String()}, i + 1, nil
		case '\\':
			text, size := unescape(s[i:])
			b.WriteString(text)
			i += size - 1
		default:
			b.WriteByte(s[i])
		}
	}
	return token{}, 0, errors.New("a string has no end")
}

var simpleEscapes = map[byte]string{
	'\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '\n': "",
}

// unescape reads the escape sequence that s begins with. What is none stays as it is.
func unescape(s string) (text string, size int) {
	if len(s) < 2 {
		return s, len(s)
	}
	if text, ok := simpleEscapes[s[1]]; ok {
		return text, 2
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]]
	if digits == 0 || len(s) < 2+digits {
		return s[:1], 1
	}
	var r rune
	for _, c := range []byte(s[2 : 2+digits]) {
		v := strings.IndexByte("0123456789abcdef", c|0x20)
		if v < 0 {
			return s[:1], 1
		}
		r = r<<4 | rune(v)
	}
	return string(r), 2 + digits
}
