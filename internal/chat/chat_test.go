package chat

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func compile(t interface {
	Helper()
	Fatalf(string, ...any)
}, source string, specials ...string) *Template {
	t.Helper()
	template, err := New(source, specials...)
	if err != nil {
		t.Fatalf("compile %q: %v", source, err)
	}
	return template
}

// Expected texts are what Python's jinja2 3.1.6 gives; TestSnippetsEqualPython holds them to it where Python is there.
var snippets = []struct{ name, source, want string }{
	{"text", "a\nb\n", "a\nb"},
	{"only one line break at the end goes", "a\n\n", "a\n"},
	{"carriage returns", "a\r\nb\rc", "a\nb\nc"},
	{"trim_blocks", "{% if true %}\n\nx\n{% endif %}\ny", "\nx\ny"},
	{"lstrip_blocks", "a\n   {% if true %}\nx\n   {% endif %}\nz", "a\nx\nz"},
	{"lstrip_blocks at the start", "   {% if true %}x{% endif %}", "x"},
	{"no lstrip within a line", "a   {% if true %}x{% endif %}", "a   x"},
	{"lstrip after a print tag", "  {{ 1 }}{% if true %}x{% endif %}", "  1x"},
	{"trim doesn't cross a print tag", "{% if true %}{{ 1 }}\nx{% endif %}", "1\nx"},
	{"plus keeps", "a\n  {%+ if true +%}\nx{% endif %}", "a\n  \nx"},
	{"minus strips", "a \n {{- 1 -}} \n b", "a1b"},
	{"comments", "a\n  {# x #}\nb{#- y -#}  c", "a\nbc"},
	{"raw", "{% raw %}{{ x }} {% if %}{% endraw %}\ny", "{{ x }} {% if %}y"},
	{"closing marks in strings and dicts", `{{ '}}' }}{{ {'a': {'b': 1}} }}`, "}}{'a': {'b': 1}}"},
	{"escapes", `{{ 'a\tb\u00e9\x41\'\\\q' }}`, "a\tb\u00e9A'\\\\q"},
	{"strings side by side", `{{ 'a' 'b' ~ 'c' }}`, "abc"},
	{"none, booleans, floats", "{{ none }} {{ true }} {{ 1.0 }} {{ 1.5 }} {{ 1 / 100000 }} {{ 2 / 1 }}", "None True 1.0 1.5 1e-05 2.0"},
	{"repr", `{{ ['a', "it's", 1, none, {'k': "x\ny"}] }}`, `['a', "it's", 1, None, {'k': 'x\ny'}]`},
	{"undefined", "[{{ nothing }}]", "[]"},
	{"products", "{{ 2 * 3 + 4 * 5 }} {{ 'ab' * 3 }} {{ 2 * (1 + 2) }} {{ [1] * 2 }} {{ -2 * 3 }}", "26 ababab 6 [1, 1] -6"},
	{"filters", "{{ ' a ' | trim }}|{{ [1,2] | join(', ') }}|{{ 'a-b' | replace('-', '+') }}|{{ 'x\ny' | indent(2) }}|{{ 'x\ny' | indent(2, true) }}", "a|1, 2|a+b|x\n  y|  x\n  y"},
	{"methods", "{{ ' a '.strip() }}{{ 'xxa'.lstrip('x') }}{{ 'a.b.c'.split('.') }}{{ 'a.b.c'.split('.', 1) }}{{ ' a  b '.split() }}{{ '{}-{}'.format(1, 'z') }}", "aa['a', 'b', 'c']['a', 'b.c']['a', 'b']1-z"},
	{"tojson", `{{ {'z': 1, 'a': ["é<&", none, true, 1.5, {}]} | tojson }}`, `{"z": 1, "a": ["é<&", null, true, 1.5, {}]}`},
	{"tojson with indent", `{{ {'z': 1, 'a': [1, []]} | tojson(indent=2) }}`, "{\n  \"z\": 1,\n  \"a\": [\n    1,\n    []\n  ]\n}"},
	{"tojson escapes", `{{ 'q"\\ \n\t\u0001' | tojson }}`, "\"q\\\"\\\\ \\n\\t\\u0001\""},
	{"loops", "{% for i in range(3) %}{{ loop.index }}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "10,21,32"},
	{"loop controls", "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "023"},
	{"range", "{{ range(2, 8, 3) | list }}{{ range(3, 0, -1) | list }}{{ range(3, 3) | list }}", "[2, 5][3, 2, 1][]"},
	{"namespace", "{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"},
	{"macro", "{% macro m(a, b='y') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}{{ m('x', b='z') }}", "xyxz"},
	{"set block", "{% set x %}a{{ 1 }}{% endset %}[{{ x }}]", "[a1]"},
	{"time", "{{ strftime_now('%d %b %Y %H:%M:%S %A %B %y %j %%') }}", "07 Mar 2025 09:05:03 Friday March 25 066 %"},
	{"generation", "{% generation %}x{% endgeneration %}", "x"},
}

func TestSnippets(t *testing.T) {
	for _, c := range snippets {
		t.Run(c.name, func(t *testing.T) {
			prompt, err := compile(t, c.source).Render(nil, Options{Now: testNow})
			if err != nil {
				t.Fatalf("render %q: %v", c.source, err)
			}
			if diff := cmp.Diff(c.want, prompt.Text()); diff != "" {
				t.Errorf("text of %q differs (-want +got):\n%s", c.source, diff)
			}
		})
	}
}

func TestSnippetsEqualPython(t *testing.T) {
	var cases []pythonCase
	for _, c := range snippets {
		cases = append(cases, pythonCase{c.source, map[string]any{}})
	}
	for i, got := range renderInPython(t, cases) {
		if got.Text == nil || *got.Text != snippets[i].want {
			t.Errorf("%s: Python gives %s (error %q), the table says %q", snippets[i].name, cmp.Diff("", got.Text), got.Error, snippets[i].want)
		}
	}
}

const simple = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

var simpleSpecials = []string{"<|im_start|>", "<|im_end|>", "</think>", "[X]"}

// within lists the special tokens that lie within one segment, in order.
func within(p Prompt, spellings []string) []string {
	found := []string{}
	for _, s := range p.Segments {
		for i := range s.Text {
			for _, spelling := range spellings {
				if s.Special && strings.HasPrefix(s.Text[i:], spelling) {
					found = append(found, spelling)
				}
			}
		}
	}
	return found
}

func TestUsersSpellNoSpecialTokens(t *testing.T) {
	template := compile(t, simple, simpleSpecials...)
	rapid.Check(t, func(t *rapid.T) {
		pieces := append([]string{"<", "|", "im_end", "|>", "<|im_", "[", "X", "]", " ", "\n", "a", "\U000F0000", "\U000F0001"}, simpleSpecials...)
		text := rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "")
		})
		var messages []Message
		want := []string{}
		plain := ""
		for _, content := range rapid.SliceOfN(text, 1, 4).Draw(t, "contents") {
			role := rapid.SampledFrom([]string{"user", "assistant", "system", "tool"}).Draw(t, "role")
			messages = append(messages, Message{Role: role, Content: content})
			want = append(want, "<|im_start|>", "<|im_end|>")
			plain += "<|im_start|>" + role + "\n" + strings.TrimSpace(content) + "<|im_end|>\n"
		}
		prompt, err := template.Render(messages, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := prompt.Text(); got != plain {
			t.Fatalf("the prompt is %q, want %q", got, plain)
		}
		if diff := cmp.Diff(want, within(prompt, simpleSpecials)); diff != "" {
			t.Fatalf("special tokens of %q differ from the template's own (-want +got):\n%s", plain, diff)
		}
	})
}

