// The official Node SDK against a running Bulkhead. Reads BULKHEAD_URL, BULKHEAD_KEYS (two, a comma between) and BULKHEAD_MODEL.
import OpenAI from "openai";

const baseURL = process.env.BULKHEAD_URL + "/v1";
const model = process.env.BULKHEAD_MODEL;
const keys = process.env.BULKHEAD_KEYS.split(",");
const clients = keys.map((apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0 }));
const messages = [{ role: "user", content: "Name three colours." }];
const ask = (c = clients[0], more = {}) => c.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0, ...more });

function check(name, ok, detail = "") {
  console.log(ok ? "ok    " : "FAILED", name, ok ? "" : detail);
  if (!ok) process.exit(1);
}

const answer = await ask();
const text = answer.choices[0].message.content;
check("chat answers", text.length > 0 && answer.object === "chat.completion");
check("usage adds up", answer.usage.total_tokens === answer.usage.prompt_tokens + answer.usage.completion_tokens);

let streamed = "", finishes = 0, usage = null, ids = new Set();
for await (const chunk of await ask(clients[0], { stream: true, stream_options: { include_usage: true } })) {
  ids.add(chunk.id);
  if (chunk.choices.length === 0) { usage = chunk.usage; continue; }
  streamed += chunk.choices[0].delta.content ?? "";
  if (chunk.choices[0].finish_reason) finishes++;
}
check("stream is the same text", streamed === text, [streamed, text]);
check("one finish, one id, usage last", finishes === 1 && ids.size === 1 && usage?.completion_tokens === answer.usage.completion_tokens);

const word = text.split(/\s+/)[1];
const cut = await ask(clients[0], { stop: word });
check("stop string ends the answer", !cut.choices[0].message.content.includes(word) && cut.choices[0].finish_reason === "stop");
const lp = await ask(clients[0], { logprobs: true, top_logprobs: 2, max_tokens: 4 });
check("logprobs", lp.choices[0].logprobs.content.length === lp.usage.completion_tokens && lp.choices[0].logprobs.content[0].top_logprobs.length === 2);

async function fails(name, status, code, call) {
  try { await call(); } catch (e) {
    check(name, e.status === status && e.code === code, [e.status, e.code, e.message]);
    return;
  }
  check(name, false, "no error");
}
await fails("wrong key is 401", 401, "invalid_api_key", () => ask(new OpenAI({ baseURL, apiKey: "bh_wrong", maxRetries: 0 })));
await fails("unknown model is 404", 404, "model_not_found", () => ask(clients[0], { model: "no-such-model" }));
await fails("too long a prompt is 400", 400, "context_length_exceeded", () => ask(clients[0], { messages: [{ role: "user", content: "word ".repeat(200000) }] }));

// An aborted stream costs the next request nothing.
const abort = new AbortController();
const stream = await clients[0].chat.completions.create({ model, messages, max_tokens: 500, temperature: 0, stream: true }, { signal: abort.signal });
let seen = 0;
try { for await (const _ of stream) if (++seen === 3) abort.abort(); } catch { /* the abort itself */ }
check("abort ends the stream", seen >= 3 && seen < 500);

const both = await Promise.all(Array.from({ length: 12 }, (_, i) => ask(clients[i % 2])));
check("two tenants at once get what each gets alone", both.every((r) => r.choices[0].message.content === text));
