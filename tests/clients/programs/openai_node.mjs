// openai for Node: whole, stream, raw response, abort, retries, errors.
import { createReadStream, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { assert, check, exit, key, ledger, prompt, until, urls } from "./report.mjs";

const greedy = { model: "toy", prompt, temperature: 0, max_tokens: 12 };
const at = (root, more = {}) => new OpenAI({ baseURL: root + "/v1", apiKey: "any", maxRetries: 0, ...more });
const client = at(urls.default);
async function thrown(run) {
  try {
    await run();
  } catch (problem) {
    return problem;
  }
  throw new Error("nothing was thrown");
}

// Waits until the server computes nothing, as it must soon after a client has left.
async function untilIdle() {
  for (let attempt = 0; attempt < 1000; attempt++) {
    const text = await (await fetch(urls.default + "/metrics")).text();
    if (/^onward_engine_running\{model="toy"\} 0(\.0)?$/m.test(text)) return;
    await new Promise((resume) => setTimeout(resume, 10));
  }
  throw new Error("the server still works for a client that has left");
}

await check("a whole completion, with every parameter", async () => {
  const completion = await client.completions.create({
    ...greedy, n: 2, best_of: 2, echo: true, logprobs: 2, seed: 1, stop: ["\n\n\n"], suffix: null, user: "u",
    top_p: 0.9, presence_penalty: 0.1, frequency_penalty: 0.1, logit_bias: { 50: -100 },
  });
  assert(completion.choices.length === 2 && completion.choices[0].text.startsWith(prompt), completion);
  assert(completion.usage.total_tokens > completion.usage.prompt_tokens, completion.usage);
});

await check("suffix", async () => {
  const completion = await client.completions.create({ ...greedy, suffix: " end" });
  assert(completion.usage.prompt_tokens > 17, completion.usage);
});

await check("a stop sequence ends the text", async () => {
  const whole = (await client.completions.create(greedy)).choices[0].text;
  const { choices: [stopped] } = await client.completions.create({ ...greedy, stop: whole.slice(2, 3) });
  assert(stopped.finish_reason === "stop" && whole.startsWith(stopped.text) && stopped.text.length <= 2, stopped);
});

await check("a batch of 256 prompts, in order", async () => {
  const prompts = Array.from({ length: 256 }, (_, number) => `prompt ${number}`);
  const { choices } = await client.completions.create({ ...greedy, prompt: prompts, max_tokens: 4 });
  assert(choices.length === 256 && choices.every((choice, place) => choice.index === place), choices.length);
  for (const place of [0, 100, 255]) {
    const alone = await client.completions.create({ ...greedy, prompt: prompts[place], max_tokens: 4 });
    assert(alone.choices[0].text === choices[place].text, place);
  }
});

await check("the four prompt forms", async () => {
  for (const [form, count] of [["abc", 1], [["abc", "abd"], 2], [[97, 98], 1], [[[97], [98]], 2]]) {
    const completion = await client.completions.create({ ...greedy, prompt: form });
    assert(completion.choices.length === count, form);
  }
});

await check("a stream is the whole answer; its end comes at once", async () => {
  const whole = await client.completions.create(greedy);
  const stream = await client.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } });
  let text = "", usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.text ?? "";
    usage = chunk.usage ?? usage;
  }
  assert(text === whole.choices[0].text, text);
  assert(usage.completion_tokens === whole.usage.completion_tokens, usage);
});

await check("break and abort leave the stream", async () => {
  const long = { ...greedy, max_tokens: 1500, stream: true, ignore_eos: true };
  for await (const _ of await client.completions.create(long)) break;
  const controller = new AbortController();
  const stream = await client.completions.create(long, { signal: controller.signal });
  let seen = 0;
  for await (const _ of stream) if (++seen === 3) controller.abort();
  assert(seen < 1500, seen);
  await untilIdle();
});

await check("raw responses: headers and request ids", async () => {
  const { data, response, request_id } = await client.completions.create(greedy).withResponse();
  assert(response.headers.get("openai-model") === "toy" && request_id.startsWith("req_"), request_id);
  assert(data._request_id === request_id);
});

await check("errors have the right classes, with param and code", async () => {
  const bad = await thrown(() => client.completions.create({ ...greedy, temperature: 9 }));
  assert(bad instanceof OpenAI.BadRequestError && bad.param === "temperature", bad);
  const missing = await thrown(() => client.completions.create({ ...greedy, model: "nope" }));
  assert(missing instanceof OpenAI.NotFoundError && missing.code === "model_not_found", missing);
  const stranger = await thrown(() => at(urls.keyed).completions.create(greedy));
  assert(stranger instanceof OpenAI.AuthenticationError, stranger);
  assert((await at(urls.keyed, { apiKey: key }).completions.create(greedy)).choices.length === 1);
});

await check("every error class by its status", async () => {
  const classes = {
    400: OpenAI.BadRequestError, 401: OpenAI.AuthenticationError, 403: OpenAI.PermissionDeniedError,
    404: OpenAI.NotFoundError, 409: OpenAI.ConflictError, 422: OpenAI.UnprocessableEntityError,
    429: OpenAI.RateLimitError, 500: OpenAI.InternalServerError, 503: OpenAI.InternalServerError,
  };
  for (const [status, kind] of Object.entries(classes)) {
    const patient = at(`${urls.faults}/status/${status}`, { maxRetries: 2 });
    const problem = await thrown(() => patient.completions.create(greedy));
    assert(problem instanceof kind && problem.status === Number(status), [status, String(problem)]);
    assert(problem.code === "on_purpose" && problem.param === "prompt" && problem.type === "test_error", status);
  }
});

