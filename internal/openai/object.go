package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// object reads the fields of one JSON object. Names match exactly; a null counts
// as absent. The first mistake is kept and later reads still return, so that a
// request is read top-down and checked once. path is "" or ends in a dot.
type object struct {
	path   string
	fields map[string]json.RawMessage
	err    *Error
}

func parseObject(data []byte) (*object, *Error) {
	if n := values(data); n > ValuesMax {
		return nil, invalid(CodeOutOfRange, "", "the body must have at most %d values, it has about %d", ValuesMax, n)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		if json.Valid(data) {
			return nil, invalid(CodeInvalidJSON, "", "the body must be a JSON object, it is %s", kindOf(data))
		}
		return nil, invalid(CodeInvalidJSON, "", "the body is not valid JSON: %s", brokenAt(data, err))
	}
	return &object{fields: fields}, nil
}

// brokenAt says where text stops being JSON, by number and without quoting it.
func brokenAt(data []byte, err error) string {
	var syntax *json.SyntaxError
	if len(data) == 0 {
		return "it is empty"
	}
	if !errors.As(err, &syntax) {
		return fmt.Sprintf("%d bytes", len(data))
	}
	if syntax.Error() == "unexpected end of JSON input" {
		return fmt.Sprintf("it breaks off after %d bytes", len(data))
	}
	return fmt.Sprintf("the mistake is at byte %d of %d", syntax.Offset, len(data))
}

// values is about the number of values in a JSON text: one more than its commas.
// Parsing takes memory for each, of which most may be a byte or two of the body.
func values(data []byte) int {
	n, quoted := 1, false
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			quoted = !quoted
		case '\\':
			if quoted {
				i++
			}
		case ',':
			if !quoted {
				n++
			}
		}
	}
	return n
}

// child reads raw as an object whose fields are named under path. A mistake in
// it is the parent's.
func (o *object) child(path string, raw json.RawMessage) (*object, bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		o.wrongType(path, "an object", raw)
		return nil, false
	}
	return &object{path: path + ".", fields: fields}, true
}

func (o *object) adopt(c *object) {
	if c.err != nil {
		o.fail(c.err)
	}
}

func (o *object) fail(err *Error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *object) wrongType(path, want string, raw json.RawMessage) {
	o.fail(invalid(CodeInvalidType, path, "%s must be %s, it is %s", path, want, kindOf(raw)))
}

// get is the raw value of a field; false when absent or null.
func (o *object) get(name string) (json.RawMessage, bool) {
	raw, ok := o.fields[name]
	if !ok || bytes.Equal(raw, []byte("null")) {
		return nil, false
	}
	return raw, true
}

func (o *object) text(name string) (string, bool) {
	raw, ok := o.get(name)
	if !ok {
		return "", false
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		o.wrongType(o.path+name, "a string", raw)
		return "", false
	}
	return s, true
}

func (o *object) boolean(name string) bool {
	raw, ok := o.get(name)
	if !ok {
		return false
	}
	var b bool
	if json.Unmarshal(raw, &b) != nil {
		o.wrongType(o.path+name, "a boolean", raw)
	}
	return b
}

// integer reads a whole number of [lo, hi]; 8.0 is one, 8.5 and "8" are not.
func (o *object) integer(name string, lo, hi int64) (int64, bool) {
	raw, ok := o.get(name)
	if !ok {
		return 0, false
	}
	v, bad := integerOf(o.path+name, raw, lo, hi)
	if bad != nil {
		o.fail(bad)
	}
	return v, bad == nil
}

func integerOf(path string, raw json.RawMessage, lo, hi int64) (int64, *Error) {
	if kindOf(raw) != "a number" {
		return 0, invalid(CodeInvalidType, path, "%s must be an integer from %d to %d, it is %s", path, lo, hi, kindOf(raw))
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(string(raw), 64)
		switch {
		case ferr == nil && f != math.Trunc(f):
			return 0, invalid(CodeInvalidType, path, "%s must be an integer from %d to %d, it has a fraction", path, lo, hi)
		case ferr != nil || math.Abs(f) >= 1<<62:
			return 0, invalid(CodeOutOfRange, path, "%s must be an integer from %d to %d", path, lo, hi)
		}
		v = int64(f)
	}
	if v < lo || v > hi {
		return 0, invalid(CodeOutOfRange, path, "%s must be an integer from %d to %d", path, lo, hi)
	}
	return v, nil
}

// number reads a number of [lo, hi].
func (o *object) number(name string, lo, hi float64) (float64, bool) {
	raw, ok := o.get(name)
	if !ok {
		return 0, false
	}
	v, bad := numberOf(o.path+name, raw, lo, hi)
	if bad != nil {
		o.fail(bad)
	}
	return v, bad == nil
}

func numberOf(path string, raw json.RawMessage, lo, hi float64) (float64, *Error) {
	if kindOf(raw) != "a number" {
		return 0, invalid(CodeInvalidType, path, "%s must be a number from %g to %g, it is %s", path, lo, hi, kindOf(raw))
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v < lo || v > hi {
		return 0, invalid(CodeOutOfRange, path, "%s must be a number from %g to %g", path, lo, hi)
	}
	return v, nil
}

func (o *object) list(name string) ([]json.RawMessage, bool) {
	raw, ok := o.get(name)
	if !ok {
		return nil, false
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		o.wrongType(o.path+name, "an array", raw)
		return nil, false
	}
	return items, true
}

// kindOf names the JSON type of a value with its article.
func kindOf(raw []byte) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "empty"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
