"""The official Python SDK against a running Bulkhead: chat, streaming, usage, stop, logprobs, errors, two tenants at once.

Reads BULKHEAD_URL, BULKHEAD_KEYS (two keys, a comma between) and BULKHEAD_MODEL. Prints a line a check; any failure ends with status 1.
"""
import concurrent.futures
import os

import openai

url, model = os.environ["BULKHEAD_URL"] + "/v1", os.environ["BULKHEAD_MODEL"]
keys = os.environ["BULKHEAD_KEYS"].split(",")
clients = [openai.OpenAI(base_url=url, api_key=k, max_retries=0, timeout=120) for k in keys]
client = clients[0]
say = [{"role": "user", "content": "Name three colours."}]


def check(name, ok, detail=""):
    print(("ok    " if ok else "FAILED"), name, detail if not ok else "")
    if not ok:
        raise SystemExit(1)


def chat(c=client, **kw):
    args = dict(model=model, messages=say, max_tokens=24, temperature=0)
    args.update(kw)
    return c.chat.completions.create(**args)


r = chat()
text = r.choices[0].message.content
check("chat answers", bool(text) and r.object == "chat.completion" and r.choices[0].message.role == "assistant")
check("usage adds up", r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and 0 < r.usage.completion_tokens <= 24)
check("finish reason", r.choices[0].finish_reason in ("stop", "length"), r.choices[0].finish_reason)

chunks = list(chat(stream=True, stream_options={"include_usage": True}))
streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
check("stream is the same text", streamed == text, repr((streamed, text)))
check("one id in all chunks", len({c.id for c in chunks}) == 1)
check("usage comes last, alone", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == r.usage.completion_tokens)
check("exactly one finish", sum(1 for c in chunks if c.choices and c.choices[0].finish_reason) == 1)
check("role comes first, once", [bool(c.choices[0].delta.role) for c in chunks if c.choices].count(True) == 1 and chunks[0].choices[0].delta.role == "assistant")

word = text.split()[1]
cut = chat(stop=[word])
check("stop string ends the answer", word not in cut.choices[0].message.content and cut.choices[0].finish_reason == "stop", cut.choices[0])
check("stop text is a prefix", text.startswith(cut.choices[0].message.content))

lp = chat(logprobs=True, top_logprobs=3, max_tokens=4)
content = lp.choices[0].logprobs.content
check("logprobs for each token", len(content) == lp.usage.completion_tokens and all(len(t.top_logprobs) == 3 for t in content))
check("greedy token is the likeliest", all(t.logprob <= 0 and abs(t.logprob - t.top_logprobs[0].logprob) < 1e-5 for t in content))
check("bytes join to the text", bytes(b for t in content for b in t.bytes).decode() == lp.choices[0].message.content)

seeded = [chat(temperature=1, seed=7).choices[0].message.content for _ in range(2)]
check("same seed, same text", seeded[0] == seeded[1])
two = chat(n=2, temperature=1, seed=7)
check("n=2 gives two choices", sorted(c.index for c in two.choices) == [0, 1])

done = client.completions.create(model=model, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=1)
check("completions answers", done.object == "text_completion" and len(done.choices[0].logprobs.tokens) == done.usage.completion_tokens)

names = [m.id for m in client.models.list()]
check("models lists the model", model in names, names)
check("model by id", client.models.retrieve(model).id == model)


def fails(name, kind, code, call):
    try:
        call()
    except kind as e:
        check(name, e.code == code and isinstance(e.body, dict) and e.body.get("message"), (e.code, e.body))
        return e
    check(name, False, "no error")


fails("wrong key is 401", openai.AuthenticationError, "invalid_api_key", lambda: chat(openai.OpenAI(base_url=url, api_key="bh_wrong", max_retries=0)))
fails("unknown model is 404", openai.NotFoundError, "model_not_found", lambda: chat(model="no-such-model"))
long = fails("too long a prompt is 400", openai.BadRequestError, "context_length_exceeded",
             lambda: chat(messages=[{"role": "user", "content": "word " * 200_000}]))
check("both numbers are said", len([w for w in long.body["message"].replace(",", "").split() if w.strip(".").isdigit()]) >= 2, long.body["message"])
for name, kw in {"temperature": dict(temperature=9), "n": dict(n=0), "top_logprobs": dict(logprobs=True, top_logprobs=99), "messages": dict(messages=[])}.items():
    try:
        chat(**kw)
        check(f"bad {name} is 400", False)
    except openai.BadRequestError as e:
        check(f"bad {name} is 400 and named", name in str(e.body), e.body)

questions = ["What is two plus two?", "Name a river.", "Say hello.", "What colour is the sky?"]
solo = {q: chat(messages=[{"role": "user", "content": q}]).choices[0].message.content for q in questions}
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    jobs = [(q, pool.submit(chat, clients[i % 2], messages=[{"role": "user", "content": q}])) for i, q in enumerate(questions * 6)]
    wrong = [(q, j.result().choices[0].message.content) for q, j in jobs if j.result().choices[0].message.content != solo[q]]
check("two tenants at once get what each gets alone", not wrong, wrong[:1])