await check("retries: after 503 with Retry-After; none where x-should-retry is false", async () => {
  const name = "node" + Math.random();
  await at(`${urls.faults}/busy/${name}`, { maxRetries: 2 }).completions.create(greedy);
  await thrown(() => at(`${urls.faults}/stop/${name}-stop`, { maxRetries: 2 }).completions.create(greedy));
  const seen = await (await fetch(`${urls.faults}/seen/${name}`)).json();
  const stopped = await (await fetch(`${urls.faults}/seen/${name}-stop`)).json();
  assert(seen.length === 2 && stopped.length === 1, [seen, stopped]);
});

await check("retries: twice after 429, counted in the header", async () => {
  const name = "node" + Math.random();
  await at(`${urls.faults}/retry/${name}`, { maxRetries: 2 }).completions.create(greedy);
  const seen = await (await fetch(`${urls.faults}/seen/${name}`)).json();
  assert(JSON.stringify(seen) === '["0","1","2"]', seen);
});

await check("an error in the middle of a stream is thrown", async () => {
  for (const fault of ["error", "cut"]) {
    await thrown(async () => {
      const stream = await at(`${urls.faults}/${fault}/x`).completions.create({ ...greedy, stream: true, max_tokens: 999 });
      for await (const _ of stream);
    });
  }
});

await check("files and a batch, to its results", async () => {
  const batches = at(urls.batches);
  const lines = ["a", "b", "c"].map((name, place) => ({
    custom_id: name, method: "POST", url: "/v1/completions",
    body: { model: "toy", prompt: `Say ${name}`, max_tokens: 3, temperature: place === 1 ? 9 : 1 },
  }));
  const text = lines.map((line) => JSON.stringify(line) + "\n").join("");
  const file = await batches.files.create({ file: await OpenAI.toFile(Buffer.from(text), "in.jsonl"), purpose: "batch" });
  assert(file.id.startsWith("file-") && file.bytes === Buffer.byteLength(text), file);
  let batch = await batches.batches.create({
    input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h", metadata: { from: "node" },
  });
  await until(async () => {
    batch = await batches.batches.retrieve(batch.id);
    return batch.status === "completed";
  });
  assert(batch.request_counts.completed === 2 && batch.request_counts.failed === 1, batch);
  const read = async (id) => (await (await batches.files.content(id)).text()).trim().split("\n").map((line) => JSON.parse(line));
  const found = await read(batch.output_file_id);
  assert(found.map((line) => line.custom_id).join() === "a,c", found);
  assert((await read(batch.error_file_id))[0].response.status_code === 400, batch);
  const { body, seed } = found[0].response;
  const again = await batches.completions.create({ ...lines[0].body, seed });
  assert(again.choices[0].text === body.choices[0].text, [again, body]);
  assert((await batches.files.delete(file.id)).deleted, file);
});

await check("a file from a stream, whose form has no length", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "onward-")), "é x.jsonl");
  writeFileSync(path, "{}\n".repeat(50000));
  const file = await at(urls.batches).files.create({ file: createReadStream(path), purpose: "batch" });
  assert(file.bytes === 150000 && file.filename === "é x.jsonl" && file.status === "processed", file);
  assert(file.expires_at - file.created_at === 2592000, file);
});

await check("25 batches, in pages of ten", async () => {
  const batches = at(urls.batches);
  const fields = { input_file_id: "file-none", endpoint: "/v1/completions", completion_window: "24h" };
  const ids = [];
  for (let made = 0; made < 25; made++) ids.unshift((await batches.batches.create(fields)).id);
  const found = [];
  for await (const each of batches.batches.list({ limit: 10 })) found.push(each.id);
  assert(found.slice(0, 25).join() === ids.join(), found);
});

await check("usage by model and project, and all of its pages", async () => {
  const usage = new OpenAI({ baseURL: urls.ledger + "/v1", adminAPIKey: ledger.admin, maxRetries: 0 }).admin.organization.usage;
  const day = { start_time: ledger.midnight, end_time: ledger.midnight + 86400 };
  const { data } = await usage.completions({ ...day, group_by: ["model", "project_id"] });
  const rows = data[0].results;
  assert(rows.map((row) => `${row.model} ${row.input_tokens} ${row.num_model_requests}`).join() === "m 40 4,n 10 1", rows);
  assert(rows.every((row) => row.project_id === null && row.user_id === null && row.batch === null), rows);
  const query = `start_time=${day.start_time}&end_time=${day.end_time}&group_by=model&group_by=project_id`;
  const headers = { authorization: `Bearer ${ledger.admin}` };
  const plain = await (await fetch(`${urls.ledger}/v1/organization/usage/completions?${query}`, { headers })).json();
  assert(JSON.stringify(plain.data) === JSON.stringify(data), plain);
  const whole = { start_time: ledger.midnight, end_time: ledger.midnight + 30 * 86400 };
  const starts = [];
  let page = await usage.completions(whole);
  for (;;) {
    starts.push(...page.data.map((bucket) => bucket.start_time));
    if (!page.has_more) break;
    page = await usage.completions({ ...whole, page: page.next_page });
  }
  assert(starts.join() === Array.from({ length: 30 }, (_, number) => ledger.midnight + number * 86400).join(), starts);
  const { data: costs } = await usage.costs(day);
  assert(costs[0].results[0].amount.value === 15, costs);
});

await check("models", async () => {
  const page = await client.models.list();
  assert(page.data[0].id === "toy" && page.data[0].object === "model", page.data);
  for (const model of ["gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"]) {
    assert((await client.completions.create({ ...greedy, model })).model === "toy", model);
  }
});

exit();
