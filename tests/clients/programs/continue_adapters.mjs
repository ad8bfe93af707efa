// Continue's adapters: fill in the middle as its openai and mistral providers send it, and its legacy completions.
import { constructLlmApi } from "@continuedev/openai-adapters";
import { assert, check, exit, key, prompt, urls } from "./report.mjs";

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

exit();
