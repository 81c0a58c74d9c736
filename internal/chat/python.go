package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// printed writes a value as Python's str does, which is what {{ }} prints.
func (b *budget) printed(v jinja.Value) (string, error) {
	switch {
	case v.IsUndefined():
		return "", nil
	case v.IsString():
		return v.AsString(), b.spend(len(v.AsString()))
	}
	var w strings.Builder
	err := b.repr(&w, v, 0)
	return w.String(), err
}

// repr writes a value as Python's repr does.
func (b *budget) repr(w *strings.Builder, v jinja.Value, depth int) error {
	if err := b.enterValue(depth); err != nil {
		return err
	}
	switch {
	case v.IsNone():
		w.WriteString("None")
	case v.IsBool() && v.AsBool():
		w.WriteString("True")
	case v.IsBool():
		w.WriteString("False")
	case v.IsFloat():
		w.WriteString(pythonFloat(v.AsFloat()))
	case v.IsString():
		reprString(w, v.AsString())
		return b.spend(len(v.AsString()))
	case v.IsList():
		return b.list(w, v.AsList(), ", ", func(item jinja.Value) error { return b.repr(w, item, depth+1) })
	case v.IsDict():
		return b.dict(w, v.AsDict(), func(key string, item jinja.Value) error {
			reprString(w, key)
			w.WriteString(": ")
			return b.repr(w, item, depth+1)
		})
	case v.IsInt():
		w.WriteString(strconv.FormatInt(v.AsInt(), 10))
	}
	return nil
}

func (b *budget) list(w *strings.Builder, l *jinja.List, separator string, write func(jinja.Value) error) error {
	w.WriteByte('[')
	for i, item := range l.Items {
		if i > 0 {
			w.WriteString(separator)
		}
		if err := write(item); err != nil {
			return err
		}
	}
	w.WriteByte(']')
	return nil
}

func (b *budget) dict(w *strings.Builder, d *jinja.Dict, write func(string, jinja.Value) error) error {
	w.WriteByte('{')
	for i, key := range d.Keys {
		if i > 0 {
			w.WriteString(", ")
		}
		if err := b.spend(len(key)); err != nil {
			return err
		}
		if err := write(key, d.Data[key]); err != nil {
			return err
		}
	}
	w.WriteByte('}')
	return nil
}

func reprString(w *strings.Builder, s string) {
	quote := byte('\'')
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	w.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r == '\n':
			w.WriteString(`\n`)
		case r == '\r':
			w.WriteString(`\r`)
		case r == '\t':
			w.WriteString(`\t`)
		case r < ' ' || r >= 0x7F && r < 0xA0:
			fmt.Fprintf(w, `\x%02x`, r)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte(quote)
}

// pythonFloat spells a float as Python does.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.ContainsRune(s, '.') {
		s += ".0"
	}
	return s
}

// jsonStyle is how json.dumps lays a value out.
type jsonStyle struct {
	item, key string // separators
	indent    string // one level's; "" for one line
}

// json writes a value as Python's json.dumps(ensure_ascii=False) does.
func (b *budget) json(w *strings.Builder, v jinja.Value, style jsonStyle, depth int) error {
	if err := b.enterValue(depth); err != nil {
		return err
	}
	line := func(depth int) {
		if style.indent != "" {
			w.WriteByte('\n')
			w.WriteString(strings.Repeat(style.indent, depth))
		}
	}
	switch {
	case v.IsString():
		jsonString(w, v.AsString())
		return b.spend(len(v.AsString()))
	case v.IsList() && v.AsList().Len() > 0:
		w.WriteByte('[')
		for i, item := range v.AsList().Items {
			if i > 0 {
				w.WriteString(style.item)
			}
			line(depth + 1)
			if err := b.json(w, item, style, depth+1); err != nil {
				return err
			}
		}
		line(depth)
		w.WriteByte(']')
	case v.IsDict() && v.AsDict().Len() > 0:
		w.WriteByte('{')
		for i, key := range v.AsDict().Keys {
			if i > 0 {
				w.WriteString(style.item)
			}
			line(depth + 1)
			jsonString(w, key)
			w.WriteString(style.key)
			if err := b.spend(len(key)); err != nil {
				return err
			}
			if err := b.json(w, v.AsDict().Data[key], style, depth+1); err != nil {
				return err
			}
		}
		line(depth)
		w.WriteByte('}')
	default:
		w.WriteString(jsonScalar(v))
	}
	return nil
}

func jsonScalar(v jinja.Value) string {
	switch {
	case v.IsBool():
		return strconv.FormatBool(v.AsBool())
	case v.IsInt():
		return strconv.FormatInt(v.AsInt(), 10)
	case v.IsFloat():
		return map[string]string{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[pythonFloat(v.AsFloat())] + finiteFloat(v.AsFloat())
	case v.IsList():
		return "[]"
	case v.IsDict():
		return "{}"
	}
	return "null"
}

func finiteFloat(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return ""
	}
	return pythonFloat(f)
}

func jsonString(w *strings.Builder, s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch r {
		case '"', '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case '\n':
			w.WriteString(`\n`)
		case '\r':
			w.WriteString(`\r`)
		case '\t':
			w.WriteString(`\t`)
		case '\b':
			w.WriteString(`\b`)
		case '\f':
			w.WriteString(`\f`)
		default:
			if r < ' ' {
				fmt.Fprintf(w, `\u%04x`, r)
				continue
			}
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// strftime formats a time as Python does in the C locale.
func strftime(now time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := strftimeLayouts[format[i]]; {
		case ok:
			b.WriteString(now.Format(layout))
		case format[i] == 'j':
			fmt.Fprintf(&b, "%03d", now.YearDay())
		case format[i] == 'f':
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == '-' && i+1 < len(format):
			i++
			b.WriteString(strings.TrimLeft(now.Format(strftimeLayouts[format[i]]), "0"))
		default:
			b.WriteString(format[i-1 : i+1])
		}
	}
	return b.String()
}

var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'B': "January", 'b': "Jan", 'h': "Jan",
	'A': "Monday", 'a': "Mon", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'e': "_2",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

// splitText is Python's str.split.
func splitText(s, separator string, most int) []string {
	switch {
	case separator != "" && most >= 0:
		return strings.SplitN(s, separator, most+1)
	case separator != "":
		return strings.Split(s, separator)
	}
	var parts []string
	for rest := strings.TrimLeftFunc(s, isSpace); rest != ""; {
		if most >= 0 && len(parts) == most {
			return append(parts, strings.TrimRightFunc(rest, isSpace))
		}
		end := strings.IndexFunc(rest, isSpace)
		if end < 0 {
			return append(parts, rest)
		}
		parts = append(parts, rest[:end])
		rest = strings.TrimLeftFunc(rest[end:], isSpace)
	}
	return parts
}

// replacedSize returns how long s is with most occurrences of old replaced, all if most is negative.
func replacedSize(s, old, new string, most int) int {
	n := utf8.RuneCountInString(s) + 1
	if old != "" {
		n = strings.Count(s, old)
	}
	if most >= 0 {
		n = min(n, most)
	}
	return len(s) + n*(len(new)-len(old))
}
