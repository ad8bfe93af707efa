// Continue's adapters: fill in the middle as its openai and mistral providers send it, and its legacy completions; and what
// its configuration says of a model, in the settings that editors have.
import { parseConfigYaml } from "@continuedev/config-yaml";
import { constructLlmApi } from "@continuedev/openai-adapters";
import { assert, check, exit, key, metric, prompt, recipe, until, urls } from "./report.mjs";

const fields = { model: "toy", prompt, suffix: " end", temperature: 0, max_tokens: 12, stream: true };
const at = (provider, root, apiKey = "any") => constructLlmApi({ provider, apiBase: root + "/v1/", apiKey });
const signal = new AbortController().signal;
async function infilled(api, more = {}) {
  let text = "";
  for await (const chunk of api.fimStream({ ...fields, ...more }, signal)) {
    text += chunk.choices[0].delta.content ?? "";
  }
  return text;
}

async function expected(more = {}) {
  const body = JSON.stringify({ ...fields, stream: false, ...more });
  const headers = { "content-type": "application/json" };
  const answer = await fetch(urls.default + "/v1/completions", { method: "POST", headers, body });
  return (await answer.json()).choices[0].text;
}

for (const provider of ["openai", "vllm", "mistral"]) {
  await check(`fill in the middle by ${provider}`, async () => {
    const text = await infilled(at(provider, urls.default));
    assert(text && text === (await expected()), text);
  });
}

await check("a stop list as editors send it", async () => {
  const whole = await expected();
  const stop = ["\n\n\n", whole.slice(2, 4)];
  assert((await infilled(at("openai", urls.default), { stop })) === (await expected({ stop })));
});

await check("legacy completions", async () => {
  const answer = await at("openai", urls.default).completionNonStream({ ...fields, stream: false }, signal);
  assert(answer.choices[0].text === (await expected()));
});

await check("a server with keys", async () => {
  assert(await infilled(at("openai", urls.keyed, key)));
});

await check("the settings for VS Code are read, and complete", async () => {
  const config = parseConfigYaml(recipe("VS Code: Continue", urls.editors));
  const [model] = config.models;
  assert(config.models.length === 1 && model.roles.includes("autocomplete"), model);
  const { temperature, maxTokens } = model.defaultCompletionOptions;
  const sent = { model: model.model, temperature, max_tokens: maxTokens };
  const text = await infilled(constructLlmApi(model), sent);
  assert(text && text === (await expected({ max_tokens: maxTokens })), text);
});

await check("an aborted request ends its work on the server", async () => {
  const before = await metric("onward_requests_cancelled_total", urls.editors);
  const leave = new AbortController();
  const endless = { ...fields, max_tokens: 1500, prompt: "ab ".repeat(20) };
  try {
    for await (const _ of at("mistral", urls.editors).fimStream(endless, leave.signal)) leave.abort();
  } catch (problem) {
    assert(leave.signal.aborted, String(problem));
  }
  await until(async () => (await metric("onward_requests_cancelled_total", urls.editors)) === before + 1);
  await until(async () => (await metric("onward_kv_blocks_used", urls.editors)) === 0);
});

exit();
