import { describe, expect, it } from "vitest";
import { program } from "../src/core/copy";
import { digest, fromHash, toHash } from "../src/core/permalink";
import { plainBody, scoreBody, streamBody } from "../src/core/request";
import { knownSettings, parseValue, showValue, sliderStep, withValue, type Parameter } from "../src/core/settings";

const draft = { model: "m", prompt: "Once", settings: { temperature: 0.5 }, seed: 7 };

describe("bodies", () => {
  it("hold only what was changed", () => expect(plainBody(draft)).toEqual({ model: "m", prompt: "Once", temperature: 0.5, seed: 7 }));
  it("have no extension in the strict profile", () => {
    expect(streamBody(draft, { isStrict: true })).toEqual({ ...plainBody(draft), logprobs: 5, stream: true, stream_options: { include_usage: true } });
    expect(streamBody(draft, { isStrict: false })).toMatchObject({ return_token_ids: true, stream_options: { resumable: true } });
  });
  it("send suffix and prediction where there is one, empty ones too", () => {
    expect(plainBody({ ...draft, suffix: "", prediction: "x" })).toMatchObject({ suffix: "", prediction: { type: "content", content: "x" } });
  });
  it("have no seed where none is sent", () => expect(plainBody({ ...draft, seed: null })).not.toHaveProperty("seed"));
  it("generate nothing to score a text", () => expect(scoreBody("m", "x")).toMatchObject({ max_tokens: 0, echo: true }));
});

describe("permalinks", () => {
  const shared = { ...draft, prompt: 'é🦊 "\n'.repeat(200), suffix: "end", fingerprint: "fp", digest: "d" };

  it("hold everything, and are short", async () => {
    const hash = await toHash(shared);
    expect(hash).toMatch(/^#p=[\w-]+$/);
    expect(hash.length).toBeLessThan(300);
    expect(await fromHash(hash)).toEqual(shared);
    expect(await fromHash(await toHash({ ...shared, seed: null }))).toEqual({ ...shared, seed: null });
  });

  it("are none where the address holds none", async () => expect(await fromHash("#other")).toBe(null));

  it.each(["#p=", "#p=%%%", "#p=AAAA"])("that are damaged are reported: %s", async (hash) => {
    await expect(fromHash(hash)).rejects.toThrow("damaged");
  });

  it("of other versions are reported", async () => {
    const hash = await toHash({ ...shared, prompt: 5 as unknown as string });
    await expect(fromHash(hash)).rejects.toThrow("another version");
  });

  it("that are cut are reported", async () => {
    await expect(fromHash((await toHash(shared)).slice(0, -9))).rejects.toThrow("damaged");
  });

  it("tell texts apart", () => {
    const digests = [["a", "b"], ["ab"], ["ab", ""], ["b", "a"], []].map(digest);
    expect(new Set(digests).size).toBe(digests.length);
    expect(digest(["a"])).toMatch(/^[0-9a-f]{16}$/);
  });
});

const row = (kind: string, fields: Partial<Parameter> = {}): Parameter => ({ name: "x", kind, group: "sampling", help: "", ...fields });

describe("settings", () => {
  it.each([
    [row("number", { minimum: 0, maximum: 2 }), "0.5", 0.5],
    [row("integer"), "7", 7],
    [row("boolean"), "false", false],
    [row("string"), "me", "me"],
    [row("stop"), "\\n\nEND\n\\\\", ["\n", "END", "\\"]],
    [row("token_ids"), "1, 2", [1, 2]],
    [row("logit_bias"), '{"5":-100}', { 5: -100 }],
  ])("are read from what is typed and shown again: %j", (parameter, typed, value) => {
    expect(parseValue(parameter, typed)).toEqual(value);
    expect(parseValue(parameter, showValue(parameter, value))).toEqual(value);
  });

  it.each([
    [row("number"), "abc", "a number"],
    [row("integer"), "1.5", "whole"],
    [row("number", { minimum: 0 }), "-1", "minimum is 0"],
    [row("number", { maximum: 2 }), "3", "maximum is 2"],
    [row("token_ids"), "a", "token ids"],
    [row("logit_bias", { example: { 5: 1 } }), "{", '{"5":1}'],
  ])("that are wrong are explained: %j %s", (parameter, typed, message) => {
    expect(() => parseValue(parameter, typed)).toThrow(message);
  });

  it("are none where nothing is typed, or the default", () => {
    expect(parseValue(row("number"), " ")).toBe(undefined);
    expect(parseValue(row("stop"), "\n")).toBe(undefined);
    expect(withValue({ x: 2 }, row("number", { default: 1 }), 1)).toEqual({});
    expect(withValue({}, row("number", { default: 1 }), 2)).toEqual({ x: 2 });
  });

  it("have a slider where one is fine enough", () => {
    expect(sliderStep(row("number", { minimum: 0, maximum: 2 }))).toBe(0.05);
    expect(sliderStep(row("integer", { minimum: 1, maximum: 128 }))).toBe(1);
    expect(sliderStep(row("number", { minimum: 0.01, maximum: 100 }))).toBe(undefined);
  });

  it("of other servers are dropped", () => expect(knownSettings({ x: 1, y: 2 }, [row("number")])).toEqual({ x: 1 }));
});

describe("programs", () => {
  const body = { ...plainBody({ ...draft, prompt: "it's 🦊\n" }), min_p: 0.1, echo: true };
  it("quote for a shell", () => expect(program("curl", body, "http://x/", false)).toContain("it'\\''s \\ud83e\\udd8a\\n"));
  it("are Python, with extensions apart", () => {
    const source = program("python", body, "http://x/", true);
    expect(source).toContain('prompt="it\'s \\U0001f98a\\n"');
    expect(source).toContain("echo=True");
    expect(source).toContain('extra_body={"min_p": 0.1}');
    expect(source).toContain('os.environ["ONWARD_API_KEY"]');
  });
  it("never hold a key", () => expect(program("curl", body, "http://x/", true)).toContain("$ONWARD_API_KEY"));
});
