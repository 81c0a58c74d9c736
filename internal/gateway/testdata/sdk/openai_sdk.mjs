// Holds a server to what the official Node client expects of it.
//
// Environment: URL (of the server), KEY, MODEL; ECHO=1 when the model repeats the
// last message. The package "openai" is found from the working directory.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { OpenAI } = createRequire(process.cwd() + "/")("openai");
const { URL: url, KEY: key, MODEL: model, ECHO } = process.env;
const client = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0 });

const ask = (content, more = {}) =>
  client.chat.completions.create({ model, messages: [{ role: "user", content }], max_tokens: 40, temperature: 0, ...more });

const answer = await ask("Say hello.");
const text = answer.choices[0].message.content;
assert.equal(answer.object, "chat.completion");
assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
if (ECHO === "1") assert.equal(text, "Say hello.");

let streamed = "";
let usage = null;
const finishes = [];
for await (const chunk of await ask("Say hello.", { stream: true, stream_options: { include_usage: true } })) {
  if (chunk.choices.length === 0) {
    usage = chunk.usage;
    continue;
  }
  streamed += chunk.choices[0].delta.content ?? "";
  if (chunk.choices[0].finish_reason) finishes.push(chunk.choices[0].finish_reason);
}
assert.equal(streamed, text);
assert.equal(finishes.length, 1);
assert.ok(usage.completion_tokens > 0);

const mark = text.slice(text.length >> 1, (text.length >> 1) + 3);
if (mark.length === 3) {
  const stopped = await ask("Say hello.", { stop: mark });
  assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(mark)));
  assert.equal(stopped.choices[0].finish_reason, "stop");
}

const probable = await ask("Count to three.", { logprobs: true, top_logprobs: 2, max_tokens: 4 });
assert.ok(probable.choices[0].logprobs.content.every((t) => t.logprob <= 0 && t.top_logprobs.length === 2));

const limit = (await client.models.retrieve(model)).max_model_len;
const refused = async (promise, status, code) => {
  const error = await promise.then(() => assert.fail("accepted"), (e) => e);
  assert.equal(error.status, status);
  assert.equal(error.code, code);
};
await refused(ask("x", { temperature: 9 }), 400, "out_of_range");
await refused(ask("x ".repeat(limit + 1), { stream: true }), 400, "context_length_exceeded");
await refused(new OpenAI({ baseURL: url + "/v1", apiKey: "bh_wrong", maxRetries: 0 }).models.list(), 401, "invalid_api_key");

// A client that goes away in the middle of a stream gets no more, and no error.
const controller = new AbortController();
const cut = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Say hello." }], stream: true }, { signal: controller.signal });
for await (const chunk of cut) if (chunk.choices.length > 0) controller.abort();
assert.ok((await ask("Again.")).choices.length === 1);
console.log("ok");
