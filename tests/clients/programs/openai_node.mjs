// openai for Node: whole, stream, raw response, abort, retries, errors.
import OpenAI from "openai";

const urls = JSON.parse(process.env.ONWARD_CLIENT_URLS);
const key = process.env.ONWARD_CLIENT_KEY;
const prompt = "Say this is a test";
const greedy = { model: "toy", prompt, temperature: 0, max_tokens: 12 };
const at = (root, more = {}) => new OpenAI({ baseURL: root + "/v1", apiKey: "any", maxRetries: 0, ...more });
const client = at(urls.default);
let failed = 0;

function assert(holds, detail = "") {
  if (!holds) throw new Error("assertion failed " + JSON.stringify(detail));
}

async function check(name, run) {
  try {
    await run();
    console.log(JSON.stringify({ check: name, ok: true }));
  } catch (problem) {
    failed += 1;
    console.log(JSON.stringify({ check: name, ok: false, detail: String(problem.stack ?? problem) }));
  }
}

async function thrown(run) {
  try {
    await run();
  } catch (problem) {
    return problem;
  }
  throw new Error("nothing was thrown");
}

await check("a whole completion, with every parameter", async () => {
  const completion = await client.completions.create({
    ...greedy, n: 2, best_of: 2, echo: true, logprobs: 2, seed: 1, stop: ["\n\n\n"], suffix: null, user: "u",
    top_p: 0.9, presence_penalty: 0.1, frequency_penalty: 0.1, logit_bias: { 50: -100 },
  });
  assert(completion.choices.length === 2 && completion.choices[0].text.startsWith(prompt), completion);
  assert(completion.usage.total_tokens > completion.usage.prompt_tokens, completion.usage);
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
  assert((await client.completions.create(greedy)).choices.length === 1);
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

await check("models", async () => {
  const page = await client.models.list();
  assert(page.data[0].id === "toy" && page.data[0].object === "model", page.data);
});

process.exit(failed ? 1 : 0);
