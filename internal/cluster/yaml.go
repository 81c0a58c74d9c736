package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

var unknownField = regexp.MustCompile(`json: unknown field "([^"]*)"`)

// Unmarshal reads YAML strictly. The library reads it by way of JSON; the errors
// here speak of the text that the user wrote, with its line where it is certain.
func Unmarshal(data []byte, into any) error {
	err := yaml.UnmarshalStrict(data, into)
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		key := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		return fmt.Errorf("%s%s: must be %s, found %s", lineOf(data, key), kind.Field, wanted(kind.Type), found(kind.Value))
	}
	if unknown := unknownField.FindStringSubmatch(err.Error()); unknown != nil {
		return fmt.Errorf("%sunknown key %q", lineOf(data, unknown[1]), unknown[1])
	}
	text := err.Error()
	for _, way := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, way)
	}
	return errors.New(text)
}

// lineOf names the line of a key, nothing if the key is not on exactly one line.
func lineOf(data []byte, key string) string {
	form, err := regexp.Compile(`(^|[\s{,"'-])` + regexp.QuoteMeta(key) + `["']?\s*:(\s|$)`)
	if err != nil || key == "" {
		return ""
	}
	at, n := 0, 0
	for line := range bytes.Lines(data) {
		n++
		text, _, _ := bytes.Cut(line, []byte("#"))
		if !form.Match(bytes.TrimSpace(text)) {
			continue
		}
		if at > 0 {
			return ""
		}
		at = n
	}
	if at == 0 {
		return ""
	}
	return fmt.Sprintf("line %d: ", at)
}

// wanted is what YAML calls the value of a Go type.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a map"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	default:
		return "a number"
	}
}

// found is what YAML calls a JSON value. The decoder appends what a number was.
func found(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	switch kind {
	case "array":
		return "a list"
	case "object":
		return "a map"
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	default:
		return "a number"
	}
}
