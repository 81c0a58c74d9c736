"""Renders chat templates as Hugging Face's tokenizers configure Jinja 2.

Each line of the input is {"template": text, "context": {...}}; each line of the output is {"text": text} or
{"error": text}.
"""
import datetime
import json
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime(2025, 3, 7, 9, 5, 3).strftime(format)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now

compiled = {}
for line in sys.stdin:
    case = json.loads(line)
    try:
        source = case["template"]
        if source not in compiled:
            compiled[source] = environment.from_string(source)
        answer = {"text": compiled[source].render(**case["context"])}
    except Exception as error:  # whatever a template or a message makes Jinja raise
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(answer))
