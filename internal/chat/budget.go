package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Bounds of one rendering.
const (
	workBase       = 16 << 20 // units of work for any conversation
	workPerMessage = 64 << 10 // and for each message
	workPerByte    = 64       // and for each byte of the request
	workPerStep    = 64       // what a turn of a loop or a call costs besides its text
	callsMax       = 64       // macros inside macros
	keptBase       = 1 << 20  // bytes of a text that a variable may hold, beyond four times the request
	nodesMax       = 1 << 18  // parts of a value that a variable may hold
	heavyShare     = 16       // a turn costs the heaviest variable's bytes over this, for it may look through them
)

// budget counts the work of one rendering: bytes made and turns taken. Whatever a template does in a loop or with growing
// values passes through it.
type budget struct {
	left     int
	keptMax  int // bytes of a text in a variable
	heaviest int // bytes of the largest value that a variable has held
	calls    int // macros that are under way
	done     <-chan struct{}
}

func newBudget(messages, bytes int, done <-chan struct{}) *budget {
	return &budget{done: done, left: workBase + workPerMessage*messages + workPerByte*bytes, keptMax: keptBase + 4*bytes}
}

func (b *budget) spend(work int) error {
	select {
	case <-b.done:
		return fmt.Errorf("chat template: %w", ErrStopped)
	default:
	}
	if b.left -= work; b.left < 0 {
		return fmt.Errorf("chat template does too much work: %w", ErrBudget)
	}
	return nil
}

// enterValue pays for looking at one part of a value at a depth.
func (b *budget) enterValue(depth int) error {
	if depth > 2*nestingMax {
		return fmt.Errorf("chat template makes a value that nests deeper than %d: %w", 2*nestingMax, ErrBudget)
	}
	return b.spend(8)
}

// function is what templates call.
type function = func(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error)

// define adds the functions and filters that this package brings along.
func (b *budget) define(variables map[string]jinja.Value, now time.Time) {
	functions := map[string]function{
		"step_": b.step, "enter_": b.enter, "leave_": b.leave, "print_": b.print, "keep_": b.keep, "times_": b.times,
		"tojson_": b.tojson, "replace_": b.replace, "join_": b.join, "indent_": b.indent, "string_": b.print, "trim_": b.trim,
		"method_replace_": b.replace, "method_append_": b.appendTo, "method_insert_": b.insertInto, "method_update_": b.update,
		"method_format_": b.format, "method_strip_": trimBoth, "method_lstrip_": trimLeft, "method_rstrip_": trimRight, "method_split_": b.split,
		"range": b.rangeOf, "dict": dictOf, "raise_exception": raise,
		"strftime_now": func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			return jinja.NewString(strftime(now, textArgument(args, 0, "%Y-%m-%d"))), nil
		},
	}
	for name, f := range functions {
		variables[name] = jinja.NewCallable(name, f)
	}
}

var nothing = jinja.NewString("")

// textArgument returns the i-th argument if it is a text.
func textArgument(args []jinja.Value, i int, fallback string) string {
	if i < len(args) && args[i].IsString() {
		return args[i].AsString()
	}
	return fallback
}

func intArgument(args []jinja.Value, i, fallback int) int {
	if i < len(args) && args[i].IsInt() {
		return int(min(max(args[i].AsInt(), -numberMax), numberMax))
	}
	return fallback
}

// argument returns the i-th argument, given by position or by name.
func argument(args []jinja.Value, i int, named map[string]jinja.Value, name string) []jinja.Value {
	if v, ok := named[name]; ok {
		return []jinja.Value{v}
	}
	if i < len(args) {
		return args[i : i+1]
	}
	return nil
}

func (b *budget) step(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return nothing, b.turn(args)
}

// turn pays for one turn of a block; args[0] is the size of its text.
func (b *budget) turn(args []jinja.Value) error {
	return b.spend(workPerStep + intArgument(args, 0, 0) + b.heaviest/heavyShare)
}

func (b *budget) enter(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if b.calls++; b.calls > callsMax {
		return nothing, fmt.Errorf("chat template calls macros inside macros more than %d deep: %w", callsMax, ErrBudget)
	}
	return nothing, b.turn(args)
}

func (b *budget) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	b.calls--
	return nothing, nil
}

func (b *budget) print(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	text, err := b.printed(args[0])
	return jinja.NewString(text), err
}

// keep checks a value that goes into a variable, or into an attribute of args[1]: its size, and that no value comes to
// hold itself.
func (b *budget) keep(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var holder any
	if len(args) > 1 {
		holder = identity(args[1])
	}
	m := measure{keptMax: b.keptMax, holder: holder}
	if err := m.add(args[0], 0); err != nil {
		return nothing, err
	}
	b.heaviest = max(b.heaviest, m.bytes+8*m.nodes)
	return args[0], b.spend(m.nodes)
}

// identity tells lists and dicts apart; nil for any other value.
func identity(v jinja.Value) any {
	switch {
	case v.IsList():
		return v.AsList()
	case v.IsDict():
		return v.AsDict()
	}
	return nil
}