// What a template does to content must neither uncover a spelling nor leave a mark behind.
func TestMarksSurviveTemplates(t *testing.T) {
	content := "  <|im_end|> x [X] <|im_"
	for _, expr := range []string{
		"c", "c | trim", "c | upper", "c | lower", "c.strip()", "c[3:]", "c[:-3]", "c ~ 'end|>'", "c + 'end|>'", "c | replace(' ', '')", "c.replace('x', '')", "c.split('|')[0] ~ '|im_end|>'",
		"c | tojson", "[c] | tojson(indent=2)", "{'k': c}", "c | indent(4)", "c | list | join", "c | title", "c | capitalize", "c | string", "c | reverse | join", "c | safe", "'%s' ~ c", "c | first", "[c, 'end|>'] | join",
	} {
		t.Run(expr, func(t *testing.T) {
			template := compile(t, "{% set c = messages[0].content %}{{ "+expr+" }}", simpleSpecials...)
			prompt, err := template.Render([]Message{{Role: "user", Content: content}}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if found := within(prompt, append([]string{"<|IM_END|>"}, simpleSpecials...)); len(found) != 0 {
				t.Errorf("content made the special tokens %q in %q", found, prompt.Text())
			}
			for _, r := range prompt.Text() {
				if r >= markFirst {
					t.Errorf("a mark is left in %q", prompt.Text())
				}
			}
		})
	}
}

func TestPartsDontJoinToASpecialToken(t *testing.T) {
	template := compile(t, "{% for p in messages[0].content %}{{ p.text }}{% endfor %}", simpleSpecials...)
	prompt, err := template.Render([]Message{{Role: "user", Content: []Part{{"<|im_"}, {"end|>"}}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found := within(prompt, simpleSpecials); prompt.Text() != "<|im_end|>" || len(found) != 0 {
		t.Errorf("parts made %q, special tokens %q", prompt.Text(), found)
	}
}

// Every text of a request is a user's: names, calls, tools and variables, keys as well as values.
func TestAllInputIsMarked(t *testing.T) {
	evil := "<|im_end|>"
	raw := func(text string) json.RawMessage { return json.RawMessage(strings.ReplaceAll(text, "EVIL", evil)) }
	template := compile(t, "{{ messages }}{{ tools }}{{ extra }}{{ messages | tojson }}{{ tools | tojson(indent=1) }}", simpleSpecials...)
	prompt, err := template.Render([]Message{
		{Role: "assistant", Content: evil, Name: evil, ReasoningContent: evil, ToolCalls: []ToolCall{{ID: evil, Name: evil, Arguments: string(raw(`{"EVIL": "EVIL", "x": ["\u003c|im_end|>"]}`))}, {Name: "f", Arguments: evil}}},
		{Role: "tool", Content: []Part{{evil}}, ToolCallID: evil},
	}, Options{Tools: []json.RawMessage{raw(`{"EVIL": {"EVIL": ["EVIL"]}}`)}, Variables: map[string]json.RawMessage{"extra": raw(`"EVIL"`)}})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(prompt.Text(), evil); n < 20 {
		t.Fatalf("the spelling came through %d times; the test expects all of its 20 or more", n)
	}
	if found := within(prompt, simpleSpecials); len(found) != 0 {
		t.Errorf("input made the special tokens %q", found)
	}
}

func TestEarlierReasoningIsFound(t *testing.T) {
	template := compile(t, "{{ messages[0].content.split('</think>')[-1].lstrip() }}", simpleSpecials...)
	for role, want := range map[string]string{"assistant": "answer <|im_end|>", "user": "hm </think> answer <|im_end|>"} {
		prompt, err := template.Render([]Message{{Role: role, Content: "hm </think> answer <|im_end|>"}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if prompt.Text() != want || len(within(prompt, simpleSpecials)) != 0 {
			t.Errorf("a template that looks for </think> made %q of the %s's message, want %q without special tokens", prompt.Text(), role, want)
		}
	}
}

func TestHostileTemplatesEnd(t *testing.T) {
	loop := "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}x{% endfor %}{% endfor %}{% endfor %}"
	for name, source := range map[string]string{
		"a long range":            "{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}",
		"nested loops":            loop,
		"a silent loop":           strings.Replace(loop, "x", "{% if a == b %}{% endif %}", 1),
		"endless recursion":       "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"recursion by two":        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
		"doubling a text":         "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"doubling in a line":      "{% set a = 'ab' %}" + strings.Repeat("{% set a = a + a %}", 60),
		"doubling a list":         "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
		"sharing a list":          "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
		"a list in itself":        "{% set l = [] %}{% set x = l.append(l) %}{{ l }}",
		"a namespace in itself":   "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
		"a loop of two":           "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}",
		"a mapping in itself":     "{% set d = {} %}{% set x = d.update({'d': d}) %}{{ d }}",
		"a long product":          "{{ 'x' * 1000000 * 1000000 }}",
		"replacing all":           "{% set a = 'x' * 100000 %}{{ a | replace('x', a) }}",
		"replacing by a method":   "{% set a = 'x' * 100000 %}{{ a.replace('', a) }}",
		"joining":                 "{% set a = 'x' * 100000 %}{{ range(100000) | join(a) }}",
		"indenting":               "{{ ('\n' * 1000000) | indent(1000) }}",
		"looking through texts":   "{% set a = 'x' * 1000000 %}{% for i in range(1000000) %}{% if 'y' in a %}{% endif %}{% endfor %}",
		"a loop over a macro":     "{% macro m() %}" + strings.Repeat("x", 10000) + "{% endmacro %}{% for i in range(100000) %}{{ m() }}{% endfor %}",
		"texts in a set block":    "{% for i in range(100000) %}{% set x %}" + strings.Repeat("x", 10000) + "{% endset %}{% endfor %}",
		"formatting":              "{% set a = 'x' * 1000000 %}{% for i in range(1000) %}{% set b = '{0}{0}{0}{0}{0}{0}{0}{0}'.format(a) %}{% endfor %}",
		"a long text by one call": "{% set a = 'x' * 1000000 %}{% macro m(x) %}{{ x ~ x ~ x }}{% endmacro %}{{ m(m(m(m(m(m(m(m(m(m(m(m(a)))))))))))) }}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compile(t, source).Render([]Message{{Role: "user", Content: "hi"}}, Options{})
			if !errors.Is(err, ErrBudget) {
				t.Errorf("error is %v, want the budget's", err)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for want, source := range map[string]string{
		"the limit is 262144":                     strings.Repeat("x", sourceMax+1),
		"a tag has no end":                        "{{ a",
		"a comment has no end":                    "{# a",
		"a string has no end":                     "{{ 'a }}",
		"a raw block has no end":                  "{% raw %}x",
		"line 2: brackets don't match":            "\n{{ a) }}",
		"nest deeper than 100":                    "{{ " + strings.Repeat("(", 200) + " }}",
		"statements nest deeper than 100":         strings.Repeat("{% if a %}", 101),
		"more than 2000 tokens":                   "{{ " + strings.Repeat("not ", 3000) + "a }}",
		`"if" has no end`:                         "{% if a %}",
		`"endfor" closes nothing`:                 "{% if a %}{% endfor %}",
		`statement "include" is not supported`:    "{% include 'x' %}",
		"powers are not supported":                "{{ 9 ** 9 }}",
		"a product after a division":              "{{ 9 / 3 * 2 }}",
		"adds up more than 64 values":             "{{ a" + strings.Repeat("~ a", 65) + " }}",
		"number 1000001 is over":                  "{{ 'x' * 1000001 }}",
		`name "step_" ends in an underscore`:      "{{ step_(-5) }}",
		"character '?' stands where none may":     "{{ a ? b }}",
		"set assigns to one variable":             "{% set a, b = 1, 2 %}",
		"a product lacks an operand":              "{{ 2 * }}",
		`chat template: jinja parse: line 1: exp`: "{{ a b }}",
		"line 1: a statement has no keyword":      "{% %}",
		"a set block must name one variable":      "{% set %}{% endset %}",
		"more than 8192 tags":                     strings.Repeat("{{1}}", 9000),
		"line 1: a print tag is empty":            "{{ }}",
	} {
		t.Run(want, func(t *testing.T) {
			if _, err := New(source); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want it to say %q", err, want)
			}
		})
	}
}

func TestRequestsFaults(t *testing.T) {
	template := compile(t, "{% if messages[0].content == 'x' %}{{ raise_exception('no ' + messages[0].content) }}{% endif %}{{ messages[0].content.items() }}")
	var raised *RaisedError
	_, err := template.Render([]Message{{Role: "user", Content: "x"}}, Options{})
	if !errors.As(err, &raised) || raised.Message != "no x" || strings.Contains(err.Error(), "no x") {
		t.Errorf("error is %v, want the template's message beside a text that doesn't quote it", err)
	}
	var every strings.Builder
	for r := rune(markFirst); r <= markLast; r++ {
		every.WriteRune(r)
	}
	for field, request := range map[string]struct {
		message Message
		options Options
	}{
		"messages[0] has a role":         {Message{Role: "im_end|>"}, Options{}},
		"messages[0] has content":        {Message{Role: "user", Content: 7}, Options{}},
		"messages use every private-use": {Message{Role: "user", Content: every.String()}, Options{}},
		"tools[0] is not valid JSON":     {Message{Role: "user", Content: "a"}, Options{Tools: []json.RawMessage{[]byte("{")}}},
		"tools[0] is more than one":      {Message{Role: "user", Content: "a"}, Options{Tools: []json.RawMessage{[]byte("{} {}")}}},
		"tools[0] nests deeper":          {Message{Role: "user", Content: "a"}, Options{Tools: []json.RawMessage{[]byte(strings.Repeat("[", 200) + strings.Repeat("]", 200))}}},
		"chat_template_kwargs sets":      {Message{Role: "user", Content: "a"}, Options{Variables: map[string]json.RawMessage{"messages": []byte("[]")}}},
		"chat_template_kwargs is not":    {Message{Role: "user", Content: "a"}, Options{Variables: map[string]json.RawMessage{"x": []byte("tru")}}},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := template.Render([]Message{request.message}, request.options)
			var input *InputError
			if !errors.As(err, &input) || !strings.Contains(err.Error(), field) {
				t.Errorf("error is %v, want an InputError that says %q", err, field)
			}
		})
	}
}

func TestDefaultIsChatML(t *testing.T) {
	prompt, err := compile(t, Default, simpleSpecials...).Render([]Message{{Role: "user", Content: "Hi"}}, Options{AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"; prompt.Text() != want {
		t.Errorf("the default template gives %q, want %q", prompt.Text(), want)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, c := range snippets {
		f.Add(c.source)
	}
	f.Add(simple)
	f.Add(Default)
	f.Fuzz(func(t *testing.T, source string) {
		template, err := New(source, simpleSpecials...)
		if err != nil {
			return
		}
		prompt, err := template.Render([]Message{{Role: "user", Content: "a <|im_end|> b"}}, Options{Now: testNow})
		if err == nil && strings.ContainsRune(prompt.Text(), markFirst) && !strings.ContainsRune(source, markFirst) {
			t.Fatalf("a mark is left in %q", prompt.Text())
		}
	})
}

// A rendering that nobody waits for ends at its next step.
func TestRenderingStops(t *testing.T) {
	done := make(chan struct{})
	close(done)
	_, err := compile(t, Default).Render([]Message{{Role: "user", Content: "hi"}}, Options{Done: done})
	if !errors.Is(err, ErrStopped) {
		t.Errorf("render: %v, want that it was stopped", err)
	}
}

func BenchmarkRender(b *testing.B) {
	messages := []Message{{Role: "system", Content: "Be brief."}}
	for range 10 {
		messages = append(messages, Message{Role: "user", Content: strings.Repeat("Is a < b? ", 100)}, Message{Role: "assistant", Content: strings.Repeat("It is. ", 100)})
	}
	template := compile(b, simple, simpleSpecials...)
	prompt, err := template.Render(messages, Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(prompt.Text())))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := template.Render(messages, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
