/** A request as programs that run: for a shell, Python, JavaScript and Onward's own command line. */
import type { RequestBody } from "../api/types";

export type Language = "curl" | "python" | "javascript" | "cli";
export const LANGUAGES: readonly [Language, string][] = [
  ["curl", "curl"],
  ["python", "Python"],
  ["javascript", "JavaScript"],
  ["cli", "Command line"],
];
const OPENAI_NAMES = new Set([
  "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
  "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
]);

/** Returns a program that sends `body` to the server at `url` (ends in a slash). A key is read from the environment. */
export function program(language: Language, body: RequestBody, url: string, needsKey: boolean): string {
  switch (language) {
    case "curl":
      return curl(body, url, needsKey);
    case "python":
      return python(body, url, needsKey);
    case "javascript":
      return javascript(body, url, needsKey);
    case "cli":
      return commandLine(body, url, needsKey);
  }
}

function curl(body: RequestBody, url: string, needsKey: boolean): string {
  const lines = [`curl ${quote(`${url}v1/completions`)}`, "-H 'Content-Type: application/json'"];
  if (needsKey) lines.push('-H "Authorization: Bearer $ONWARD_API_KEY"');
  lines.push(`-d ${quote(json(body))}`);
  return lines.join(" \\\n  ");
}

function python(body: RequestBody, url: string, needsKey: boolean): string {
  const own = Object.entries(body).filter(([name]) => OPENAI_NAMES.has(name));
  const others = Object.entries(body).filter(([name]) => !OPENAI_NAMES.has(name));
  const fields = own.map(([name, value]) => `    ${name}=${pythonValue(value)},\n`).join("");
  const extra = others.length > 0 ? `    extra_body=${pythonValue(Object.fromEntries(others))},\n` : "";
  const key = needsKey ? 'os.environ["ONWARD_API_KEY"]' : '"none"';
  return (
    `${needsKey ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
    `client = OpenAI(base_url=${pythonValue(`${url}v1`)}, api_key=${key})\n` +
    `completion = client.completions.create(\n${fields}${extra})\nprint(completion.choices[0].text)\n`
  );
}

function javascript(body: RequestBody, url: string, needsKey: boolean): string {
  const key = needsKey ? ", Authorization: `Bearer ${process.env.ONWARD_API_KEY}`" : "";
  return (
    `const response = await fetch(${json(`${url}v1/completions`)}, {\n  method: "POST",\n` +
    `  headers: { "Content-Type": "application/json"${key} },\n` +
    `  body: JSON.stringify(${json(body, 2).replaceAll("\n", "\n  ")}),\n});\n` +
    "const completion = await response.json();\nconsole.log(completion.choices[0].text);\n"
  );
}

function commandLine(body: RequestBody, url: string, needsKey: boolean): string {
  const options = Object.entries(body).flatMap(([name, value]) => flags(name, value));
  const parts = ["onward completions create", `--base-url ${quote(`${url}v1`)}`, ...options, "--format text"];
  if (needsKey) parts.splice(2, 0, '--api-key "$ONWARD_API_KEY"');
  return parts.join(" \\\n  ");
}

function flags(name: string, value: unknown): string[] {
  const flag = `--${name.replaceAll("_", "-")}`;
  const isLiteral = typeof value === "string" && /^[A-Za-z][\w ,.;!?()-]*$/.test(value) && value !== "null";
  return [`${flag} ${quote(isLiteral ? value : JSON.stringify(value))}`];
}

/** Returns JSON in ASCII: terminals and clipboards keep every character of it. */
function json(value: unknown, indent?: number): string {
  const ascii = (char: string) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value, null, indent).replace(/[\u007f-\uffff]/g, ascii);
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${pythonValue(name)}: ${pythonValue(each)}`).join(", ")}}`;
  }
  return typeof value === "string" ? pythonString(value) : json(value);
}

/** Returns a Python literal: as JSON, but characters beyond U+FFFF are one escape, not two. */
function pythonString(text: string): string {
  const wide = (char: string) => {
    const code = char.codePointAt(0) ?? 0;
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  };
  return JSON.stringify(text).replace(/[\u007f-\u{10ffff}]/gu, wide);
}