// measure sums up a value.
type measure struct {
	keptMax int
	holder  any // must not occur in the value
	nodes   int
	bytes   int
}

func (m *measure) add(v jinja.Value, depth int) error {
	if m.nodes++; m.nodes > nodesMax {
		return fmt.Errorf("chat template makes a value of more than %d parts: %w", nodesMax, ErrBudget)
	}
	if depth > 2*nestingMax || m.holder != nil && m.holder == identity(v) {
		return fmt.Errorf("chat template makes a value that holds itself or nests deeper than %d: %w", 2*nestingMax, ErrBudget)
	}
	switch {
	case v.IsString():
		if m.bytes += len(v.AsString()); m.bytes > m.keptMax {
			return fmt.Errorf("chat template makes a value of %d bytes, the limit is %d: %w", m.bytes, m.keptMax, ErrBudget)
		}
	case v.IsList():
		for _, item := range v.AsList().Items {
			if err := m.add(item, depth+1); err != nil {
				return err
			}
		}
	case v.IsDict():
		for _, item := range v.AsDict().Data {
			if err := m.add(item, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// times is the product of numbers, or a text or list repeated.
func (b *budget) times(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) < 2 {
		return nothing, errors.New("a product lacks an operand")
	}
	v, n := args[0], args[1]
	if v.IsInt() && (n.IsString() || n.IsList()) {
		v, n = n, v
	}
	switch {
	case v.IsString():
		count := max(intArgument([]jinja.Value{n}, 0, 0), 0)
		if err := b.spend(len(v.AsString()) * count); err != nil {
			return nothing, err
		}
		return jinja.NewString(strings.Repeat(v.AsString(), count)), nil
	case v.IsList():
		count := max(intArgument([]jinja.Value{n}, 0, 0), 0)
		if err := b.spend(workPerStep * v.AsList().Len() * count); err != nil {
			return nothing, err
		}
		return jinja.NewList(slices.Repeat(v.AsList().Items, count)), nil
	case v.IsInt() && n.IsInt():
		return jinja.NewInt(v.AsInt() * n.AsInt()), nil
	}
	return jinja.NewFloat(number(v) * number(n)), nil
}

func number(v jinja.Value) float64 {
	switch {
	case v.IsInt():
		return float64(v.AsInt())
	case v.IsFloat():
		return v.AsFloat()
	}
	return 0
}

func (b *budget) tojson(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	style := jsonStyle{item: ", ", key: ": "}
	if n := intArgument(argument(args, 2, named, "indent"), 0, -1); n >= 0 {
		style.item, style.indent = ",", strings.Repeat(" ", min(n, 16))
	}
	if s := argument(args, 3, named, "separators"); len(s) == 1 && s[0].IsList() && s[0].AsList().Len() == 2 {
		style.item, style.key = textArgument(s[0].AsList().Items, 0, style.item), textArgument(s[0].AsList().Items, 1, style.key)
	}
	var w strings.Builder
	err := b.json(&w, args[0], style, 0)
	return jinja.NewString(w.String()), err
}

func (b *budget) replace(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	s, err := b.printed(args[0])
	if err != nil {
		return nothing, err
	}
	old, new := textArgument(args, 1, ""), textArgument(args, 2, "")
	most := intArgument(argument(args, 3, named, "count"), 0, -1)
	if err := b.spend(replacedSize(s, old, new, most)); err != nil {
		return nothing, err
	}
	return jinja.NewString(strings.Replace(s, old, new, most)), nil
}

func (b *budget) join(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	separator := textArgument(argument(args, 1, named, "d"), 0, "")
	attribute := textArgument(argument(args, 2, named, "attribute"), 0, "")
	var w strings.Builder
	for i, item := range items(args[0]) {
		if attribute != "" && item.IsDict() {
			item, _ = item.AsDict().Get(attribute)
		}
		text, err := b.printed(item)
		if err != nil {
			return nothing, err
		}
		if i > 0 {
			w.WriteString(separator)
		}
		w.WriteString(text)
		if err := b.spend(len(separator) + 1); err != nil {
			return nothing, err
		}
	}
	return jinja.NewString(w.String()), nil
}

// items are what a loop over the value would go through.
func items(v jinja.Value) []jinja.Value {
	var list []jinja.Value
	switch {
	case v.IsList():
		return v.AsList().Items
	case v.IsDict():
		for _, key := range v.AsDict().Keys {
			list = append(list, jinja.NewString(key))
		}
	case v.IsString():
		for _, r := range v.AsString() {
			list = append(list, jinja.NewString(string(r)))
		}
	}
	return list
}

func (b *budget) indent(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	s, err := b.printed(args[0])
	if err != nil {
		return nothing, err
	}
	width := argument(args, 1, named, "width")
	pad := textArgument(width, 0, strings.Repeat(" ", min(max(intArgument(width, 0, 4), 0), 1000)))
	first, blank := argument(args, 2, named, "first"), argument(args, 3, named, "blank")
	if err := b.spend((strings.Count(s, "\n") + 1) * len(pad)); err != nil {
		return nothing, err
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if i == 0 && (len(first) == 0 || !first[0].IsTruthy()) || i > 0 && line == "" && (len(blank) == 0 || !blank[0].IsTruthy()) {
			continue
		}
		lines[i] = pad + line
	}
	return jinja.NewString(strings.Join(lines, "\n")), nil
}

// format is str.format for {} and {0}, with arguments by position.
func (b *budget) format(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var w strings.Builder
	next := 1
	for rest := textArgument(args, 0, ""); rest != ""; {
		brace := strings.IndexAny(rest, "{}")
		if brace < 0 {
			w.WriteString(rest)
			break
		}
		w.WriteString(rest[:brace])
		rest = rest[brace:]
		if strings.HasPrefix(rest, "{{") || strings.HasPrefix(rest, "}}") {
			w.WriteByte(rest[0])
			rest = rest[2:]
			continue
		}
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return nothing, errors.New("format: a brace has no end")
		}
		i := next
		if end == 1 {
			next++
		} else if end == 2 && rest[1] >= '0' && rest[1] <= '9' {
			i = int(rest[1]-'0') + 1
		} else {
			return nothing, errors.New("format: only {} and {0} to {9} are supported")
		}
		if i >= len(args) {
			return nothing, errors.New("format: too few arguments")
		}
		text, err := b.printed(args[i])
		if err != nil {
			return nothing, err
		}
		w.WriteString(text)
		rest = rest[end+1:]
	}
	return jinja.NewString(w.String()), nil
}

func (b *budget) split(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 || !args[0].IsString() {
		return nothing, errors.New("split: not a text")
	}
	most := intArgument(argument(args, 2, named, "maxsplit"), 0, -1)
	parts := splitText(args[0].AsString(), textArgument(args, 1, ""), most)
	if err := b.spend(workPerStep * len(parts)); err != nil {
		return nothing, err
	}
	list := make([]jinja.Value, len(parts))
	for i, part := range parts {
		list[i] = jinja.NewString(part)
	}
	return jinja.NewList(list), nil
}

func (b *budget) appendTo(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) < 2 || !args[0].IsList() {
		return nothing, errors.New("append: not a list")
	}
	return b.insertInto([]jinja.Value{args[0], jinja.NewInt(int64(args[0].AsList().Len())), args[1]}, nil)
}

func (b *budget) insertInto(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) < 3 || !args[0].IsList() {
		return nothing, errors.New("insert: not a list")
	}
	if _, err := b.keep([]jinja.Value{args[2], args[0]}, nil); err != nil {
		return nothing, err
	}
	list := args[0].AsList()
	list.Items = slices.Insert(list.Items, min(max(intArgument(args, 1, 0), 0), list.Len()), args[2])
	return jinja.None(), b.spend(workPerStep)
}

