"""Holds a server to what the official Python client expects of it.

Environment: URL (of the server), KEY, MODEL; ECHO=1 when the model repeats the
last message, which makes texts comparable.
"""

import os

import openai

MODEL = os.environ["MODEL"]
ECHO = os.environ.get("ECHO") == "1"
client = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key=os.environ["KEY"], max_retries=0)


def ask(text, **more):
    more.setdefault("max_tokens", 40)
    more.setdefault("temperature", 0)
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **more)


def refused(kind, do, **want):
    try:
        do()
    except kind as error:
        for name, value in want.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return error
    raise AssertionError(f"no {kind.__name__}")


def whole():
    answer = ask("Say hello.")
    assert answer.object == "chat.completion" and answer.id and answer.created
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert not ECHO or answer.choices[0].message.content == "Say hello."
    return answer.choices[0].message.content


def stream(want):
    text, finishes, usage, ids = "", [], None, set()
    for chunk in ask("Say hello.", stream=True, stream_options={"include_usage": True}):
        ids.add(chunk.id)
        if not chunk.choices:
            usage = chunk.usage
            continue
        assert usage is None and chunk.usage is None
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason:
            finishes.append(chunk.choices[0].finish_reason)
    assert text == want, (text, want)
    assert len(finishes) == 1 and usage.completion_tokens > 0 and len(ids) == 1


def stop(want):
    mark = want[len(want) // 2 : len(want) // 2 + 3]
    if len(mark) < 3:
        return
    answer = ask("Say hello.", stop=[mark])
    assert answer.choices[0].message.content == want[: want.index(mark)], (answer.choices[0].message.content, mark)
    assert answer.choices[0].finish_reason == "stop"


def logprobs():
    answer = ask("Count to three.", logprobs=True, top_logprobs=3, max_tokens=5)
    content = answer.choices[0].logprobs.content
    assert 0 < len(content) <= 5
    for token in content:
        assert token.logprob <= 0 and token.bytes is not None and len(token.top_logprobs) == 3
    joined = b"".join(bytes(token.bytes) for token in content).decode("utf-8", "replace")
    assert answer.choices[0].message.content == joined, (answer.choices[0].message.content, joined)


def choices():
    answer = ask("Say hello.", n=2, seed=1)
    assert [c.index for c in answer.choices] == [0, 1]


def completions():
    answer = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=3, temperature=0, logprobs=1)
    assert len(answer.choices) == 2 and answer.object == "text_completion"
    assert len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].logprobs.text_offset)
    text = "".join(c.choices[0].text for c in client.completions.create(model=MODEL, prompt="One", max_tokens=3, temperature=0, stream=True) if c.choices)
    assert text == answer.choices[0].text, (text, answer.choices[0].text)


def models():
    listed = client.models.list().data
    assert [m.id for m in listed] == [MODEL]
    limit = client.models.retrieve(MODEL).max_model_len
    assert limit > 0
    return limit


def errors(limit):
    stranger = openai.OpenAI(base_url=client.base_url, api_key="bh_wrong", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.models.list(), code="invalid_api_key")
    refused(openai.NotFoundError, lambda: client.chat.completions.create(model="no-such", messages=[{"role": "user", "content": "x"}]), code="model_not_found")
    refused(openai.BadRequestError, lambda: ask("x", temperature=9), param="temperature")
    refused(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=[]), param="messages")
    for streaming in (False, True):
        error = refused(openai.BadRequestError, lambda: ask("x " * (limit + 1), stream=streaming), code="context_length_exceeded")
        assert str(limit) in error.message, error.message


first = whole()
stream(first)
stop(first)
logprobs()
choices()
completions()
errors(models())
print("ok")