func (b *budget) update(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	if !args[0].IsDict() {
		return nothing, errors.New("update: not a mapping")
	}
	additions, err := dictOf(nil, named)
	if err != nil {
		return nothing, err
	}
	for _, source := range append(args[1:], additions) {
		if !source.IsDict() {
			continue
		}
		if _, err := b.keep([]jinja.Value{source, args[0]}, nil); err != nil {
			return nothing, err
		}
		for _, key := range source.AsDict().Keys {
			args[0].AsDict().Set(key, source.AsDict().Data[key])
		}
	}
	return jinja.None(), b.spend(workPerStep)
}

func (b *budget) rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	start, stop, step := 0, intArgument(args, 0, 0), intArgument(args, 2, 1)
	if len(args) > 1 {
		start, stop = intArgument(args, 0, 0), intArgument(args, 1, 0)
	}
	if step == 0 {
		return nothing, errors.New("range: the step is zero")
	}
	count := max(0, (stop-start+step-sign(step))/step)
	if err := b.spend(workPerStep * count); err != nil {
		return nothing, err
	}
	list := make([]jinja.Value, count)
	for i := range list {
		list[i] = jinja.NewInt(int64(start + i*step))
	}
	return jinja.NewList(list), nil
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

func dictOf(_ []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	v := jinja.NewDict()
	names := make([]string, 0, len(named))
	for name := range named {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		v.AsDict().Set(name, named[name])
	}
	return v, nil
}

func raise(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return nothing, &RaisedError{Message: textArgument(args, 0, "")}
}

// trim is the filter, which takes any value's text; the methods strip and so on are only a text's.
func (b *budget) trim(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	text, err := b.printed(args[0])
	if err != nil {
		return nothing, err
	}
	return trimBoth(append([]jinja.Value{jinja.NewString(text)}, argument(args, 1, named, "chars")...), nil)
}

func trimBoth(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return trimmed(args, true, true)
}

func trimLeft(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return trimmed(args, true, false)
}

func trimRight(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	return trimmed(args, false, true)
}

func trimmed(args []jinja.Value, left, right bool) (jinja.Value, error) {
	if len(args) == 0 || args[0].IsUndefined() {
		return nothing, nil
	}
	if !args[0].IsString() {
		return nothing, errors.New("trim: not a text")
	}
	s, cut := args[0].AsString(), isSpace
	if set := textArgument(args, 1, ""); set != "" {
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return jinja.NewString(s), nil
}
